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

inline f32x8 weigh(f32x8 x, const Scale& by) {
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
    const i32x8 power = reinterpret_cast<i32x8>(y) + (reinterpret_cast<i32x8>(shifted) << 23);
    return vectors::nearest_integer(reinterpret_cast<f32x8>(power));
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

#if defined(__AVX512F__) && defined(__AVX512DQ__)

using tile::f32x16;

inline f32x16 rounded(f32x16 value) {
    asm("" : "+v"(value));
    return value;
}

// As weigh(), of 16 logits: n is added to the exponent by one instruction.
inline __m512 weigh_16(const float* logits, const Scale& by) {
    const __m512 lowest = _mm512_set1_ps(-64.f);
    const f32x16 x = tile::load<f32x16>(logits);
    const f32x16 t = reinterpret_cast<f32x16>(
        _mm512_max_ps(reinterpret_cast<__m512>(rounded((x - by.peak) * by.scale)), lowest));
    const __m512 n = _mm512_roundscale_ps(reinterpret_cast<__m512>(t), _MM_FROUND_TO_NEAREST_INT);
    const f32x16 r = t - reinterpret_cast<f32x16>(n);
    constexpr float kUnit = 0x1p42f;  // a power of two changes no rounding
    f32x16 y = f32x16{} + kCoefficients[0] * kUnit;
#pragma GCC unroll 8
    for (int i = 1; i < 7; ++i) y = rounded(y * r) + kCoefficients[i] * kUnit;
    return _mm512_roundscale_ps(_mm512_scalef_ps(reinterpret_cast<__m512>(y), n), _MM_FROUND_TO_NEAREST_INT);
}

#endif

// The weights of up to kBlock logits, and zeros behind them.
class Block {
public:
    Block(const float* logits, int64_t count, const Scale& by) {
        int64_t i = 0;
#if defined(__AVX512F__) && defined(__AVX512DQ__)
        for (; i + 16 <= count; i += 16) _mm512_store_ps(weights_ + i, weigh_16(logits + i, by));
#endif
        for (; i < count; i += 8) tile::store(weights_ + i, weigh(load_some(logits, i, count), by));
        if (i % kStep) tile::store(weights_ + i, f32x8{});
        size_ = (i + kStep - 1) / kStep * kStep;
    }

    static constexpr int64_t kStep = 16;

    // The number of weights and zeros: a multiple of kStep.
    int64_t size() const { return size_; }
    const float* begin() const { return weights_; }
    f32x8 eight(int64_t first) const { return tile::load<f32x8>(weights_ + first); }

private:
    alignas(64) float weights_[kBlock];
    int64_t size_;
};

}  // namespace weights
