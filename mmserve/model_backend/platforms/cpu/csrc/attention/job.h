// What attention computes, and the sizes that it is divided into.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/online_softmax.h"

namespace attention {

constexpr int64_t kBlock = 16;    // tokens of a KV block
constexpr int64_t kKeyTile = 128;  // tokens between two updates of the softmax
constexpr int64_t kMaxRows = 48;  // query rows (tokens x heads) of one task
// Tokens of a segment: a row's sums begin anew at its multiples, so that several threads can read a long sequence.
constexpr int64_t kSegment = 1024;
static_assert(kSegment % kKeyTile == 0);

struct Job {
    const float* q;         // [T, heads, dim], rows q_stride apart
    const void* layer_kv;   // as the type of cache says
    const int64_t* tables;  // block tables, table_stride apart
    const int64_t* tiles;   // [tiles, 4]: first token, number of tokens, position of the first, block table
    float* out;             // [T, heads, dim]
    int64_t q_stride, table_stride, heads, kv_heads, dim;
    float scale;         // of the products of queries and keys
    int64_t window = 0;  // if not 0, a row attends to this many positions up to its own, and to none before them
    const int64_t* ends = nullptr;  // if not null: of each token, the position after the last that it attends to
};

// The keys [first, end) that a row, or a tile's rows together, attend to.
struct Reach {
    int64_t first, end;
};

// Of a cache whose products have float32 inputs.
struct ExactInputs {
    using Input = float;
    using Softmax = OnlineSoftmax<false>;
    static constexpr bool kFlushes = false;

    static void store_inputs(const float* x, int64_t size, float* out) { std::copy(x, x + size, out); }
};

}  // namespace attention
