// out[M, N] = x[M, K] W^T with W quantized: panels of 16 of its rows, in groups of 32 of their numbers that share a
// scale. A weight becomes a float when it is multiplied, the same one whatever the number of rows.
#pragma once

#include <algorithm>

#include "group.h"
#include "linear.h"
#include "scratch.h"
#include "tile.h"

namespace quantized {

constexpr int kPanelsOfFew = 3;  // side by side for one and two rows: the sums of one panel would wait for each other

// The panel behind, where panels lie in order: into the second-level cache.
inline void fetch(const uint8_t* from, int64_t nbytes) {
    for (int64_t at = 0; at < nbytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// M rows times P panels, one behind the other.
template <int M, int P, class W>
inline void product(int64_t K, const float* x, const uint8_t* panel, float* out, int64_t ldc,
                    const tile::Finish& finish) {
    const int64_t size = K / kGroup * W::kNbytes;
    f32x8 sums[P][M][2];
    for (auto& panels : sums)
        for (auto& row : panels) row[0] = row[1] = f32x8{};
    for (int64_t g = 0; g < K / kGroup; ++g) {
        W groups[P];
        for (int p = 0; p < P; ++p) {
            groups[p] = W(panel + p * size + g * W::kNbytes);
            fetch(panel + (P + p) * size + g * W::kNbytes, W::kNbytes);
        }
        for (int64_t k = 0; k < kGroup; k += W::kStep)
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
                f32x8 numbers[W::kStep][2];
                groups[p].read(k, numbers);
#pragma GCC unroll 8
                for (int step = 0; step < W::kStep; ++step) {
                    const f32x8 low = tile::in_register(numbers[step][0]), high = tile::in_register(numbers[step][1]);
#pragma GCC unroll 8
                    for (int m = 0; m < M; ++m) {
                        const f32x8 number = tile::splat(x[m * K + g * kGroup + k + step]);
                        sums[p][m][0] += number * low;
                        sums[p][m][1] += number * high;
                    }
                }
            }
    }
    for (int p = 0; p < P; ++p)
        for (int m = 0; m < M; ++m)
            for (int half = 0; half < 2; ++half) {
                const int64_t column = p * tile::kColumns + half * 8;
                float* to = out + m * ldc + column;
                tile::store(to, finish(sums[p][m][half], column, to));
            }
}

// A panel as float32: [K, 16].
template <class W>
const float* as_floats(const uint8_t* panel, int64_t K) {
    static thread_local scratch::Kept<float> memory;
    float* floats = memory.at_least(K * tile::kColumns);
    for (int64_t g = 0; g < K / kGroup; ++g) {
        const uint8_t* from = panel + g * W::kNbytes;
        float* to = floats + g * kGroup * tile::kColumns;
        fetch(from + K / kGroup * W::kNbytes, W::kNbytes);
        const W group(from);
        for (int64_t k = 0; k < kGroup; k += W::kStep) {
            f32x8 numbers[W::kStep][2];
            group.read(k, numbers);
            for (int step = 0; step < W::kStep; ++step)
                for (int half = 0; half < 2; ++half)
                    tile::store(to + (k + step) * tile::kColumns + half * 8, numbers[step][half]);
        }
    }
    return floats;
}

// Panels times rows [row, row + rows), as linear::multiply; for many rows a panel is made floats once, before.
template <class W>
void multiply(const linear::Job& job, const uint8_t* panels, int64_t first, int64_t end, int64_t row, int64_t rows) {
    const int64_t size = job.K / kGroup * W::kNbytes;
    if (job.M <= 2) {
        const auto few = job.M == 1 ? product<1, kPanelsOfFew, W> : product<2, kPanelsOfFew, W>;
        for (; first + kPanelsOfFew <= end; first += kPanelsOfFew)
            few(job.K, job.x, panels + first * size, job.out + first * tile::kColumns, job.N,
                job.finish.at(first * tile::kColumns));
    }
    for (; first < end; ++first) {
        const uint8_t* panel = panels + first * size;
        const bool direct = linear::tiles_of(rows) <= W::kDirectTiles;
        const float* floats = direct ? nullptr : as_floats<W>(panel, job.K);
        const tile::Finish finish = job.finish.at(first * tile::kColumns);
        linear::each_tile(job, first, row, rows, [&](int64_t, int64_t count, const float* x, float* out) {
            if (floats)
                tile::rows<false>(count, job.K, x, floats, tile::kColumns, out, job.N, finish);
            else
                tile::with_rows(count, [&](auto m) { product<m, 1, W>(job.K, x, panel, out, job.N, finish); });
        });
    }
}

// One output's weights as floats: [K].
inline void row(const uint8_t* panels, int64_t index, int64_t K, float* out) {
    const uint8_t* group = panels + index / tile::kColumns * (K / kGroup) * Int8::kNbytes;
    for (int64_t k = 0; k < K; k += kGroup, group += Int8::kNbytes) Int8::numbers(group, index % tile::kColumns, out + k);
}

template <class W>
void run(const linear::Job& job, const uint8_t* panels) {
    linear::each_piece(job, [&](int64_t first, int64_t end, int64_t row, int64_t rows) {
        multiply<W>(job, panels, first, end, row, rows);
    });
}

}  // namespace quantized
