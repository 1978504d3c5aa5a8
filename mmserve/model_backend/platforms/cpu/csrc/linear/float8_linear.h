// out[M, N] = x[M, K] W^T with W in 8-bit floating point (E4M3), in groups of inputs with a scale in float32. Inputs stay
// float32. A group's products are added in ascending order, then the groups, so a row's result does not depend on the
// number of rows.
//
// Memory: as in grouped_linear.h, but a group's codes are [inputs][16], and its scales are 2^8 times what they should be.
#pragma once

#include <cstdint>

#include "linear/grouped_linear.h"
#include "linear/inputs.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace float8 {

using quantized::kOutputs;
using tile::f32x8;

// 16 codes as numbers 2^-8 times as large: with its sign moved up, a code is the upper part of a number in half precision,
// whose exponents are 8 more.
struct Widened {
    f32x8 of[2];

    explicit Widened(const uint8_t* codes) {
        const auto words = __builtin_convertvector(tile::load<quantized::i8x16>(codes), quantized::i16x16);
        const auto halves = words << 7 & static_cast<int16_t>(0xbfff);
#if defined(__F16C__)
        const auto bits = reinterpret_cast<__m256i>(halves);
        of[0] = reinterpret_cast<f32x8>(_mm256_cvtph_ps(_mm256_castsi256_si128(bits)));
        of[1] = reinterpret_cast<f32x8>(_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)));
#else
        for (int i = 0; i < 16; ++i) {
            const int magnitude = halves[i] >> 7 & 127, exponent = magnitude >> 3, fraction = magnitude & 7;
            const float number = exponent ? std::ldexp(8.f + fraction, exponent - 18) : std::ldexp(1.f * fraction, -17);
            of[i / 8][i % 8] = halves[i] < 0 ? -number : number;
        }
#endif
    }
};

// M rows of x, `stride` numbers apart, times P panels, which are panel_nbytes apart.
template <int M, int P>
inline void product(int64_t K, int64_t group_size, const float* x, int64_t stride, const uint8_t* panel,
                    int64_t panel_nbytes, float* out, int64_t ldc, const tile::Epilogue& epilogue) {
    f32x8 totals[M][2 * P] = {};
    for (int64_t k = 0; k < K;) {
        f32x8 scales[2 * P];
        for (int i = 0; i < 2 * P; ++i)
            scales[i] = tile::load<f32x8>(panel + i / 2 * panel_nbytes + i % 2 * sizeof(f32x8));
        panel += sizeof(grouped::Scales);
        tile::Sums<f32x8, M, 2 * P> sums;
        for (const int64_t end = std::min(K, k + group_size); k < end; ++k, panel += kOutputs) {
            f32x8 weights[2 * P];
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
                __builtin_prefetch(panel + (p + P) * panel_nbytes, 0, 2);
                const Widened widened(panel + p * panel_nbytes);
                weights[2 * p] = widened.of[0];
                weights[2 * p + 1] = widened.of[1];
            }
            sums.add(x + k, stride, weights);
        }
        for (int m = 0; m < M; ++m)
            for (int i = 0; i < 2 * P; ++i) totals[m][i] += sums.sum[m][i] * scales[i];
    }
    for (int m = 0; m < M; ++m)
        for (int i = 0; i < 2 * P; ++i) epilogue.store(totals[m][i], 8 * i, out + m * ldc + 8 * i);
}

inline void run(const linear::Job& job, const uint8_t* weights) {
    constexpr int64_t kFewRows = tile::kMaxRows / 2;  // two panels at once: more sums that do not wait for each other
    const int64_t K = job.K, group_size = reinterpret_cast<const grouped::Header*>(weights)->group_size;
    const uint8_t* panels = weights + sizeof(grouped::Header);
    const int64_t panel_nbytes = (K + group_size - 1) / group_size * sizeof(grouped::Scales) + K * kOutputs;
    const linear::Rows<float> x = linear::unrounded(job);
    linear::for_each_task(job, kOutputs, [&](int64_t panel, int64_t end, int64_t row, int64_t rows) {
        while (panel < end) {
            const bool both = rows <= kFewRows && panel + 1 < end;
            const uint8_t* from = panels + panel * panel_nbytes;
            const tile::Epilogue epilogue = job.epilogue.at(panel * kOutputs);
            linear::for_each_tile(row, rows, tile::kMaxRows, [&](int64_t first, int64_t count) {
                float* out = job.out + first * job.N + panel * kOutputs;
                const float* rows_of_x = x.at(first);
                if (both)
                    return tile::dispatch_rows<kFewRows>(count, [&](auto m) {
                        product<m, 2>(K, group_size, rows_of_x, x.stride, from, panel_nbytes, out, job.N, epilogue);
                    });
                tile::dispatch_rows(count, [&](auto m) {
                    product<m, 1>(K, group_size, rows_of_x, x.stride, from, panel_nbytes, out, job.N, epilogue);
                });
            });
            panel += 1 + both;
        }
    });
}

}  // namespace float8
