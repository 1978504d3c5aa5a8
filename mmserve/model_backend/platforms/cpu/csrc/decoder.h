// All layers of a decoder in one call. Intermediate results stay inside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aligned_memory.h"

namespace decoder {

struct Matrix {
    const void* panels;
    const float* bias;  // or null
    int64_t weights;    // their storage format, as in mm_linear
    int64_t in, out;
};

struct Layer {
    const float* attention_norm;
    const float* mlp_norm;
    const float *q_norm, *k_norm;                         // [dim], or both null
    const float *after_attention_norm, *after_mlp_norm;  // or both null
    int64_t query_rope, key_rope;                         // which of the step's ropes turn the heads; -1: none
    int64_t window;                                       // as in mm_attention
    int64_t whole_images;                                 // if not 0, attention reads image_ends
    Matrix qkv, attention_out, gate_up, down;
};

struct Shape {
    int64_t layers, hidden, heads, kv_heads, dim;
    int64_t rotary;      // numbers of each head that turn, its first
    int64_t adjacent;    // as in mm_rotate
    int64_t mlp_rows;    // rows of an MLP computed at one time, as its intermediate results are wide
    int64_t activation;  // as in mm_act_and_mul
    int64_t cache;       // as in mm_attention
    float eps, attention_scale;
};

struct Step {
    float* hidden;                                 // [rows, hidden], in place
    const float *cos, *sin;                        // [ropes, rows, rotary / 2]
    char* kv;                                      // KV cache of layer 0; the next layer's is kv_stride bytes further
    const int64_t *slot_mapping, *tables, *tiles;  // as in mm_attention
    const int64_t* logits_indices;  // ascending rows whose hidden states are computed; other rows only need K and V
    int64_t rows, num_tiles, num_logits, table_stride, kv_stride;
    const int64_t* image_ends;  // as in mm_attention, or null
    const float* added;         // [layers_with_added, num_added, hidden]: added to rows after the first layers (DeepStack)
    const int64_t* added_rows;  // [num_added]: the rows
    int64_t num_added, layers_with_added;
};

// Moves the rows of logits_indices to the front, in place. Since these ascend, no row is overwritten before it moves.
inline void gather(const Step& step, float* values, int64_t width) {
    for (int64_t i = 0; i < step.num_logits; ++i)
        std::memmove(values + i * width, values + step.logits_indices[i] * width, width * sizeof(float));
}

// Ops: the operators of kernels.cpp.
template <class Ops>
void run(const Layer* layers, const Shape& shape, const Step& step) {
    const int64_t size = shape.hidden, qkv = layers->qkv.out, inner = layers->down.in;
    int64_t rows = step.rows;
    const int64_t mlp_rows = std::min(rows, shape.mlp_rows);
    const auto normed = memory::allocate<float>(rows * size), heads = memory::allocate<float>(rows * qkv);
    const auto attended = memory::allocate<float>(rows * layers->attention_out.in);
    const auto gate_up = memory::allocate<float>(mlp_rows * 2 * inner);
    const auto gated = memory::allocate<float>(mlp_rows * inner);
    float* hidden = step.hidden;
    for (int64_t l = 0; l < shape.layers; ++l) {
        const Layer& layer = layers[l];
        Ops::norm(hidden, layer.attention_norm, shape.eps, normed.get(), rows, size);
        Ops::multiply(layer.qkv, normed.get(), heads.get(), rows, false);
        if (layer.q_norm) {
            float* keys = heads.get() + shape.heads * shape.dim;
            Ops::head_norm(heads.get(), qkv, layer.q_norm, shape.eps, rows, shape.heads, shape.dim);
            Ops::head_norm(keys, qkv, layer.k_norm, shape.eps, rows, shape.kv_heads, shape.dim);
        }
        const auto rotate = [&](int64_t rope, int64_t first_head, int64_t count) {
            const int64_t angles = rope * rows * (shape.rotary / 2);
            Ops::rotate(heads.get() + first_head * shape.dim, qkv, step.cos + angles, step.sin + angles, rows, count,
                        shape.dim, shape.rotary, shape.adjacent);
        };
        if (layer.query_rope >= 0 && layer.query_rope == layer.key_rope) {
            rotate(layer.key_rope, 0, shape.heads + shape.kv_heads);
        } else if (layer.query_rope >= 0) {
            rotate(layer.query_rope, 0, shape.heads);
            rotate(layer.key_rope, shape.heads, shape.kv_heads);
        }
        Ops::attend(heads.get(), qkv, step.kv + l * step.kv_stride, layer, shape, step, attended.get());
        if (l + 1 == shape.layers) {
            gather(step, attended.get(), layer.attention_out.in);
            gather(step, hidden, size);
            rows = step.num_logits;
        }
        if (layer.after_attention_norm) {
            Ops::multiply(layer.attention_out, attended.get(), normed.get(), rows, false);
            Ops::norm(normed.get(), layer.after_attention_norm, shape.eps, normed.get(), rows, size);
            Ops::add(normed.get(), hidden, rows, size);
        } else {
            Ops::multiply(layer.attention_out, attended.get(), hidden, rows, true);
        }
        Ops::norm(hidden, layer.mlp_norm, shape.eps, normed.get(), rows, size);
        for (int64_t first = 0; first < rows; first += mlp_rows) {
            const int64_t count = std::min(mlp_rows, rows - first);
            Ops::multiply(layer.gate_up, normed.get() + first * size, gate_up.get(), count, false);
            Ops::act_and_mul(gate_up.get(), gated.get(), count, inner, shape.activation);
            float *to = hidden + first * size, *result = normed.get() + first * size;
            if (layer.after_mlp_norm) {
                Ops::multiply(layer.down, gated.get(), result, count, false);
                Ops::norm(result, layer.after_mlp_norm, shape.eps, result, count, size);
                Ops::add(result, to, count, size);
            } else {
                Ops::multiply(layer.down, gated.get(), to, count, true);
            }
        }
        if (l < step.layers_with_added)
            Ops::add_rows(step.added + l * step.num_added * size, step.added_rows, hidden, step.num_added, size);
    }
}

}  // namespace decoder
