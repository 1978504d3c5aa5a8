// Online softmax (Milakov and Gimelshein 2018), the exponential function, and the logistic function.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "tile.h"

namespace softmax {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// exp(x) for x <= 0, as 2^n times a polynomial (expf of the Cephes library). 0 below -87.
inline tile::f32x8 exponential(tile::f32x8 x) {
    const tile::f32x8 lowest = tile::broadcast(-87.f);
    const tile::i32x8 underflow = x < lowest;
    x = underflow ? lowest : x;
    const tile::i32x8 n = __builtin_convertvector(x * 1.44269504088896341f - 0.5f, tile::i32x8);
    const tile::f32x8 whole = __builtin_convertvector(n, tile::f32x8);
    const tile::f32x8 r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    tile::f32x8 y = tile::broadcast(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = y * r + c;
    y = y * r * r + r + 1.f;
    y *= reinterpret_cast<tile::f32x8>((n + 127) << 23);
    return underflow ? tile::f32x8{} : y;
}

// exp(x - shift), where that is at most 2^127: within a part of 3e-6 of it, for weights that are then rounded to
// bfloat16. 0 from 2^-126.5 down, of 16 numbers with AVX-512 only if denormal numbers are flushed; NaN stays NaN. Half as
// many operations as exponential().
template <class V>
inline V short_exponential(V x, float shift) {
    using Integers = decltype(x < x);
    constexpr float kLog2e = 1.44269504088896341f;
    constexpr float kCoefficients[] = {5.591786031e-2f, 2.402474483e-1f, 6.931218147e-1f, 9.999992614e-1f};
    V y = tile::broadcast<V>(9.570101757e-3f);
#ifdef __AVX512F__
    if constexpr (std::is_same_v<V, tile::f32x16>) {  // the same numbers with fewer instructions; 0 for -infinity
        const V power = x * kLog2e - shift * kLog2e;
        const auto whole = _mm512_roundscale_ps(reinterpret_cast<__m512>(power), _MM_FROUND_TO_NEAREST_INT);
        const V r = power - reinterpret_cast<V>(whole);
        for (float c : kCoefficients) y = y * r + c;
        return reinterpret_cast<V>(_mm512_scalef_ps(reinterpret_cast<__m512>(y), whole));
    }
#endif
    constexpr float kToInteger = 0x1.8p23f + 127;  // leaves the exponent of 2^n, as a float has it, in the lowest bits
    const V lowest = tile::keep_in_register(tile::broadcast<V>(-127.f));  // else GCC 12 makes no maximum of the next line
    const V bounded = tile::maximum<V>(lowest, x * kLog2e - shift * kLog2e);
    const V shifted = bounded + kToInteger, r = bounded - (shifted - kToInteger);
    for (float c : kCoefficients) y = y * r + c;
    return y * reinterpret_cast<V>(reinterpret_cast<Integers>(shifted) << 23);
}

// Uses exp(-|x|), which cannot overflow.
inline tile::f32x8 sigmoid(tile::f32x8 x) {
    const tile::f32x8 zero{}, e = exponential(x < zero ? x : -x);
    return (x < zero ? e : zero + 1.f) / (1.f + e);
}

// The softmax of one row whose scores arrive in parts.
struct OnlineSoftmax {
    static constexpr int kParts = 1;
    float largest = kMinusInfinity;
    tile::f32x8 sums[kParts] = {};

    // Turns the row's next scores into weights, perhaps in place, relative to the largest score so far. Rescales the sums
    // and the row's output if that grew. Of `count` scores, a multiple of 16, only those in [hidden, visible) are used.
    void update(float* scores, int64_t hidden, int64_t visible, int64_t count, float* weights, float* out, int64_t dim) {
        if (hidden >= count) return std::fill(weights, weights + count, 0.f);
        for (int64_t j = 0; j < hidden; ++j) scores[j] = kMinusInfinity;
        for (int64_t j = std::max<int64_t>(0, visible); j < count; ++j) scores[j] = kMinusInfinity;
        tile::f32x8 highest = tile::load<tile::f32x8>(scores);
        for (int64_t j = 8; j < count; j += 8) highest = tile::maximum(highest, tile::load<tile::f32x8>(scores + j));
        if (const float top = tile::horizontal_max(highest); top > largest) {
            if (largest != kMinusInfinity) {  // else there is nothing
                const float scale = std::exp(largest - top);
                for (int64_t i = 0; i < dim; ++i) out[i] *= scale;
                sums[0] *= scale;
            }
            largest = top;
        }
        tile::f32x8 total = sums[0];  // in a register
        for (int64_t j = 0; j < count; j += 8) {
            const tile::f32x8 numbers = exponential(tile::load<tile::f32x8>(scores + j) - largest);
            tile::store(weights + j, numbers);
            total += numbers;
        }
        sums[0] = total;
    }

    float sum() const { return tile::horizontal_sum(sums[0]); }
};

// Adds what a row found at later keys to what it found before them: its largest score, its sums, and `columns` numbers of
// output, which are not yet divided by the sums. Those with the smaller largest score are scaled to the other's.
template <class Softmax>
void merge(Softmax& row, float* out, const Softmax& later, const float* later_out, int64_t columns) {
    if (later.largest == kMinusInfinity) return;
    if (row.largest == kMinusInfinity) {
        row = later;
        std::copy(later_out, later_out + columns, out);
        return;
    }
    const bool grew = later.largest > row.largest;
    const float scale = std::exp(-std::abs(later.largest - row.largest));
    for (int part = 0; part < Softmax::kParts; ++part)
        row.sums[part] = grew ? row.sums[part] * scale + later.sums[part] : later.sums[part] * scale + row.sums[part];
    for (int64_t i = 0; i < columns; ++i)
        out[i] = grew ? std::fma(out[i], scale, later_out[i]) : std::fma(later_out[i], scale, out[i]);
    if (grew) row.largest = later.largest;
}

}  // namespace softmax
