// All layers of a decoder in one call. Intermediate results stay inside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "aligned_memory.h"
#include "attention/segments.h"
#include "linear/matrix.h"
#include "parallel.h"

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

// Whether a step of so many rows is computed by a team. Each of its threads computes the norms and activations of all rows itself.
inline bool suits_team(int64_t rows) {
    constexpr int64_t kMostRepeated = 16;  // rows times threads, but for one row
    return rows <= std::max<int64_t>(1, kMostRepeated / pool::shared().num_threads());
}

// Where a step's intermediate results are that several threads write or read.
struct Buffers {
    float *heads, *attended;           // [rows, qkv] and [rows, heads * dim]
    float *gate_up, *product;          // of a team: [rows, gate_up] and [rows, hidden]; else null
    attention::SegmentMemory* segments;
};

// Ops: the operators of kernels.cpp.
template <class Ops>
struct Decoder {
    const Shape& shape;
    const Step& step;
    const Buffers& buffers;

    // Rows [first, first + rows) up to their queries, and their keys and values in the KV cache.
    void project(const Layer& layer, char* kv, int64_t first, int64_t rows) const {
        const int64_t size = shape.hidden, width = layer.qkv.out;
        float *to = buffers.heads + first * width, *normed = memory::scratch<struct Normed, float>(rows * size);
        {
            const pool::BeforeTasks norm([&] {
                Ops::norm(step.hidden + first * size, layer.attention_norm, shape.eps, normed, rows, size);
            });
            Ops::read_ahead(layer.attention_out);
            Ops::multiply(layer.qkv, normed, to, rows, false);
        }
        pool::parallel_for_rows(rows, width, [&](int64_t row) {
            const pool::Alone alone;
            turn(layer, first + row, to + row * width);
            Ops::store(to + row * width + shape.heads * shape.dim, kv, step.slot_mapping[first + row], shape);
        });
    }

    // The norms and the rotary embedding of a row's queries and keys.
    void turn(const Layer& layer, int64_t row, float* queries) const {
        float* keys = queries + shape.heads * shape.dim;
        if (layer.q_norm) {
            Ops::head_norm(queries, 0, layer.q_norm, shape.eps, 1, shape.heads, shape.dim);
            Ops::head_norm(keys, 0, layer.k_norm, shape.eps, 1, shape.kv_heads, shape.dim);
        }
        const auto rotate = [&](int64_t rope, float* from, int64_t count) {
            const int64_t angles = (rope * step.rows + row) * (shape.rotary / 2);
            Ops::rotate(from, 0, step.cos + angles, step.sin + angles, 1, count, shape.dim, shape.rotary, shape.adjacent);
        };
        if (layer.query_rope >= 0 && layer.query_rope == layer.key_rope) {
            rotate(layer.key_rope, queries, shape.heads + shape.kv_heads);
        } else if (layer.query_rope >= 0) {
            rotate(layer.query_rope, queries, shape.heads);
            rotate(layer.key_rope, keys, shape.kv_heads);
        }
    }

    // What follows attention in rows [first, first + rows). next: the matrix that is multiplied with after this layer, or null.
    void finish(const Layer& layer, const Matrix* next, int64_t first, int64_t rows) const {
        float* hidden = step.hidden + first * shape.hidden;
        Ops::read_ahead(layer.gate_up);
        add_product(layer.attention_out, buffers.attended + first * layer.attention_out.in, layer.after_attention_norm, hidden, rows);
        for (int64_t row = 0; row < rows; row += shape.mlp_rows)
            feed_forward(layer, next, hidden + row * shape.hidden, std::min(rows - row, shape.mlp_rows));
    }

