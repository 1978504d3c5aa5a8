// out[M, N] = x[M, K] W^T with W quantized: panels of 16 of its rows, in groups of 32 of their numbers that share a
// scale. x is rounded to 16 bits, with a scale for each 32 of a row, and dots of a group are whole numbers, so that a
// result depends neither on the number of rows nor on the order of the sums in a group.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"
#include "pool.h"
#include "tile.h"

namespace quantized {

using tile::f32x8;
using tile::i32x8;
typedef int16_t i16x16 __attribute__((vector_size(32)));

constexpr int64_t kGroup = 32;
constexpr int64_t kPairs = kGroup / 2;                   // neighbouring numbers lie side by side, 16 outputs in a row
constexpr int64_t kNumbers = kGroup * tile::kColumns;    // of a group of a panel
constexpr float kMostOfX = 32767.f;

// A group in memory: 16 scales in bfloat16, then [16 pairs, 16 outputs, 2] int8.
struct Int8 {
    static constexpr int64_t kNbytes = 2 * tile::kColumns + kNumbers;

    static void unpack(const uint8_t* group, int16_t* to) {
        const auto* from = reinterpret_cast<const int8_t*>(group + 2 * tile::kColumns);
        for (int64_t i = 0; i < kNumbers; ++i) to[i] = from[i];
    }

    // What a group's dots with a row of x add to the row's sums, for 8 outputs from `column` on.
    static f32x8 value(const uint8_t* group, int64_t column, f32x8 dots, float scale, float) {
        return dots * (scale * tile::widen(reinterpret_cast<const uint16_t*>(group) + column));
    }
};

// 16 scales and 16 least values in bfloat16, then [8 pairs, 16 outputs, 2] bytes: pair p below, pair p + 8 above.
struct Int4 {
    static constexpr int64_t kNbytes = 4 * tile::kColumns + kNumbers / 2;

    static void unpack(const uint8_t* group, int16_t* to) {
        const uint8_t* from = group + 4 * tile::kColumns;
        for (int64_t i = 0; i < kNumbers / 2; ++i) to[i] = from[i] & 15;
        for (int64_t i = 0; i < kNumbers / 2; ++i) to[kNumbers / 2 + i] = from[i] >> 4;
    }

    static f32x8 value(const uint8_t* group, int64_t column, f32x8 dots, float scale, float sum) {
        const auto* scales = reinterpret_cast<const uint16_t*>(group) + column;
        return dots * (scale * tile::widen(scales)) + sum * tile::widen(scales + tile::kColumns);
    }
};

struct Rows {
    const int16_t* numbers;  // [M, K]
    const float *scales, *sums;  // [M, K / 32]
    int64_t K;

    Rows from(int64_t row) const {
        return {numbers + row * K, scales + row * (K / kGroup), sums + row * (K / kGroup), K};
    }
};

// 32 numbers as whole ones times a scale. A number that is not finite makes the scale NaN, and so every result.
inline void round_group(const float* x, int16_t* numbers, float* scale, float* sum) {
    float largest = 0.f, finite = 0.f;
    for (int64_t i = 0; i < kGroup; ++i) {
        largest = std::max(largest, std::fabs(x[i]));
        finite += x[i] * 0.f;
    }
    const float inverse = largest > 0.f && finite == 0.f ? kMostOfX / largest : 0.f;
    int32_t total = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
        const float scaled = finite == 0.f ? x[i] * inverse : 0.f;
        const auto whole = static_cast<int32_t>(scaled + (scaled < 0.f ? -0.5f : 0.5f));
        numbers[i] = static_cast<int16_t>(whole);
        total += whole;
    }
    *scale = largest / kMostOfX + finite;
    *sum = static_cast<float>(total) * *scale;
}

// Sums of the products of neighbours.
inline i32x8 pair_products(i16x16 a, i16x16 b) {
#ifdef __AVX2__
    return reinterpret_cast<i32x8>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
    i32x8 sums;
    for (int i = 0; i < 8; ++i) sums[i] = int32_t{a[2 * i]} * b[2 * i] + int32_t{a[2 * i + 1]} * b[2 * i + 1];
    return sums;
#endif
}

