// out[M, N] = x[M, K] W^T with quantized W: panels of 16 of its rows, in groups of 32 weights that share a scale.
// Within a group, integers are multiplied; groups are added in ascending order, so a row's result does not depend on
// the number of rows.
#pragma once

#include "linear/quantize_activations.h"
#include "linear/quantized_weights.h"
#include "linear/tasks.h"
#include "tile.h"

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace quantized {

// sums + a * b, where both products of an output are added to its sum.
inline i32x8 multiply_add(i32x8 sums, i16x16 a, i16x16 b) {
#ifdef __AVX2__
    sums += reinterpret_cast<i32x8>(__builtin_ia32_pmaddwd256(a, b));
    asm("" : "+x"(sums));  // otherwise the compiler adds products to each other first, and runs out of registers
#elif defined(__aarch64__)
    int32x4_t of[2];
    int16x8_t x[2], y[2];
    std::memcpy(of, &sums, sizeof of);
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    for (int i = 0; i < 2; ++i) {
        const int32x4_t low = vmull_s16(vget_low_s16(x[i]), vget_low_s16(y[i])), high = vmull_high_s16(x[i], y[i]);
        of[i] = vaddq_s32(of[i], vpaddq_s32(low, high));
    }
    std::memcpy(&sums, of, sizeof sums);
#else
    for (int i = 0; i < 8; ++i) sums[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
#endif
    return sums;
}

inline i16x16 broadcast_pair(const int16_t* from) {
    const auto both = tile::load<int32_t>(from);
    return reinterpret_cast<i16x16>(i32x8{both, both, both, both, both, both, both, both});
}

// Into the second-level cache.
inline void prefetch(const uint8_t* from, int64_t nbytes) {
    for (int64_t at = 0; at < nbytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// One group of a panel times the same group of M rows of activations, which are K numbers apart: sums [M, 16 outputs].
template <int M, class W>
inline void multiply(const uint8_t* group, const int16_t* q, int64_t K, i32x8 (&sums)[M][2]) {
    for (int64_t lane8 = 0; lane8 < kLanes8; ++lane8)
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
            const i16x16 low = W::pair(group, lane8, p, 0), high = W::pair(group, lane8, p, 1);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const i16x16 numbers = broadcast_pair(q + m * K + 2 * (lane8 * kPairs + p));
                sums[m][0] = multiply_add(sums[m][0], low, numbers);
                sums[m][1] = multiply_add(sums[m][1], high, numbers);
            }
        }
}

// M rows from `first` on times one panel. The next panel is prefetched, if `fetches`.
template <int M, class W>
inline void product(int64_t K, const Activations& x, int64_t first, const uint8_t* panel, bool fetches, float* out,
                    int64_t ldc, const tile::Epilogue& epilogue) {
    const int64_t groups = K / kGroup, ahead = fetches ? groups * W::kNbytes : 0;
    f32x8 totals[M][2];
    for (auto& row : totals) row[0] = row[1] = f32x8{};
    for (int64_t g = 0; g < groups; ++g) {
        const uint8_t* group = panel + g * W::kNbytes;
        prefetch(group + ahead, W::kNbytes);
        i32x8 sums[M][2];
        for (auto& row : sums) row[0] = row[1] = i32x8{};
        multiply<M, W>(group, x.q + first * K + g * kGroup, K, sums);
        for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const GroupScale& row = x.groups[(first + m) * groups + g];
                totals[m][half] += __builtin_convertvector(sums[m][half], f32x8) * (scales(group, half) * row.scale);
                if constexpr (W::kHasMinimum) totals[m][half] += W::minimum(group, half) * row.sum;
            }
    }
    for (int m = 0; m < M; ++m)
        for (int half = 0; half < 2; ++half)
            epilogue.store(totals[m][half], half * 8, out + m * ldc + half * 8);
}

// The weights of one output as floats: [K].
inline void load_weight_row(const uint8_t* panels, int64_t index, int64_t K, float* out) {
    const uint8_t* group = panels + index / kOutputs * (K / kGroup) * Int8::kNbytes;
    for (int64_t k = 0; k < K; k += kGroup, group += Int8::kNbytes)
        Int8::dequantize(group, index % kOutputs, out + k);
}

template <class W>
void run(const linear::Job& job, const uint8_t* panels) {
    const Activations x = quantize_activations(job.x, job.M, job.K);
    const bool fetches = job.ways.ahead_nbytes > 0;
    linear::for_each_task(job, kOutputs, [&](int64_t panel, int64_t end, int64_t row, int64_t rows) {
        for (; panel < end; ++panel) {
            const uint8_t* weights = panels + panel * (job.K / kGroup) * W::kNbytes;
            const tile::Epilogue epilogue = job.epilogue.at(panel * kOutputs);
            linear::for_each_tile(row, rows, tile::kMaxRows, [&](int64_t first, int64_t count) {
                float* out = job.out + first * job.N + panel * kOutputs;
                tile::dispatch_rows(count,
                                    [&](auto m) { product<m, W>(job.K, x, first, weights, fetches, out, job.N, epilogue); });
            });
        }
    });
}

}  // namespace quantized
