// All layers of a Llama decoder, one after the other on the same rows: what is between two products never leaves here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "scratch.h"

namespace decoder {

struct Matrix {
    const void* panels;
    const float* bias;  // or null
    int64_t weights;    // how they are stored: see mm_linear
    int64_t in, out;
};

struct Layer {
    const float* attention_norm;
    const float* mlp_norm;
    Matrix qkv, mixed, gate_up, down;
};

struct Shape {
    int64_t layers, hidden, heads, kv_heads, dim;
    int64_t mlp_rows;  // what is between the products of an MLP is wide, and in memory for so many rows at once
    float eps;
};

struct Step {
    float* hidden;                           // [rows, hidden], in place
    const float *cos, *sin;                  // [rows, dim / 2]
    float* kv;                               // of layer 0; the next one's is kv_stride further
    const int64_t *slots, *tables, *tiles;   // see mm_attention
    const int64_t* wanted;                   // rows that go on once K and V of all are kept, in ascending order
    int64_t rows, num_tiles, num_wanted, table_stride, kv_stride;
};

// Wanted rows move to the front, in place: none is written over before it has moved.
inline void gather(const Step& step, float* values, int64_t width) {
    for (int64_t i = 0; i < step.num_wanted; ++i)
        std::memmove(values + i * width, values + step.wanted[i] * width, width * sizeof(float));
}

// Ops: the operations of kernels.cpp.
template <class Ops>
void run(const Layer* layers, const Shape& shape, const Step& step) {
    const int64_t size = shape.hidden, qkv = layers->qkv.out, inner = layers->down.in;
    int64_t rows = step.rows;
    const int64_t mlp_rows = std::min(rows, shape.mlp_rows);
    const auto normed = scratch::of<float>(rows * size), heads = scratch::of<float>(rows * qkv);
    const auto mixed = scratch::of<float>(rows * layers->mixed.in);
    const auto wide = scratch::of<float>(mlp_rows * 2 * inner), gated = scratch::of<float>(mlp_rows * inner);
    float* hidden = step.hidden;
    for (int64_t l = 0; l < shape.layers; ++l) {
        const Layer& layer = layers[l];
        Ops::norm(hidden, layer.attention_norm, shape.eps, normed.get(), rows, size);
        Ops::multiply(layer.qkv, normed.get(), heads.get(), rows, false);
        Ops::rotate(heads.get(), qkv, step.cos, step.sin, rows, shape.heads + shape.kv_heads, shape.dim);
        Ops::attend(heads.get(), qkv, step.kv + l * step.kv_stride, shape, step, mixed.get());
        if (l + 1 == shape.layers) {
            gather(step, mixed.get(), layer.mixed.in);
            gather(step, hidden, size);
            rows = step.num_wanted;
        }
        Ops::multiply(layer.mixed, mixed.get(), hidden, rows, true);
        Ops::norm(hidden, layer.mlp_norm, shape.eps, normed.get(), rows, size);
        for (int64_t first = 0; first < rows; first += mlp_rows) {
            const int64_t some = std::min(mlp_rows, rows - first);
            Ops::multiply(layer.gate_up, normed.get() + first * size, wide.get(), some, false);
            Ops::gate(wide.get(), gated.get(), some, inner);
            Ops::multiply(layer.down, gated.get(), hidden + first * size, some, true);
        }
    }
}

}  // namespace decoder
