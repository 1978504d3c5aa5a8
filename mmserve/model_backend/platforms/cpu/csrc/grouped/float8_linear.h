// out[M, N] = x[M, K] W^T with W in 8-bit floating point (E4M3), in groups of inputs with a scale in float32. Inputs stay
// float32. A group's products are added in ascending order, then the groups, so a row's result depends neither on the
// number of rows nor on the instruction set.
//
// Memory: as in grouped_weights.h, but a group's codes are [inputs][16], and its scales are 2^56 times what they should be:
// weights are 2^-120 times as large as their codes say, inputs 2^64 times. So inputs below 2^63 stay finite, and sums down to
// 2^-70 exact.
#pragma once

#include <cstdint>
#include <type_traits>

#include "grouped/grouped_weights.h"
#include "linear/inputs.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace float8 {

using grouped::kOutputs;
using Vector = linear::Vector;
typedef int32_t Integers __attribute__((vector_size(sizeof(Vector))));

constexpr int kVectors = kOutputs / tile::kLanes<Vector>;  // of a panel
constexpr int kMostRows = linear::kMaxRows;
constexpr int kFewRows = kMostRows / 2;  // take two panels at once, one row four: more sums that do not wait for each other
constexpr int64_t kInputsOfLine = memory::kLine / kOutputs;

template <int number>
using constant = std::integral_constant<int, number>;

struct Codes {
    static constexpr int64_t kNbytes = grouped::kGroup * kOutputs;
};

// As many codes as a vector has lanes, with their signs.
inline Integers integers(const uint8_t* codes) {
#if defined(__AVX512F__)
    return reinterpret_cast<Integers>(_mm512_cvtepi8_epi32(tile::load<__m128i>(codes)));
#elif defined(__AVX2__)
    return reinterpret_cast<Integers>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
#elif defined(__aarch64__)
    const auto four = vreinterpret_s8_s32(vdup_n_s32(tile::load<int32_t>(codes)));
    return reinterpret_cast<Integers>(vmovl_s16(vget_low_s16(vmovl_s8(four))));
#else
    Integers words;
    for (int i = 0; i < tile::kLanes<Vector>; ++i) words[i] = static_cast<int8_t>(codes[i]);
    return words;
#endif
}

// 16 codes as numbers 2^-120 times as large: with its sign moved up, a code is the upper part of a float, whose exponents
// are 120 more. The smallest are denormal numbers.
inline void widen(const uint8_t* codes, Vector* to) {
    constexpr int32_t kKept = static_cast<int32_t>(0x87f00000);
    for (int i = 0; i < kVectors; ++i)
        to[i] = reinterpret_cast<Vector>(integers(codes + i * tile::kLanes<Vector>) << 20 & kKept);
}

// x, 2^64 times as large. The result is valid until the same thread calls this again.
inline linear::Rows<float> enlarged(const linear::Job& job) {
    static thread_local memory::ReusableArray<float> reusable;
    const int64_t K = job.K, stride = linear::copy_stride<float>(K);
    float* rows = reusable.at_least(job.M * stride);
    pool::parallel_for_rows(job.M, K, [=](int64_t row) {
        for (int64_t k = 0; k < K; ++k) rows[row * stride + k] = job.x[row * K + k] * 0x1p64f;
    });
    return {rows, stride};
}

// M rows of x, `stride` numbers apart, times P panels, which are panel_nbytes apart.
template <int M, int P>
inline void product(int64_t K, int64_t group_size, const float* x, int64_t stride, const uint8_t* panel,
                    int64_t panel_nbytes, bool fetches, float* out, int64_t ldc, const tile::Epilogue& epilogue) {
    constexpr int64_t kLanes = tile::kLanes<Vector>;
    Vector totals[M][P * kVectors] = {};
    tile::RowAddresses<M, const float> rows(x, stride);
    for (int64_t k = 0; k < K;) {
        Vector scales[P * kVectors];
        for (int i = 0; i < P * kVectors; ++i)
            scales[i] = tile::load<Vector>(panel + i / kVectors * panel_nbytes + i % kVectors * sizeof(Vector));
        if (fetches)
            for (int p = 0; p < P; ++p) grouped::prefetch(panel + (p + P) * panel_nbytes, sizeof(grouped::Scales));
        panel += sizeof(grouped::Scales);
        tile::Sums<Vector, M, P * kVectors> sums;
        for (const int64_t end = std::min(K, k + group_size); k < end; ++k, panel += kOutputs, rows.advance(1)) {
            Vector weights[P * kVectors];
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                if (fetches && k % kInputsOfLine == 0) __builtin_prefetch(panel + (p + P) * panel_nbytes, 0, 2);
                widen(panel + p * panel_nbytes, weights + p * kVectors);
            }
            sums.add(rows, 0, weights);
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
    linear::Rows<float> x{};
    const pool::BeforeTasks enlarge([&] { x = enlarged(job); });
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
                        product<m, together>(K, group_size, x.at(first), x.stride, from, panel_nbytes,
                                             fetches && first == row, out, job.N, epilogue);
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
