// Attention over a paged KV cache (Dao et al. 2022). Blocks are read in place, for all query heads of a KV head
// together. A row's result does not depend on the number of rows and heads computed with it, nor on how many threads read
// its keys: these are divided into segments at fixed positions, and what is found in them is added in their order.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "attention/job.h"
#include "attention/kv_cache.h"
#include "attention/query_tile.h"
#include "attention/segments.h"
#include "attention/tasks.h"
#include "linear/inputs.h"
#include "parallel.h"

namespace attention {

template <class Softmax>
void store_tile(const Job& job, const int64_t* t, int64_t first_head, int64_t heads, const Found<Softmax>& rows) {
    const int64_t group = job.heads / job.kv_heads, count = t[1] * group;
    for (int64_t r = 0; r < count * heads; ++r) {
        const int64_t row = r % count, head = (first_head + r / count) * group + row % group;
        store_result(rows.from(r, job.dim), job.dim, job.out + ((t[0] + row / group) * job.heads + head) * job.dim);
    }
}

// Calls use(rows) with what the tile's rows found at the keys `keys`, a part of the tile's reach.
template <class Cache, class Use>
void attend_tile(const Job& job, const int64_t* t, int64_t first_head, int64_t heads, const Reach& keys, const Use& use) {
    const int64_t group = job.heads / job.kv_heads, rows = t[1] * group, dim = job.dim;
    const Cache cache(job, t[3], first_head);
    Scratch<Cache> s(heads * rows, group, dim);
    Reach reaches[kMaxRows];
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = r / group, after = t[2] + token + 1;
        reaches[r] = {job.window ? after - job.window : 0, job.ends ? job.ends[t[0] + token] : after};
    }
    for (int64_t h = 0; h < heads; ++h) gather_queries<Cache>(job, t, first_head + h, s.scaled, s.q + h * rows * dim);
    const QueryTile<Cache> tile{cache, rows, heads, s.q, s.scores, s.weights, s.segment, s.row, reaches};
    tile.attend(keys.first, keys.end, reaches[rows - 1].end);
    tile.end_segment();
    use(s.row);
}

// Of a piece of several tiles: all rows read what their sequences share, and then each tile's the rest of its own sequence.
// So every row's operations are those of attend_tile, in their order.
template <class Cache>
void attend_together(const Job& job, const Piece& piece, int64_t first_head, int64_t heads) {
    const int64_t group = job.heads / job.kv_heads, rows = piece.count * group, dim = job.dim;
    const Cache cache(job, piece.tiles[3], first_head);
    Scratch<Cache> s(heads * rows, group, dim);
    Reach reaches[kMaxRows];
    for (int64_t r = 0; r < heads * rows; r += group)
        gather_queries<Cache>(job, piece.tile(r % rows / group), first_head + r / rows, s.scaled, s.q + r * dim);
    std::fill(reaches, reaches + rows, Reach{0, piece.shared});
    QueryTile<Cache>{cache, rows, heads, s.q, s.scores, s.weights, s.segment, s.row, reaches}.attend(0, piece.shared, piece.shared);
    for (int64_t r = 0; r < heads * rows; r += group) {
        const int64_t *t = piece.tile(r % rows / group), head = first_head + r / rows;
        std::fill(reaches, reaches + group, Reach{0, t[2] + 1});
        const Found row = s.row.from(r, dim);
        const QueryTile<Cache> own{Cache(job, t[3], head), group, 1, s.q + r * dim, s.scores, s.weights,
                                   s.segment.from(r, dim), row, reaches};
        own.attend(piece.shared, t[2] + 1, t[2] + 1);
        own.end_segment();
        store_tile(job, t, head, 1, row);
    }
}

template <class Cache>
void run_task(const Job& job, const Task& task, const Found<typename Cache::Softmax>& stored) {
    const Piece& piece = *task.piece;
    if (piece.count > 1) return attend_together<Cache>(job, piece, task.first_head, task.heads);
    attend_tile<Cache>(job, piece.tiles, task.first_head, task.heads, task.keys, [&](const auto& rows) {
        if (!task.is_segment()) return store_tile(job, piece.tiles, task.first_head, task.heads, rows);
        const int64_t count = task.rows(job);
        const auto to = stored.from(task.stored_at, job.dim);
        std::copy(rows.out, rows.out + count * job.dim, to.out);
        std::copy(rows.softmax, rows.softmax + count, to.softmax);
    });
}

// Threads of a team share the memory of segments.
template <class Cache>
void run(const Job& job, int64_t tiles, SegmentMemory& memory) {
    using Softmax = typename Cache::Softmax;
    struct KeepDenormals {};
    using Denormals = std::conditional_t<Cache::kFlushes, linear::FlushDenormals, KeepDenormals>;
    const int64_t threads = pool::shared().num_threads();
    const std::vector<Piece> pieces = pieces_of(job, tiles, threads);
    const std::vector<Task> tasks = tasks_of(job, pieces, threads);
    int64_t num_stored = 0;
    for (const Task& task : tasks) num_stored += task.is_segment() ? task.rows(job) : 0;
    if (num_stored) pool::once([&] { memory.reserve<Softmax>(num_stored, job.dim); });
    pool::parallel_for(tasks.size(), [&](int64_t task) {
        [[maybe_unused]] const Denormals denormals{};
        run_task<Cache>(job, tasks[task], memory.rows<Softmax>());
    });
    if (!num_stored) return;
    pool::once([&] {
        [[maybe_unused]] const Denormals denormals{};
        add_segments(job, tasks, memory.rows<Softmax>(), [&](const Task& task, const auto& rows) {
            store_tile(job, task.piece->tiles, task.first_head, task.heads, rows);
        });
    });
}

}  // namespace attention
