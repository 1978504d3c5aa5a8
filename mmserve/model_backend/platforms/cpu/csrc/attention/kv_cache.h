// A KV cache in float32 or bfloat16: [blocks, kv_heads, 2 (K, V), 16 dim]. In bfloat16 the keys of a block and head are
// [dim / 2, 16 tokens, 2], its values [8 pairs of tokens, dim, 2]; in float32 [dim, 16 tokens] and [16 tokens, dim]. All are
// panels of weights (linear/panels.h), whose products have no horizontal sums. They are those of linear::Exact, linear::Widened
// or linear::Rounded, so every instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention/job.h"
#include "attention/online_softmax.h"
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
    using Softmax = OnlineSoftmax<true>;
    static constexpr bool kFlushes = true;

    static void store_inputs(const float* x, int64_t size, Input* out) { linear::round_inputs(x, size, out); }
};

inline void store_numbers(const float* x, int64_t count, float* out) { std::copy(x, x + count, out); }
inline void store_numbers(const float* x, int64_t count, uint16_t* out) { linear::round_row(x, count, out); }

constexpr int64_t kTileBlocks = kKeyTile / kBlock;

// Of one head and one key tile.
template <class Number>
struct TileBlocks {
    const Number *keys[kTileBlocks], *values[kTileBlocks];
};

// Keys and values of consecutive KV heads of one sequence.
template <class ProductMode>
struct KvCache : Inputs<ProductMode> {
    using Mode = ProductMode;
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

