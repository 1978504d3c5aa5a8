// out[M, N] = x[M, K] W^T, with W in panels (panels.h), in one of the modes of product.h.
#pragma once

#include <algorithm>
#include <optional>

#include "linear/product.h"
#include "linear/tasks.h"

namespace linear {

// Multiplies rows [row, row + rows) by C vectors of outputs, of which there are `outputs` from `first` on, a few rows at a
// time. bfloat16 is widened for every tile of rows, which costs less than storing floats. What a tile fetches begins where the
// last one's ends.
template <class Mode, int C, int kRows>
void multiply(const Job& job, const Rows<typename Mode::Input>& inputs, const typename Mode::Number* weights,
              int64_t first, int64_t outputs, int64_t row, int64_t rows, Ahead& ahead) {
    const tile::Epilogue epilogue = job.epilogue.at(first);
    for_each_tile(row, rows, kRows, [&](int64_t from, int64_t count) {
        const Results results{job.out + from * job.N + first, job.N};
        tile::dispatch_rows<kRows>(count, [&](auto m) {
            put_sums<Mode, m, C>(job.K, inputs.at(from), inputs.stride, weights, ahead, results, [&](const auto& sums) {
                if (outputs >= sums.kColumns)
                    sums.store(results.first, job.N, epilogue);
                else
                    sums.store_some(results.first, job.N, epilogue, outputs);
            });
        });
        ahead.from += job.K / Mode::kDepth * ahead.step;
    });
}

// Few rows take a whole panel at once, so that memory is read in order, and fetch its weights a little ahead. More rows take as
// many outputs as there are registers for, whose weights then stay in the first-level cache. Their tiles fetch the next panel
// together: would the first tile fetch for all, it would wait for memory, and memory for the other tiles.
template <class Mode>
void multiply_panel(const Job& job, const Rows<typename Mode::Input>& inputs, const typename Mode::Number* panels,
                    int64_t panel, int64_t row, int64_t rows) {
    constexpr int kVectors = kPanel / tile::kLanes<Vector>, kFewRows = kMaxSums / kVectors;
    constexpr int64_t kNbytes = kPanel * Mode::kDepth * sizeof(*panels);  // of kDepth inputs
    const auto* weights = panels + panel * Mode::panel_size(job.K);
    const int64_t start = panel * kPanel, outputs = std::min(kPanel, job.N - start);
    if (rows <= kFewRows) {
        Ahead ahead{reinterpret_cast<const char*>(weights) + job.ways.ahead_nbytes, kNbytes};
        return multiply<Mode, kVectors, kFewRows>(job, inputs, weights, start, outputs, row, rows, ahead);
    }
    const int64_t tiles = kVectors / kTileVectors * ((rows + kMaxRows - 1) / kMaxRows);
    Ahead ahead{reinterpret_cast<const char*>(weights), 0};
    if (job.ways.ahead_nbytes)
        ahead = {reinterpret_cast<const char*>(weights + Mode::panel_size(job.K)), (kNbytes + tiles - 1) / tiles};
    for (int64_t first = 0; first < outputs; first += kTileVectors * tile::kLanes<Vector>)
        multiply<Mode, kTileVectors, kMaxRows>(job, inputs, weights + first * Mode::kDepth, start + first,
                                               outputs - first, row, rows, ahead);
}

template <class Mode>
void run(const Job& job, const typename Mode::Number* panels) {
    Rows<typename Mode::Input> inputs{};
    const pool::BeforeTasks round([&] { inputs = Mode::inputs(job); });
    for_each_task(job, kPanel, [&](int64_t first, int64_t end, int64_t row, int64_t rows) {
        std::optional<FlushDenormals> flush;
        if constexpr (Mode::kFlushes) flush.emplace();
        for (; first < end; ++first) multiply_panel<Mode>(job, inputs, panels, first, row, rows);
    });
}

}  // namespace linear
