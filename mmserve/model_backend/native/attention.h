// Causal attention over the paged KV cache, blocks read where they are. Softmax is accumulated block by block (Milakov
// and Gimelshein 2018; Dao et al. 2022), for all query heads of a key head together.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "pool.h"
#include "tile.h"

namespace attention {

constexpr int64_t kBlock = 16;    // tokens of a KV block: as many as a panel has columns
constexpr int64_t kMaxRows = 48;  // query rows (tokens x heads of a group) of one piece of work

struct Job {
    const float* q;         // [T, heads, dim], rows q_stride apart
    const float* layer_kv;  // [blocks, 16, 2, kv_heads, dim]
    const int64_t* tables;  // block tables, table_stride apart
    const int64_t* tiles;   // [tiles, 4]: first row, rows, position of the first, table
    float* out;             // [T, heads, dim]
    int64_t q_stride, table_stride, heads, kv_heads, dim;
};

// exp for x <= 0 as 2^n times a polynomial (Cephes' expf); below -87 it is 0.
inline tile::f32x8 exponential(tile::f32x8 x) {
    const tile::f32x8 lowest = tile::splat(-87.f);
    const tile::i32x8 underflow = x < lowest;
    x = underflow ? lowest : x;
    const tile::i32x8 n = __builtin_convertvector(x * 1.44269504088896341f - 0.5f, tile::i32x8);
    const tile::f32x8 whole = __builtin_convertvector(n, tile::f32x8);
    const tile::f32x8 r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    tile::f32x8 y = tile::splat(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = y * r + c;
    y = y * r * r + r + 1.f;
    y *= reinterpret_cast<tile::f32x8>((n + 127) << 23);
    return underflow ? tile::f32x8{} : y;
}

// Scores of one row and 16 tokens -> weights, against the largest score so far; older sums and outputs are scaled to
// it.
struct Softmax {
    float largest = -std::numeric_limits<float>::infinity();
    tile::f32x8 sums{};

    void take(float* scores, int64_t visible, float* out, int64_t dim) {
        for (int64_t j = visible; j < kBlock; ++j) scores[j] = -std::numeric_limits<float>::infinity();
        const tile::f32x8 low = tile::load<tile::f32x8>(scores), high = tile::load<tile::f32x8>(scores + 8);
        const float highest = tile::largest_of(tile::larger(low, high));
        if (highest > largest) {
            const float scale = std::exp(largest - highest);
            for (int64_t i = 0; i < dim; ++i) out[i] *= scale;
            sums *= scale;
            largest = highest;
        }
        const tile::f32x8 low_weights = exponential(low - largest), high_weights = exponential(high - largest);
        tile::store(scores, low_weights);
        tile::store(scores + 8, high_weights);
        sums += low_weights + high_weights;
    }

    float sum() const {
        float total = 0.f;
        for (int i = 0; i < 8; ++i) total += sums[i];
        return total;
    }
};

inline void gather_queries(const Job& job, const int64_t* t, int64_t kv_head, float* rows) {
    const int64_t group = job.heads / job.kv_heads;
    const float scale = 1.f / std::sqrt(static_cast<float>(job.dim));
    for (int64_t token = 0; token < t[1]; ++token) {
        const float* from = job.q + (t[0] + token) * job.q_stride + kv_head * group * job.dim;
        for (int64_t i = 0; i < group * job.dim; ++i) rows[token * group * job.dim + i] = from[i] * scale;
    }
}

// Exchanges `far` neighbouring numbers between rows of 8 that are `far` apart.
template <int far>
inline void exchange(tile::f32x8* rows) {
    using tile::i32x8;
    constexpr i32x8 kLow = far == 4   ? i32x8{0, 1, 2, 3, 8, 9, 10, 11}
                           : far == 2 ? i32x8{0, 1, 8, 9, 4, 5, 12, 13}
                                      : i32x8{0, 8, 2, 10, 4, 12, 6, 14};
    constexpr i32x8 kHigh = far == 4   ? i32x8{4, 5, 6, 7, 12, 13, 14, 15}
                            : far == 2 ? i32x8{2, 3, 10, 11, 6, 7, 14, 15}
                                       : i32x8{1, 9, 3, 11, 5, 13, 7, 15};
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        if ((i & far) == 0) {
            const tile::f32x8 a = rows[i], b = rows[i + far];
            rows[i] = __builtin_shuffle(a, b, kLow);
            rows[i + far] = __builtin_shuffle(a, b, kHigh);
        }
}

// [16, dim], token_stride apart -> [dim, 16].
inline void transpose(const float* keys, int64_t token_stride, int64_t dim, float* panel) {
    for (int64_t i = 0; i < dim; i += 8)
        for (int64_t j = 0; j < kBlock; j += 8) {
            tile::f32x8 square[8];
            for (int r = 0; r < 8; ++r) square[r] = tile::load<tile::f32x8>(keys + (j + r) * token_stride + i);
            exchange<4>(square);
            exchange<2>(square);
            exchange<1>(square);
            for (int r = 0; r < 8; ++r) tile::store(panel + (i + r) * kBlock + j, square[r]);
        }
}

// A block's keys and values for one head, scattered over its tokens, are more than the CPU would foresee.
inline void fetch(const float* keys, int64_t token_stride, int64_t to_values, int64_t dim) {
    constexpr int64_t kLine = 16;
    for (int64_t token = 0; token < kBlock; ++token)
        for (int64_t i = 0; i < dim; i += kLine) {
            __builtin_prefetch(keys + token * token_stride + i);
            __builtin_prefetch(keys + token * token_stride + to_values + i);
        }
}

inline void one_tile(const Job& job, const int64_t* t, int64_t kv_head) {
    const int64_t group = job.heads / job.kv_heads, rows = t[1] * group, dim = job.dim;
    const int64_t token_stride = 2 * job.kv_heads * dim, end = t[2] + t[1];
    static thread_local std::vector<float> memory;
    memory.resize(std::max<size_t>(memory.size(), (2 * rows + kBlock) * dim + rows * kBlock));
    float *q = memory.data(), *mixed = q + rows * dim, *panel = mixed + rows * dim, *scores = panel + kBlock * dim;
    Softmax softmax[kMaxRows];
    gather_queries(job, t, kv_head, q);
    std::fill(mixed, mixed + rows * dim, 0.f);
    const auto block_of = [&](int64_t token) {
        return job.layer_kv + job.tables[t[3] * job.table_stride + token / kBlock] * kBlock * token_stride +
               kv_head * dim;
    };
    for (int64_t first = 0; first < end; first += kBlock) {
        const float* keys = block_of(first);
        const float* values = keys + job.kv_heads * dim;
        if (first + kBlock < end) fetch(block_of(first + kBlock), token_stride, job.kv_heads * dim, dim);
        transpose(keys, token_stride, dim, panel);
        for (int64_t r = 0; r < rows; r += tile::kMaxRows)
            tile::rows(std::min<int64_t>(tile::kMaxRows, rows - r), dim, q + r * dim, dim, panel, 16,
                       scores + r * kBlock, kBlock, {});
        // Beyond the end of the sequence lies what other sequences left behind: their rows must not be touched.
        const int64_t present = std::min(kBlock, end - first);
        for (int64_t r = 0; r < rows; ++r)
            softmax[r].take(scores + r * kBlock, std::max<int64_t>(0, t[2] + r / group + 1 - first), mixed + r * dim,
                            dim);
        for (int64_t r = 0; r < rows; r += tile::kMaxRows)
            for (int64_t i = 0; i < dim; i += tile::kColumns)
                tile::rows(std::min<int64_t>(tile::kMaxRows, rows - r), present, scores + r * kBlock, kBlock,
                           values + i, token_stride, mixed + r * dim + i, dim, {nullptr, true});
    }
    for (int64_t r = 0; r < rows; ++r) {
        float* to = job.out + ((t[0] + r / group) * job.heads + kv_head * group + r % group) * dim;
        const float sum = softmax[r].sum();
        for (int64_t i = 0; i < dim; ++i) to[i] = mixed[r * dim + i] / sum;
    }
}

inline void run(const Job& job, int64_t tiles) {
    pool::each(tiles * job.kv_heads,
               [&](int64_t piece) { one_tile(job, job.tiles + piece / job.kv_heads * 4, piece % job.kv_heads); });
}

}  // namespace attention
