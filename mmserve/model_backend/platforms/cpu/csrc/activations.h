// The activation functions of feed-forward blocks, each from 8 numbers to 8 numbers.
#pragma once

#include <cstdint>

#include "softmax.h"
#include "tile.h"

namespace activations {

using softmax::sigmoid;
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
    const f32x8 tail = 0.5f * y * t * softmax::exponential(-z * z);
    return x * (x < zero ? tail : 1.f - tail);
}

inline f32x8 quick_gelu(f32x8 x) {
    return x * sigmoid(1.702f * x);
}

// Calls run(function) with the function of this number: 0 silu, 1 gelu in its tanh form, 2 gelu, 3 quick gelu.
template <class Run>
inline void dispatch(int64_t activation, const Run& run) {
    switch (activation) {
        case 0:
            return run([](f32x8 x) { return silu(x); });
        case 1:
            return run([](f32x8 x) { return gelu_tanh(x); });
        case 2:
            return run([](f32x8 x) { return gelu(x); });
        default:
            return run([](f32x8 x) { return quick_gelu(x); });
    }
}

}  // namespace activations
