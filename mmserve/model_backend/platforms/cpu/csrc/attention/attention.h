// Attention over a paged KV cache (Dao et al. 2022). Blocks are read in place, for all query heads of a KV head
// together. A row's result does not depend on the number of rows and heads computed with it.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "aligned_memory.h"
#include "attention/bfloat16_cache.h"
#include "attention/float32_cache.h"
#include "attention/job.h"
#include "attention/pieces.h"
#include "linear/inputs.h"
#include "thread_pool.h"

namespace attention {

// `scaled`: room for one token's queries.
template <class Cache>
void gather_queries(const Job& job, const int64_t* t, int64_t kv_head, float* scaled, typename Cache::Input* rows) {
    const int64_t size = job.heads / job.kv_heads * job.dim;
    for (int64_t token = 0; token < t[1]; ++token) {
        const float* from = job.q + (t[0] + token) * job.q_stride + kv_head * size;
        for (int64_t i = 0; i < size; ++i) scaled[i] = from[i] * job.scale;
        Cache::store_inputs(scaled, size, rows + token * size);
    }
}

// The keys [first, end) that a row attends to.
struct Reach {
    int64_t first, end;
};

// Consecutive query tokens of one sequence, for some KV heads. A row is a query head of a token.
template <class Cache>
struct QueryTile {
    using Input = typename Cache::Input;
    Cache cache;
    int64_t rows;   // of one KV head
    int64_t heads;  // KV heads
    const Input* q;                   // [heads, rows, dim]
    float* out;                       // [heads, rows, cache.columns()]
    float* scores;                    // of a part: [heads, rows, kKeyTile]
    Input* weights;                   // the same; where the scores are if they have one type
    typename Cache::Softmax* softmax;  // [heads, rows]
    const Reach* reaches;             // [rows]

    // Adds what the rows find at the keys [from, end), which begin with a key tile.
    void attend(int64_t from, int64_t end) const {
        for (int64_t first = from; first < end; first += kKeyTile) {
            const int64_t last = std::min(end, first + kKeyTile);
            for_each_part(cache, heads, [&](const Part& part) {
                const int64_t row = part.head * rows;
                score_part(cache, part, q + row * cache.dim, rows, first, last, end, first == from, scores);
                for (int64_t h = 0; h < part.heads; ++h) weigh(row + h * rows, first, last, h * rows * kKeyTile);
                add_part(cache, part, weights, rows, first, last, end, out + row * cache.columns());
            });
        }
    }

private:
    // Turns a head's scores of the keys [first, last) into weights. Its first row and score are `row` and `at`.
    void weigh(int64_t row, int64_t first, int64_t last, int64_t at) const {
        const int64_t scored = (last - first + kBlock - 1) / kBlock * kBlock, columns = cache.columns();
        for (int64_t r = 0; r < rows; ++r, ++row, at += kKeyTile)
            softmax[row].update(scores + at, reaches[r].first - first, reaches[r].end - first, scored, weights + at,
                                out + row * columns, columns);
    }
};

// Room for all rows of a task.
template <class Cache>
struct Scratch {
    using Input = typename Cache::Input;
    float *out, *scores, *scaled;
    Input *q, *weights;
    typename Cache::Softmax softmax[kMaxRows];

