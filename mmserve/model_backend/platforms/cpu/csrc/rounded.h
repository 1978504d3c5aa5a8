// The rows of a product as whole numbers of 16 bits, in groups of 32 that share a scale: weights of few bits are
// multiplied with them as they are, without becoming floats. Within 2^-16 of a group's largest number.
#pragma once

#include <cstdint>
#include <cstring>

#include "pool.h"
#include "scratch.h"
#include "tile.h"

namespace quantized {

using tile::f32x8;
using tile::i32x8;
typedef int16_t i16x8 __attribute__((vector_size(16)));

constexpr int64_t kGroup = 32;
constexpr float kLargest = 32767.f;

// Of a group: a number is its whole times `scale`, all of them have this sum.
struct Head {
    float scale, sum;
};

// [M, K] and [M, K / 32].
struct Rounded {
    const int16_t* wholes;
    const Head* heads;
};

inline f32x8 magnitude(f32x8 x) {
    return reinterpret_cast<f32x8>(reinterpret_cast<i32x8>(x) & 0x7fffffff);
}

inline float sum_of(f32x8 x) {
    x += __builtin_shuffle(x, i32x8{4, 5, 6, 7, 0, 1, 2, 3});
    x += __builtin_shuffle(x, i32x8{2, 3, 0, 1, 6, 7, 4, 5});
    return x[0] + x[1];
}

// To the nearest whole numbers, of 16 bits.
inline i16x8 nearest(f32x8 x) {
    const f32x8 shift = tile::splat(12582912.f);  // 1.5 * 2^23: a sum with it has no bits behind the point
    return __builtin_convertvector(reinterpret_cast<i32x8>(x + shift) - reinterpret_cast<i32x8>(shift), i16x8);
}

inline Head round_group(const float* x, int16_t* wholes) {
    f32x8 largest{}, sums{};
    for (int64_t k = 0; k < kGroup; k += 8) {
        const f32x8 some = tile::load<f32x8>(x + k);
        largest = tile::larger(largest, magnitude(some));
        sums += some;
    }
    const float most = tile::largest_of(largest), sum = sum_of(sums), inverse = most > 0.f ? kLargest / most : 0.f;
    for (int64_t k = 0; k < kGroup; k += 8) {
        const i16x8 some = nearest(tile::load<f32x8>(x + k) * inverse);
        std::memcpy(wholes + k, &some, sizeof some);
    }
    return {most / kLargest + 0.f * sum, sum};  // NaN where a number is NaN or infinite
}

// x [M, K], rounded; kept until the same thread rounds others.
inline Rounded rounded(const float* x, int64_t M, int64_t K) {
    static thread_local scratch::Kept<int16_t> wholes;
    static thread_local scratch::Kept<Head> heads;
    int16_t* whole = wholes.at_least(M * K);
    Head* head = heads.at_least(M * K / kGroup);
    pool::each_row(M, K, [=](int64_t row) {
        for (int64_t k = row * K; k < (row + 1) * K; k += kGroup) head[k / kGroup] = round_group(x + k, whole + k);
    });
    return {whole, head};
}

}  // namespace quantized
