// Attention of a vision tower: no mask, within each of some sequences (Dao et al. 2022). Keys and values are packed in
// panels as weights are, so that both products are those of linear layers, in the modes of linear/product.h. A row's
// result does not depend on the rows and sequences computed with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "aligned_memory.h"
#include "attention/online_softmax.h"
#include "attention/transpose.h"
#include "linear/linear.h"
#include "parallel.h"

namespace encoder_attention {

using attention::kSide, linear::kPanel;

constexpr int64_t kKeyTile = 288;  // most keys between two updates of the softmax, a multiple of kPanel
constexpr int64_t kTaskRows = 48;  // query rows of one task
constexpr int64_t kAlign = 16;     // the softmax takes this many scores at a time
constexpr int64_t kAhead = 16;     // rows: a row's part of one head is too short for the CPU's own prefetcher

// Fetches `size` numbers that will be read, or written.
template <int kWrites = 0>
void prefetch(const float* numbers, int64_t size) {
    for (int64_t i = 0; i < size; i += memory::kLine / sizeof(float)) __builtin_prefetch(numbers + i, kWrites);
}

inline int64_t round_up(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

struct Job {
    const float* qkv;  // [rows, 3, heads, dim]
    float* out;        // [rows, heads, dim]
    int64_t heads, dim;

    const float* part(int64_t row, int64_t index, int64_t head) const {
        return qkv + ((3 * row + index) * heads + head) * dim;
    }
};

// Words of 32 bits: one float, or two numbers in bfloat16. `row` has room for a vector more than `size` numbers.
inline void pack_row(const float* x, int64_t size, float* row) { std::copy(x, x + size, row); }
inline void pack_row(const float* x, int64_t size, uint16_t* row) { linear::round_inputs(x, size, row); }

// The words of one column in two rows, or in the first alone if a word is one float.
inline void pack_columns(const float* first, const float*, int64_t size, float* out) {
    std::copy(first, first + size, out);
}
inline void pack_columns(const float* first, const float* second, int64_t size, uint16_t* out) {
    constexpr int64_t kStep = tile::kLanes<linear::Vector>;
    for (int64_t i = 0; i < size; i += kStep) {
        const auto words = linear::input_pairs(tile::load_first<linear::Vector>(first + i, size - i),
                                               tile::load_first<linear::Vector>(second + i, size - i));
        std::memcpy(out + 2 * i, &words, std::min(kStep, size - i) * sizeof(uint32_t));
    }
}

// Some keys of one head of a sequence and their values, [count, dim] and [dim, count] in panels.
template <class Mode>
struct KeyTile {
    using Number = typename Mode::Number;
    static constexpr int64_t kWordRow = kPanel * Mode::kDepth;  // numbers of a panel that share their inputs
    Number *keys, *values;
    int64_t count;

    // Of `most` keys, a multiple of kPanel.
    static int64_t keys_size(int64_t dim, int64_t most) { return most / kPanel * Mode::panel_size(dim); }
    static int64_t size(int64_t dim, int64_t most) { return keys_size(dim, most) + round_up(dim, kPanel) * most; }
    int64_t padded() const { return round_up(count, kAlign); }

    // Zeros where whole panels and pairs of values are read beyond `count` and dim.
    void fill_up(int64_t dim) const {
        const int64_t width = round_up(dim, kPanel);
        const int64_t stored = dim % kPanel ? 0 : count / Mode::kDepth * kWordRow;
        for (int64_t start = 0; start < width; start += kPanel)
            std::fill(values + start * padded() + stored, values + (start + kPanel) * padded(), Number{});
    }

    // Keys [key, key + kSide), in rows of pack_row.
    void set_keys(int64_t key, const Number* rows, int64_t stride, int64_t dim) const {
        Number* to = keys + key / kPanel * Mode::panel_size(dim) + key % kPanel * Mode::kDepth;
        for (int64_t k = 0; k < dim; k += kSide * Mode::kDepth) {
            linear::Words words[kSide];
#pragma GCC unroll 16
            for (int64_t i = 0; i < kSide; ++i) words[i] = tile::load<linear::Words>(rows + i * stride + k);
            attention::transpose(words);
#pragma GCC unroll 16
            for (int64_t i = 0; i < kSide && k + i * Mode::kDepth < dim; ++i)
                std::memcpy(to + (k / Mode::kDepth + i) * kWordRow, &words[i], sizeof words[i]);
        }
    }

    // The values of keys [key, key + kDepth).
    void set_values(int64_t key, const float* first, const float* second, int64_t dim) const {
        for (int64_t start = 0; start < dim; start += kPanel)
            pack_columns(first + start, second + start, std::min(kPanel, dim - start),
                         values + start * padded() + key / Mode::kDepth * kWordRow);
    }
};

// x * scale, as inputs of a product.
template <class Mode>
void scale_inputs(const float* x, float scale, int64_t size, typename Mode::Input* out) {
    if constexpr (Mode::kFlushes)
        linear::round_inputs(x, size, out, scale);
    else
        for (int64_t i = 0; i < size; ++i) out[i] = x[i] * scale;
}

template <class Mode>
using SoftmaxOf = attention::OnlineSoftmax<Mode::kFlushes>;

// The rows of one sequence, and the tiles of its keys for each head.
template <class Mode>
struct Sequence {
    int64_t first_row, length;
    typename Mode::Number* numbers;

    int64_t num_tiles() const { return (length + kKeyTile - 1) / kKeyTile; }
    // Of one tile. They are about equally large: a tile of few keys would take much of the time of a large one.
    int64_t tile_keys() const { return round_up((length + num_tiles() - 1) / num_tiles(), kPanel); }
    int64_t size(const Job& job) const { return job.heads * num_tiles() * KeyTile<Mode>::size(job.dim, tile_keys()); }

    KeyTile<Mode> tile(int64_t index, int64_t head, int64_t dim) const {
        const int64_t most = tile_keys();
        auto* keys = numbers + (head * num_tiles() + index) * KeyTile<Mode>::size(dim, most);
        return {keys, keys + KeyTile<Mode>::keys_size(dim, most), std::min(most, length - index * most)};
    }

    void pack(const Job& job, int64_t index, int64_t head) const {
        const KeyTile<Mode> packed = tile(index, head, job.dim);
        packed.fill_up(job.dim);
        const int64_t stride = round_up(job.dim, kSide * Mode::kDepth);
        auto* rows = memory::scratch<struct Keys, typename Mode::Number>(kSide * stride);
        float* none = memory::scratch<struct NoValue, float>(job.dim);
        std::fill(none, none + job.dim, 0.f);
        const int64_t from = first_row + index * tile_keys();
        for (int64_t key = 0; key < round_up(packed.count, kPanel); key += kSide) {
            for (int64_t i = 0; i < kSide; ++i) {
                prefetch(job.part(from + key + kAhead + i, 1, head), job.dim);
                const bool exists = key + i < packed.count;
                pack_row(exists ? job.part(from + key + i, 1, head) : none, job.dim, rows + i * stride);
            }
            packed.set_keys(key, rows, stride, job.dim);
        }
        for (int64_t key = 0; key < packed.count; key += Mode::kDepth) {
            for (int64_t i = 0; i < Mode::kDepth; ++i) prefetch(job.part(from + key + kAhead + i, 2, head), job.dim);
            const float* second = key + 1 < packed.count ? job.part(from + key + 1, 2, head) : none;
            packed.set_values(key, job.part(from + key, 2, head), second, job.dim);
        }
    }
};

// out += softmax(q keys^T) values for `rows` query rows: of one tile of keys, relative to the largest score so far. The
// first tile writes over `out`.
template <class Mode>
void attend(const KeyTile<Mode>& tile, bool is_first, int64_t rows, int64_t dim,
            const linear::Rows<typename Mode::Input>& q, float* scores, typename Mode::Input* weights,
            SoftmaxOf<Mode>* softmax, float* out) {
    const linear::Job score{nullptr, scores, rows, dim, kKeyTile, {}};
    for (int64_t panel = 0; panel * kPanel < tile.count; ++panel)
        linear::multiply_panel<Mode>(score, q, tile.keys, panel, 0, rows);
    for (int64_t r = 0; r < rows; ++r)
        softmax[r].update(scores + r * kKeyTile, 0, tile.count, tile.padded(), weights + r * kKeyTile, out + r * dim, dim);
    const linear::Job add{nullptr, out, rows, tile.padded(), dim, {nullptr, !is_first}};
    for (int64_t panel = 0; panel * kPanel < dim; ++panel)
        linear::multiply_panel<Mode>(add, {weights, kKeyTile}, tile.values, panel, 0, rows);
}

// Query rows [first, first + rows) of a sequence, for one head.
template <class Mode>
void attend_rows(const Job& job, const Sequence<Mode>& sequence, int64_t head, int64_t first, int64_t rows) {
    using Input = typename Mode::Input;
    const int64_t dim = job.dim, stride = linear::copy_stride<Input>(dim);
    Input *q = memory::scratch<struct Inputs, Input>(rows * (stride + kKeyTile)), *weights = q + rows * stride;
    float *scores = memory::scratch<struct Sums, float>(rows * (kKeyTile + dim)), *out = scores + rows * kKeyTile;
    const float scale = 1.f / std::sqrt(static_cast<float>(dim));
    for (int64_t r = 0; r < rows; ++r) {
        const float* from = job.part(sequence.first_row + first + r, 0, head);
        prefetch(job.part(sequence.first_row + first + r + kAhead, 0, head), dim);
        scale_inputs<Mode>(from, scale, dim, q + r * stride);
    }
    SoftmaxOf<Mode> softmax[kTaskRows];
    for (int64_t index = 0; index < sequence.num_tiles(); ++index)
        attend<Mode>(sequence.tile(index, head, dim), index == 0, rows, dim, {q, stride}, scores, weights, softmax, out);
    for (int64_t r = 0; r < rows; ++r) {
        float* to = job.out + ((sequence.first_row + first + r) * job.heads + head) * dim;
        prefetch<1>(to + kAhead * job.heads * dim, dim);
        const float part = 1.f / softmax[r].sum();
        for (int64_t i = 0; i < dim; ++i) to[i] = out[r * dim + i] * part;
    }
}

template <class Mode>
void run(const Job& job, const int64_t* lengths, int64_t num_sequences) {
    struct Part {
        int64_t sequence, first, count;
    };
    std::vector<Sequence<Mode>> sequences;
    std::vector<Part> tiles, parts;  // of keys, and of query rows
    int64_t rows = 0, size = 0;
    for (int64_t s = 0; s < num_sequences; ++s) {
        const Sequence<Mode> sequence{rows, lengths[s], nullptr};
        for (int64_t tile = 0; tile < sequence.num_tiles(); ++tile) tiles.push_back({s, tile, 1});
        linear::for_each_tile(0, lengths[s], kTaskRows,
                              [&](int64_t first, int64_t count) { parts.push_back({s, first, count}); });
        sequences.push_back(sequence);
        rows += lengths[s];
        size += sequence.size(job);
    }
    const auto packed = memory::allocate<typename Mode::Number>(size);
    int64_t offset = 0;
    for (auto& sequence : sequences) {
        sequence.numbers = packed.get() + offset;
        offset += sequence.size(job);
    }
    pool::parallel_for(tiles.size() * job.heads, [&](int64_t task) {
        const Part& tile = tiles[task / job.heads];
        sequences[tile.sequence].pack(job, tile.first, task % job.heads);
    });
    const int64_t count = parts.size();
    pool::parallel_for(count * job.heads, [&](int64_t task) {  // neighbouring tasks have the same keys
        std::optional<linear::FlushDenormals> flush;
        if constexpr (Mode::kFlushes) flush.emplace();
        const Part& part = parts[task % count];
        attend_rows<Mode>(job, sequences[part.sequence], task / count, part.first, part.count);
    });
}

}  // namespace encoder_attention
