// out[M, N] = x[M, K] W^T with the weights of quantized checkpoints: whole numbers in groups of inputs, with a scale and a
// zero point or a minimum each (see Scales, and gguf_scales.h). Products within 32 inputs are sums of integers, exact but for the
// rounding of the inputs; these sums are added in ascending order. So a row's result depends neither on the number of rows
// nor on the instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "grouped/byte_products.h"
#include "grouped/grouped_inputs.h"
#include "grouped/grouped_weights.h"
#include "grouped/pair_products.h"
#include "grouped/tiled_products.h"

namespace grouped {

using tile::f32x16;
using tile::f32x8;

// The zero points of 8 outputs, or zeros.
template <class Group>
inline i32x8 zeros_of(const Group& group, int first) {
    if constexpr (Group::kHasZeros) return group.zeros_of(first);
    return i32x8{};
}

// Calls body(part) with each of the parts of 32 inputs that have scales of their own, as a compile-time constant.
template <int kParts, class Body>
inline void for_each_part(const Body& body) {
    body(std::integral_constant<int, 0>());
    if constexpr (kParts > 1) body(std::integral_constant<int, 1>());
}

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)

constexpr int kMostRows = kMostByteRows;

// M rows of x times one panel. The next panel is prefetched, if `fetches`.
template <int M, class Codes, class Group, int kNumDigits>
inline void product(int64_t group_size, const Inputs& x, const uint8_t* panel, bool fetches, float* out, int64_t ldc,
                    const tile::Epilogue& epilogue) {
    constexpr int kParts = Group::kParts, kSteps = kOutputs / kTogether;
    const int64_t next_panel = panel_nbytes<Codes, Group>(x.K, group_size);
    Floats totals[kSteps][M] = {};
    for (int64_t k = 0; k < x.K;) {
        const auto* group = reinterpret_cast<const Group*>(panel);
        Integers zeros[kSteps];
        for (int step = 0; step < kSteps; ++step) zeros[step] = zeros_together(*group, step * kTogether);
        if (fetches) prefetch(panel + next_panel, sizeof(Group));
        panel += sizeof(Group);
        for (int64_t end = std::min(x.K, k + group_size), block = 0; k < end; k += kGroup, ++block) {
            if (fetches) prefetch(panel + next_panel, Codes::kNbytes);
            for_each_part<kParts>([&](auto part) {
#pragma GCC unroll 2
                for (int step = 0; step < kSteps; ++step) {
                    Integers sums[M];
                    block_sums<M, Codes, kNumDigits, kParts, Group::kHasZeros, part>(panel + step * 4 * kTogether,
                                                                                     zeros[step], x, k, sums);
                    const Floats scales = scales_together(*group, kParts * block + part, step * kTogether);
#pragma GCC unroll 8
                    for (int m = 0; m < M; ++m)
                        add_scaled(totals[step][m], sums[m], scales, x.block(m, k).scale);
                }
            });
            if constexpr (Group::kHasMinima)
                for (int step = 0; step < kSteps; ++step) {
                    const Floats minima = minima_together(*group, block, step * kTogether);
#pragma GCC unroll 8
                    for (int m = 0; m < M; ++m)
                        add_scaled(totals[step][m], minima, x.block(m, k).total);
                }
            panel += Codes::kNbytes;
        }
    }
    for (int m = 0; m < M; ++m)
        for (int step = 0; step < kSteps; ++step)
            store(epilogue, totals[step][m], step * kTogether, out + m * ldc + step * kTogether);
}

#else

constexpr int kMostRows = tile::kMaxRows;

// The products of one of kParts parts of the 32 inputs of M rows from input k on are added to sums [M, 16 outputs].
template <int M, class Codes, int kParts>
inline void add_products(const uint8_t* codes, const Inputs& x, int64_t k, int part, i32x8 (&sums)[M][2]) {
    constexpr int kPartQuads = kQuads / kParts;
    for (int two = part * kPartQuads; two < (part + 1) * kPartQuads; two += 2)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int quad = two + i % 2, odd = i / 2;
            const i16x16 low = Codes::pair(codes, quad, odd, 0), high = Codes::pair(codes, quad, odd, 1);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const i16x16 numbers = broadcast_pair(x.q + m * x.K + k + 4 * quad + 2 * odd);
                sums[m][0] = multiply_add(sums[m][0], low, numbers);
                sums[m][1] = multiply_add(sums[m][1], high, numbers);
            }
        }
}

