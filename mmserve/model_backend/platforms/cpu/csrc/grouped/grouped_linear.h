// out[M, N] = x[M, K] W^T with the weights of quantized checkpoints: whole numbers in groups of any multiple of 32 inputs,
// each with a scale in float32 and a zero point. Products within 32 inputs are sums of integers, exact but for the
// rounding of the inputs; these sums are added in ascending order. So a row's result depends neither on the number of rows
// nor on the instruction set.
#pragma once

#include <cstdint>

#include "grouped/byte_products.h"
#include "grouped/grouped_inputs.h"
#include "grouped/grouped_weights.h"
#include "linear/quantized_linear.h"

namespace grouped {

using tile::f32x16;
using tile::f32x8;

#ifdef __AVX512VNNI__

constexpr int kMostRows = 8;

// M rows of x times one panel. The next panel is prefetched, if `fetches`.
template <int M, class Codes, int kNumDigits>
inline void product(int64_t group_size, const Inputs& x, const uint8_t* panel, bool fetches, float* out, int64_t ldc,
                    const tile::Epilogue& epilogue) {
    const int64_t next_panel = fetches ? panel_nbytes<Codes>(x.K, group_size) : 0;
    f32x16 totals[M] = {};
    for (int64_t k = 0; k < x.K;) {
        const auto* group = reinterpret_cast<const Scales*>(panel);
        const auto scales = tile::load<f32x16>(group->scales);
        const __m512i zeros = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(group->zeros)));
        panel += sizeof(Scales);
        for (const int64_t end = std::min(x.K, k + group_size); k < end; k += kGroup, panel += Codes::kNbytes) {
            quantized::prefetch(panel + next_panel, Codes::kNbytes);
            __m512i sums[M];
            block_sums<M, Codes, kNumDigits>(panel, zeros, x, k, sums);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
                totals[m] += reinterpret_cast<f32x16>(_mm512_cvtepi32_ps(sums[m])) *
                             (scales * x.blocks[(m * x.K + k) / kGroup].scale);
        }
    }
    for (int m = 0; m < M; ++m) epilogue.store(totals[m], 0, out + m * ldc);
}

#else

constexpr int kMostRows = tile::kMaxRows;

// The products of 32 inputs of M rows, from input k on, are added to sums [M, 16 outputs].
template <int M, class Codes>
inline void add_products(const uint8_t* codes, const Inputs& x, int64_t k, i32x8 (&sums)[M][2]) {
    for (int two = 0; two < kQuads; two += 2)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int quad = two + i % 2, odd = i / 2;
            const i16x16 low = Codes::pair(codes, quad, odd, 0), high = Codes::pair(codes, quad, odd, 1);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const i16x16 numbers = quantized::broadcast_pair(x.q + m * x.K + k + 4 * quad + 2 * odd);
                sums[m][0] = quantized::multiply_add(sums[m][0], low, numbers);
                sums[m][1] = quantized::multiply_add(sums[m][1], high, numbers);
            }
        }
}

// M rows of x times one panel. The next panel is prefetched, if `fetches`.
template <int M, class Codes, int kNumDigits>
inline void product(int64_t group_size, const Inputs& x, const uint8_t* panel, bool fetches, float* out, int64_t ldc,
                    const tile::Epilogue& epilogue) {
    const int64_t next_panel = fetches ? panel_nbytes<Codes>(x.K, group_size) : 0;
    f32x8 totals[M][2] = {};
    for (int64_t k = 0; k < x.K;) {
        const auto* group = reinterpret_cast<const Scales*>(panel);
        const f32x8 scales[2] = {tile::load<f32x8>(group->scales), tile::load<f32x8>(group->scales + 8)};
        const i32x8 zeros[2] = {group->zeros_of(0), group->zeros_of(1)};
        panel += sizeof(Scales);
        for (const int64_t end = std::min(x.K, k + group_size); k < end; k += kGroup, panel += Codes::kNbytes) {
            quantized::prefetch(panel + next_panel, Codes::kNbytes);
            const BlockScale* blocks = x.blocks + k / kGroup;
            i32x8 sums[M][2];
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
                for (int half = 0; half < 2; ++half) sums[m][half] = zeros[half] * -blocks[m * (x.K / kGroup)].sum;
            add_products<M, Codes>(panel, x, k, sums);
            for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m)
                    totals[m][half] += __builtin_convertvector(sums[m][half], f32x8) *
                                       (scales[half] * blocks[m * (x.K / kGroup)].scale);
        }
    }
    for (int m = 0; m < M; ++m)
        for (int half = 0; half < 2; ++half)
            epilogue.store(totals[m][half], half * 8, out + m * ldc + half * 8);
}

#endif

template <class Codes, class Rounding>
void run(const linear::Job& job, const uint8_t* weights) {
    const auto* header = reinterpret_cast<const Header*>(weights);
    const int64_t group_size = header->group_size;
    const uint8_t* panels = header->panels(job.K);
    const Inputs x = quantize_inputs<Rounding>(job, header->order());
    const bool fetches = job.ways.ahead_nbytes > 0;
    linear::for_each_task(job, kOutputs, [&](int64_t panel, int64_t end, int64_t row, int64_t rows) {
        for (; panel < end; ++panel) {
            const uint8_t* from = panels + panel * panel_nbytes<Codes>(job.K, group_size);
            const tile::Epilogue epilogue = job.epilogue.at(panel * kOutputs);
            linear::for_each_tile(row, rows, kMostRows, [&](int64_t first, int64_t count) {
                float* out = job.out + first * job.N + panel * kOutputs;
                tile::dispatch_rows<kMostRows>(count, [&](auto m) {
                    product<m, Codes, Rounding::kNumDigits>(group_size, x.row(first), from, fetches, out, job.N, epilogue);
                });
            });
        }
    });
}

}  // namespace grouped
