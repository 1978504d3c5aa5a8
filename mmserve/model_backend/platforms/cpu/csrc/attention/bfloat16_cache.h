// A KV cache in bfloat16: [blocks, kv_heads, 2 (K, V), 16 dim]. The keys of a block and head are [dim / 2, 16 tokens, 2],
// its values [8 pairs of tokens, dim, 2]: both are panels of weights (linear/panels.h), whose products have no horizontal
// sums. Products are those of linear::Widened or linear::Rounded, so every instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

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

// Keys and values of consecutive KV heads of one sequence.
template <class Mode>
struct Bfloat16Cache : Inputs<Mode> {
    static constexpr int64_t kKeysAhead = kKeyTile;  // tokens between those whose keys are read and prefetched
    const uint16_t* blocks;
    const int64_t* table;
    int64_t kv_heads, dim;

    Bfloat16Cache(const Job& job, int64_t sequence, int64_t first_head)
        : blocks(static_cast<const uint16_t*>(job.layer_kv) + first_head * 2 * kBlock * job.dim),
          table(job.tables + sequence * job.table_stride),
          kv_heads(job.kv_heads),
          dim(job.dim) {}

    const uint16_t* key(int64_t token, int64_t head) const {
        return blocks + (table[token / kBlock] * kv_heads + head) * 2 * kBlock * dim;
    }
    const uint16_t* value(int64_t token, int64_t head) const { return key(token, head) + kBlock * dim; }
    int64_t columns() const { return dim; }  // a multiple of 16

    // kv: [2, kv_heads, dim] of one token.
    static void store(uint16_t* layer_kv, int64_t slot, const float* kv, int64_t kv_heads, int64_t dim) {
        constexpr int64_t kStep = 16;
        const int64_t token = slot % kBlock;
        for (int64_t head = 0; head < kv_heads; ++head, kv += dim) {
            uint16_t* keys = layer_kv + (slot / kBlock * kv_heads + head) * 2 * kBlock * dim;
            uint16_t* values = keys + kBlock * dim + token / 2 * 2 * dim + token % 2;
            for (int64_t i = 0; i < dim; i += kStep) {
                uint16_t key[kStep], value[kStep];
                linear::round_row(kv + i, kStep, key);
                linear::round_row(kv + kv_heads * dim + i, kStep, value);
                for (int64_t j = 0; j < kStep; j += 2)
                    std::memcpy(keys + (i + j) * kBlock + 2 * token, key + j, 2 * sizeof *key);
                for (int64_t j = 0; j < kStep; ++j) values[2 * (i + j)] = value[j];
            }
        }
    }
};

// Fetches `count` numbers into the second-level cache.
inline void prefetch(const uint16_t* from, int64_t count) {
    constexpr int64_t kLine = memory::kLine / sizeof(*from);
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i, 0, 2);
}

constexpr int kBlockVectors = kBlock / tile::kLanes<linear::Vector>;

// Scores of all rows and one block. Prefetches the keys and values of other blocks, unless they are null.
template <class Mode>
void score_block(const Bfloat16Cache<Mode>& cache, const typename Mode::Input* q, int64_t rows, const uint16_t* keys,
                 const uint16_t* next_keys, const uint16_t* values, float* scores) {
    linear::for_each_tile(0, rows, linear::kMaxRows, [&](int64_t first, int64_t count) {
        const uint16_t *ahead = first || !next_keys ? keys : next_keys, *beside = first || !values ? keys : values;
        tile::dispatch_rows<linear::kMaxRows>(count, [&](auto m) {
            linear::Sums<m, kBlockVectors> sums;
            for (int64_t i = 0; i < cache.dim; i += 2) {
                prefetch(ahead + i * kBlock, 2 * kBlock);
                prefetch(beside + i * kBlock, 2 * kBlock);
                Mode::template add<m, kBlockVectors>(sums, q + first * cache.dim + i, cache.dim, keys + i * kBlock);
            }
            sums.store(scores + first * kKeyTile, kKeyTile, {});
        });
    });
}

// out += weights values, of M rows and C vectors of columns. `ahead`: as many values of another block. Behind the last
// token there may be values of another sequence, which must not be used: zeros take their place.
template <class Mode, int M, int C>
void add_columns(const typename Mode::Input* weights, const uint16_t* values, const uint16_t* ahead, int64_t tokens,
                 int64_t dim, float* out) {
    linear::Sums<M, C> sums;
    for (int64_t token = 0; token + 2 <= tokens; token += 2, values += 2 * dim, ahead += 2 * dim) {
        prefetch(ahead, 2 * sums.kColumns);
        Mode::template add<M, C>(sums, weights + token, kKeyTile, values);
    }
    if (tokens % 2) {
        uint16_t last[2 * sums.kColumns] = {};
        for (int64_t i = 0; i < 2 * sums.kColumns; i += 2) last[i] = values[i];
        Mode::template add_last<M, C>(sums, weights + tokens - 1, kKeyTile, last);
    }
    sums.store(out, dim, {nullptr, true});
}

// Prefetches the values of another block, unless they are null.
template <class Mode>
void add_values(const Bfloat16Cache<Mode>& cache, const typename Mode::Input* weights, int64_t rows,
                const uint16_t* values, const uint16_t* next_values, int64_t tokens, float* out) {
    const int64_t dim = cache.dim;
    linear::for_each_tile(0, rows, linear::kMaxRows, [&](int64_t first, int64_t count) {
        const auto* from = weights + first * kKeyTile;
        const uint16_t* ahead = first || !next_values ? values : next_values;
        float* to = out + first * dim;
        tile::dispatch_rows<linear::kMaxRows>(count, [&](auto m) {
            constexpr int kVectors = 4 * m <= linear::kMaxSums ? 4 : 2;
            constexpr int64_t kColumns = kVectors * tile::kLanes<linear::Vector>;
            int64_t i = 0;
            for (; i + kColumns <= dim; i += kColumns)
                add_columns<Mode, m, kVectors>(from, values + 2 * i, ahead + 2 * i, tokens, dim, to + i);
            for (; i < dim; i += kBlock)
                add_columns<Mode, m, kBlockVectors>(from, values + 2 * i, ahead + 2 * i, tokens, dim, to + i);
        });
    });
}

}  // namespace attention
