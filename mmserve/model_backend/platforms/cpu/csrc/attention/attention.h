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

// Consecutive query tokens of one sequence, for some KV heads. A row is a query head of a token.
template <class Cache>
struct QueryTile {
    Cache cache;
    int64_t rows;      // of one KV head
    int64_t heads;     // KV heads
    int64_t group;     // query heads of a KV head
    int64_t position;  // of the first token
    int64_t window;       // 0: none
    const int64_t* ends;  // of each token, or null
    float* out;                // [heads, rows, cache.columns()]
    float* scores;             // [heads, rows, kKeyTile]
    typename Cache::Input* weights;  // the same; where the scores are if they have one type

    // The first key tile that a row attends to. Tiles lie at multiples of kKeyTile, so that a row's sums do not depend
    // on the rows computed with it.
    int64_t first_token() const { return window ? std::max<int64_t>(0, position - window + 1) / kKeyTile * kKeyTile : 0; }

    void update_softmax(int64_t first, int64_t last, typename Cache::Softmax* softmax) const {
        const int64_t scored = (last - first + kBlock - 1) / kBlock * kBlock;
        for (int64_t r = 0; r < rows * heads; ++r) {
            const int64_t token = r % rows / group, after = position + token + 1;
            const int64_t end = ends ? ends[token] : after;
            const int64_t hidden = window ? after - window - first : 0;
            softmax[r].update(scores + r * kKeyTile, hidden, end - first, scored, weights + r * kKeyTile,
                              out + r * cache.columns(), cache.columns());
        }
    }
};

template <class Cache>
void attend_tile(const Job& job, const int64_t* t, int64_t first_head, int64_t heads) {
    using Input = typename Cache::Input;
    const int64_t group = job.heads / job.kv_heads, rows = t[1] * group, dim = job.dim;
    const int64_t* ends = job.ends ? job.ends + t[0] : nullptr;
    const int64_t end = ends ? ends[t[1] - 1] : t[2] + t[1];  // of the last token, which attends furthest
    const Cache cache(job, t[3], first_head);
    const int64_t columns = cache.columns();
    float* out = memory::scratch<struct Results, float>(heads * rows * (columns + kKeyTile) + group * dim);
    float *scores = out + heads * rows * columns, *scaled = scores + heads * rows * kKeyTile;
    Input *q = memory::scratch<struct Queries, Input>(heads * rows * (dim + kKeyTile)), *weights = q + heads * rows * dim;
    if constexpr (std::is_same_v<Input, float>) weights = scores;
    const QueryTile<Cache> tile{cache, rows, heads, group, t[2], job.window, ends, out, scores, weights};
    typename Cache::Softmax softmax[kMaxRows];
    for (int64_t h = 0; h < heads; ++h) gather_queries<Cache>(job, t, first_head + h, scaled, q + h * rows * dim);
    std::fill(out, out + heads * rows * columns, 0.f);
    for (int64_t first = tile.first_token(); first < end; first += kKeyTile) {
        const int64_t last = std::min(end, first + kKeyTile);
        score_tile(cache, q, rows, heads, first, last, end, first == tile.first_token(), scores);
        tile.update_softmax(first, last, softmax);
        add_tile(cache, weights, rows, heads, first, last, end, out);
    }
    for (int64_t r = 0; r < rows * heads; ++r) {
        const int64_t row = r % rows, head = (first_head + r / rows) * group + row % group;
        float* to = job.out + ((t[0] + row / group) * job.heads + head) * dim;
        const float sum = softmax[r].sum();
        for (int64_t i = 0; i < dim; ++i) to[i] = out[r * columns + i] / sum;
    }
}

// Adds what the rows of a tile find at the keys [from, end), which begin with a key tile. q: [heads, rows, dim].
template <class Cache>
void attend_keys(const QueryTile<Cache>& tile, const typename Cache::Input* q, int64_t from, int64_t end,
                 typename Cache::Softmax* softmax) {
    for (int64_t first = from; first < end; first += kKeyTile) {
        const int64_t last = std::min(end, first + kKeyTile);
        score_tile(tile.cache, q, tile.rows, tile.heads, first, last, end, first == from, tile.scores);
        tile.update_softmax(first, last, softmax);
        add_tile(tile.cache, tile.weights, tile.rows, tile.heads, first, last, end, tile.out);
    }
}

// Of a piece of several tiles: all rows read what their sequences share, and then each tile's the rest of its own sequence.
// So every row's operations are those of attend_tile, in their order.
template <class Cache>
void attend_together(const Job& job, const Piece& piece, int64_t first_head, int64_t heads) {
    using Input = typename Cache::Input;
    const int64_t group = job.heads / job.kv_heads, rows = piece.count * group, dim = job.dim;
    const Cache cache(job, piece.tiles[3], first_head);
    const int64_t columns = cache.columns();
    float* out = memory::scratch<struct Results, float>(heads * rows * (columns + kKeyTile) + group * dim);
    float *scores = out + heads * rows * columns, *scaled = scores + heads * rows * kKeyTile;
    Input *q = memory::scratch<struct Queries, Input>(heads * rows * (dim + kKeyTile)), *weights = q + heads * rows * dim;
    if constexpr (std::is_same_v<Input, float>) weights = scores;
    typename Cache::Softmax softmax[kMaxRows];
    std::fill(out, out + heads * rows * columns, 0.f);
    for (int64_t r = 0; r < heads * rows; r += group)
        gather_queries<Cache>(job, piece.tile(r % rows / group), first_head + r / rows, scaled, q + r * dim);
    const QueryTile<Cache> all{cache, rows, heads, group, piece.shared, 0, nullptr, out, scores, weights};
    attend_keys(all, q, 0, piece.shared, softmax);
    for (int64_t r = 0; r < heads * rows; r += group) {
        const int64_t *t = piece.tile(r % rows / group), head = first_head + r / rows;
        const QueryTile<Cache> own{Cache(job, t[3], head), group, 1, group, t[2], 0, nullptr, out + r * columns,
                                   scores + r * kKeyTile, weights + r * kKeyTile};
        attend_keys(own, q + r * dim, piece.shared, t[2] + 1, softmax + r);
        for (int64_t row = r; row < r + group; ++row) {
            float* to = job.out + (t[0] * job.heads + head * group + row - r) * dim;
            const float sum = softmax[row].sum();
            for (int64_t i = 0; i < dim; ++i) to[i] = out[row * columns + i] / sum;
        }
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
