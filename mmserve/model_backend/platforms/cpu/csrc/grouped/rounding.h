// Rounds inputs to integers of 16 bits, in groups of 32 with a scale, or of 8 bits, in rows with a scale.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "grouped/grouped_weights.h"
#include "tile.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace grouped {

constexpr float kMaxQ = 32639.f;  // 256 * 127 + 127

#ifdef __AVX512F__
using Rounded = tile::f32x16;  // so many at once
typedef int32_t RoundedWords __attribute__((vector_size(64)));
#else
using Rounded = tile::f32x8;
using RoundedWords = i32x8;
#endif
constexpr int64_t kRoundedLanes = tile::kLanes<Rounded>;

template <class V>
inline auto horizontal_sum(V x) {
    x += __builtin_shuffle(x, i32x8{4, 5, 6, 7, 0, 1, 2, 3});
    x += __builtin_shuffle(x, i32x8{2, 3, 0, 1, 6, 7, 4, 5});
    return x[0] + x[1];
}

constexpr float kToInteger = 12582912.f;  // 1.5 * 2^23: a sum with it has no fractional bits

// Integers from sums with kToInteger.
inline void store_int16(Rounded shifted, int16_t* to) {
    const RoundedWords words = reinterpret_cast<RoundedWords>(shifted) - 0x4b400000;
#ifdef __AVX512F__
    const __m256i integers = _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words));
#else
    const i16x8 integers = __builtin_convertvector(words, i16x8);
#endif
    std::memcpy(to, &integers, sizeof integers);
}

// The largest magnitude of `count` numbers: that of a NaN, if one is, as its bits are those of a larger integer.
inline float largest_magnitude(const float* x, int64_t count) {
    RoundedWords largest{};
    for (int64_t k = 0; k < count; k += kRoundedLanes)
        largest = tile::maximum(largest, tile::load<RoundedWords>(x + k) & 0x7fffffff);
    i32x8 eight;
    std::memcpy(&eight, &largest, sizeof eight);
#ifdef __AVX512F__
    i32x8 others;
    std::memcpy(&others, reinterpret_cast<const char*>(&largest) + sizeof eight, sizeof others);
    eight = tile::maximum(eight, others);
#endif
    eight = tile::maximum(eight, __builtin_shuffle(eight, i32x8{4, 5, 6, 7, 0, 1, 2, 3}));
    eight = tile::maximum(eight, __builtin_shuffle(eight, i32x8{2, 3, 0, 1, 6, 7, 4, 5}));
    const int32_t bits = std::max(eight[0], eight[1]);
    return tile::load<float>(&bits);
}

// Stores 32 integers from -kMaxQ to kMaxQ, and returns the scale: x = scale * q. The error is at most half a step.
inline float round_group(const float* x, int16_t* q) {
    const float limit = largest_magnitude(x, kGroup);
    const float inverse = limit > 0.f ? kMaxQ / limit : 0.f;
    for (int64_t k = 0; k < kGroup; k += kRoundedLanes)
        store_int16(tile::load<Rounded>(x + k) * inverse + kToInteger, q + k);
    return limit / kMaxQ + (limit - limit);  // NaN if a number is NaN or infinite
}

// Of numbers that are rounded to 8 bits: half of 255 steps is the largest magnitude.
inline float narrow_scale(const float* x, int64_t count) {
    const float limit = largest_magnitude(x, count);
    const float scale = limit > 0.f ? limit / 127.5f : std::numeric_limits<float>::epsilon();
    return scale + (limit - limit);
}

// Stores 32 integers from -128 to 127.
inline void round_narrow(const float* x, float scale, int16_t* q) {
    for (int64_t k = 0; k < kGroup; k += kRoundedLanes) {
        const Rounded steps = tile::load<Rounded>(x + k) / scale, most = Rounded{} + 127.f, least = Rounded{} - 128.f;
        const Rounded limited = steps < most ? steps : most;
        store_int16((limited > least ? limited : least) + kToInteger, q + k);
    }
}

}  // namespace grouped
