// RMSNorm and LayerNorm of one row, of a multiple of 8 numbers. The bits depend on nothing but the row.
#pragma once

#include <cmath>
#include <cstdint>

#include "tile.h"

namespace norms {

using tile::f32x8;

constexpr int64_t kLanes = tile::kLanes<f32x8>;
constexpr int64_t kChains = 4;  // sums that do not wait for each other

// load(i) returns the numbers from i on.
template <class Load>
inline float sum_of(int64_t size, const Load& load) {
    f32x8 sums[kChains] = {};
    int64_t i = 0;
    for (; i + kChains * kLanes <= size; i += kChains * kLanes)
#pragma GCC unroll 4
        for (int64_t chain = 0; chain < kChains; ++chain) sums[chain] += load(i + chain * kLanes);
    for (; i < size; i += kLanes) sums[0] += load(i);
    return tile::horizontal_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// out = x / sqrt(mean(x^2) + eps) * weight. out may be x.
inline void rms_norm(const float* x, const float* weight, float eps, float* out, int64_t size) {
    const float squares = sum_of(size, [=](int64_t i) {
        const f32x8 values = tile::load<f32x8>(x + i);
        return values * values;
    });
    const float scale = 1.f / std::sqrt(squares / static_cast<float>(size) + eps);
    for (int64_t i = 0; i < size; i += kLanes)
        tile::store(out + i, tile::load<f32x8>(x + i) * scale * tile::load<f32x8>(weight + i));
}

// out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias. out may be x.
inline void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* out, int64_t size) {
    const float mean = sum_of(size, [=](int64_t i) { return tile::load<f32x8>(x + i); }) / static_cast<float>(size);
    const float squares = sum_of(size, [=](int64_t i) {
        const f32x8 centred = tile::load<f32x8>(x + i) - mean;
        return centred * centred;
    });
    const float scale = 1.f / std::sqrt(squares / static_cast<float>(size) + eps);
    for (int64_t i = 0; i < size; i += kLanes) {
        const f32x8 centred = tile::load<f32x8>(x + i) - mean;
        tile::store(out + i, centred * scale * tile::load<f32x8>(weight + i) + tile::load<f32x8>(bias + i));
    }
}

}  // namespace norms