    // The blocks of one head in the key tile that begins at `first`. In place of those from the token `end` on: `others`.
    TileBlocks<Number> tile_blocks(int64_t first, int64_t end, int64_t head, const TileBlocks<Number>& others) const {
        TileBlocks<Number> found = others;
        const int64_t count = std::clamp<int64_t>((end - first + kBlock - 1) / kBlock, 0, kTileBlocks);
        for (int64_t b = 0; b < count; ++b) {
            found.keys[b] = blocks + (table[first / kBlock + b] * kv_heads + head) * 2 * kBlock * dim;
            found.values[b] = found.keys[b] + kBlock * dim;
        }
        return found;
    }

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

// Scores of M rows and B blocks of one head, of which two are one operand. If kFetches, prefetches other blocks, of keys and of
// values. Not inline, as add_columns is not: else GCC 12 keeps some sums in memory. One address for the keys and one for the
// queries keep the loop short: where another thread computes on the same core, it takes half of the instructions that the core
// can start.
template <class Mode, int M, int B, bool kFetches>
[[gnu::noinline]] void score_blocks(const typename Mode::Input* q, int64_t dim, const typename Mode::Number* const* keys,
                                    const typename Mode::Number* const* ahead, const typename Mode::Number* const* beside,
                                    float* scores) {
    constexpr int64_t kNumbers = Mode::kDepth * kBlock;
    constexpr int kNear = std::min(B, 2), kOperands = B / kNear;
    linear::Sums<M, kNear * kBlockVectors> sums[kOperands];
    int64_t from[kOperands], apart[kOperands];  // of an operand's first block from keys[0], and of its second from its first
    for (int i = 0; i < kOperands; ++i) {
        from[i] = keys[i * kNear] - keys[0];
        apart[i] = keys[i * kNear + kNear - 1] - keys[i * kNear];
    }
    const auto *at = keys[0], *const end = at + dim * kBlock;
    tile::RowAddresses<M, const typename Mode::Input> rows(q, dim);
    const auto add_numbers = [&] {
#pragma GCC unroll 8
        for (int b = 0; b < B && kFetches; ++b) {
            prefetch(ahead[b] + (at - keys[0]), kNumbers);
            prefetch(beside[b] + (at - keys[0]), kNumbers);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kOperands; ++i)
            Mode::template add<M, kNear * kBlockVectors, kBlockVectors>(sums[i], rows, at + from[i], apart[i]);
        at += kNumbers;
        rows.advance(Mode::kDepth);
    };
    if constexpr (kOperands > 1) {
        while (at != end) add_numbers();
    } else {
#pragma GCC unroll kUnrolled
        while (at != end) add_numbers();
    }
#pragma GCC unroll 4
    for (int i = 0; i < kOperands; ++i) sums[i].store(scores + i * kNear * kBlock, kKeyTile, {});
}

// Scores of M rows and `count` blocks, as many at one time as there are registers for. The blocks of a head do not follow each
// other in memory, and a core reads several such pieces faster at one time: on Zen 4, one piece of 4 KiB after the other at
// 12 GB/s, eight at one time at 23.
template <class Mode, int M, bool kFetches>
void score_rows(const typename Mode::Input* q, int64_t dim, const typename Mode::Number* const* keys,
                const typename Mode::Number* const* ahead, const typename Mode::Number* const* beside, int64_t count,
                float* scores) {
    int64_t b = 0;
    const auto score = [&]<int B>(std::integral_constant<int, B>) {
        if constexpr (B == 1 || B * M * kBlockVectors <= linear::kMaxSums)
            for (; b + B <= count; b += B)
                score_blocks<Mode, M, B, kFetches>(q, dim, keys + b, ahead + b, beside + b, scores + b * kBlock);
    };
    score(std::integral_constant<int, 8>());
    score(std::integral_constant<int, 4>());
    score(std::integral_constant<int, 2>());
    score(std::integral_constant<int, 1>());
}

// Scores of a head's rows and the first `tokens` tokens of a key tile. The first rows prefetch the keys of the next tile, and this
// tile's values if `is_first`: those of others are prefetched by add_part.
template <class Mode>
void score_part(const TileBlocks<typename Mode::Number>& here, const TileBlocks<typename Mode::Number>& next, bool is_first,
                int64_t dim, const typename Mode::Input* q, int64_t rows, int64_t tokens, float* scores) {
    const int64_t blocks = (tokens + kBlock - 1) / kBlock;
    const auto* beside = is_first ? here.values : here.keys;
    linear::for_each_tile(0, rows, linear::kMaxRows, [&](int64_t row, int64_t count) {
        tile::dispatch_rows<linear::kMaxRows>(count, [&](auto m) {
            const auto score = row ? score_rows<Mode, m, false> : score_rows<Mode, m, true>;
            score(q + row * dim, dim, here.keys, next.keys, beside, blocks, scores + row * kKeyTile);
        });
    });
}

// out += weights values, of M rows, C vectors of columns from `column` on, and the first `tokens` tokens of a key tile.
// Behind the last token there may be values of another sequence, which must not be used: zeros take their place. If kFetches,
// prefetches the same of the blocks `next`.
template <class Mode, int M, int C, bool kFetches>
[[gnu::noinline]] void add_columns(const typename Mode::Number* const* blocks, const typename Mode::Number* const* next,
                                   int64_t dim, const typename Mode::Input* weights, int64_t column, int64_t tokens,
                                   float* out) {
    constexpr int64_t kDepth = Mode::kDepth;
    linear::Sums<M, C> sums;
    for (int64_t first = 0; first < tokens; first += kBlock, weights += kBlock) {
        const auto* values = *blocks++ + kDepth * column;
        const auto* ahead = *next++ + kDepth * column;
        const int64_t count = std::min(kBlock, tokens - first);
        const auto *at = weights, *const end = at + count / kDepth * kDepth;
#pragma GCC unroll kUnrolled
        for (; at != end; at += kDepth, values += kDepth * dim) {
            if constexpr (kFetches) {
                prefetch(ahead, kDepth * sums.kColumns);
                ahead += kDepth * dim;
            }
            Mode::template add<M, C>(sums, linear::Rows(at, kKeyTile), values);
        }
        if constexpr (kDepth == 2)
            if (count % 2) {
                typename Mode::Number only[2 * sums.kColumns] = {};
                for (int64_t i = 0; i < 2 * sums.kColumns; i += 2) only[i] = values[i];
                Mode::template add_last<M, C>(sums, linear::Rows(end, kKeyTile), only);
            }
    }
    sums.store(out, dim, {nullptr, true});
}

// The same of M rows and all columns.
template <class Mode, int M, bool kFetches>
void add_rows(const typename Mode::Number* const* blocks, const typename Mode::Number* const* next, int64_t dim,
              const typename Mode::Input* weights, int64_t tokens, float* out) {
    constexpr int kWide = 2 * linear::kTileVectors;
    constexpr int kVectors = kWide * M <= linear::kMaxSums ? kWide : linear::kTileVectors;
    constexpr int64_t kColumns = kVectors * tile::kLanes<linear::Vector>;
    int64_t i = 0;
    for (; i + kColumns <= dim; i += kColumns)
        add_columns<Mode, M, kVectors, kFetches>(blocks, next, dim, weights, i, tokens, out + i);
    for (; i < dim; i += kBlock)
        add_columns<Mode, M, kBlockVectors, kFetches>(blocks, next, dim, weights, i, tokens, out + i);
}

// Adds the weighted values of the first `tokens` tokens of a key tile. The first rows prefetch those of the next tile.
template <class Mode>
void add_part(const TileBlocks<typename Mode::Number>& here, const TileBlocks<typename Mode::Number>& next, int64_t dim,
              const typename Mode::Input* weights, int64_t rows, int64_t tokens, float* out) {
    linear::for_each_tile(0, rows, linear::kMaxRows, [&](int64_t row, int64_t count) {
        tile::dispatch_rows<linear::kMaxRows>(count, [&](auto m) {
            const auto add = row ? add_rows<Mode, m, false> : add_rows<Mode, m, true>;
            add(here.values, next.values, dim, weights + row * kKeyTile, tokens, out + row * dim);
        });
    });
}

}  // namespace attention
