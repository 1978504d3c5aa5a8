// A KV cache in float32 or bfloat16: [blocks, kv_heads, 2 (K, V), 16 dim]. In bfloat16 the keys of a block and head are
// [dim / 2, 16 tokens, 2], its values [8 pairs of tokens, dim, 2]; in float32 [dim, 16 tokens] and [16 tokens, dim]. All are
// panels of weights (linear/panels.h), whose products have no horizontal sums. They are those of linear::Exact, linear::Widened
// or linear::Rounded, so every instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention/job.h"
#include "attention/rounded_softmax.h"
#include "linear/inputs.h"
#include "linear/panels.h"
#include "linear/product.h"
#include "linear/tasks.h"
#include "tile.h"

namespace attention {

// Queries and the weights of the softmax as inputs of products.
template <class Mode>
struct Inputs : ExactInputs {};

template <>
struct Inputs<linear::Rounded> {
    using Input = linear::Rounded::Input;
    using Softmax = RoundedSoftmax;
    static constexpr bool kFlushes = true;

    static void store_inputs(const float* x, int64_t size, Input* out) { linear::round_inputs(x, size, out); }
};

inline void store_numbers(const float* x, int64_t count, float* out) { std::copy(x, x + count, out); }
inline void store_numbers(const float* x, int64_t count, uint16_t* out) { linear::round_row(x, count, out); }

// Keys and values of consecutive KV heads of one sequence.
template <class Mode>
struct KvCache : Inputs<Mode> {
    using Number = typename Mode::Number;
    static constexpr int64_t kDepth = Mode::kDepth;
    const Number* blocks;
    const int64_t* table;
    int64_t kv_heads, dim;  // dim: a multiple of 16

    KvCache(const Job& job, int64_t sequence, int64_t first_head)
        : blocks(static_cast<const Number*>(job.layer_kv) + first_head * 2 * kBlock * job.dim),
          table(job.tables + sequence * job.table_stride),
          kv_heads(job.kv_heads),
          dim(job.dim) {}

    const Number* key(int64_t token, int64_t head) const {
        return blocks + (table[token / kBlock] * kv_heads + head) * 2 * kBlock * dim;
    }
    const Number* value(int64_t token, int64_t head) const { return key(token, head) + kBlock * dim; }

    // kv: [2, kv_heads, dim] of one token.
    static void store(Number* layer_kv, int64_t slot, const float* kv, int64_t kv_heads, int64_t dim) {
        constexpr int64_t kStep = 16;
        const int64_t token = slot % kBlock;
        for (int64_t head = 0; head < kv_heads; ++head, kv += dim) {
            Number* keys = layer_kv + (slot / kBlock * kv_heads + head) * 2 * kBlock * dim;
            Number* values = keys + kBlock * dim + token / kDepth * kDepth * dim + token % kDepth;
            for (int64_t i = 0; i < dim; i += kStep) {
                Number key[kStep], value[kStep];
                store_numbers(kv + i, kStep, key);
                store_numbers(kv + kv_heads * dim + i, kStep, value);
                for (int64_t j = 0; j < kStep; j += kDepth)
                    std::memcpy(keys + (i + j) * kBlock + kDepth * token, key + j, kDepth * sizeof *key);
                for (int64_t j = 0; j < kStep; ++j) values[kDepth * (i + j)] = value[j];
            }
        }
    }
};

// Fetches `count` numbers into the second-level cache.
template <class Number>
void prefetch(const Number* from, int64_t count) {
    constexpr int64_t kLine = memory::kLine / sizeof(*from);
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i, 0, 2);
}

constexpr int kBlockVectors = kBlock / tile::kLanes<linear::Vector>;
// Of the loops over sums that fill the registers. If there are only 16, GCC 12 keeps sums of an unrolled loop in memory.
constexpr int kUnrolled = tile::kRegisters > 16 ? 8 : 1;

// Scores of M rows and B blocks of one head. Prefetches other blocks, of keys and of values.
template <class Mode, int M, int B>
void score_blocks(const typename Mode::Input* q, int64_t dim, const typename Mode::Number* const (&keys)[B],
                  const typename Mode::Number* const (&ahead)[B], const typename Mode::Number* const (&beside)[B],
                  float* scores) {
    linear::Sums<M, B * kBlockVectors> sums;
    const int64_t apart = keys[B - 1] - keys[0];
#pragma GCC unroll kUnrolled
    for (int64_t i = 0; i < dim; i += Mode::kDepth) {
#pragma GCC unroll 2
        for (int b = 0; b < B; ++b) {
            prefetch(ahead[b] + i * kBlock, Mode::kDepth * kBlock);
            prefetch(beside[b] + i * kBlock, Mode::kDepth * kBlock);
        }
        Mode::template add<M, B * kBlockVectors, kBlockVectors>(sums, q + i, dim, keys[0] + i * kBlock, apart);
    }
    sums.store(scores, kKeyTile, {});
}

