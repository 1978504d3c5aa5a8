// Activations as 16-bit integers, in groups of 32 that share a scale, for products with quantized weights. The error is
// at most 2^-16 of the largest magnitude in the group.
#pragma once

#include <cstdint>
#include <cstring>

#include "aligned_memory.h"
#include "thread_pool.h"
#include "tile.h"

namespace quantized {

using tile::f32x8;
using tile::i32x8;
typedef int16_t i16x8 __attribute__((vector_size(16)));

constexpr int64_t kGroup = 32;
constexpr float kMaxQ = 32767.f;

// Of one group: x = scale * q, and the sum of its x.
struct GroupScale {
    float scale, sum;
};

// q: [M, K], groups: [M, K / 32].
struct Activations {
    const int16_t* q;
    const GroupScale* groups;
};

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

// From -max_q to max_q.
inline GroupScale quantize_group(const float* x, int16_t* q, float max_q = kMaxQ) {
    f32x8 largest{}, sums{};
    for (int64_t k = 0; k < kGroup; k += 8) {
        const f32x8 values = tile::load<f32x8>(x + k);
        largest = tile::maximum(largest, absolute(values));
        sums += values;
    }
    const float limit = tile::horizontal_max(largest), sum = horizontal_sum(sums);
    const float inverse = limit > 0.f ? max_q / limit : 0.f;
    for (int64_t k = 0; k < kGroup; k += 8) {
        const i16x8 values = round_to_int16(tile::load<f32x8>(x + k) * inverse);
        std::memcpy(q + k, &values, sizeof values);
    }
    return {limit / max_q + 0.f * sum, sum};  // NaN if a number is NaN or infinite
}

// Quantizes x [M, K]. The result is valid until the same thread calls this again.
inline Activations quantize_activations(const float* x, int64_t M, int64_t K) {
    static thread_local memory::ReusableArray<int16_t> reusable_q;
    static thread_local memory::ReusableArray<GroupScale> reusable_groups;
    int16_t* q = reusable_q.at_least(M * K);
    GroupScale* groups = reusable_groups.at_least(M * K / kGroup);
    pool::parallel_for_rows(M, K, [=](int64_t row) {
        for (int64_t k = row * K; k < (row + 1) * K; k += kGroup) groups[k / kGroup] = quantize_group(x + k, q + k);
    });
    return {q, groups};
}

}  // namespace quantized
