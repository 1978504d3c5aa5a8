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

// Calls body(first panel, end panel, first row, rows) for the tasks of the product, on all threads. Panels have
// panel_outputs outputs; the last may have fewer.
template <class Body>
void for_each_task(const Job& job, int64_t panel_outputs, const Body& body) {
    const int64_t num_panels = (job.N + panel_outputs - 1) / panel_outputs;
    const int64_t task_panels = job.ways.task_outputs / panel_outputs, groups = (num_panels + task_panels - 1) / task_panels;
    const int64_t max_rows = std::max<int64_t>(24, job.ways.task_rows_nbytes / sizeof(float) / job.K);
    const int64_t blocks = (job.M + max_rows - 1) / max_rows;
    const auto run = [&](int64_t first_group, int64_t end_group, int64_t block) {
        const int64_t row = job.M * block / blocks, rows = job.M * (block + 1) / blocks - row;
        body(first_group * task_panels, std::min(end_group * task_panels, num_panels), row, rows);
    };
    if (blocks == 1) return pool::parallel_for_ranges(groups, [&](int64_t first, int64_t end) { run(first, end, 0); });
    pool::parallel_for(groups * blocks, [&](int64_t task) { run(task % groups, task % groups + 1, task / groups); });
}

}  // namespace linear