// M rows times one panel, whose groups' numbers `unpacked(group)` returns.
template <int M, class W, class Unpacked>
inline void product(const Rows& x, const uint8_t* panel, const Unpacked& unpacked, float* out, int64_t ldc,
                    const tile::Finish& finish) {
    const int64_t groups = x.K / kGroup;
    f32x8 sums[M][2]{};
    for (int64_t g = 0; g < groups; ++g) {
        const int16_t* weights = unpacked(g);
        i32x8 dots[M][2]{};
        for (int64_t pair = 0; pair < kPairs; ++pair) {
            const i16x16 low = tile::load<i16x16>(weights + pair * 32);
            const i16x16 high = tile::load<i16x16>(weights + pair * 32 + 16);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const int32_t both = tile::load<int32_t>(x.numbers + m * x.K + g * kGroup + pair * 2);
                const i16x16 pairs = reinterpret_cast<i16x16>(i32x8{both, both, both, both, both, both, both, both});
                dots[m][0] += pair_products(pairs, low);
                dots[m][1] += pair_products(pairs, high);
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
            for (int half = 0; half < 2; ++half)
                sums[m][half] += W::value(panel + g * W::kNbytes, half * 8,
                                          __builtin_convertvector(dots[m][half], f32x8), x.scales[m * groups + g],
                                          x.sums[m * groups + g]);
    }
    for (int m = 0; m < M; ++m)
        for (int half = 0; half < 2; ++half) {
            float* to = out + m * ldc + half * 8;
            tile::store(to, finish(sums[m][half], half * 8, to));
        }
}

template <class W, class Unpacked>
void rows(int64_t M, const Rows& x, const uint8_t* panel, const Unpacked& unpacked, float* out, int64_t ldc,
          const tile::Finish& finish) {
    switch (M) {
        case 1:
            return product<1, W>(x, panel, unpacked, out, ldc, finish);
        case 2:
            return product<2, W>(x, panel, unpacked, out, ldc, finish);
        case 3:
            return product<3, W>(x, panel, unpacked, out, ldc, finish);
        case 4:
            return product<4, W>(x, panel, unpacked, out, ldc, finish);
        case 5:
            return product<5, W>(x, panel, unpacked, out, ldc, finish);
        default:
            return product<6, W>(x, panel, unpacked, out, ldc, finish);
    }
}

// One panel times rows [row, row + count): a group at a time for few rows, else the whole panel is unpacked once.
template <class W>
void panel_rows(const linear::Job& job, const Rows& x, const uint8_t* panel, int64_t column, int64_t row,
                int64_t count) {
    static thread_local std::vector<int16_t> memory;
    const int64_t groups = job.K / kGroup, tiles = (count + tile::kMaxRows - 1) / tile::kMaxRows;
    memory.resize(std::max<size_t>(memory.size(), groups * kNumbers));
    int16_t* numbers = memory.data();
    float* out = job.out + column;
    if (tiles == 1)
        return rows<W>(
            count, x.from(row), panel,
            [=](int64_t g) { return W::unpack(panel + g * W::kNbytes, numbers), numbers; }, out + row * job.N, job.N,
            job.finish.at(column));
    for (int64_t g = 0; g < groups; ++g) W::unpack(panel + g * W::kNbytes, numbers + g * kNumbers);
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t from = row + count * t / tiles, end = row + count * (t + 1) / tiles;
        rows<W>(
            end - from, x.from(from), panel, [=](int64_t g) { return numbers + g * kNumbers; }, out + from * job.N,
            job.N, job.finish.at(column));
    }
}

template <class W>
void run(const linear::Job& job, const uint8_t* panels) {
    const int64_t groups = job.K / kGroup;
    static thread_local std::vector<int16_t> numbers;
    static thread_local std::vector<float> scales;
    numbers.resize(std::max<size_t>(numbers.size(), job.M * job.K));
    scales.resize(std::max<size_t>(scales.size(), 2 * job.M * groups));
    int16_t* whole = numbers.data();
    float *scale = scales.data(), *sum = scale + job.M * groups;
    constexpr int64_t kRoundedAtOnce = 512;
    pool::each((job.M * groups + kRoundedAtOnce - 1) / kRoundedAtOnce, [=](int64_t piece) {
        const int64_t end = std::min(job.M * groups, (piece + 1) * kRoundedAtOnce);
        for (int64_t g = piece * kRoundedAtOnce; g < end; ++g)
            round_group(job.x + g * kGroup, whole + g * kGroup, scale + g, sum + g);
    });
    const Rows x{whole, scale, sum, job.K};
    linear::each_piece(job, 2, [&](int64_t first, int64_t end, int64_t row, int64_t count) {
        for (; first < end; ++first)
            panel_rows<W>(job, x, panels + first * groups * W::kNbytes, first * tile::kColumns, row, count);
    });
}

}  // namespace quantized
