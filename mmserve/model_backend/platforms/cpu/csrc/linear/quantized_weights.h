// Memory layout of quantized weights: panels of 16 outputs, in groups of 32 weights per output that share a scale.
#pragma once

#include <cstdint>

#include "linear/quantize_activations.h"
#include "tile.h"

namespace quantized {

typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef char c8x16 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

constexpr int64_t kOutputs = 16;                    // of a panel
constexpr int kPairs = 4;                          // pairs of numbers in 8 lanes
constexpr int64_t kLanes8 = kGroup / (2 * kPairs);  // sets of 8 lanes in a group

// The scales of 8 of the panel's outputs. A group begins with all 16, in bfloat16.
inline f32x8 scales(const uint8_t* group, int half) {
    return tile::widen(reinterpret_cast<const uint16_t*>(group) + half * 8);
}

// After the scales: [4 lanes8, 4 pairs, 16 outputs, 2] int8.
struct Int8 {
    static constexpr int64_t kNbytes = (2 + kGroup) * kOutputs;
    static constexpr bool kHasMinimum = false;

    // One pair of weights of 8 outputs: [8 outputs, 2].
    static i16x16 pair(const uint8_t* group, int64_t lane8, int pair, int half) {
        const uint8_t* from = group + 2 * kOutputs + ((lane8 * kPairs + pair) * 2 + half) * 16;
#if defined(__AVX2__) && !defined(__clang__)  // GCC compiles the other line to four instructions
        return reinterpret_cast<i16x16>(__builtin_ia32_pmovsxbw256(tile::load<c8x16>(from)));
#else
        return __builtin_convertvector(tile::load<i8x16>(from), i16x16);
#endif
    }

    // One output's 32 weights as floats.
    static void dequantize(const uint8_t* group, int64_t column, float* out) {
        const float scale = tile::widen_one(reinterpret_cast<const uint16_t*>(group) + column);
        const auto* from = reinterpret_cast<const int8_t*>(group) + 2 * (kOutputs + column);
        for (int64_t k = 0; k < kGroup; ++k) out[k] = scale * from[k / 2 * 2 * kOutputs + k % 2];
    }
};

// After the scales: 16 minima in bfloat16, then [4 lanes8, 16 outputs, 2] words of 16 bits. The first word of an output
// has the even lanes, the second the odd ones, from the lowest bits on.
struct Int4 {
    static constexpr int64_t kNbytes = (4 + kGroup / 2) * kOutputs;
    static constexpr bool kHasMinimum = true;

    static i16x16 pair(const uint8_t* group, int64_t lane8, int pair, int half) {
        const uint8_t* from = group + 4 * kOutputs + (lane8 * 2 + half) * 32;
        return reinterpret_cast<i16x16>(tile::load<u16x16>(from) >> 4 * pair & 15);
    }

    static f32x8 minimum(const uint8_t* group, int half) { return scales(group + 2 * kOutputs, half); }
};

}  // namespace quantized
