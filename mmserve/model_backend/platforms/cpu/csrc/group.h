// How quantized weights lie in memory: panels of 16 outputs, in groups of 32 of their numbers that share a scale. Knows
// how a group is read, and nothing of what is computed with it.
#pragma once

#include <cstdint>

#include "rounded.h"
#include "tile.h"

namespace quantized {

typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef char c8x16 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

constexpr int kPairs = 4;  // of numbers, in an eight
constexpr int64_t kEights = kGroup / (2 * kPairs);

// Each output's scale, in bfloat16, comes first.
inline f32x8 scales(const uint8_t* group, int half) {
    return tile::widen(reinterpret_cast<const uint16_t*>(group) + half * 8);
}

// Behind the scales [4 eights, 4 pairs, 16 outputs, 2] int8.
struct Int8 {
    static constexpr int64_t kNbytes = (2 + kGroup) * tile::kColumns;
    static constexpr bool kHasLeast = false;

    // A pair of numbers of 8 outputs: an output's two are neighbours.
    static i16x16 pair(const uint8_t* group, int64_t eight, int pair, int half) {
        const uint8_t* from = group + 2 * tile::kColumns + ((eight * kPairs + pair) * 2 + half) * 16;
#if defined(__AVX2__) && !defined(__clang__)  // GCC makes four instructions of the other
        return reinterpret_cast<i16x16>(__builtin_ia32_pmovsxbw256(tile::load<c8x16>(from)));
#else
        return __builtin_convertvector(tile::load<i8x16>(from), i16x16);
#endif
    }

    static void numbers(const uint8_t* group, int64_t column, float* out) {
        const float scale = tile::widen_one(reinterpret_cast<const uint16_t*>(group) + column);
        const auto* from = reinterpret_cast<const int8_t*>(group) + 2 * (tile::kColumns + column);
        for (int64_t k = 0; k < kGroup; ++k) out[k] = scale * from[k / 2 * 2 * tile::kColumns + k % 2];
    }
};

// Behind the scales 16 least values in bfloat16, then [4 eights, 16 outputs, 2] words of 16 bits: the even numbers of
// an eight in the first, the odd ones in the second, beginning with the lowest bits.
struct Int4 {
    static constexpr int64_t kNbytes = (4 + kGroup / 2) * tile::kColumns;
    static constexpr bool kHasLeast = true;

    static i16x16 pair(const uint8_t* group, int64_t eight, int pair, int half) {
        const uint8_t* from = group + 4 * tile::kColumns + (eight * 2 + half) * 32;
        return reinterpret_cast<i16x16>(tile::load<u16x16>(from) >> 4 * pair & 15);
    }

    static f32x8 least(const uint8_t* group, int half) { return scales(group + 2 * tile::kColumns, half); }
};

}  // namespace quantized
