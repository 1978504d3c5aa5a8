// out[M, N] = x[M, K] W^T with weights and inputs in bfloat16, in tile registers. A sum is that of blocks of 32 inputs, in
// ascending order, each summed as tile_registers.h says. So the bits are not those of `Rounded`, but a row's depend on
// nothing but the row, however few there are: all products with a matrix are computed this way, or none.
#pragma once

#include <algorithm>
#include <cstring>

#include "linear/linear.h"
#include "linear/tile_registers.h"

namespace linear::tiles {

constexpr int64_t kInputs = 32;                        // of one tile
constexpr int64_t kBlock = kInputs * kPanel;           // weights of one panel: two tiles, side by side
constexpr int64_t kPairNbytes = 2 * kPanel * sizeof(uint16_t);  // of two inputs of a panel

// Rounds x [M, K] to bfloat16. Zeros follow each row up to a whole tile. Behind the last row there is memory for as many
// rows as one step may read beyond it. The result is valid until the same thread calls this again.
inline Rows<uint16_t> rounded_rows(const Job& job) {
    static thread_local memory::ReusableArray<uint16_t> reusable;
    const int64_t K = job.K, whole = (K + kInputs - 1) / kInputs * kInputs, stride = copy_stride<uint16_t>(K);
    uint16_t* rows = reusable.at_least((job.M + 2 * kRows) * stride);
    pool::parallel_for_rows(job.M, K, [=](int64_t row) {
        uint16_t* to = rows + row * stride;
        std::memset(to + whole - kInputs, 0, kInputs * sizeof *to);
        round_inputs(job.x + row * K, K, to);
    });
    return {rows, stride};
}

// Adds the products of one block: R times 16 rows of x, `stride` numbers apart, and all outputs of a panel. Sums are in
// registers 0 and 1 for the first 16 rows, and in 2 and 3 for the others.
template <int R, class Registers>
[[gnu::always_inline]] inline void add_block(Registers& registers, const uint16_t* x, int64_t stride,
                                             const uint16_t* weights) {
    const int64_t row_nbytes = stride * sizeof *x;
    registers.template load<4>(x, row_nbytes);
    registers.template load<6>(weights, kPairNbytes);
    registers.template add_products<0, 4, 6>();
    registers.template load<7>(weights + kPanel, kPairNbytes);
    registers.template add_products<1, 4, 7>();
    if constexpr (R > 1) {
        registers.template load<5>(x + kRows * stride, row_nbytes);
        registers.template add_products<2, 5, 6>();
        registers.template add_products<3, 5, 7>();
    }
}

// The sums of R times 16 rows and a panel: [R * 16, 32]. `rest`: the last block if it has fewer inputs, filled up with
// zeros, or null. Weights `ahead` numbers further are fetched into the second-level cache.
template <int R, class Registers>
void sum_rows(Registers& registers, int64_t K, const uint16_t* x, int64_t stride, const uint16_t* weights,
              const uint16_t* rest, int64_t ahead, float* sums) {
    registers.template zero<0>();
    registers.template zero<1>();
    if constexpr (R > 1) {
        registers.template zero<2>();
        registers.template zero<3>();
    }
    const uint16_t* const end = x + K / kInputs * kInputs;
    for (; x < end; x += kInputs, weights += kBlock) {
        if (ahead)
            for (int64_t i = 0; i < kBlock; i += memory::kLine / sizeof *weights)
                __builtin_prefetch(weights + ahead + i, 0, 2);
        add_block<R>(registers, x, stride, weights);
    }
    if (rest) add_block<R>(registers, x, stride, rest);
    constexpr int64_t kNbytes = kPanel * sizeof *sums;
    registers.template store<0>(sums, kNbytes);
    registers.template store<1>(sums + kPanel / 2, kNbytes);
    if constexpr (R > 1) {
        registers.template store<2>(sums + kRows * kPanel, kNbytes);
        registers.template store<3>(sums + kRows * kPanel + kPanel / 2, kNbytes);
    }
}

inline void store_sums(const float* sums, int64_t rows, int64_t outputs, const tile::Epilogue& epilogue, float* out,
                       int64_t stride) {
    if (outputs < kPanel) return epilogue.store_rows(sums, kPanel, rows, outputs, out, stride);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < kPanel; i += tile::kLanes<Vector>)
            epilogue.store(tile::load<Vector>(sums + row * kPanel + i), i, out + row * stride + i);
}

// Rows [row, row + rows) times one panel. A step of 16 rows or fewer computes with 16, whose results are not all stored.
template <class Registers>
void multiply_panel(Registers& registers, const Job& job, const Rows<uint16_t>& inputs, const uint16_t* panels,
                    int64_t panel, int64_t row, int64_t rows) {
    alignas(64) float sums[2 * kRows * kPanel];
    alignas(64) uint16_t rest[kBlock];
    const uint16_t* weights = panels + panel * Bfloat16::panel_size(job.K);
    const int64_t whole = job.K / kInputs * kBlock, left = Bfloat16::panel_size(job.K) - whole;
    if (left) {
        std::memcpy(rest, weights + whole, left * sizeof *rest);
        std::fill(rest + left, rest + kBlock, 0);
    }
    const tile::Epilogue epilogue = job.epilogue.at(panel * kPanel);
    const int64_t outputs = std::min(kPanel, job.N - panel * kPanel), end = row + rows;
    for (int64_t from = row, step; from < end; from += step) {
        step = std::min(2 * kRows, end - from);
        const int64_t ahead = from == row ? job.ways.ahead_nbytes / sizeof *weights : 0;
        const Results results{job.out + from * job.N + panel * kPanel, job.N};
        results.prefetch<kPanel / tile::kLanes<Vector>>(0, step);
        const auto sum = step > kRows ? sum_rows<2, Registers> : sum_rows<1, Registers>;
        sum(registers, job.K, inputs.at(from), inputs.stride, weights, left ? rest : nullptr, ahead, sums);
        store_sums(sums, step, outputs, epilogue, results.first, job.N);
    }
}

template <class Registers>
void run(const Job& job, const uint16_t* panels) {
    Rows<uint16_t> inputs{};
    const pool::BeforeTasks round([&] { inputs = rounded_rows(job); });
    for_each_task(job, kPanel, [&](int64_t first, int64_t end, int64_t row, int64_t rows) {
        const FlushDenormals flush;
        Registers registers;
        for (; first < end; ++first) multiply_panel(registers, job, inputs, panels, first, row, rows);
    });
}

}  // namespace linear::tiles
