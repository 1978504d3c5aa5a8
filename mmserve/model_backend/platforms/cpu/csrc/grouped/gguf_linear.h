// out[M, N] = x[M, K] W^T with matrices of a GGUF file: a layer's matrices follow each other, each in its own format.
#pragma once

#include <cstdint>

#include "grouped/gguf_scales.h"
#include "grouped/grouped_linear.h"

namespace grouped {

// Outputs of one format. `format` is the file's number of it, `start` the place of the panels behind the header.
struct GgufSection {
    int64_t format, outputs, start;
};

// The panels begin behind it, at the next line.
struct GgufHeader {
    int64_t count, panels_start;
    GgufSection sections[];

    const uint8_t* panels(const GgufSection& section) const {
        return reinterpret_cast<const uint8_t*>(this) + panels_start + section.start;
    }
};

// Calls body with the codes and the scales of a format.
template <class Body>
void dispatch_gguf(int64_t format, const Body& body) {
    switch (format) {
        case 2: return body(Codes4(), HalfScales<8>());
        case 3: return body(Codes4(), HalfScalesAndMinima());
        case 6: return body(Codes5(), HalfScales<16>());
        case 7: return body(Codes5(), HalfScalesAndMinima());
        case 8: return body(Codes8(), HalfScales<128>());
        case 12: return body(Codes4(), SuperblockScalesAndMinima());
        case 13: return body(Codes5(), SuperblockScalesAndMinima());
        default: return body(Codes6(), SuperblockSignedScales());
    }
}

inline void run_gguf(const linear::Job& job, const uint8_t* weights) {
    const auto* header = reinterpret_cast<const GgufHeader*>(weights);
    Inputs x{};
    const pool::BeforeTasks quantize([&] { x = quantize_inputs<WideInputs>(job, nullptr); });
    int64_t column = 0;
    for (int64_t i = 0; i < header->count; ++i) {
        const GgufSection& section = header->sections[i];
        const linear::Job part{job.x, job.out + column, job.M, job.K, section.outputs, job.epilogue.at(column), job.ways};
        dispatch_gguf(section.format, [&](auto codes, auto scales) {
            using Group = decltype(scales);
            multiply<decltype(codes), Group, WideInputs::kNumDigits>(part, job.N, x, Group::kInputs,
                                                                     header->panels(section));
        });
        column += section.outputs;
    }
}

// The weights of one output of a panel as floats: [K].
template <class Codes, class Group>
void dequantize(const uint8_t* panel, int64_t output, int64_t K, float* out) {
    const int first = static_cast<int>(output / 8 * 8), lane = static_cast<int>(output % 8);
    for (int64_t k = 0; k < K;) {
        const auto* group = reinterpret_cast<const Group*>(panel);
        const int zero = zeros_of(*group, first)[lane];
        panel += sizeof(Group);
        for (int64_t end = k + Group::kInputs, block = 0; k < end; k += kGroup, panel += Codes::kNbytes, ++block) {
            float minimum = 0.f;
            if constexpr (Group::kHasMinima) minimum = group->template minimum_of<f32x8>(block, first)[lane];
            for (int64_t i = 0; i < kGroup; ++i) {
                const int64_t part = Group::kParts * block + i * Group::kParts / kGroup;
                const float scale = group->template scale_of<f32x8>(part, first)[lane];
                const float product = tile::rounded(f32x8{} + scale * (Codes::code(panel, output, i) - zero))[0];
                out[k + i] = product + minimum;
            }
        }
    }
}

inline void load_gguf_row(const uint8_t* weights, int64_t index, int64_t K, float* out) {
    const auto* header = reinterpret_cast<const GgufHeader*>(weights);
    const GgufSection* section = header->sections;
    for (; index >= section->outputs; ++section) index -= section->outputs;
    dispatch_gguf(section->format, [&](auto codes, auto scales) {
        using Codes = decltype(codes);
        using Group = decltype(scales);
        const int64_t nbytes = panel_nbytes<Codes, Group>(K, Group::kInputs);
        dequantize<Codes, Group>(header->panels(*section) + index / kOutputs * nbytes, index % kOutputs, K, out);
    });
}

}  // namespace grouped
