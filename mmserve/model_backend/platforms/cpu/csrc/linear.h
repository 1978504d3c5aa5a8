// out[M, N] = x[M, K] W^T, with W stored as panels of 16 of its rows: [N / 16, K, 16], in float32, or in bfloat16 in
// the order of tile::load_row.
#pragma once

#include <algorithm>

#include "thread_pool.h"
#include "tile.h"

namespace linear {

struct Job {
    const float* x;
    float* out;
    int64_t M, K, N;
    tile::Epilogue epilogue;  // its bias: [N] or null
};

constexpr int64_t kTaskPanels = 2;  // panels of one task
// Bytes of x in one task. Each task reads its panels again, and a larger part of x does not stay in the cache.
constexpr int64_t kTaskRowsNbytes = 768 << 10;

// Calls body(first, count) for tiles of rows [row, row + rows), of about equal size and at most tile::kMaxRows rows.
template <class Body>
void for_each_tile(int64_t row, int64_t rows, const Body& body) {
    const int64_t num_tiles = (rows + tile::kMaxRows - 1) / tile::kMaxRows;
    for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t first = row + rows * t / num_tiles;
        body(first, row + rows * (t + 1) / num_tiles - first);
    }
}

// Multiplies rows [row, row + rows) by panels [first, end), a few rows at a time, panels in memory order. bfloat16 is
// widened for every tile of rows, which costs less than storing floats: the first tile prefetches the next panel into
// the second-level cache, where the others read it.
template <class W>
void multiply(const Job& job, const W* panels, int64_t first, int64_t end, int64_t row, int64_t rows) {
    for (; first < end; ++first) {
        const W* panel = panels + first * job.K * tile::kColumns;
        const tile::Epilogue epilogue = job.epilogue.at(first * tile::kColumns);
        for_each_tile(row, rows, [&](int64_t from, int64_t count) {
            const float* x = job.x + from * job.K;
            float* out = job.out + from * job.N + first * tile::kColumns;
            if (from == row)
                tile::multiply_rows<true>(count, job.K, x, panel, tile::kColumns, out, job.N, epilogue);
            else
                tile::multiply_rows<false>(count, job.K, x, panel, tile::kColumns, out, job.N, epilogue);
        });
    }
}

// Calls body(first panel, end panel, first row, rows) for every task of the product, on all threads.
template <class Body>
void for_each_task(const Job& job, const Body& body) {
    const int64_t num_panels = job.N / tile::kColumns, groups = (num_panels + kTaskPanels - 1) / kTaskPanels;
    const int64_t max_rows = std::max<int64_t>(24, kTaskRowsNbytes / sizeof(float) / job.K);
    const int64_t blocks = (job.M + max_rows - 1) / max_rows;
    pool::parallel_for(groups * blocks, [&](int64_t task) {
        const int64_t first = task % groups * kTaskPanels, row = job.M * (task / groups) / blocks;
        body(first, std::min(first + kTaskPanels, num_panels), row, job.M * (task / groups + 1) / blocks - row);
    });
}

// The weights of one output, widened: [K].
template <class W>
void load_weight_row(const W* panels, int64_t index, int64_t K, float* out) {
    const W* panel = panels + index / tile::kColumns * K * tile::kColumns;
    for (int64_t k = 0; k < K; ++k) out[k] = tile::element(panel + k * tile::kColumns, index % tile::kColumns);
}

template <class W>
void run(const Job& job, const W* panels) {
    for_each_task(job, [&](int64_t first, int64_t end, int64_t row, int64_t rows) {
        multiply(job, panels, first, end, row, rows);
    });
}

}  // namespace linear
