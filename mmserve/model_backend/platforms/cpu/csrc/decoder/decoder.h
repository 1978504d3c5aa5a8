// All layers of a decoder in one call. Intermediate results stay inside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "aligned_memory.h"
#include "linear/matrix.h"
#include "thread_pool.h"

namespace decoder {

using linear::Matrix;

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

// The tiles that have rows of logits_indices. Of the last layer, attention computes these alone.
inline std::vector<int64_t> wanted_tiles(const Step& step) {
    const int64_t *first = step.logits_indices, *end = first + step.num_logits;
    std::vector<int64_t> tiles;
    for (const int64_t* tile = step.tiles; tile < step.tiles + 4 * step.num_tiles; tile += 4) {
        const int64_t* row = std::lower_bound(first, end, tile[0]);
        if (row < end && *row < tile[0] + tile[1]) tiles.insert(tiles.end(), tile, tile + 4);
    }
    return tiles;
}

// Ops: the operators of kernels.cpp.
template <class Ops>
struct Decoder {
    const Shape& shape;
    const Step& step;
    float *heads, *attended;  // [rows, qkv] and [rows, heads * dim]

    // Rows [first, first + rows) up to their queries, keys and values.
    void project(const Layer& layer, int64_t first, int64_t rows) const {
        float* normed = memory::scratch<struct Normed, float>(rows * shape.hidden);
        const int64_t width = layer.qkv.out;
        float *to = heads + first * width, *keys = to + shape.heads * shape.dim;
        Ops::norm(step.hidden + first * shape.hidden, layer.attention_norm, shape.eps, normed, rows, shape.hidden);
        Ops::multiply(layer.qkv, normed, to, rows, false);
        if (layer.q_norm) {
            Ops::head_norm(to, width, layer.q_norm, shape.eps, rows, shape.heads, shape.dim);
            Ops::head_norm(keys, width, layer.k_norm, shape.eps, rows, shape.kv_heads, shape.dim);
        }
        const auto rotate = [&](int64_t rope, float* from, int64_t count) {
            const int64_t angles = (rope * step.rows + first) * (shape.rotary / 2);
            Ops::rotate(from, width, step.cos + angles, step.sin + angles, rows, count, shape.dim, shape.rotary,
                        shape.adjacent);
        };
        if (layer.query_rope >= 0 && layer.query_rope == layer.key_rope) {
            rotate(layer.key_rope, to, shape.heads + shape.kv_heads);
        } else if (layer.query_rope >= 0) {
            rotate(layer.query_rope, to, shape.heads);
            rotate(layer.key_rope, keys, shape.kv_heads);
        }
    }

    // What follows attention in rows [first, first + rows).
    void finish(const Layer& layer, int64_t first, int64_t rows) const {
        const int64_t size = shape.hidden;
        float* normed = memory::scratch<struct Normed, float>(rows * size);
        const float* from = attended + first * layer.attention_out.in;
        float* hidden = step.hidden + first * size;
        add_product(layer.attention_out, from, layer.after_attention_norm, normed, hidden, rows);
        Ops::norm(hidden, layer.mlp_norm, shape.eps, normed, rows, size);
        const int64_t inner = layer.down.in, together = std::min(rows, shape.mlp_rows);
        float* gate_up = memory::scratch<struct GateUp, float>(together * 2 * inner);
        float* gated = memory::scratch<struct Gated, float>(together * inner);
        for (int64_t row = 0; row < rows; row += together) {
            const int64_t count = std::min(together, rows - row);
            float* result = normed + row * size;
            Ops::multiply(layer.gate_up, result, gate_up, count, false);
            Ops::act_and_mul(gate_up, gated, count, inner, shape.activation);
            add_product(layer.down, gated, layer.after_mlp_norm, result, hidden + row * size, count);
        }
    }

    // hidden += the product, through a norm if there is one. result: room for it.
    void add_product(const Matrix& matrix, const float* x, const float* norm, float* result, float* hidden,
                     int64_t rows) const {
        if (!norm) return Ops::multiply(matrix, x, hidden, rows, true);
        Ops::multiply(matrix, x, result, rows, false);
        Ops::norm(result, norm, shape.eps, result, rows, shape.hidden);
        Ops::add(result, hidden, rows, shape.hidden);
    }
};

template <class Ops>
void run(const Layer* layers, const Shape& shape, const Step& step) {
    const int64_t size = shape.hidden, qkv = layers->qkv.out;
    int64_t rows = step.rows;
    const auto heads = memory::allocate<float>(rows * qkv);
    const auto attended = memory::allocate<float>(rows * layers->attention_out.in);
    const Decoder<Ops> decoder{shape, step, heads.get(), attended.get()};
    const std::vector<int64_t> tiles = wanted_tiles(step);
    Step last = step;
    last.tiles = tiles.data();
    last.num_tiles = static_cast<int64_t>(tiles.size()) / 4;
    for (int64_t l = 0; l < shape.layers; ++l) {
        const Layer& layer = layers[l];
        pool::for_each_block(rows, [&](int64_t first, int64_t count) { decoder.project(layer, first, count); });
        const bool is_last = l + 1 == shape.layers;
        Ops::attend(heads.get(), qkv, step.kv + l * step.kv_stride, layer, shape, is_last ? last : step, attended.get());
        if (is_last) {
            gather(step, attended.get(), layer.attention_out.in);
            gather(step, step.hidden, size);
            rows = step.num_logits;
        }
        pool::for_each_block(rows, [&](int64_t first, int64_t count) { decoder.finish(layer, first, count); });
        if (l < step.layers_with_added)
            Ops::add_rows(step.added + l * step.num_added * size, step.added_rows, step.hidden, step.num_added, size);
    }
}

}  // namespace decoder
