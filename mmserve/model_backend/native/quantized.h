// out[M, N] = x[M, K] W^T with W quantized: panels of 16 of its rows, in groups of 32 of their numbers that share a
// scale. x is rounded to 16 bits, with a scale for each 32 of a row, and dots of a group are whole numbers, so that a
// result depends neither on the number of rows nor on the order of the sums in a group.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "group.h"
#include "linear.h"
#include "pool.h"
#include "scratch.h"
#include "tile.h"

namespace quantized {

using tile::i32x8;
typedef int16_t i16x8 __attribute__((vector_size(16)));

constexpr int64_t kAhead = 4096;  // bytes
constexpr int64_t kPanels = 4;    // in one piece of work: read side by side
constexpr float kMostOfX = 32767.f;

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
    f32x8 most{}, finite{};
    for (int64_t i = 0; i < kGroup; i += 8) {
        const f32x8 some = tile::load<f32x8>(x + i);
        most = tile::larger(most, some < 0.f ? -some : some);
        finite += some * 0.f;
    }
    float unknown = 0.f;
    for (int i = 0; i < 8; ++i) unknown += finite[i];
    const float largest = tile::largest_of(most);
    const float inverse = largest > 0.f && unknown == 0.f ? kMostOfX / largest : 0.f;
    i32x8 total{};
    for (int64_t i = 0; i < kGroup; i += 8) {
        const f32x8 scaled = unknown == 0.f ? tile::load<f32x8>(x + i) * inverse : f32x8{};
        const i32x8 whole = __builtin_convertvector(scaled + (scaled < 0.f ? tile::splat(-.5f) : tile::splat(.5f)), i32x8);
        const i16x8 kept = __builtin_convertvector(whole, i16x8);
        std::memcpy(numbers + i, &kept, sizeof kept);
        total += whole;
    }
    int32_t whole_sum = 0;
    for (int i = 0; i < 8; ++i) whole_sum += total[i];
    *scale = largest / kMostOfX + unknown;
    *sum = static_cast<float>(whole_sum) * *scale;
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

// Numbers of a group that were made words before.
struct Words {
    template <int P, class Take>
    static inline void each_pair(const int16_t* group, int64_t, const Take& take) {
        static_assert(P == 1);
#pragma GCC unroll 1
        for (int64_t pair = 0; pair < kPairs; ++pair)
            take(0, pair, tile::load<i16x16>(group + pair * 32), tile::load<i16x16>(group + pair * 32 + 16));
    }
};

// What is read soon: a panel is one stream, and the CPU looks no further ahead than the end of a page.
inline void fetch(const uint8_t* from, int64_t nbytes) {
    for (int64_t at = 0; at < nbytes; at += 64) __builtin_prefetch(from + at);
}

// M rows times P panels, one behind the other. Several side by side are several streams, which the CPU reads ahead
// better than it can be told to. Numbers: how those of a group, which group(g) points at, are read. Loops over pairs
// stay loops: unrolled, the compiler keeps products of several pairs and has no registers left for the sums.
template <int M, int P, class W, class Numbers, class Group>
inline void product(const Rows& x, const uint8_t* panel, const Group& group, float* out, int64_t ldc,
                    const tile::Finish& finish) {
    const int64_t groups = x.K / kGroup, size = groups * W::kNbytes;
    f32x8 sums[P][M][2]{};
    for (int64_t g = 0; g < groups; ++g) {
        i32x8 dots[P][M][2]{};
        if constexpr (P == 1 && std::is_same_v<W, Numbers>) fetch(group(g) + kAhead, W::kNbytes);
        Numbers::template each_pair<P>(group(g), size, [&](int p, int64_t pair, i16x16 low, i16x16 high) {
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const auto both = tile::load<int32_t>(x.numbers + m * x.K + g * kGroup + pair * 2);
                const i16x16 pairs = reinterpret_cast<i16x16>(i32x8{both, both, both, both, both, both, both, both});
                dots[p][m][0] += pair_products(pairs, low);
                dots[p][m][1] += pair_products(pairs, high);
            }
        });
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const typename W::Value value(panel + p * size + g * W::kNbytes);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
                for (int half = 0; half < 2; ++half)
                    sums[p][m][half] += value(half, __builtin_convertvector(dots[p][m][half], f32x8),
                                              x.scales[m * groups + g], x.sums[m * groups + g]);
        }
    }
    for (int p = 0; p < P; ++p)
        for (int m = 0; m < M; ++m)
            for (int half = 0; half < 2; ++half) {
                const int64_t column = p * tile::kColumns + half * 8;
                float* to = out + m * ldc + column;
                tile::store(to, finish(sums[p][m][half], column, to));
            }
}

