// Attention over a paged KV cache (Dao et al. 2022). Blocks are read in place, for all query heads of a KV head
// together. A row's result does not depend on the number of rows and heads computed with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aligned_memory.h"
#include "softmax.h"
#include "thread_pool.h"
#include "tile.h"

namespace attention {

using tile::f32x8;

constexpr int64_t kBlock = 16;    // tokens of a KV block
constexpr int64_t kKeyTile = 64;  // tokens between two updates of the softmax
constexpr int64_t kMaxRows = 48;  // query rows (tokens x heads) of one task

struct Job {
    const float* q;         // [T, heads, dim], rows q_stride apart
    const float* layer_kv;  // [blocks, 16, 2, kv_heads, dim]
    const int64_t* tables;  // block tables, table_stride apart
    const int64_t* tiles;   // [tiles, 4]: first token, number of tokens, position of the first, block table
    float* out;             // [T, heads, dim]
    int64_t q_stride, table_stride, heads, kv_heads, dim;
    float scale;         // of the products of queries and keys
    bool causal = true;  // if false, a row attends up to the last position of its tile
    int64_t window = 0;  // if not 0, a row attends to this many positions up to its own, and to none before them
    const int64_t* ends = nullptr;  // if not null: of each token, the position after the last that it attends to
};

// Keys and values of consecutive KV heads of one sequence. Tokens of a block are `stride` apart.
struct KvCache {
    const float* keys;
    const int64_t* table;
    int64_t stride, to_values, dim;

    const float* key(int64_t token, int64_t head) const {
        return keys + table[token / kBlock] * kBlock * stride + head * dim;
    }
    const float* value(int64_t token, int64_t head) const { return key(token, head) + to_values; }
    // Columns of a row of results: a multiple of 16. Where `dim` is no multiple of 16, 8 numbers behind each head are read.
    int64_t columns() const { return (dim + 15) / 16 * 16; }
};

inline void gather_queries(const Job& job, const int64_t* t, int64_t kv_head, float* rows) {
    const int64_t group = job.heads / job.kv_heads;
    for (int64_t token = 0; token < t[1]; ++token) {
        const float* from = job.q + (t[0] + token) * job.q_stride + kv_head * group * job.dim;
        for (int64_t i = 0; i < group * job.dim; ++i) rows[token * group * job.dim + i] = from[i] * job.scale;
    }
}

// Stores the horizontal sums of four vectors.
inline void store_sums(f32x8 a, f32x8 b, f32x8 c, f32x8 d, float* to) {
    typedef float f32x4 __attribute__((vector_size(16)));
    using tile::i32x8;
    constexpr i32x8 kLow{0, 8, 1, 9, 4, 12, 5, 13}, kHigh{2, 10, 3, 11, 6, 14, 7, 15};
    const f32x8 ab = __builtin_shuffle(a, b, kLow) + __builtin_shuffle(a, b, kHigh);
    const f32x8 cd = __builtin_shuffle(c, d, kLow) + __builtin_shuffle(c, d, kHigh);
    constexpr i32x8 kFirst{0, 1, 8, 9, 4, 5, 12, 13}, kSecond{2, 3, 10, 11, 6, 7, 14, 15};
    const f32x8 all = __builtin_shuffle(ab, cd, kFirst) + __builtin_shuffle(ab, cd, kSecond);
    f32x4 halves[2];
    std::memcpy(halves, &all, sizeof all);
    halves[0] += halves[1];
    std::memcpy(to, halves, sizeof halves[0]);
}

constexpr int kTokens = 4;  // scored together

// Scores of R rows and kTokens neighbouring tokens.
template <int R>
inline void score_tokens(const float* q, const float* keys, int64_t stride, int64_t dim, float* scores) {
    f32x8 sums[R][kTokens];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < kTokens; ++c) sums[r][c] = f32x8{};
    for (int64_t i = 0; i < dim; i += 8) {
        f32x8 row[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) row[r] = tile::keep_in_register(tile::load<f32x8>(q + r * dim + i));
#pragma GCC unroll 8
        for (int c = 0; c < kTokens; ++c) {
            const f32x8 key = tile::keep_in_register(tile::load<f32x8>(keys + c * stride + i));
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][c] += row[r] * key;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores + r * kKeyTile);
}

