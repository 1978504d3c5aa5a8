// out[M, N] = x[M, K] W^T with the weights of quantized checkpoints: whole numbers in groups of any multiple of 32 inputs,
// each with a scale in float32 and a zero point. Products within 32 inputs are sums of integers, exact but for the
// rounding of the inputs; these sums are added in ascending order, so a row's result does not depend on the number of rows.
//
// Memory: a header, the order of the inputs if it is not ascending, and panels of 16 outputs. In a panel each group has
// its scales [16] and zero points [16], then its codes, 32 inputs after another.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "linear/quantized_linear.h"

namespace grouped {

using quantized::kGroup;
using quantized::kOutputs;
using tile::f32x8;
using tile::i32x8;
typedef int16_t i16x8 __attribute__((vector_size(16)));

struct alignas(64) Header {
    int64_t group_size;
    int64_t has_order;  // then int32 [K] follows, up to a whole line
};

// Of one group of a panel.
struct Scales {
    float scales[kOutputs];
    int16_t zeros[kOutputs];

    i32x8 zeros_of(int half) const { return __builtin_convertvector(tile::load<i16x8>(zeros + 8 * half), i32x8); }
};

// The codes of 32 inputs, as `quantized::Int4` and `Int8` store them after their scales.
struct Codes4 {
    static constexpr int64_t kNbytes = kGroup / 2 * kOutputs;
    static quantized::i16x16 pair(const uint8_t* codes, int64_t lane8, int pair, int half) {
        return quantized::Int4::pair(codes - 4 * kOutputs, lane8, pair, half);
    }
};

struct Codes8 {
    static constexpr int64_t kNbytes = kGroup * kOutputs;
    static quantized::i16x16 pair(const uint8_t* codes, int64_t lane8, int pair, int half) {
        return quantized::Int8::pair(codes - 2 * kOutputs, lane8, pair, half);
    }
};

// Of 32 inputs: x = scale * q, and the sum of the q.
struct BlockScale {
    float scale;
    int32_t sum;
};

struct Inputs {
    const int16_t* q;          // [M, K]
    const BlockScale* blocks;  // [M, K / 32]
};

inline int32_t sum_of(const int16_t* q) {
    int32_t sum = 0;
    for (int64_t k = 0; k < kGroup; ++k) sum += q[k];
    return sum;
}

// Inputs as 16-bit integers, 32 with a scale. `order`: null, or which input comes first, second...
struct WideInputs {
    static void quantize(const float* x, const int32_t* order, int64_t K, int16_t* q, BlockScale* blocks) {
        for (int64_t k = 0; k < K; k += kGroup, q += kGroup, ++blocks) {
            float values[kGroup];
            for (int64_t i = 0; i < kGroup; ++i) values[i] = x[order ? order[k + i] : k + i];
            const float scale = quantized::quantize_group(values, q).scale;
            *blocks = {scale, sum_of(q)};
        }
    }
};

// Inputs as 8-bit integers with a scale for each row, as checkpoints of 8-bit weights and inputs are made for: half of
// 255 steps is the largest magnitude.
struct NarrowInputs {
    static void quantize(const float* x, const int32_t* order, int64_t K, int16_t* q, BlockScale* blocks) {
        float largest = 0.f, sum = 0.f;
        for (int64_t k = 0; k < K; ++k) {
            largest = std::max(largest, std::fabs(x[k]));
            sum += x[k];
        }
        const float scale = largest > 0.f ? largest / 127.5f : std::numeric_limits<float>::epsilon();
        for (int64_t k = 0; k < K; k += kGroup, q += kGroup, ++blocks) {
            for (int64_t i = 0; i < kGroup; ++i) {
                const float steps = std::nearbyint(x[order ? order[k + i] : k + i] / scale);
                q[i] = static_cast<int16_t>(std::min(127.f, std::max(-128.f, steps)));
            }
            *blocks = {scale + 0.f * sum, sum_of(q)};  // NaN if a number is NaN or infinite
        }
    }
};

// The result is valid until the same thread calls this again.
template <class Rounding>
Inputs quantize_inputs(const linear::Job& job, const int32_t* order) {
    static thread_local memory::ReusableArray<int16_t> reusable_q;
    static thread_local memory::ReusableArray<BlockScale> reusable_blocks;
    const int64_t K = job.K;
    int16_t* q = reusable_q.at_least(job.M * K);
    BlockScale* blocks = reusable_blocks.at_least(job.M * K / kGroup);
    pool::parallel_for_rows(job.M, K, [=](int64_t row) {
        Rounding::quantize(job.x + row * K, order, K, q + row * K, blocks + row * K / kGroup);
    });
    return {q, blocks};
}

// M rows from `first` on times one panel, which is panel_nbytes long. The next panel is prefetched.
template <int M, class Codes>
inline void product(int64_t K, int64_t group_size, const Inputs& x, int64_t first, const uint8_t* panel,
                    int64_t panel_nbytes, float* out, int64_t ldc, const tile::Epilogue& epilogue) {
    f32x8 totals[M][2];
    for (auto& row : totals) row[0] = row[1] = f32x8{};
    const uint8_t* at = panel;
    for (int64_t k = 0; k < K;) {
        const auto* group = reinterpret_cast<const Scales*>(at);
        const f32x8 scales[2] = {tile::load<f32x8>(group->scales), tile::load<f32x8>(group->scales + 8)};
        const i32x8 zeros[2] = {group->zeros_of(0), group->zeros_of(1)};
        at += sizeof(Scales);
        for (const int64_t end = std::min(K, k + group_size); k < end; k += kGroup, at += Codes::kNbytes) {
            quantized::prefetch(at + panel_nbytes, Codes::kNbytes);
            const BlockScale* blocks = x.blocks + (first * K + k) / kGroup;
            i32x8 sums[M][2];
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
                for (int half = 0; half < 2; ++half) sums[m][half] = zeros[half] * -blocks[m * (K / kGroup)].sum;
            quantized::multiply<M, Codes>(at, x.q + first * K + k, K, sums);
            for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m)
                    totals[m][half] += __builtin_convertvector(sums[m][half], f32x8) *
                                       (scales[half] * blocks[m * (K / kGroup)].scale);
        }
    }
    for (int m = 0; m < M; ++m)
        for (int half = 0; half < 2; ++half)
            epilogue.store(totals[m][half], half * 8, out + m * ldc + half * 8);
}

