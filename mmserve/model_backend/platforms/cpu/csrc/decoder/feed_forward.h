// The feed-forward block of a vision tower's layer, in one call: a norm, a product, an activation and a product.
#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "decoder/tower_block.h"
#include "linear/matrix.h"
#include "parallel.h"

namespace feed_forward {

struct Block {
    tower_block::Residual residual;
    linear::Matrix up, down;
    int64_t activation;  // as in mm_activation and mm_act_and_mul
    int64_t gated;       // if not 0, `up` has the gate's outputs, then those that it is multiplied with
};

// x += the block's result, of rows of block.up.in numbers. Ops: the operators of kernels.cpp.
template <class Ops>
void run(const Block& block, float* x, int64_t rows) {
    const int64_t size = block.up.in, inner = block.down.in, wide = block.up.out;
    pool::for_each_block(rows, [&](int64_t first, int64_t count) {
        float *hidden = x + first * size, *normed = memory::scratch<struct Normed, float>(count * size);
        float* widened = memory::scratch<struct Widened, float>(count * wide);
        tower_block::normalize<Ops>(block.residual, hidden, normed, count, size);
        Ops::multiply(block.up, normed, widened, count, false);
        float* activated = widened;
        if (block.gated) {
            activated = memory::scratch<struct Gated, float>(count * inner);
            Ops::act_and_mul(widened, activated, count, inner, block.activation);
        } else {
            Ops::activate(widened, count, inner, block.activation);
        }
        tower_block::add_product<Ops>(block.residual, block.down, activated, hidden, normed, count);
    });
}

}  // namespace feed_forward