// M rows of x times one panel. The next panel is prefetched, if `fetches`.
template <int M, class Codes, class Group, int kNumDigits>
inline void product(int64_t group_size, const Inputs& x, const uint8_t* panel, bool fetches, float* out, int64_t ldc,
                    const tile::Epilogue& epilogue) {
    constexpr int kParts = Group::kParts;
    const int64_t next_panel = panel_nbytes<Codes, Group>(x.K, group_size);
    f32x8 totals[M][2] = {};
    for (int64_t k = 0; k < x.K;) {
        const auto* group = reinterpret_cast<const Group*>(panel);
        if (fetches) prefetch(panel + next_panel, sizeof(Group));
        panel += sizeof(Group);
        for (int64_t end = std::min(x.K, k + group_size), block = 0; k < end; k += kGroup, ++block) {
            if (fetches) prefetch(panel + next_panel, Codes::kNbytes);
            for_each_part<kParts>([&](auto part) {
                i32x8 sums[M][2];
                for (int half = 0; half < 2; ++half) {
                    const i32x8 zeros = zeros_of(*group, 8 * half);
#pragma GCC unroll 8
                    for (int m = 0; m < M; ++m)
                        sums[m][half] = zeros * x.block(m, k).template negative_sum_of<kParts>(part);
                }
                add_products<M, Codes, kParts>(panel, x, k, part, sums);
                for (int half = 0; half < 2; ++half) {
                    const auto scales = group->template scale_of<f32x8>(kParts * block + part, 8 * half);
#pragma GCC unroll 8
                    for (int m = 0; m < M; ++m)
                        totals[m][half] += __builtin_convertvector(sums[m][half], f32x8) *
                                           (scales * x.block(m, k).scale);
                }
            });
            if constexpr (Group::kHasMinima)
                for (int half = 0; half < 2; ++half) {
                    const auto minima = group->template minimum_of<f32x8>(block, 8 * half);
#pragma GCC unroll 8
                    for (int m = 0; m < M; ++m) totals[m][half] += minima * x.block(m, k).total;
                }
            panel += Codes::kNbytes;
        }
    }
    for (int m = 0; m < M; ++m)
        for (int half = 0; half < 2; ++half)
            epilogue.store(totals[m][half], half * 8, out + m * ldc + half * 8);
}

#endif

#ifdef __AMX_INT8__

// Panels [panel, end) times rows [row, row + rows).
struct Part {
    int64_t panel, end, row, rows;
};

template <class Codes, class Group, int kNumDigits>
void multiply_in_tiles(const linear::Job& job, int64_t ldc, const Inputs& x, int64_t group_size, const uint8_t* panels,
                       const Part& part) {
    TileRegisters<Group::kParts> registers;
    for (int64_t panel = part.panel; panel < part.end; ++panel)
        linear::for_each_tile(part.row, part.rows, kTileRows, [&](int64_t first, int64_t count) {
            tiled_product<Codes, Group, kNumDigits>(
                registers, group_size, x.row(first), panels + panel * panel_nbytes<Codes, Group>(job.K, group_size),
                job.ways.ahead_nbytes > 0, count, job.out + first * ldc + panel * kOutputs, ldc,
                job.epilogue.at(panel * kOutputs));
        });
}

#endif

// Panels of a matrix of job.N outputs, whose results lie in rows of `ldc` numbers.
template <class Codes, class Group, int kNumDigits>
void multiply(const linear::Job& job, int64_t ldc, const Inputs& x, int64_t group_size, const uint8_t* panels) {
    const bool fetches = job.ways.ahead_nbytes > 0;
    linear::for_each_task(job, kOutputs, [&](int64_t panel, int64_t end, int64_t row, int64_t rows) {
#ifdef __AMX_INT8__
        if (rows >= kLeastTileRows)
            return multiply_in_tiles<Codes, Group, kNumDigits>(job, ldc, x, group_size, panels, {panel, end, row, rows});
#endif
        for (; panel < end; ++panel) {
            const uint8_t* from = panels + panel * panel_nbytes<Codes, Group>(job.K, group_size);
            const tile::Epilogue epilogue = job.epilogue.at(panel * kOutputs);
            linear::for_each_tile(row, rows, kMostRows, [&](int64_t first, int64_t count) {
                float* out = job.out + first * ldc + panel * kOutputs;
                tile::dispatch_rows<kMostRows>(count, [&](auto m) {
                    product<m, Codes, Group, kNumDigits>(group_size, x.row(first), from, fetches && first == row, out, ldc, epilogue);
                });
            });
        }
    });
}

template <class Codes, class Rounding>
void run(const linear::Job& job, const uint8_t* weights) {
    const auto* header = reinterpret_cast<const Header*>(weights);
    Inputs x{};
    const pool::BeforeTasks quantize([&] { x = quantize_inputs<Rounding>(job, header->order()); });
    multiply<Codes, Scales, Rounding::kNumDigits>(job, job.N, x, header->group_size, header->panels(job.K));
}

}  // namespace grouped
