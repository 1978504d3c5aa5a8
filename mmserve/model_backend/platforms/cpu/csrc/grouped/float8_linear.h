// out[M, N] = x[M, K] W^T with W in 8-bit floating point (E4M3), in groups of inputs with a scale in float32. Inputs stay
// float32. A group's products are added in ascending order, then the groups, so a row's result depends neither on the
// number of rows nor on the instruction set.
//
// Memory: as in grouped_weights.h, but a group's codes are [inputs][16], and its scales are 2^8 times what they should be.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "grouped/grouped_weights.h"
#include "linear/inputs.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace float8 {

using grouped::i16x16;
using grouped::kOutputs;
typedef int8_t i8x16 __attribute__((vector_size(16)));
using Vector = linear::Vector;

constexpr int kVectors = kOutputs / tile::kLanes<Vector>;  // of a panel
constexpr int kMostRows = linear::kMaxRows;
constexpr int kFewRows = kMostRows / 2;  // take two panels at once, one row four: more sums that do not wait for each other

template <int number>
using constant = std::integral_constant<int, number>;

struct Codes {
    static constexpr int64_t kNbytes = grouped::kGroup * kOutputs;
};

// 16 codes as numbers 2^-8 times as large: with its sign moved up, a code is the upper part of a number in half precision,
// whose exponents are 8 more.
inline void widen(const uint8_t* codes, Vector* to) {
#if defined(__AVX2__)
    const auto words = reinterpret_cast<i16x16>(_mm256_cvtepi8_epi16(tile::load<__m128i>(codes)));
#else
    const auto words = __builtin_convertvector(tile::load<i8x16>(codes), i16x16);
#endif
    const auto halves = words << 7 & static_cast<int16_t>(0xbfff);
#if defined(__AVX512F__)
    to[0] = reinterpret_cast<Vector>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(halves)));
#elif defined(__F16C__)
    const auto bits = reinterpret_cast<__m256i>(halves);
    to[0] = reinterpret_cast<Vector>(_mm256_cvtph_ps(_mm256_castsi256_si128(bits)));
    to[1] = reinterpret_cast<Vector>(_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)));
#elif defined(__aarch64__)
    int16x8_t bits[2];
    std::memcpy(bits, &halves, sizeof bits);
    for (int i = 0; i < 2; ++i) {
        const auto numbers = vreinterpretq_f16_s16(bits[i]);
        to[2 * i] = reinterpret_cast<Vector>(vcvt_f32_f16(vget_low_f16(numbers)));
        to[2 * i + 1] = reinterpret_cast<Vector>(vcvt_high_f32_f16(numbers));
    }
#else
    for (int i = 0; i < 16; ++i) {
        const int magnitude = halves[i] >> 7 & 127, exponent = magnitude >> 3, fraction = magnitude & 7;
        const float number = exponent ? std::ldexp(8.f + fraction, exponent - 18) : std::ldexp(1.f * fraction, -17);
        to[i / 8][i % 8] = halves[i] < 0 ? -number : number;
    }
#endif
}

// M rows of x, `stride` numbers apart, times P panels, which are panel_nbytes apart.
template <int M, int P>
inline void product(int64_t K, int64_t group_size, const float* x, int64_t stride, const uint8_t* panel,
                    int64_t panel_nbytes, bool fetches, float* out, int64_t ldc, const tile::Epilogue& epilogue) {
    constexpr int64_t kLanes = tile::kLanes<Vector>;
    Vector totals[M][P * kVectors] = {};
    for (int64_t k = 0; k < K;) {
        Vector scales[P * kVectors];
        for (int i = 0; i < P * kVectors; ++i)
            scales[i] = tile::load<Vector>(panel + i / kVectors * panel_nbytes + i % kVectors * sizeof(Vector));
        panel += sizeof(grouped::Scales);
        tile::Sums<Vector, M, P * kVectors> sums;
        for (const int64_t end = std::min(K, k + group_size); k < end; ++k, panel += kOutputs) {
            Vector weights[P * kVectors];
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                if (fetches) __builtin_prefetch(panel + (p + P) * panel_nbytes, 0, 2);
                widen(panel + p * panel_nbytes, weights + p * kVectors);
            }
            sums.add(x + k, stride, weights);
        }
        for (int m = 0; m < M; ++m)
            for (int i = 0; i < P * kVectors; ++i) totals[m][i] += sums.sum[m][i] * scales[i];
    }
    for (int m = 0; m < M; ++m)
        for (int i = 0; i < P * kVectors; ++i) epilogue.store(totals[m][i], kLanes * i, out + m * ldc + kLanes * i);
}

inline void run(const linear::Job& job, const uint8_t* weights) {
    const auto* header = reinterpret_cast<const grouped::Header*>(weights);
    const int64_t K = job.K, group_size = header->group_size;
    const uint8_t* panels = header->panels(K);
    const int64_t panel_nbytes = grouped::panel_nbytes<Codes>(K, group_size);
    const bool fetches = job.ways.ahead_nbytes > 0;
    const linear::Rows<float> x = linear::unrounded(job);
    linear::Job tasks = job;
    if (job.M == 1) tasks.ways.task_outputs = std::max<int64_t>(job.ways.task_outputs, 4 * kOutputs);
    linear::for_each_task(tasks, kOutputs, [&](int64_t panel, int64_t end, int64_t row, int64_t rows) {
        const auto multiply = [&](auto together, auto most_rows) {
            for (; panel + together <= end; panel += together) {
                const uint8_t* from = panels + panel * panel_nbytes;
                const tile::Epilogue epilogue = job.epilogue.at(panel * kOutputs);
                linear::for_each_tile(row, rows, most_rows, [&](int64_t first, int64_t count) {
                    float* out = job.out + first * job.N + panel * kOutputs;
                    tile::dispatch_rows<most_rows>(count, [&](auto m) {
                        product<m, together>(K, group_size, x.at(first), x.stride, from, panel_nbytes, fetches, out, job.N,
                                             epilogue);
                    });
                });
            }
        };
        if (rows == 1) multiply(constant<4>(), constant<1>());
        if (rows <= kFewRows) multiply(constant<2>(), constant<kFewRows>());
        multiply(constant<1>(), constant<kMostRows>());
    });
}

}  // namespace float8