// Scores of a head's rows and tokens [first, last), a key tile or the begin of one, of a sequence of `end` tokens. Prefetches
// the keys of the next tile, and this tile's values if `is_first`: those of others are prefetched by add_part.
template <class Mode>
void score_part(const KvCache<Mode>& cache, int64_t head, const typename Mode::Input* q, int64_t rows,
                int64_t first, int64_t last, int64_t end, bool is_first, float* scores) {
    linear::for_each_tile(0, rows, linear::kMaxRows, [&](int64_t row, int64_t count) {
        tile::dispatch_rows<linear::kMaxRows>(count, [&](auto m) {
            constexpr int kTogether = 2 * m * kBlockVectors <= linear::kMaxSums ? 2 : 1;
            const auto score = [&]<int B>(int64_t token, std::integral_constant<int, B>) {
                const typename Mode::Number *keys[B], *ahead[B], *beside[B];
                for (int b = 0; b < B; ++b) {
                    const int64_t from = token + b * kBlock, next = from + kKeyTile;
                    keys[b] = cache.key(from, head);
                    ahead[b] = row || next >= end ? keys[b] : cache.key(next, head);
                    beside[b] = row || !is_first ? keys[b] : cache.value(from, head);
                }
                score_blocks<Mode, m, B>(q + row * cache.dim, cache.dim, keys, ahead, beside,
                                         scores + row * kKeyTile + token - first);
            };
            int64_t token = first;
            for (; token + (kTogether - 1) * kBlock < last; token += kTogether * kBlock)
                score(token, std::integral_constant<int, kTogether>());
            for (; token < last; token += kBlock) score(token, std::integral_constant<int, 1>());
        });
    });
}

// out += weights values, of M rows, C vectors of columns from `column` on, and tokens [first, last) of one head. Behind
// the last token there may be values of another sequence, which must not be used: zeros take their place.
template <class Mode, int M, int C>
void add_columns(const KvCache<Mode>& cache, const typename Mode::Input* weights, int64_t head, int64_t column,
                 int64_t first, int64_t last, int64_t end, float* out) {
    constexpr int64_t kDepth = Mode::kDepth;
    const int64_t dim = cache.dim;
    linear::Sums<M, C> sums;
    for (int64_t block = first; block < last; block += kBlock) {
        const auto* values = cache.value(block, head) + kDepth * column;
        const auto* ahead = block + kKeyTile < end ? cache.value(block + kKeyTile, head) + kDepth * column : values;
        const int64_t tokens = std::min(kBlock, last - block);
        const auto* from = weights + block - first;
#pragma GCC unroll kUnrolled
        for (int64_t token = 0; token + kDepth <= tokens; token += kDepth, values += kDepth * dim, ahead += kDepth * dim) {
            prefetch(ahead, kDepth * sums.kColumns);
            Mode::template add<M, C>(sums, from + token, kKeyTile, values);
        }
        if constexpr (kDepth == 2)
            if (tokens % 2) {
                typename Mode::Number only[2 * sums.kColumns] = {};
                for (int64_t i = 0; i < 2 * sums.kColumns; i += 2) only[i] = values[i];
                Mode::template add_last<M, C>(sums, from + tokens - 1, kKeyTile, only);
            }
    }
    sums.store(out, dim, {nullptr, true});
}

// Adds the weighted values of tokens [first, last), a key tile or the begin of one. Prefetches those of the next tile.
template <class Mode>
void add_part(const KvCache<Mode>& cache, int64_t head, const typename Mode::Input* weights, int64_t rows,
              int64_t first, int64_t last, int64_t end, float* out) {
    const int64_t dim = cache.dim;
    linear::for_each_tile(0, rows, linear::kMaxRows, [&](int64_t row, int64_t count) {
        const auto* from = weights + row * kKeyTile;
        const int64_t prefetched = row ? 0 : end;
        float* to = out + row * dim;
        tile::dispatch_rows<linear::kMaxRows>(count, [&](auto m) {
            constexpr int kWide = 2 * linear::kTileVectors;
            constexpr int kVectors = kWide * m <= linear::kMaxSums ? kWide : linear::kTileVectors;
            constexpr int64_t kColumns = kVectors * tile::kLanes<linear::Vector>;
            int64_t i = 0;
            for (; i + kColumns <= dim; i += kColumns)
                add_columns<Mode, m, kVectors>(cache, from, head, i, first, last, prefetched, to + i);
            for (; i < dim; i += kBlock)
                add_columns<Mode, m, kBlockVectors>(cache, from, head, i, first, last, prefetched, to + i);
        });
    });
}

}  // namespace attention
