// How quantized weights lie in memory: panels of 16 outputs, in groups of 32 of their numbers that share a scale. Knows
// how a group is read, and nothing of what is computed with it.
#pragma once

#include <cstdint>

#include "tile.h"

namespace quantized {

using tile::f32x8;
using tile::i32x8;
typedef int8_t i8x8 __attribute__((vector_size(8)));
typedef uint8_t u8x8 __attribute__((vector_size(8)));

constexpr int64_t kGroup = 32;

// 8 neighbouring bytes as whole numbers.
inline i32x8 wholes(const uint8_t* from) {
#ifdef __AVX2__
    return reinterpret_cast<i32x8>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(tile::load<int64_t>(from))));
#else
    return __builtin_convertvector(tile::load<u8x8>(from), i32x8);
#endif
}

inline i32x8 signed_wholes(const uint8_t* from) {
#ifdef __AVX2__
    return reinterpret_cast<i32x8>(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(tile::load<int64_t>(from))));
#else
    return __builtin_convertvector(tile::load<i8x8>(from), i32x8);
#endif
}

inline f32x8 floats(i32x8 numbers) {
    return __builtin_convertvector(numbers, f32x8);
}

// A group in memory: 16 scales in bfloat16, then [32, 16 outputs] int8.
struct Int8 {
    static constexpr int64_t kNbytes = (2 + kGroup) * tile::kColumns;
    static constexpr int64_t kStep = 1;         // numbers that are read together
    static constexpr int64_t kDirectTiles = 4;  // so many times it costs less to make floats while multiplying

    f32x8 scales[2];
    const uint8_t* body;

    Int8() = default;
    explicit Int8(const uint8_t* group) : body(group + 2 * tile::kColumns) {
        for (int half = 0; half < 2; ++half)
            scales[half] = tile::widen(reinterpret_cast<const uint16_t*>(group) + half * 8);
    }

    // The group's numbers from k on: 8 outputs, and the other 8.
    void read(int64_t k, f32x8 (&numbers)[kStep][2]) const {
        for (int half = 0; half < 2; ++half)
            numbers[0][half] = floats(signed_wholes(body + k * tile::kColumns + half * 8)) * scales[half];
    }

    static void numbers(const uint8_t* group, int64_t column, float* out) {
        const float scale = tile::widen_one(reinterpret_cast<const uint16_t*>(group) + column);
        const auto* from = reinterpret_cast<const int8_t*>(group) + 2 * tile::kColumns + column;
        for (int64_t k = 0; k < kGroup; ++k) out[k] = scale * from[k * tile::kColumns];
    }
};

// 16 scales and 16 least values in bfloat16, then [16, 16 outputs] bytes: an even number below, the next one above.
struct Int4 {
    static constexpr int64_t kNbytes = (4 + kGroup / 2) * tile::kColumns;
    static constexpr int64_t kStep = 2;
    static constexpr int64_t kDirectTiles = 2;

    f32x8 scales[2], least[2];
    const uint8_t* body;

    Int4() = default;
    explicit Int4(const uint8_t* group) : body(group + 4 * tile::kColumns) {
        const auto* head = reinterpret_cast<const uint16_t*>(group);
        for (int half = 0; half < 2; ++half) {
            scales[half] = tile::widen(head + half * 8);
            least[half] = tile::widen(head + tile::kColumns + half * 8);
        }
    }

    void read(int64_t k, f32x8 (&numbers)[kStep][2]) const {
        for (int half = 0; half < 2; ++half) {
            const i32x8 both = wholes(body + k / 2 * tile::kColumns + half * 8);
            numbers[0][half] = floats(both & 15) * scales[half] + least[half];
            numbers[1][half] = floats(both >> 4) * scales[half] + least[half];
        }
    }
};

}  // namespace quantized
