// The integer weights of logits, and their sums. Each operation is rounded separately, as torch's are: a fused
// multiply-add would give other bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tile.h"
#include "vectors.h"

namespace weights {

using tile::f32x8, tile::i32x8, vectors::kBlock;

constexpr int kUnitBits = 42;  // the largest logit's weight is 2^42
constexpr float kCoefficients[] = {1.535336196e-04f, 1.339887502e-03f, 9.618436918e-03f, 5.550332367e-02f,
                                   2.402264774e-01f, 6.931471825e-01f, 1.f};

// How a row's logits become weights: 2^42 * exp2((x - peak) * scale), rounded to integers.
struct Scale {
    float peak, scale;
};

// Each logit's weight before it is rounded to an integer.
inline f32x8 power(f32x8 x, const Scale& by) {
    using tile::rounded;
    // The weight of 2^-64 is 0. Comparing keeps the product from being fused with the sum that follows.
    const f32x8 t = vectors::larger(rounded((x - by.peak) * by.scale), tile::broadcast(-64.f));
    constexpr float kToInteger = 0x1.8p23f + kUnitBits;  // leaves n + 42 in the lowest bits
    const f32x8 shifted = rounded(t + kToInteger);
    const f32x8 r = t - (shifted - kToInteger);
    f32x8 y = tile::broadcast(kCoefficients[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 7; ++i) y = rounded(y * r) + kCoefficients[i];
    // Multiplies with 2^(n + 42): y is within a factor of 2 of 1, and the other bits of `shifted` are shifted out.
    return reinterpret_cast<f32x8>(reinterpret_cast<i32x8>(y) + (reinterpret_cast<i32x8>(shifted) << 23));
}

inline f32x8 weigh(f32x8 x, const Scale& by) {
    return vectors::nearest_integer(power(x, by));
}

inline float weigh_one(float x, const Scale& by) {
    return weigh(tile::broadcast(x), by)[0];
}

// Eight logits from `first` on; -inf, which has no weight, for those from `end` on.
inline f32x8 load_some(const float* logits, int64_t first, int64_t end) {
    if (first + 8 <= end) return tile::load<f32x8>(logits + first);
    f32x8 values = tile::broadcast(-std::numeric_limits<float>::infinity());
    for (int64_t i = first; i < end; ++i) values[i - first] = logits[i];
    return values;
}

// Calls body(weights, index of the first) for eight logits at a time, up to kBlock. Returns the sum of the weights.
template <class Body>
int64_t for_weights(const float* logits, int64_t first, int64_t end, const Scale& by, const Body& body) {
    vectors::BlockSum sum;
    for (int64_t i = first; i < end; i += 8) {
        const f32x8 weights = weigh(load_some(logits, i, end), by);
        sum.add(weights);
        body(weights, i);
    }
    return sum.value();
}

#if defined(__AVX512F__) && defined(__AVX512DQ__)

typedef float f32x16 __attribute__((vector_size(64)));

inline f32x16 rounded(f32x16 value) {
    asm("" : "+v"(value));
    return value;
}

// As power(), of 16 logits: n is added to the exponent by one instruction.
inline f32x16 power(f32x16 x, const Scale& by) {
    const __m512 lowest = _mm512_set1_ps(-64.f);
    const f32x16 t = reinterpret_cast<f32x16>(
        _mm512_max_ps(reinterpret_cast<__m512>(rounded((x - by.peak) * by.scale)), lowest));
    const __m512 n = _mm512_roundscale_ps(reinterpret_cast<__m512>(t), _MM_FROUND_TO_NEAREST_INT);
    const f32x16 r = t - reinterpret_cast<f32x16>(n);
    constexpr float kUnit = 0x1p42f;  // a power of two changes no rounding
    f32x16 y = f32x16{} + kCoefficients[0] * kUnit;
#pragma GCC unroll 8
    for (int i = 1; i < 7; ++i) y = rounded(y * r) + kCoefficients[i] * kUnit;
    return reinterpret_cast<f32x16>(_mm512_scalef_ps(reinterpret_cast<__m512>(y), n));
}

// The sum of the weights of up to kBlock logits. Converting to integers rounds.
inline int64_t sum(const float* logits, int64_t first, int64_t end, const Scale& by) {
    __m512i sums[2] = {};
    int64_t i = first;
    for (; i + 16 <= end; i += 16) {
        const __m512 y = reinterpret_cast<__m512>(power(tile::load<f32x16>(logits + i), by));
        sums[0] = _mm512_add_epi64(sums[0], _mm512_cvtps_epi64(_mm512_castps512_ps256(y)));
        sums[1] = _mm512_add_epi64(sums[1], _mm512_cvtps_epi64(_mm512_extractf32x8_ps(y, 1)));
    }
    return _mm512_reduce_add_epi64(_mm512_add_epi64(sums[0], sums[1])) +
           for_weights(logits, i, end, by, [](f32x8, int64_t) {});
}

#else

inline int64_t sum(const float* logits, int64_t first, int64_t end, const Scale& by) {
    return for_weights(logits, first, end, by, [](f32x8, int64_t) {});
}

#endif

}  // namespace weights