    void feed_forward(const Layer& layer, const Matrix* next, float* hidden, int64_t rows) const {
        const int64_t size = shape.hidden, inner = layer.down.in;
        float* gate_up = buffers.gate_up ? buffers.gate_up : memory::scratch<struct GateUp, float>(rows * 2 * inner);
        {
            float* normed = memory::scratch<struct Normed, float>(rows * size);
            const pool::BeforeTasks norm([&] { Ops::norm(hidden, layer.mlp_norm, shape.eps, normed, rows, size); });
            Ops::read_ahead(layer.down);
            Ops::multiply(layer.gate_up, normed, gate_up, rows, false);
        }
        float* gated = memory::scratch<struct Gated, float>(rows * inner);
        const pool::BeforeTasks activate([&] { Ops::act_and_mul(gate_up, gated, rows, inner, shape.activation); });
        if (next) Ops::read_ahead(*next);
        add_product(layer.down, gated, layer.after_mlp_norm, hidden, rows);
    }

    // hidden += the product, through a norm if there is one.
    void add_product(const Matrix& matrix, const float* x, const float* norm, float* hidden, int64_t rows) const {
        if (!norm) return Ops::multiply(matrix, x, hidden, rows, true);
        const int64_t size = shape.hidden;
        float* product = buffers.product ? buffers.product : memory::scratch<struct Product, float>(rows * size);
        Ops::multiply(matrix, x, product, rows, false);
        Ops::norm(product, norm, shape.eps, product, rows, size);
        Ops::add(product, hidden, rows, size);
    }
};

// All layers. After the first ones, `added` is added to rows (DeepStack).
template <class Ops>
void run_layers(const Layer* layers, const Matrix* head, const Shape& shape, const Step& step, const Step& last,
                const Buffers& buffers) {
    const Decoder<Ops> decoder{shape, step, buffers};
    int64_t rows = step.rows;
    for (int64_t l = 0; l < shape.layers; ++l) {
        const Layer& layer = layers[l];
        char* kv = step.kv + l * step.kv_stride;
        const bool is_last = l + 1 == shape.layers;
        const Matrix* next = is_last ? head : &layers[l + 1].qkv;
        pool::for_each_block(rows, [&](int64_t first, int64_t count) { decoder.project(layer, kv, first, count); });
        Ops::attend(buffers.heads, layer.qkv.out, kv, layer, shape, is_last ? last : step, buffers.attended, *buffers.segments);
        if (is_last && rows != step.num_logits) {
            pool::once([&] {
                gather(step, buffers.attended, layer.attention_out.in);
                gather(step, step.hidden, shape.hidden);
            });
            rows = step.num_logits;
        }
        pool::for_each_block(rows, [&](int64_t first, int64_t count) { decoder.finish(layer, next, first, count); });
        if (l < step.layers_with_added)
            Ops::add_rows(step.added + l * step.num_added * shape.hidden, step.added_rows, step.hidden, step.num_added, shape.hidden);
    }
}

// All layers, then then(), which multiplies with the head, or null. Few rows are computed by a team of threads.
template <class Ops, class Then>
void run(const Layer* layers, const Matrix* head, const Shape& shape, const Step& step, const Then& then) {
    const int64_t rows = step.rows;
    const bool is_team = suits_team(rows);
    const auto heads = memory::allocate<float>(rows * layers->qkv.out);
    const auto attended = memory::allocate<float>(rows * layers->attention_out.in);
    const auto gate_up = memory::allocate<float>(is_team ? rows * layers->gate_up.out : 0);
    const auto product = memory::allocate<float>(is_team ? rows * shape.hidden : 0);
    attention::SegmentMemory segments;
    const Buffers buffers{heads.get(), attended.get(), is_team ? gate_up.get() : nullptr, is_team ? product.get() : nullptr, &segments};
    const std::vector<int64_t> tiles = wanted_tiles(step);
    Step last = step;
    last.tiles = tiles.data();
    last.num_tiles = static_cast<int64_t>(tiles.size()) / 4;
    const auto all = [&] {
        run_layers<Ops>(layers, head, shape, step, last, buffers);
        then();
    };
    is_team ? pool::together(all) : all();
}

}  // namespace decoder