template <class Codes, class Rounding>
void run(const linear::Job& job, const uint8_t* weights) {
    const auto* header = reinterpret_cast<const Header*>(weights);
    const int64_t K = job.K, group_size = header->group_size;
    const uint8_t* panels = weights + sizeof(Header);
    const int32_t* order = nullptr;
    if (header->has_order) {
        order = reinterpret_cast<const int32_t*>(panels);
        panels += (K * sizeof(int32_t) + memory::kLine - 1) / memory::kLine * memory::kLine;
    }
    const int64_t groups = (K + group_size - 1) / group_size;
    const int64_t panel_nbytes = groups * sizeof(Scales) + K / kGroup * Codes::kNbytes;
    const Inputs x = quantize_inputs<Rounding>(job, order);
    linear::for_each_task(job, kOutputs, [&](int64_t panel, int64_t end, int64_t row, int64_t rows) {
        for (; panel < end; ++panel) {
            const uint8_t* from = panels + panel * panel_nbytes;
            const tile::Epilogue epilogue = job.epilogue.at(panel * kOutputs);
            linear::for_each_tile(row, rows, tile::kMaxRows, [&](int64_t first, int64_t count) {
                float* out = job.out + first * job.N + panel * kOutputs;
                tile::dispatch_rows(count, [&](auto m) {
                    product<m, Codes>(K, group_size, x, first, from, panel_nbytes, out, job.N, epilogue);
                });
            });
        }
    });
}

}  // namespace grouped
