// How quantized weights lie in memory: panels of 16 outputs, in groups of 32 of their numbers that share a scale. Knows
// how a group is read, and nothing of what is computed with it.
#pragma once

#include <cstdint>

#include "tile.h"

namespace quantized {

using tile::f32x8;
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

constexpr int64_t kGroup = 32;
constexpr int64_t kPairs = kGroup / 2;                   // neighbouring numbers lie side by side, 16 outputs in a row
constexpr int64_t kNumbers = kGroup * tile::kColumns;    // of a group of a panel

inline i16x16 signed_words(const uint8_t* from) {
#ifdef __AVX2__
    return reinterpret_cast<i16x16>(_mm256_cvtepi8_epi16(tile::load<__m128i>(from)));
#else
    return __builtin_convertvector(tile::load<i8x16>(from), i16x16);
#endif
}

inline i16x16 words(const uint8_t* from) {
#ifdef __AVX2__
    return reinterpret_cast<i16x16>(_mm256_cvtepu8_epi16(tile::load<__m128i>(from)));
#else
    return __builtin_convertvector(tile::load<u8x16>(from), i16x16);
#endif
}

// A group in memory: 16 scales in bfloat16, then [16 pairs, 16 outputs, 2] int8.
struct Int8 {
    static constexpr int64_t kNbytes = 2 * tile::kColumns + kNumbers;

    // take(panel, pair, 8 outputs, the other 8) for the same group of P panels that lie `size` bytes apart.
    template <int P, class Take>
    static inline void each_pair(const uint8_t* group, int64_t size, const Take& take) {
        const uint8_t* from = group + 2 * tile::kColumns;
#pragma GCC unroll 1
        for (int64_t pair = 0; pair < kPairs; ++pair, from += 32)
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) take(p, pair, signed_words(from + p * size), signed_words(from + p * size + 16));
    }

    static void numbers(const uint8_t* group, int64_t column, float* out) {
        const float scale = tile::widen_one(reinterpret_cast<const uint16_t*>(group) + column);
        const auto* from = reinterpret_cast<const int8_t*>(group) + 2 * tile::kColumns + 2 * column;
        for (int64_t i = 0; i < kGroup; ++i) out[i] = scale * from[i / 2 * 32 + i % 2];
    }

    // What a group's dots with a row of x, for 8 outputs of two, add to the row's sums.
    struct Value {
        f32x8 scales[2];

        explicit Value(const uint8_t* group) {
            for (int half = 0; half < 2; ++half)
                scales[half] = tile::widen(reinterpret_cast<const uint16_t*>(group) + half * 8);
        }

        f32x8 operator()(int half, f32x8 dots, float scale, float) const { return dots * (scale * scales[half]); }
    };
};

// 16 scales and 16 least values in bfloat16, then [8 pairs, 16 outputs, 2] bytes: pair p below, pair p + 8 above.
struct Int4 {
    static constexpr int64_t kNbytes = 4 * tile::kColumns + kNumbers / 2;

    template <int P, class Take>
    static inline void each_pair(const uint8_t* group, int64_t size, const Take& take) {
        const uint8_t* from = group + 4 * tile::kColumns;
#pragma GCC unroll 1
        for (int64_t pair = 0; pair < kPairs / 2; ++pair, from += 32)
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
                const i16x16 low = words(from + p * size), high = words(from + p * size + 16);
                take(p, pair, low & 15, high & 15);
                take(p, pair + kPairs / 2, low >> 4, high >> 4);
            }
    }

    struct Value : Int8::Value {
        f32x8 least[2];

        explicit Value(const uint8_t* group) : Int8::Value(group) {
            for (int half = 0; half < 2; ++half)
                least[half] = tile::widen(reinterpret_cast<const uint16_t*>(group) + tile::kColumns + half * 8);
        }

        f32x8 operator()(int half, f32x8 dots, float scale, float sum) const {
            return Int8::Value::operator()(half, dots, scale, sum) + sum * least[half];
        }
    };
};

}  // namespace quantized
