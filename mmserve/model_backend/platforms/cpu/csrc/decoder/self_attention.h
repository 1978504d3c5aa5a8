// The attention block of a vision tower's layer, in one call: a norm, a product, attention and a product.
#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "decoder/tower_block.h"
#include "linear/matrix.h"

namespace self_attention {

struct Block {
    tower_block::Residual residual;
    linear::Matrix qkv, out;
    int64_t heads;
    int64_t rounds;  // as in mm_encoder_attention
};

// Rows computed at once, so that queries, keys and values are in the caches when they are read. One sequence may have more.
constexpr int64_t kRows = 256;

// x += the block's result, of rows of block.qkv.in numbers, which are sequences of these lengths. Ops: the operators of kernels.cpp.
template <class Ops>
void run(const Block& block, float* x, const int64_t* lengths, int64_t sequences) {
    const int64_t size = block.qkv.in, wide = block.qkv.out, inner = block.out.in;
    for (int64_t first = 0, end; first < sequences; first = end) {
        int64_t rows = lengths[first];
        for (end = first + 1; end < sequences && rows + lengths[end] <= kRows; ++end) rows += lengths[end];
        float* normed = memory::scratch<struct Normed, float>(rows * size);
        float* heads = memory::scratch<struct Heads, float>(rows * wide);
        float* attended = memory::scratch<struct Attended, float>(rows * inner);
        tower_block::normalize<Ops>(block.residual, x, normed, rows, size);
        Ops::multiply(block.qkv, normed, heads, rows, false);
        Ops::encoder_attention(heads, attended, lengths + first, end - first, block.heads, inner / block.heads, block.rounds);
        tower_block::add_product<Ops>(block.residual, block.out, attended, x, normed, rows);
        x += rows * size;
    }
}

}  // namespace self_attention
