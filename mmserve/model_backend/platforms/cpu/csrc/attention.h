// Attention over a paged KV cache, blocks read where they are, for all query heads of a key head together (Dao et al.
// 2022). A number is the same whatever the number of rows and heads beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pool.h"
#include "scratch.h"
#include "softmax.h"
#include "tile.h"

namespace attention {

using tile::f32x8;

constexpr int64_t kBlock = 16;    // tokens of a KV block
constexpr int64_t kSpan = 64;     // tokens whose scores become weights together
constexpr int64_t kMaxRows = 48;  // query rows (tokens x heads) of one piece of work

struct Job {
    const float* q;         // [T, heads, dim], rows q_stride apart
    const float* layer_kv;  // [blocks, 16, 2, kv_heads, dim]
    const int64_t* tables;  // block tables, table_stride apart
    const int64_t* tiles;   // [tiles, 4]: first row, rows, position of the first, table
    float* out;             // [T, heads, dim]
    int64_t q_stride, table_stride, heads, kv_heads, dim;
    bool causal = true;  // else a row sees its tile's last position and all before it
};

// The keys and values of one head: blocks of tokens that are `stride` apart.
struct Cache {
    const float* keys;
    const int64_t* table;
    int64_t stride, to_values, dim;

    const float* keys_of(int64_t token, int64_t head) const {
        return keys + table[token / kBlock] * kBlock * stride + head * dim;
    }
    const float* values_of(int64_t token, int64_t head) const { return keys_of(token, head) + to_values; }
};

inline void gather_queries(const Job& job, const int64_t* t, int64_t kv_head, float* rows) {
    const int64_t group = job.heads / job.kv_heads;
    const float scale = 1.f / std::sqrt(static_cast<float>(job.dim));
    for (int64_t token = 0; token < t[1]; ++token) {
        const float* from = job.q + (t[0] + token) * job.q_stride + kv_head * group * job.dim;
        for (int64_t i = 0; i < group * job.dim; ++i) rows[token * group * job.dim + i] = from[i] * scale;
    }
}

// The sums of four vectors -> four numbers.
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

// Scores of R rows and so many neighbouring tokens.
template <int R>
inline void dots(const float* q, const float* keys, int64_t stride, int64_t dim, float* scores) {
    f32x8 sums[R][kTokens];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < kTokens; ++c) sums[r][c] = f32x8{};
    for (int64_t i = 0; i < dim; i += 8) {
        f32x8 row[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) row[r] = tile::in_register(tile::load<f32x8>(q + r * dim + i));
#pragma GCC unroll 8
        for (int c = 0; c < kTokens; ++c) {
            const f32x8 key = tile::in_register(tile::load<f32x8>(keys + c * stride + i));
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][c] += row[r] * key;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores + r * kSpan);
}

// A head's keys, or values, are scattered over a block's tokens, more than the CPU would foresee. They go to the second
// level: the first does not hold what is fetched so far ahead. A few at a time and spread over everything that is
// computed: a CPU has about 24 reads in flight, and waits with the next one.
inline void fetch(const Cache& cache, const float* from, int64_t tokens) {
    constexpr int64_t kLine = 16;
    for (int64_t token = 0; token < tokens; ++token)
        for (int64_t i = 0; i < cache.dim; i += kLine) __builtin_prefetch(from + token * cache.stride + i, 0, 1);
}

// Scores of all rows and a block. Two other blocks, or null, are fetched meanwhile.
inline void score(const Cache& cache, const float* q, int64_t rows, const float* keys, const float* next_keys,
                  const float* values, float* scores) {
    for (int64_t j = 0; j < kBlock; j += kTokens) {
        const float* some = keys + j * cache.stride;
        if (next_keys) fetch(cache, next_keys + j * cache.stride, kTokens);
        if (values) fetch(cache, values + j * cache.stride, kTokens);
        int64_t r = 0;
        for (; r + 3 <= rows; r += 3)
            dots<3>(q + r * cache.dim, some, cache.stride, cache.dim, scores + r * kSpan + j);
        if (rows - r == 2) dots<2>(q + r * cache.dim, some, cache.stride, cache.dim, scores + r * kSpan + j);
        if (rows - r == 1) dots<1>(q + r * cache.dim, some, cache.stride, cache.dim, scores + r * kSpan + j);
    }
}

// mixed += weights values, of M rows; P x 16 columns at a time.
template <int M, int P>
inline void mix_rows(const Cache& cache, const float* weights, const float* values, int64_t tokens, float* mixed) {
    int64_t i = 0;
    for (; i + P * 16 <= cache.dim; i += P * 16)
        tile::product<M, P, false>(tokens, weights, kSpan, values + i, cache.stride, mixed + i, cache.dim,
                                    {nullptr, true});
    for (; i < cache.dim; i += 16)
        tile::product<M, 1, false>(tokens, weights, kSpan, values + i, cache.stride, mixed + i, cache.dim,
                                    {nullptr, true});
}

