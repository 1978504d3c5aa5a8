// Rounds inputs to integers of 16 bits, in groups of 32 with a scale.
#pragma once

#include <cstdint>
#include <cstring>

#include "grouped/grouped_weights.h"
#include "tile.h"

namespace grouped {

using tile::f32x8;
constexpr float kMaxQ = 32639.f;  // 256 * 127 + 127

inline f32x8 absolute(f32x8 x) {
    return reinterpret_cast<f32x8>(reinterpret_cast<i32x8>(x) & 0x7fffffff);
}

template <class V>
inline auto horizontal_sum(V x) {
    x += __builtin_shuffle(x, i32x8{4, 5, 6, 7, 0, 1, 2, 3});
    x += __builtin_shuffle(x, i32x8{2, 3, 0, 1, 6, 7, 4, 5});
    return x[0] + x[1];
}

inline i16x8 round_to_int16(f32x8 x) {
    const f32x8 shift = tile::broadcast(12582912.f);  // 1.5 * 2^23: a sum with it has no fractional bits
    return __builtin_convertvector(reinterpret_cast<i32x8>(x + shift) - reinterpret_cast<i32x8>(shift), i16x8);
}

// Stores 32 integers from -kMaxQ to kMaxQ, and returns the scale: x = scale * q. The error is at most half a step.
inline float round_group(const float* x, int16_t* q) {
    f32x8 largest{}, sums{};
    for (int64_t k = 0; k < kGroup; k += 8) {
        const f32x8 values = tile::load<f32x8>(x + k);
        largest = tile::maximum(largest, absolute(values));
        sums += values;
    }
    const float limit = tile::horizontal_max(largest);
    const float inverse = limit > 0.f ? kMaxQ / limit : 0.f;
    for (int64_t k = 0; k < kGroup; k += 8) {
        const i16x8 values = round_to_int16(tile::load<f32x8>(x + k) * inverse);
        std::memcpy(q + k, &values, sizeof values);
    }
    return limit / kMaxQ + 0.f * horizontal_sum(sums);  // NaN if a number is NaN or infinite
}

}  // namespace grouped
