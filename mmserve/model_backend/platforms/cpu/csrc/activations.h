// The activation functions of feed-forward blocks, each from a vector of numbers to another. The short ones are for
// results that are then rounded to bfloat16, which adds an error of up to 4e-3 of the result.
#pragma once

#include <cstdint>

#include "exponential.h"
#include "linear/panels.h"
#include "tile.h"

namespace activations {

using exponentials::sigmoid;
using linear::Vector;
using tile::f32x8;

inline f32x8 silu(f32x8 x) {
    return x * sigmoid(x);
}

// x (1 + tanh(z)) / 2 = x sigmoid(2 z), with z = sqrt(2 / pi) (x + 0.044715 x^3).
inline f32x8 gelu_tanh(f32x8 x) {
    return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
}

// x times the normal distribution function, by formula 7.1.26 of Abramowitz and Stegun (1964): error below 1e-7 |x|.
inline f32x8 gelu(f32x8 x) {
    const f32x8 zero{}, z = 0.70710678118f * (x < zero ? -x : x);
    const f32x8 t = 1.f / (1.f + 0.3275911f * z);
    f32x8 y = tile::broadcast(1.061405429f);
    for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) y = y * t + c;
    const f32x8 tail = 0.5f * y * t * exponentials::exponential(-z * z);
    return x * (x < zero ? tail : 1.f - tail);
}

inline f32x8 quick_gelu(f32x8 x) {
    return x * sigmoid(1.702f * x);
}

// x / (1 + exp(-scale x)): within 4e-6 of it.
template <class V>
inline V short_silu(V x, float scale) {
    const V highest = tile::broadcast<V>(88.f), power = -scale * x;  // exp(88) is below the largest float
    return x / (1.f + exponentials::short_exponential(tile::minimum<V>(highest, power)));
}

// x (0.5 + y P(y^2)), where y is x or the nearest number within 4.5 of zero, and x at least -4.5: below, the second factor
// is only about zero. The polynomial, of (y / 4.5)^2 * 2 - 1, is fitted to the largest error of the result.
template <class V>
inline V short_gelu(V x, const float (&coefficients)[10]) {
    constexpr float kBound = 4.5f;
    const V low = tile::broadcast<V>(-kBound), high = tile::broadcast<V>(kBound);
    const V raised = tile::maximum(low, x), y = tile::minimum(high, raised);
    const V at = y * y * (2 / (kBound * kBound)) - 1.f;
    V sum = tile::broadcast<V>(coefficients[0]);
#pragma GCC unroll 16
    for (int i = 1; i < 10; ++i) sum = sum * at + coefficients[i];
    return raised * (y * sum + 0.5f);
}

// Error below 1.6e-5, and for x > -1 below 1e-4 of the result.
constexpr float kGelu[] = {-9.378665765e-04f, 4.219657688e-03f,  -7.802368034e-03f, 1.083628481e-02f,  -1.751230968e-02f,
                           2.828746903e-02f,  -4.042951287e-02f, 5.472176515e-02f,  -7.717621973e-02f, 1.569042113e-01f};
// Error below 1.1e-5, and for x > -1 below 1e-4 of the result.
constexpr float kGeluTanh[] = {-1.879381593e-03f, 5.434830703e-03f,  -6.978097730e-03f, 9.490068483e-03f,
                               -1.746795226e-02f, 2.836024560e-02f,  -4.026717764e-02f, 5.476333775e-02f,
                               -7.728340722e-02f, 1.569386450e-01f};

// Calls run(function, vector) with the function of this number and a vector that it takes: 0 silu, 1 gelu in its tanh
// form, 2 gelu, 3 quick gelu; the same from 4 on for results that are rounded to bfloat16.
template <class Run>
inline void dispatch(int64_t activation, const Run& run) {
    switch (activation) {
        case 0:
            return run([](f32x8 x) { return silu(x); }, f32x8{});
        case 1:
            return run([](f32x8 x) { return gelu_tanh(x); }, f32x8{});
        case 2:
            return run([](f32x8 x) { return gelu(x); }, f32x8{});
        case 3:
            return run([](f32x8 x) { return quick_gelu(x); }, f32x8{});
        case 4:
            return run([](Vector x) { return short_silu(x, 1.f); }, Vector{});
        case 5:
            return run([](Vector x) { return short_gelu(x, kGeluTanh); }, Vector{});
        case 6:
            return run([](Vector x) { return short_gelu(x, kGelu); }, Vector{});
        default:
            return run([](Vector x) { return short_silu(x, 1.702f); }, Vector{});
    }
}

}  // namespace activations