// Prefetches one head's keys or values of some tokens. They are too scattered for the CPU's own prefetcher. They go to
// the second-level cache, because the first level would lose them before their use. Prefetches are spread over the
// computation, a few at a time, because a CPU stalls with more than about 24 reads in flight.
inline void prefetch(const KvCache& cache, const float* from, int64_t tokens) {
    constexpr int64_t kLine = 16;
    for (int64_t token = 0; token < tokens; ++token)
        for (int64_t i = 0; i < cache.dim; i += kLine) __builtin_prefetch(from + token * cache.stride + i, 0, 1);
}

// Scores of all rows and one block. Prefetches the keys and values of other blocks, unless they are null.
inline void score_block(const KvCache& cache, const float* q, int64_t rows, const float* keys, const float* next_keys,
                        const float* values, float* scores) {
    for (int64_t j = 0; j < kBlock; j += kTokens) {
        const float* tokens = keys + j * cache.stride;
        if (next_keys) prefetch(cache, next_keys + j * cache.stride, kTokens);
        if (values) prefetch(cache, values + j * cache.stride, kTokens);
        int64_t r = 0;
        for (; r + 3 <= rows; r += 3)
            score_tokens<3>(q + r * cache.dim, tokens, cache.stride, cache.dim, scores + r * kKeyTile + j);
        if (rows - r == 2)
            score_tokens<2>(q + r * cache.dim, tokens, cache.stride, cache.dim, scores + r * kKeyTile + j);
        if (rows - r == 1)
            score_tokens<1>(q + r * cache.dim, tokens, cache.stride, cache.dim, scores + r * kKeyTile + j);
    }
}

// out += weights values, of M rows; C x 8 columns at a time. Columns of `out` behind the last of a head are not used.
template <int M, int C>
inline void add_values(const KvCache& cache, const float* weights, const float* values, int64_t tokens, float* out) {
    const int64_t columns = cache.columns();
    int64_t i = 0;
    for (; i + C * 8 <= columns; i += C * 8)
        tile::product<M, C>(tokens, weights, kKeyTile, values + i, cache.stride, out + i, columns, {nullptr, true});
    for (; i < columns; i += 16)
        tile::product<M, 2>(tokens, weights, kKeyTile, values + i, cache.stride, out + i, columns, {nullptr, true});
}

inline void add_values(const KvCache& cache, const float* weights, int64_t rows, const float* values, int64_t tokens,
                       float* out) {
    for (int64_t r = 0; r < rows; r += tile::kMaxRows) {
        const float* from = weights + r * kKeyTile;
        float* to = out + r * cache.columns();
        tile::dispatch_rows(rows - r, [&](auto m) {
            constexpr int kVectors = m == 1 ? 8 : m <= 3 ? 4 : 2;  // as many sums as fit the registers
            add_values<m, kVectors>(cache, from, values, tokens, to);
        });
    }
}

// Consecutive query tokens of one sequence, for some KV heads. A row is a query head of a token.
struct QueryTile {
    KvCache cache;
    int64_t rows;      // of one KV head
    int64_t heads;     // KV heads
    int64_t group;     // query heads of a KV head
    int64_t position;  // of the first token
    bool causal;
    int64_t window;       // 0: none
    const int64_t* ends;  // of each token, or null
    float* q;        // [heads, rows, dim]
    float* out;      // [heads, rows, cache.columns()]
    float* scores;   // [heads, rows, kKeyTile]

    // The first key tile that a row attends to. Tiles lie at multiples of kKeyTile, so that a row's sums do not depend
    // on the rows computed with it.
    int64_t first_token() const { return window ? std::max<int64_t>(0, position - window + 1) / kKeyTile * kKeyTile : 0; }

    // Scores of tokens [first, last) of a sequence of `end` tokens. Prefetches the next block's keys, and the values of
    // the first key tile; those of later ones are prefetched by add_key_tile.
    void score_key_tile(int64_t first, int64_t last, int64_t end) const {
        for (int64_t token = first; token < last; token += kBlock)
            for (int64_t h = 0; h < heads; ++h)
                score_block(cache, q + h * rows * cache.dim, rows, cache.key(token, h),
                      token + kBlock < end ? cache.key(token + kBlock, h) : nullptr,
                      first == first_token() ? cache.value(token, h) : nullptr, scores + h * rows * kKeyTile + token - first);
    }

