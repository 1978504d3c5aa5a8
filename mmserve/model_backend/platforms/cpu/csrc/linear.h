// out[M, N] = x[M, K] W^T, with W stored as panels of 16 of its rows: [N / 16, K, 16], in float32 or in bfloat16, whose
// order is that of tile::row.
#pragma once

#include <algorithm>

#include "pool.h"
#include "tile.h"

namespace linear {

struct Job {
    const float* x;
    float* out;
    int64_t M, K, N;
    tile::Finish finish;  // its bias: [N] or null
};

constexpr int64_t kPanels = 2;              // in one piece of work
constexpr int64_t kRowsNbytes = 768 << 10;  // of x in one piece: panels are read anew for each, and read x slowly

// Of about equal size, none of more rows than a product can have.
inline int64_t tiles_of(int64_t rows) {
    return (rows + tile::kMaxRows - 1) / tile::kMaxRows;
}

// work(first, rows) for every tile of rows [row, row + rows).
template <class Work>
void each_tile(int64_t row, int64_t rows, const Work& work) {
    const int64_t tiles = tiles_of(rows);
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t from = row + rows * t / tiles;
        work(from, row + rows * (t + 1) / tiles - from);
    }
}

// Panels times rows [row, row + rows), a few rows at a time, in the order in which the panels lie in memory. They are
// widened each time, which costs less than to keep them as floats: the first few rows bring the next panel into the
// second-level cache, the others find theirs there.
template <class W>
void multiply(const Job& job, const W* panels, int64_t first, int64_t end, int64_t row, int64_t rows) {
    for (; first < end; ++first) {
        const W* panel = panels + first * job.K * tile::kColumns;
        const tile::Finish finish = job.finish.at(first * tile::kColumns);
        each_tile(row, rows, [&](int64_t from, int64_t count) {
            const float* x = job.x + from * job.K;
            float* out = job.out + from * job.N + first * tile::kColumns;
            if (from == row)
                tile::rows<true>(count, job.K, x, panel, tile::kColumns, out, job.N, finish);
            else
                tile::rows<false>(count, job.K, x, panel, tile::kColumns, out, job.N, finish);
        });
    }
}

// work(first panel, end, first row, rows) for all of a product.
template <class Work>
void each_piece(const Job& job, const Work& work) {
    const int64_t count = job.N / tile::kColumns, groups = (count + kPanels - 1) / kPanels;
    const int64_t most = std::max<int64_t>(24, kRowsNbytes / sizeof(float) / job.K);
    const int64_t blocks = (job.M + most - 1) / most;
    pool::each(groups * blocks, [&](int64_t piece) {
        const int64_t first = piece % groups * kPanels, row = job.M * (piece / groups) / blocks;
        work(first, std::min(first + kPanels, count), row, job.M * (piece / groups + 1) / blocks - row);
    });
}

// One output's weights as floats: [K].
template <class W>
void row(const W* panels, int64_t index, int64_t K, float* out) {
    const W* panel = panels + index / tile::kColumns * K * tile::kColumns;
    for (int64_t k = 0; k < K; ++k) out[k] = tile::one_of(panel + k * tile::kColumns, index % tile::kColumns);
}

template <class W>
void run(const Job& job, const W* panels) {
    each_piece(job, [&](int64_t first, int64_t end, int64_t row, int64_t rows) {
        multiply(job, panels, first, end, row, rows);
    });
}

}  // namespace linear
