// What the attention block and the feed-forward block of a vision tower's layer have in common: x += scale * block(norm(x)).
#pragma once

#include <cstdint>

#include "linear/matrix.h"

namespace tower_block {

struct Residual {
    const float *norm, *norm_bias;  // no bias: RMSNorm
    const float* scale;             // of each result before it is added to the row, or null
    float eps;
};

// Ops: the operators of kernels.cpp.
template <class Ops>
void normalize(const Residual& residual, const float* x, float* normed, int64_t rows, int64_t size) {
    if (residual.norm_bias)
        Ops::layer_norm(x, residual.norm, residual.norm_bias, residual.eps, normed, rows, size);
    else
        Ops::norm(x, residual.norm, residual.eps, normed, rows, size);
}

// x [rows, last.out] += scale * the product. room: [rows, last.out].
template <class Ops>
void add_product(const Residual& residual, const linear::Matrix& last, const float* inputs, float* x, float* room, int64_t rows) {
    if (!residual.scale) return Ops::multiply(last, inputs, x, rows, true);
    Ops::multiply(last, inputs, room, rows, false);
    Ops::add_scaled(x, room, residual.scale, rows, last.out);
}

}  // namespace tower_block