    void update_softmax(int64_t first, int64_t last, softmax::OnlineSoftmax* softmax) const {
        const int64_t scored = (last - first + kBlock - 1) / kBlock * kBlock;
        for (int64_t r = 0; r < rows * heads; ++r) {
            const int64_t token = r % rows / group, after = position + token + 1;
            const int64_t end = ends ? ends[token] : causal ? after : last;
            const int64_t hidden = window ? after - window - first : 0;
            softmax[r].update(scores + r * kKeyTile, hidden, end - first, scored, out + r * cache.columns(),
                              cache.columns());
        }
    }

    // Adds the weighted values of tokens [first, last). Prefetches the values of the next key tile. Rows of a block
    // beyond the sequence's end hold values of other sequences and must not be used.
    void add_key_tile(int64_t first, int64_t last, int64_t end) const {
        for (int64_t token = first; token < last; token += kBlock)
            for (int64_t h = 0; h < heads; ++h) {
                if (token + kKeyTile < end) prefetch(cache, cache.value(token + kKeyTile, h), kBlock);
                add_values(cache, scores + h * rows * kKeyTile + token - first, rows, cache.value(token, h),
                           std::min(kBlock, last - token), out + h * rows * cache.columns());
            }
    }
};

inline void attend_tile(const Job& job, const int64_t* t, int64_t first_head, int64_t heads) {
    const int64_t group = job.heads / job.kv_heads, rows = t[1] * group, dim = job.dim;
    const int64_t* ends = job.ends ? job.ends + t[0] : nullptr;
    const int64_t end = ends ? ends[t[1] - 1] : t[2] + t[1];  // of the last token, which attends furthest
    const KvCache cache{job.layer_kv + first_head * dim, job.tables + t[3] * job.table_stride, 2 * job.kv_heads * dim,
                      job.kv_heads * dim, dim};
    const int64_t columns = cache.columns();
    static thread_local memory::ReusableArray<float> buffer;
    float* q = buffer.at_least(heads * rows * (dim + columns + kKeyTile));
    float *out = q + heads * rows * dim, *scores = out + heads * rows * columns;
    const QueryTile tile{cache, rows, heads, group, t[2], job.causal, job.window, ends, q, out, scores};
    softmax::OnlineSoftmax softmax[kMaxRows];
    for (int64_t h = 0; h < heads; ++h) gather_queries(job, t, first_head + h, q + h * rows * dim);
    std::fill(out, out + heads * rows * columns, 0.f);
    for (int64_t first = tile.first_token(); first < end; first += kKeyTile) {
        const int64_t last = std::min(end, first + kKeyTile);
        tile.score_key_tile(first, last, end);
        tile.update_softmax(first, last, softmax);
        tile.add_key_tile(first, last, end);
    }
    for (int64_t r = 0; r < rows * heads; ++r) {
        const int64_t row = r % rows, head = (first_head + r / rows) * group + row % group;
        float* to = job.out + ((t[0] + row / group) * job.heads + head) * dim;
        const float sum = softmax[r].sum();
        for (int64_t i = 0; i < dim; ++i) to[i] = out[r * columns + i] / sum;
    }
}

// A tile of few rows, such as a decoding sequence, is one task with all heads: their keys are neighbours in memory,
// which is then read in order. A tile of many rows, or any tile if there are fewer tiles than threads, is one task per
// KV head.
inline void run(const Job& job, int64_t tiles) {
    const bool enough_tiles = tiles >= pool::shared().num_threads();
    pool::parallel_for(tiles * job.kv_heads, [&](int64_t task) {
        const int64_t *t = job.tiles + task / job.kv_heads * 4, head = task % job.kv_heads;
        const bool all_heads = enough_tiles && t[1] * job.heads <= kMaxRows;
        if (!all_heads) attend_tile(job, t, head, 1);
        if (all_heads && head == 0) attend_tile(job, t, 0, job.kv_heads);
    });
}

}  // namespace attention
