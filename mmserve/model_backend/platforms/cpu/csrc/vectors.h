// Vectors of eight floats: the rounding, sums and selections that sampling needs.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "tile.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace vectors {

using tile::f32x4, tile::f32x8, tile::i32x8;
typedef double f64x4 __attribute__((vector_size(32)));

constexpr int64_t kBlock = 1024;  // numbers that may be added in double precision

inline f64x4 widen(f32x4 numbers) {
#if defined(__AVX2__)  // one instruction, where GCC 12 makes four of __builtin_convertvector
    return reinterpret_cast<f64x4>(_mm256_cvtps_pd(reinterpret_cast<__m128>(numbers)));
#else
    return __builtin_convertvector(numbers, f64x4);
#endif
}

// The sum of up to kBlock integers of at most 2^42: exact, and so equal in any order.
#if defined(__AVX512F__) && defined(__AVX512DQ__)

class BlockSum {
public:
    void add(f32x8 numbers) {
        sum_ = _mm512_add_epi64(sum_, _mm512_cvtps_epi64(reinterpret_cast<__m256>(numbers)));
    }

    int64_t value() const { return _mm512_reduce_add_epi64(sum_); }

private:
    __m512i sum_ = {};
};

#else

class BlockSum {
public:
    void add(f32x8 numbers) {
        f32x4 halves[2];
        std::memcpy(halves, &numbers, sizeof halves);
        for (int i = 0; i < 2; ++i) sums_[i] += widen(halves[i]);
    }

    int64_t value() const {
        const f64x4 sum = sums_[0] + sums_[1];
        return static_cast<int64_t>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }

private:
    f64x4 sums_[2] = {};
};

#endif

// Zero where the lane of `mask` is zero; the other lanes of a mask are -1.
inline f32x8 where(i32x8 mask, f32x8 numbers) {
    return reinterpret_cast<f32x8>(mask & reinterpret_cast<i32x8>(numbers));
}

// Calls body(first, end) for the blocks of `count` numbers.
template <class Body>
void for_blocks(int64_t count, const Body& body) {
    for (int64_t first = 0; first < count; first += kBlock) body(first, std::min(count, first + kBlock));
}

#if defined(__AVX2__)

inline f32x8 larger(f32x8 a, f32x8 b) {
    return reinterpret_cast<f32x8>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
}

inline f32x8 nearest_integer(f32x8 x) {
    return reinterpret_cast<f32x8>(
        _mm256_round_ps(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Whether a lane of the mask is -1.
inline bool any(i32x8 mask) {
    return _mm256_movemask_ps(reinterpret_cast<__m256>(mask)) != 0;
}

// For each set of lanes (a bit mask): its members in ascending order.
constexpr auto kLanes = [] {
    std::array<std::array<int32_t, 8>, 256> lanes{};
    for (int set = 0; set < 256; ++set)
        for (int lane = 0, count = 0; lane < 8; ++lane)
            if (set >> lane & 1) lanes[set][count++] = lane;
    return lanes;
}();

// Stores the numbers whose lane of `mask` is -1 side by side; returns how many. Up to 8 numbers are written. With
// `indices`, stores the numbers' indices too; lane 0 has index `first`. Without a branch: it would be mispredicted.
inline int64_t store_some(i32x8 mask, f32x8 numbers, float* to, int64_t first = 0, int32_t* indices = nullptr) {
    const int set = _mm256_movemask_ps(reinterpret_cast<__m256>(mask));
    const __m256i lanes = tile::load<__m256i>(kLanes[set].data());
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(numbers), lanes));
    if (indices) {
        const __m256i found = _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int32_t>(first)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices), found);
    }
    return __builtin_popcount(set);
}

#else

inline f32x8 larger(f32x8 a, f32x8 b) {
    return a > b ? a : b;
}

// Of numbers from 0 on. From 2^23 on all floats are integers.
inline f32x8 nearest_integer(f32x8 x) {
    return x < 0x1p23f ? tile::rounded(x + 0x1p23f) - 0x1p23f : x;
}

inline bool any(i32x8 mask) {
    int32_t lanes = 0;
    for (int lane = 0; lane < 8; ++lane) lanes |= mask[lane];
    return lanes != 0;
}

inline int64_t store_some(i32x8 mask, f32x8 numbers, float* to, int64_t first = 0, int32_t* indices = nullptr) {
    int64_t count = 0;
    for (int lane = 0; lane < 8; ++lane) {
        if (!mask[lane]) continue;
        if (indices) indices[count] = static_cast<int32_t>(first + lane);
        to[count++] = numbers[lane];
    }
    return count;
}

#endif

}  // namespace vectors
