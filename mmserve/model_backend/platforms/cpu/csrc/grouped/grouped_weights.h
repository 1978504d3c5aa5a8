// Memory layout of the weights of quantized checkpoints: a header, the order of the inputs if it is not ascending, and
// panels of 16 outputs. In a panel each group of inputs has its scales and zero points, then its codes, 32 inputs after
// another.
#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "linear/quantized_weights.h"

namespace grouped {

using quantized::i16x16;
using quantized::kGroup;
using quantized::kOutputs;
using quantized::u16x16;
using tile::i32x8;
typedef int16_t i16x8 __attribute__((vector_size(16)));

constexpr int kQuads = kGroup / 4;  // of neighbouring inputs

struct alignas(64) Header {
    int64_t group_size;
    int64_t has_order;  // then int32 [K] follows, up to a whole line

    const int32_t* order() const { return has_order ? reinterpret_cast<const int32_t*>(this + 1) : nullptr; }

    const uint8_t* panels(int64_t K) const {
        const auto* after = reinterpret_cast<const uint8_t*>(this + 1);
        const int64_t line = memory::kLine, nbytes = K * sizeof(int32_t);
        return has_order ? after + (nbytes + line - 1) / line * line : after;
    }
};

// Of one group of a panel.
struct Scales {
    float scales[kOutputs];
    int16_t zeros[kOutputs];

    i32x8 zeros_of(int half) const { return __builtin_convertvector(tile::load<i16x8>(zeros + 8 * half), i32x8); }
};

// [4 pairs of quads, 16 outputs, 4 inputs] bytes, with the first quad in their lower half.
struct Codes4 {
    static constexpr int64_t kNbytes = kGroup / 2 * kOutputs;

    // Inputs 0 and 2 of a quad, or 1 and 3, of 8 outputs.
    static i16x16 pair(const uint8_t* codes, int quad, int odd, int half) {
        const auto words = tile::load<u16x16>(codes + quad / 2 * 64 + half * 32);
        return reinterpret_cast<i16x16>(words >> (8 * odd + quad % 2 * 4) & 15);
    }
};

// [8 quads, 16 outputs, 4 inputs] bytes.
struct Codes8 {
    static constexpr int64_t kNbytes = kGroup * kOutputs;

    static i16x16 pair(const uint8_t* codes, int quad, int odd, int half) {
        const auto words = tile::load<u16x16>(codes + quad * 64 + half * 32);
        return reinterpret_cast<i16x16>(odd ? words >> 8 : words & 255);
    }
};

template <class Codes>
constexpr int64_t panel_nbytes(int64_t K, int64_t group_size) {
    return (K + group_size - 1) / group_size * sizeof(Scales) + K / kGroup * Codes::kNbytes;
}

}  // namespace grouped
