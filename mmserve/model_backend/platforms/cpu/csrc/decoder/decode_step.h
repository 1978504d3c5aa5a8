// A decode step in one call: from the ids of its rows to their next tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aligned_memory.h"
#include "decoder/decoder.h"
#include "linear/matrix.h"
#include "sampling/sampling.h"

namespace decoder {

// What the rows of a step begin with.
struct Tokens {
    Matrix embedding;
    float scale;              // of the embedding's rows
    const float *cos, *sin;   // [ropes, num_positions, rotary / 2]: the angles of every position
    int64_t ropes, num_positions;
    const int64_t* given;     // [rows]: token ids; negative: what the row's slot has chosen last
    const int64_t* slots;     // [rows]
    const int64_t* positions; // [rows], below num_positions
    int64_t* last;            // by slot: the token that it has chosen last. Written, if tokens are chosen
    int64_t* read;            // written: the ids of the rows of logits_indices
};

// What the rows of logits_indices end with.
struct Output {
    const float* norm;            // [hidden]: the last norm's weights
    Matrix head;
    float* logits;                // [rows, head.out]
    int64_t vocab;                // of the logits of a row so many are of tokens, the first
    const sampling::Draw* draws;  // [rows], as in mm_sample; null: no tokens are chosen
    int64_t* chosen;              // [rows]
};

// Writes the hidden states of the step's rows.
template <class Ops>
void embed(const Tokens& tokens, const Step& step, int64_t hidden) {
    int64_t* ids = memory::scratch<struct Ids, int64_t>(step.rows);
    for (int64_t row = 0; row < step.rows; ++row)
        ids[row] = tokens.given[row] < 0 ? tokens.last[tokens.slots[row]] : tokens.given[row];
    for (int64_t i = 0; i < step.num_logits; ++i) tokens.read[i] = ids[step.logits_indices[i]];
    Ops::load_rows(tokens.embedding, ids, step.hidden, step.rows);
    if (tokens.scale != 1)
        for (int64_t i = 0; i < step.rows * hidden; ++i) step.hidden[i] *= tokens.scale;
}

// Of all positions' numbers [ropes, num_positions, size] those of the step's rows: [ropes, rows, size].
inline void gather_angles(const Tokens& tokens, const float* of_positions, int64_t size, int64_t rows, float* to) {
    for (int64_t rope = 0; rope < tokens.ropes; ++rope)
        for (int64_t row = 0; row < rows; ++row, to += size)
            std::memcpy(to, of_positions + (rope * tokens.num_positions + tokens.positions[row]) * size, size * sizeof(float));
}

// `step` has no hidden states and angles yet. Ops: the operators of kernels.cpp.
template <class Ops>
void run_decode(const Layer* layers, const Shape& shape, Step step, const Tokens& tokens, const Output& output) {
    const int64_t pairs = shape.rotary / 2, angles = tokens.ropes * step.rows * pairs, rows = step.num_logits;
    float* cos = memory::scratch<struct Angles, float>(2 * angles);
    gather_angles(tokens, tokens.cos, pairs, step.rows, cos);
    gather_angles(tokens, tokens.sin, pairs, step.rows, cos + angles);
    step.hidden = memory::scratch<struct Hidden, float>(step.rows * shape.hidden);
    step.cos = cos;
    step.sin = cos + angles;
    embed<Ops>(tokens, step, shape.hidden);
    run<Ops>(layers, &output.head, shape, step, [&] {
        float* normed = memory::scratch<struct LastNormed, float>(rows * shape.hidden);
        const pool::BeforeTasks norm([&] { Ops::norm(step.hidden, output.norm, shape.eps, normed, rows, shape.hidden); });
        Ops::multiply(output.head, normed, output.logits, rows, false);
    });
    if (!output.draws) return;
    sampling::run(output.logits, output.head.out, rows, output.vocab, output.draws, false, output.chosen);
    // A row without a token leaves token 0, so that a plan already in flight for its slot can still be computed.
    for (int64_t i = 0; i < rows; ++i)
        tokens.last[tokens.slots[step.logits_indices[i]]] = std::max<int64_t>(output.chosen[i], 0);
}

}  // namespace decoder
