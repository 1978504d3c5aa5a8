// A matrix product, and its division into tasks for threads and tiles of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear/ways.h"
#include "parallel.h"
#include "tile.h"

namespace linear {

// out[M, N] = epilogue(x[M, K] W^T).
struct Job {
    const float* x;
    float* out;
    int64_t M, K, N;
    tile::Epilogue epilogue;  // its bias: [N] or null
    Ways ways;
};

// Calls body(first, count) for tiles of rows [row, row + rows), of about equal size and at most max_rows rows.
template <class Body>
void for_each_tile(int64_t row, int64_t rows, int64_t max_rows, const Body& body) {
    const int64_t num_tiles = std::max<int64_t>(1, (rows + max_rows - 1) / max_rows), smaller = rows / num_tiles;
    int64_t larger = rows % num_tiles;
    for (const int64_t end = row + rows; row < end;) {
        const int64_t count = smaller + (larger-- > 0);
        body(row, count);
        row += count;
    }
}

// Calls body(first panel, end panel, first row, rows) for every task of the product, on all threads. Panels have
// panel_outputs outputs; the last may have fewer.
template <class Body>
void for_each_task(const Job& job, int64_t panel_outputs, const Body& body) {
    const int64_t num_panels = (job.N + panel_outputs - 1) / panel_outputs;
    const int64_t task_panels = job.ways.task_outputs / panel_outputs, groups = (num_panels + task_panels - 1) / task_panels;
    const int64_t max_rows = std::max<int64_t>(24, job.ways.task_rows_nbytes / sizeof(float) / job.K);
    const int64_t blocks = (job.M + max_rows - 1) / max_rows;
    pool::parallel_for(groups * blocks, [&](int64_t task) {
        const int64_t first = task % groups * task_panels, row = job.M * (task / groups) / blocks;
        body(first, std::min(first + task_panels, num_panels), row, job.M * (task / groups + 1) / blocks - row);
    });
}

}  // namespace linear
