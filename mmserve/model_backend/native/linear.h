// out[M, N] = x[M, K] W^T, with W stored as panels of 16 of its rows: [N / 16, K, 16], in float32 or bfloat16.
#pragma once

#include <algorithm>

#include "pool.h"
#include "scratch.h"
#include "tile.h"

namespace linear {

struct Job {
    const float* x;
    float* out;
    int64_t M, K, N;
    tile::Finish finish;  // its bias: [N] or null
};

constexpr int64_t kPanelsOfFew = 4;         // in one piece of work: read side by side
constexpr int64_t kPanelsOfMany = 2;        // so few that threads end together
constexpr int64_t kRowsNbytes = 768 << 10;  // of x in one piece: a panel is made float anew for each, and reads x slowly

// Few rows: weights go from memory into registers, several panels side by side so that no addition waits for another.
template <int M, int P, class W>
void few_rows(const Job& job, const W* panels, int64_t first, int64_t end) {
    for (; first + P <= end; first += P)
        tile::product<M, P>(job.K, job.x, job.K, panels + first * job.K * 16, 16, job.K * 16, job.out + first * 16,
                            job.N, job.finish.at(first * 16));
    for (; first < end; ++first)
        tile::product<M, 1>(job.K, job.x, job.K, panels + first * job.K * 16, 16, 0, job.out + first * 16, job.N,
                            job.finish.at(first * 16));
}

template <class W>
void few(const Job& job, const W* panels, int64_t first, int64_t end) {
    switch (job.M) {
        case 1:
            return few_rows<1, 4>(job, panels, first, end);
        case 2:
            return few_rows<2, 2>(job, panels, first, end);
        case 3:
            return few_rows<3, 2>(job, panels, first, end);
        case 4:
            return few_rows<4, 1>(job, panels, first, end);
        case 5:
            return few_rows<5, 1>(job, panels, first, end);
        default:
            return few_rows<6, 1>(job, panels, first, end);
    }
}

template <class W>
const float* as_floats(const W* panel, int64_t count) {
    static thread_local scratch::Kept<float> memory;
    float* floats = memory.at_least(count);
    for (int64_t i = 0; i < count; i += 8) tile::store(floats + i, tile::widen(panel + i));
    return floats;
}

inline const float* as_floats(const float* panel, int64_t) {
    return panel;
}

// Many rows: each panel is made float once and multiplied with all rows of the block.
template <class W>
void many(const Job& job, const W* panels, int64_t first, int64_t end, int64_t row, int64_t rows) {
    const int64_t tiles = (rows + tile::kMaxRows - 1) / tile::kMaxRows;
    for (; first < end; ++first) {
        const float* panel = as_floats(panels + first * job.K * 16, job.K * 16);
        const W* next = panels + std::min(first + 1, end - 1) * job.K * 16;
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t from = row + rows * t / tiles, count = row + rows * (t + 1) / tiles - from;
            const float* x = job.x + from * job.K;
            float* out = job.out + from * job.N + first * 16;
            if (t == 0)
                tile::rows(count, job.K, x, job.K, panel, 16, out, job.N, job.finish.at(first * 16), next);
            else
                tile::rows(count, job.K, x, job.K, panel, 16, out, job.N, job.finish.at(first * 16));
        }
    }
}

// work(first panel, end, first row, rows) for all of a product, where a number of x takes so many bytes.
template <class Work>
void each_piece(const Job& job, int64_t number_nbytes, const Work& work) {
    const int64_t group = job.M <= tile::kMaxRows ? kPanelsOfFew : kPanelsOfMany;
    const int64_t count = job.N / 16, groups = (count + group - 1) / group;
    const int64_t most = std::max<int64_t>(24, kRowsNbytes / number_nbytes / job.K);
    const int64_t blocks = (job.M + most - 1) / most;
    pool::each(groups * blocks, [&](int64_t piece) {
        const int64_t first = piece % groups * group, row = job.M * (piece / groups) / blocks;
        work(first, std::min(first + group, count), row, job.M * (piece / groups + 1) / blocks - row);
    });
}

// One output's weights as floats: [K].
template <class W>
void row(const W* panels, int64_t index, int64_t K, float* out) {
    const W* from = panels + index / 16 * K * 16 + index % 16;
    for (int64_t k = 0; k < K; ++k) out[k] = tile::widen_one(from + k * 16);
}

template <class W>
void run(const Job& job, const W* panels) {
    each_piece(job, sizeof(float), [&](int64_t first, int64_t end, int64_t row, int64_t rows) {
        if (job.M <= tile::kMaxRows)
            few(job, panels, first, end);
        else
            many(job, panels, first, end, row, rows);
    });
}

}  // namespace linear