    Scratch(int64_t rows, int64_t group, int64_t dim, int64_t columns) {
        out = memory::scratch<struct Results, float>(rows * (columns + kKeyTile) + group * dim);
        scores = out + rows * columns;
        scaled = scores + rows * kKeyTile;
        q = memory::scratch<struct Queries, Input>(rows * (dim + kKeyTile));
        if constexpr (std::is_same_v<Input, float>)
            weights = scores;
        else
            weights = q + rows * dim;
        std::fill(out, out + rows * columns, 0.f);
    }
};

// Divides a row's results by the sum of its weights.
template <class Softmax>
void store_result(const float* out, const Softmax& softmax, int64_t dim, float* to) {
    const float sum = softmax.sum();
    for (int64_t i = 0; i < dim; ++i) to[i] = out[i] / sum;
}

template <class Cache>
void attend_tile(const Job& job, const int64_t* t, int64_t first_head, int64_t heads) {
    const int64_t group = job.heads / job.kv_heads, rows = t[1] * group, dim = job.dim;
    const Cache cache(job, t[3], first_head);
    const int64_t columns = cache.columns();
    Scratch<Cache> s(heads * rows, group, dim, columns);
    Reach reaches[kMaxRows];
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = r / group, after = t[2] + token + 1;
        reaches[r] = {job.window ? after - job.window : 0, job.ends ? job.ends[t[0] + token] : after};
    }
    for (int64_t h = 0; h < heads; ++h) gather_queries<Cache>(job, t, first_head + h, s.scaled, s.q + h * rows * dim);
    // Key tiles lie at multiples of kKeyTile, so that a row's sums do not depend on the rows computed with it.
    const int64_t from = std::max<int64_t>(0, reaches[0].first) / kKeyTile * kKeyTile;
    QueryTile<Cache>{cache, rows, heads, s.q, s.out, s.scores, s.weights, s.softmax, reaches}.attend(
        from, reaches[rows - 1].end);  // the last token attends furthest
    for (int64_t r = 0; r < rows * heads; ++r) {
        const int64_t row = r % rows, head = (first_head + r / rows) * group + row % group;
        store_result(s.out + r * columns, s.softmax[r], dim, job.out + ((t[0] + row / group) * job.heads + head) * dim);
    }
}

// Of a piece of several tiles: all rows read what their sequences share, and then each tile's the rest of its own sequence.
// So every row's operations are those of attend_tile, in their order.
template <class Cache>
void attend_together(const Job& job, const Piece& piece, int64_t first_head, int64_t heads) {
    const int64_t group = job.heads / job.kv_heads, rows = piece.count * group, dim = job.dim;
    const Cache cache(job, piece.tiles[3], first_head);
    const int64_t columns = cache.columns();
    Scratch<Cache> s(heads * rows, group, dim, columns);
    Reach reaches[kMaxRows];
    for (int64_t r = 0; r < heads * rows; r += group)
        gather_queries<Cache>(job, piece.tile(r % rows / group), first_head + r / rows, s.scaled, s.q + r * dim);
    std::fill(reaches, reaches + rows, Reach{0, piece.shared});
    QueryTile<Cache>{cache, rows, heads, s.q, s.out, s.scores, s.weights, s.softmax, reaches}.attend(0, piece.shared);
    for (int64_t r = 0; r < heads * rows; r += group) {
        const int64_t *t = piece.tile(r % rows / group), head = first_head + r / rows;
        std::fill(reaches, reaches + group, Reach{0, t[2] + 1});
        QueryTile<Cache>{Cache(job, t[3], head), group,     1,       s.q + r * dim, s.out + r * columns,
                         s.scores,               s.weights, s.softmax + r, reaches}
            .attend(piece.shared, t[2] + 1);
        for (int64_t row = r; row < r + group; ++row)
            store_result(s.out + row * columns, s.softmax[row], dim,
                         job.out + (t[0] * job.heads + head * group + row - r) * dim);
    }
}

template <class Cache>
void attend(const Job& job, const Piece& piece, int64_t first_head, int64_t heads) {
    if (piece.count == 1) return attend_tile<Cache>(job, piece.tiles, first_head, heads);
    attend_together<Cache>(job, piece, first_head, heads);
}

// A piece of few rows, such as a decoding sequence, is one task with all heads: their keys are neighbours in memory,
// which is then read in order. A piece of many rows, or any piece if there are fewer pieces than threads, is one task per
// KV head.
template <class Cache>
void run(const Job& job, int64_t tiles) {
    const int64_t threads = pool::shared().num_threads();
    const std::vector<Piece> pieces = pieces_of(job, tiles, threads);
    const bool enough_pieces = static_cast<int64_t>(pieces.size()) >= threads;
    pool::parallel_for(pieces.size() * job.kv_heads, [&](int64_t task) {
        std::optional<linear::FlushDenormals> flush;
        if constexpr (Cache::kFlushes) flush.emplace();
        const Piece& piece = pieces[task / job.kv_heads];
        const int64_t head = task % job.kv_heads;
        const bool all_heads = enough_pieces && piece.count * piece.tiles[1] * job.heads <= kMaxRows;
        if (!all_heads) attend<Cache>(job, piece, head, 1);
        if (all_heads && head == 0) attend<Cache>(job, piece, 0, job.kv_heads);
    });
}

}  // namespace attention
