// A KV cache in float32: [blocks, 16, 2, kv_heads, dim]. K and V of a token are adjacent.
#pragma once

#include <cstdint>
#include <cstring>

#include "attention/job.h"
#include "tile.h"

namespace attention {

using tile::f32x8;

// Keys and values of consecutive KV heads of one sequence. Tokens of a block are `stride` apart.
struct Float32Cache : ExactInputs {
    const float* keys;
    const int64_t* table;
    int64_t stride, to_values, dim;

    Float32Cache(const Job& job, int64_t sequence, int64_t first_head)
        : keys(static_cast<const float*>(job.layer_kv) + first_head * job.dim),
          table(job.tables + sequence * job.table_stride),
          stride(2 * job.kv_heads * job.dim),
          to_values(job.kv_heads * job.dim),
          dim(job.dim) {}

    static void store(float* layer_kv, int64_t slot, const float* kv, int64_t kv_heads, int64_t dim) {
        std::memcpy(layer_kv + slot * 2 * kv_heads * dim, kv, 2 * kv_heads * dim * sizeof(float));
    }

    const float* key(int64_t token, int64_t head) const {
        return keys + table[token / kBlock] * kBlock * stride + head * dim;
    }
    const float* value(int64_t token, int64_t head) const { return key(token, head) + to_values; }
    // Columns of a row of results: a multiple of 16. Where `dim` is no multiple of 16, 8 numbers behind each head are read.
    int64_t columns() const { return (dim + 15) / 16 * 16; }
};

using tile::Columns;

constexpr int kTokens = 4;                             // scored together
constexpr int kHalves = 8 / tile::kLanes<Columns>;  // of 8 numbers

#ifdef __aarch64__

// The horizontal sums of four vectors.
inline tile::f32x4 sums_of(const tile::f32x4 (&of)[kTokens][kHalves], int half) {
    using tile::i32x4;
    constexpr i32x4 kLow{0, 4, 1, 5}, kHigh{2, 6, 3, 7}, kFirst{0, 1, 4, 5}, kSecond{2, 3, 6, 7};
    const auto add = [&](int first, i32x4 one, i32x4 other) {
        const tile::f32x4 a = of[first][half], b = of[first + 1][half];
        return __builtin_shuffle(a, b, one) + __builtin_shuffle(a, b, other);
    };
    const tile::f32x4 ab = add(0, kLow, kHigh), cd = add(2, kLow, kHigh);
    return __builtin_shuffle(ab, cd, kFirst) + __builtin_shuffle(ab, cd, kSecond);
}

inline void store_sums(const tile::f32x4 (&of)[kTokens][kHalves], float* to) {
    tile::store(to, sums_of(of, 0) + sums_of(of, 1));
}

#else

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

inline void store_sums(const f32x8 (&of)[kTokens][kHalves], float* to) {
    store_sums(of[0][0], of[1][0], of[2][0], of[3][0], to);
}

#endif

// Scores of R rows and kTokens neighbouring tokens.
template <int R>
inline void score_tokens(const float* q, const float* keys, int64_t stride, int64_t dim, float* scores) {
    Columns sums[R][kTokens][kHalves];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < kTokens; ++c)
            for (int half = 0; half < kHalves; ++half) sums[r][c][half] = Columns{};
    for (int64_t i = 0; i < dim; i += 8)
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
            const int64_t at = i + half * tile::kLanes<Columns>;
            Columns row[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) row[r] = tile::keep_in_register(tile::load<Columns>(q + r * dim + at));
#pragma GCC unroll 8
            for (int c = 0; c < kTokens; ++c) {
                const Columns key = tile::keep_in_register(tile::load<Columns>(keys + c * stride + at));
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) sums[r][c][half] += row[r] * key;
            }
        }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store_sums(sums[r], scores + r * kKeyTile);
}

// Prefetches one head's keys or values of some tokens. They are too scattered for the CPU's own prefetcher. They go to
// the second-level cache, because the first level would lose them before their use. Prefetches are spread over the
// computation, a few at a time, because a CPU stalls with more than about 24 reads in flight.
inline void prefetch(const Float32Cache& cache, const float* from, int64_t tokens) {
    constexpr int64_t kLine = 16;
    for (int64_t token = 0; token < tokens; ++token)
        for (int64_t i = 0; i < cache.dim; i += kLine) __builtin_prefetch(from + token * cache.stride + i, 0, 1);
}

// Scores of all rows and one block. Prefetches the keys and values of other blocks, unless they are null. Not inline, as
// add_values: within a larger function GCC gives the sums registers whose instructions are longer.
[[gnu::noinline]] inline void score_block(const Float32Cache& cache, const float* q, int64_t rows, const float* keys,
                                          const float* next_keys, const float* values, float* scores) {
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
inline void add_values(const Float32Cache& cache, const float* weights, const float* values, int64_t tokens, float* out) {
    const int64_t columns = cache.columns();
    int64_t i = 0;
    for (; i + C * 8 <= columns; i += C * 8)
        tile::product<M, C>(tokens, weights, kKeyTile, values + i, cache.stride, out + i, columns, {nullptr, true});
    for (; i < columns; i += 16)
        tile::product<M, 2>(tokens, weights, kKeyTile, values + i, cache.stride, out + i, columns, {nullptr, true});
}

// Prefetches the values of another block, unless they are null.
[[gnu::noinline]] inline void add_values(const Float32Cache& cache, const float* weights, int64_t rows,
                                         const float* values, const float* next_values, int64_t tokens, float* out) {
    if (next_values) prefetch(cache, next_values, kBlock);
    for (int64_t r = 0; r < rows; r += tile::kMaxRows) {
        const float* from = weights + r * kKeyTile;
        float* to = out + r * cache.columns();
        tile::dispatch_rows(rows - r, [&](auto m) {
            constexpr int kVectors = m == 1 ? 8 : m <= 3 ? 4 : 2;  // as many sums as fit the registers
            add_values<m, kVectors>(cache, from, values, tokens, to);
        });
    }
}

// All heads, whose keys and values are neighbours in memory.
template <class Body>
void for_each_part(const Float32Cache&, int64_t heads, const Body& body) {
    body(Part{0, heads});
}

// As score_part of bfloat16_cache.h. Keys are prefetched one block ahead.
inline void score_part(const Float32Cache& cache, const Part& part, const float* q, int64_t rows, int64_t first,
                       int64_t last, int64_t end, bool is_first, float* scores) {
    for (int64_t token = first; token < last; token += kBlock)
        for (int64_t h = 0; h < part.heads; ++h) {
            const int64_t next = token + kBlock;
            score_block(cache, q + h * rows * cache.dim, rows, cache.key(token, h),
                        next < end ? cache.key(next, h) : nullptr, is_first ? cache.value(token, h) : nullptr,
                        scores + h * rows * kKeyTile + token - first);
        }
}

// As add_part of bfloat16_cache.h.
inline void add_part(const Float32Cache& cache, const Part& part, const float* weights, int64_t rows, int64_t first,
                     int64_t last, int64_t end, float* out) {
    for (int64_t token = first; token < last; token += kBlock)
        for (int64_t h = 0; h < part.heads; ++h) {
            const int64_t next = token + kKeyTile;
            add_values(cache, weights + h * rows * kKeyTile + token - first, rows, cache.value(token, h),
                       next < end ? cache.value(next, h) : nullptr, std::min(kBlock, last - token),
                       out + h * rows * cache.columns());
        }
}

}  // namespace attention