inline void mix(const Cache& cache, const float* weights, int64_t rows, const float* values, int64_t tokens,
                float* mixed) {
    for (int64_t r = 0; r < rows; r += tile::kMaxRows) {
        const float* from = weights + r * kSpan;
        float* to = mixed + r * cache.dim;
        tile::with_rows(rows - r, [&](auto m) {
            constexpr int kPanels = m == 1 ? 4 : m <= 3 ? 2 : 1;  // as many sums as fit the registers
            mix_rows<m, kPanels>(cache, from, values, tokens, to);
        });
    }
}

// The rows of some heads and one sequence. `rows` is a head's.
struct Tile {
    Cache cache;
    int64_t rows, heads, group, position;
    bool causal;
    float *q, *mixed;  // [heads, rows, dim]
    float* scores;     // [heads, rows, kSpan]

    // Meanwhile the next block's keys are fetched, and of the first span, whose values nobody has fetched, those too.
    void score_span(int64_t first, int64_t last, int64_t end) const {
        for (int64_t token = first; token < last; token += kBlock)
            for (int64_t h = 0; h < heads; ++h)
                score(cache, q + h * rows * cache.dim, rows, cache.keys_of(token, h),
                      token + kBlock < end ? cache.keys_of(token + kBlock, h) : nullptr,
                      first == 0 ? cache.values_of(token, h) : nullptr, scores + h * rows * kSpan + token - first);
    }

    void weigh_span(int64_t first, int64_t last, softmax::Softmax* weights) const {
        const int64_t scored = (last - first + kBlock - 1) / kBlock * kBlock;
        for (int64_t r = 0; r < rows * heads; ++r) {
            const int64_t end = causal ? position + r % rows / group + 1 : last;
            weights[r].take(scores + r * kSpan, end - first, scored, mixed + r * cache.dim, cache.dim);
        }
    }

    // Meanwhile the next span's values are fetched. Beyond the end of the sequence lies what other sequences left
    // behind: their rows must not be touched.
    void mix_span(int64_t first, int64_t last, int64_t end) const {
        for (int64_t token = first; token < last; token += kBlock)
            for (int64_t h = 0; h < heads; ++h) {
                if (token + kSpan < end) fetch(cache, cache.values_of(token + kSpan, h), kBlock);
                mix(cache, scores + h * rows * kSpan + token - first, rows, cache.values_of(token, h),
                    std::min(kBlock, last - token), mixed + h * rows * cache.dim);
            }
    }
};

inline void one_tile(const Job& job, const int64_t* t, int64_t first_head, int64_t heads) {
    const int64_t group = job.heads / job.kv_heads, rows = t[1] * group, dim = job.dim, end = t[2] + t[1];
    static thread_local scratch::Kept<float> memory;
    float* q = memory.at_least(heads * rows * (2 * dim + kSpan));
    float *mixed = q + heads * rows * dim, *scores = mixed + heads * rows * dim;
    const Cache cache{job.layer_kv + first_head * dim, job.tables + t[3] * job.table_stride, 2 * job.kv_heads * dim,
                      job.kv_heads * dim, dim};
    const Tile tile{cache, rows, heads, group, t[2], job.causal, q, mixed, scores};
    softmax::Softmax weights[kMaxRows];
    for (int64_t h = 0; h < heads; ++h) gather_queries(job, t, first_head + h, q + h * rows * dim);
    std::fill(mixed, mixed + heads * rows * dim, 0.f);
    for (int64_t first = 0; first < end; first += kSpan) {
        const int64_t last = std::min(end, first + kSpan);
        tile.score_span(first, last, end);
        tile.weigh_span(first, last, weights);
        tile.mix_span(first, last, end);
    }
    for (int64_t r = 0; r < rows * heads; ++r) {
        const int64_t row = r % rows, head = (first_head + r / rows) * group + row % group;
        float* to = job.out + ((t[0] + row / group) * job.heads + head) * dim;
        const float sum = weights[r].sum();
        for (int64_t i = 0; i < dim; ++i) to[i] = mixed[r * dim + i] / sum;
    }
}

// Few rows, as of a sequence that decodes, take all heads together, whose keys lie side by side: then memory is read in
// order. Many rows, and few tiles, are shared among the threads by heads.
inline void run(const Job& job, int64_t tiles) {
    const bool enough = tiles >= pool::shared().threads();
    pool::each(tiles * job.kv_heads, [&](int64_t piece) {
        const int64_t *t = job.tiles + piece / job.kv_heads * 4, head = piece % job.kv_heads;
        const bool together = enough && t[1] * job.heads <= kMaxRows;
        if (!together) one_tile(job, t, head, 1);
        if (together && head == 0) one_tile(job, t, 0, job.kv_heads);
    });
}

}  // namespace attention