template <class W, class Numbers, class Group>
void rows(int64_t M, const Rows& x, const uint8_t* panel, const Group& group, float* out, int64_t ldc,
          const tile::Finish& finish) {
    switch (M) {
        case 1:
            return product<1, 1, W, Numbers>(x, panel, group, out, ldc, finish);
        case 2:
            return product<2, 1, W, Numbers>(x, panel, group, out, ldc, finish);
        case 3:
            return product<3, 1, W, Numbers>(x, panel, group, out, ldc, finish);
        case 4:
            return product<4, 1, W, Numbers>(x, panel, group, out, ldc, finish);
        case 5:
            return product<5, 1, W, Numbers>(x, panel, group, out, ldc, finish);
        default:
            return product<6, 1, W, Numbers>(x, panel, group, out, ldc, finish);
    }
}

// One output's weights as floats: [K].
inline void row(const uint8_t* panels, int64_t index, int64_t K, float* out) {
    const uint8_t* group = panels + index / tile::kColumns * (K / kGroup) * Int8::kNbytes;
    for (int64_t k = 0; k < K; k += kGroup, group += Int8::kNbytes) Int8::numbers(group, index % tile::kColumns, out + k);
}

template <class W>
const int16_t* as_words(const uint8_t* panel, int64_t groups) {
    static thread_local scratch::Kept<int16_t> memory;
    int16_t* to = memory.at_least(groups * kNumbers);
    for (int64_t g = 0; g < groups; ++g)
        W::template each_pair<1>(panel + g * W::kNbytes, 0, [&](int, int64_t pair, i16x16 low, i16x16 high) {
            std::memcpy(to + g * kNumbers + pair * 32, &low, sizeof low);
            std::memcpy(to + g * kNumbers + pair * 32 + 16, &high, sizeof high);
        });
    return to;
}

// One panel times rows [row, row + count): from memory into registers for few, else it is made words once for all.
template <class W>
void panel_rows(const linear::Job& job, const Rows& x, const uint8_t* panel, int64_t column, int64_t row,
                int64_t count) {
    const int64_t tiles = (count + tile::kMaxRows - 1) / tile::kMaxRows;
    const tile::Finish finish = job.finish.at(column);
    float* out = job.out + row * job.N + column;
    if (tiles == 1) {
        const auto group = [=](int64_t g) { return panel + g * W::kNbytes; };
        return rows<W, W>(count, x.from(row), panel, group, out, job.N, finish);
    }
    const int16_t* words = as_words<W>(panel, job.K / kGroup);
    const auto group = [=](int64_t g) { return words + g * kNumbers; };
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t from = count * t / tiles, some = count * (t + 1) / tiles - from;
        rows<W, Words>(some, x.from(row + from), panel, group, out + from * job.N, job.N, finish);
    }
}

// P panels at a time, as long as there are so many; returns the first that is left.
template <int M, int P, class W>
int64_t side_by_side(const linear::Job& job, const Rows& x, const uint8_t* panels, int64_t first, int64_t end) {
    const int64_t size = job.K / kGroup * W::kNbytes;
    for (; first + P <= end; first += P) {
        const uint8_t* panel = panels + first * size;
        const int64_t column = first * tile::kColumns;
        product<M, P, W, W>(x, panel, [=](int64_t g) { return panel + g * W::kNbytes; }, job.out + column, job.N,
                            job.finish.at(column));
    }
    return first;
}

template <class W>
int64_t few(const linear::Job& job, const Rows& x, const uint8_t* panels, int64_t first, int64_t end) {
    switch (job.M) {
        case 1:
            return side_by_side<1, 4, W>(job, x, panels, first, end);
        case 2:
            return side_by_side<2, 2, W>(job, x, panels, first, end);
        default:
            return side_by_side<3, 2, W>(job, x, panels, first, end);
    }
}

template <class W>
void run(const linear::Job& job, const uint8_t* panels) {
    const int64_t groups = job.K / kGroup;
    static thread_local scratch::Kept<int16_t> numbers;
    static thread_local scratch::Kept<float> scales;
    int16_t* whole = numbers.at_least(job.M * job.K);
    float *scale = scales.at_least(2 * job.M * groups), *sum = scale + job.M * groups;
    constexpr int64_t kRoundedAtOnce = 512;
    pool::each((job.M * groups + kRoundedAtOnce - 1) / kRoundedAtOnce, [=](int64_t piece) {
        const int64_t end = std::min(job.M * groups, (piece + 1) * kRoundedAtOnce);
        for (int64_t g = piece * kRoundedAtOnce; g < end; ++g)
            round_group(job.x + g * kGroup, whole + g * kGroup, scale + g, sum + g);
    });
    const Rows x{whole, scale, sum, job.K};
    linear::each_piece(job, 2, kPanels, [&](int64_t first, int64_t end, int64_t row, int64_t count) {
        if (job.M <= 3) first = few<W>(job, x, panels, first, end);
        for (; first < end; ++first)
            panel_rows<W>(job, x, panels + first * groups * W::kNbytes, first * tile::kColumns, row, count);
    });
}

}  // namespace quantized
