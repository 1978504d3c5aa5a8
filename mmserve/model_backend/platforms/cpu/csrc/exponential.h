// The exponential function, and the logistic function.
#pragma once

#include <iterator>
#include <type_traits>

#include "tile.h"

namespace exponentials {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kToInteger = 0x1.8p23f + 127;  // added to n, leaves the exponent of 2^n, as a float has it, in the lowest bits

// Calls step(i) for each of N vectors. Functions of several vectors compute each step for all of them before the next step, so
// that the CPU has independent operations to execute while results are not ready.
template <int N, class Step>
[[gnu::always_inline]] inline void for_each_vector(const Step& step) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) step(i);
}

// exp(x) for x <= 88, in place, as 2^n times a polynomial (expf of the Cephes library). 0 from -87.7 down; NaN stays NaN.
template <class V, int N>
[[gnu::always_inline]] inline void exponential(V (&x)[N]) {
    using Integers = decltype(x[0] < x[0]);
    constexpr float kCoefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                       5.0000001201e-1f};
    const V lowest = tile::keep_in_register(tile::broadcast<V>(-88.03f));  // just below the logarithm of 2^-127
    V shifted[N], y[N];
    for_each_vector<N>([&](int i) { x[i] = tile::maximum<V>(lowest, x[i]); });
    for_each_vector<N>([&](int i) { shifted[i] = x[i] * kLog2e + kToInteger; });
    for_each_vector<N>([&](int i) { y[i] = shifted[i] - kToInteger; });
    for_each_vector<N>([&](int i) { x[i] = x[i] - y[i] * 0.693359375f; });
    for_each_vector<N>([&](int i) { x[i] = x[i] + y[i] * 2.12194440e-4f; });
    for_each_vector<N>([&](int i) { y[i] = tile::broadcast<V>(1.9875691500e-4f); });
    for (float c : kCoefficients) for_each_vector<N>([&](int i) { y[i] = y[i] * x[i] + c; });
    for_each_vector<N>([&](int i) { y[i] = y[i] * x[i]; });
    for_each_vector<N>([&](int i) { y[i] = y[i] * x[i] + x[i]; });
    for_each_vector<N>([&](int i) { y[i] = y[i] + 1.f; });
    for_each_vector<N>([&](int i) { x[i] = y[i] * reinterpret_cast<V>(reinterpret_cast<Integers>(shifted[i]) << 23); });
}

// Polynomials that are 2^f for f from -0.5 to 0.5: in floats within a part of 2.2e-7, and within 2.7e-6.
constexpr float kAccurate[] = {1.327647245e-3f, 9.675540961e-3f, 5.550713092e-2f, 2.402212024e-1f, 6.931469440e-1f, 1.000000119f};
constexpr float kShort[] = {9.570101757e-3f, 5.591786031e-2f, 2.402474483e-1f, 6.931218147e-1f, 9.999992614e-1f};

// 2^(x log2(e) - shift), in place, where that is at most 2^127: the product and the difference are rounded once, as numbers that are
// large below zero have small powers. 0 from 2^-126.5 down, of 16 numbers with AVX-512 and kShort only if denormal numbers are
// flushed; NaN stays NaN.
template <class V, int N, int K>
[[gnu::always_inline]] inline void power(V (&x)[N], float shift, const float (&polynomial)[K]) {
    using Integers = decltype(x[0] < x[0]);
    V y[N], whole[N];
    for_each_vector<N>([&](int i) { y[i] = tile::broadcast<V>(polynomial[0]); });
    for_each_vector<N>([&](int i) { x[i] = x[i] * kLog2e - shift; });
#ifdef __AVX512F__
    if constexpr (std::is_same_v<V, tile::f32x16> && K == std::size(kShort)) {  // fewer instructions; 0 for -infinity
        constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT;
        for_each_vector<N>([&](int i) {
            whole[i] = reinterpret_cast<V>(_mm512_roundscale_ps(reinterpret_cast<__m512>(x[i]), kNearest));
        });
        for_each_vector<N>([&](int i) { x[i] = x[i] - whole[i]; });
        for (int k = 1; k < K; ++k) for_each_vector<N>([&](int i) { y[i] = y[i] * x[i] + polynomial[k]; });
        for_each_vector<N>([&](int i) {
            x[i] = reinterpret_cast<V>(_mm512_scalef_ps(reinterpret_cast<__m512>(y[i]), reinterpret_cast<__m512>(whole[i])));
        });
        return;
    }
#endif
    const V lowest = tile::keep_in_register(tile::broadcast<V>(-127.f));  // else GCC 12 makes no maximum of the next line
    V shifted[N];
    for_each_vector<N>([&](int i) { x[i] = tile::maximum<V>(lowest, x[i]); });
    for_each_vector<N>([&](int i) { shifted[i] = x[i] + kToInteger; });
    for_each_vector<N>([&](int i) { whole[i] = shifted[i] - kToInteger; });
    for_each_vector<N>([&](int i) { x[i] = x[i] - whole[i]; });
    for (int k = 1; k < K; ++k) for_each_vector<N>([&](int i) { y[i] = y[i] * x[i] + polynomial[k]; });
    for_each_vector<N>([&](int i) { x[i] = y[i] * reinterpret_cast<V>(reinterpret_cast<Integers>(shifted[i]) << 23); });
}

// Of one vector.
template <class V>
inline V exponential(V x) {
    V of[1] = {x};
    exponential(of);
    return of[0];
}

// exp(x), where that is at most 2^127, within a part of 3e-6. Half as many operations as exponential().
template <class V>
inline V short_exponential(V x) {
    V of[1] = {x};
    power(of, 0.f, kShort);
    return of[0];
}

// Uses exp(-|x|), which cannot overflow.
inline tile::f32x8 sigmoid(tile::f32x8 x) {
    const tile::f32x8 zero{}, e = exponential(x < zero ? x : -x);
    return (x < zero ? e : zero + 1.f) / (1.f + e);
}

}  // namespace exponentials
