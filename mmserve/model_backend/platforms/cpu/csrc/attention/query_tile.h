// Query rows, and the loop over the keys that they attend to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "aligned_memory.h"
#include "attention/job.h"
#include "attention/online_softmax.h"

namespace attention {

// `scaled`: room for one token's queries.
template <class Cache>
void gather_queries(const Job& job, const int64_t* t, int64_t kv_head, float* scaled, typename Cache::Input* rows) {
    const int64_t size = job.heads / job.kv_heads * job.dim;
    for (int64_t token = 0; token < t[1]; ++token) {
        const float* from = job.q + (t[0] + token) * job.q_stride + kv_head * size;
        for (int64_t i = 0; i < size; ++i) scaled[i] = from[i] * job.scale;
        Cache::store_inputs(scaled, size, rows + token * size);
    }
}

// What rows found at some keys. The numbers are not yet divided by the softmax's sums.
template <class Softmax>
struct Found {
    float* out;        // [rows, dim]
    Softmax* softmax;  // [rows]

    Found from(int64_t row, int64_t dim) const { return {out + row * dim, softmax + row}; }
};

// Room for all rows of a task.
template <class Cache>
struct Scratch {
    using Input = typename Cache::Input;
    using Softmax = typename Cache::Softmax;
    float *scores, *scaled;
    Input *q, *weights;
    Softmax of_segment[kMaxRows], of_row[kMaxRows];
    Found<Softmax> segment, row;

    Scratch(int64_t rows, int64_t group, int64_t dim) {
        float* out = memory::scratch<struct Results, float>(rows * (2 * dim + kKeyTile) + group * dim);
        segment = {out, of_segment};
        row = {out + rows * dim, of_row};
        scores = out + 2 * rows * dim;
        scaled = scores + rows * kKeyTile;
        q = memory::scratch<struct Queries, Input>(rows * (dim + kKeyTile));
        if constexpr (std::is_same_v<Input, float>)
            weights = scores;
        else
            weights = q + rows * dim;
        std::fill(out, out + 2 * rows * dim, 0.f);
    }
};

// Consecutive query tokens of one sequence, for some KV heads. A row is a query head of a token.
template <class Cache>
struct QueryTile {
    using Input = typename Cache::Input;
    using Softmax = typename Cache::Softmax;
    Cache cache;
    int64_t rows;   // of one KV head
    int64_t heads;  // KV heads
    const Input* q;            // [heads, rows, dim]
    float* scores;             // of a head: [rows, kKeyTile]
    Input* weights;            // the same; where the scores are if they have one type
    Found<Softmax> segment;    // in the last segment so far: [heads, rows]
    Found<Softmax> row;        // in all segments before it
    const Reach* reaches;      // [rows]

    // Adds what the rows find at the keys [from, end), which begin with a key tile. Keys before `fetched_end` are fetched ahead.
    void attend(int64_t from, int64_t end, int64_t fetched_end) const {
        for (int64_t first = from; first < end; first += kKeyTile) {
            if (first % kSegment == 0) end_segment();
            const int64_t last = std::min(end, first + kKeyTile);
            // Each head alone: faster than the scores of all heads and then the values of all.
            for (int64_t head = 0; head < heads; ++head) {
                const auto here = cache.tile_blocks(first, last, head, {});
                const auto next = cache.tile_blocks(first + kKeyTile, fetched_end, head, here);
                const int64_t at = head * rows, dim = cache.dim;
                score_part<typename Cache::Mode>(here, next, first == from, dim, q + at * dim, rows, last - first, scores);
                weigh(at, first, last);
                add_part<typename Cache::Mode>(here, next, dim, weights, rows, last - first, segment.out + at * dim);
            }
        }
    }

    // Adds the last segment to the rows, and begins another one.
    void end_segment() const {
        const int64_t dim = cache.dim;
        for (int64_t r = 0; r < heads * rows; ++r) {
            Softmax& last = segment.softmax[r];
            if (last.largest == kMinusInfinity) continue;  // nothing was found
            float* out = segment.out + r * dim;
            merge(row.softmax[r], row.out + r * dim, last, out, dim);
            last = {};
            std::fill(out, out + dim, 0.f);
        }
    }

private:
    // Turns a head's scores of the keys [first, last) into weights. Its first row is `row_at`.
    void weigh(int64_t row_at, int64_t first, int64_t last) const {
        const int64_t scored = (last - first + kBlock - 1) / kBlock * kBlock, dim = cache.dim;
        for (int64_t i = 0; i < rows; ++i)
            segment.softmax[row_at + i].update(scores + i * kKeyTile, reaches[i].first - first, reaches[i].end - first,
                                               scored, weights + i * kKeyTile, segment.out + (row_at + i) * dim, dim);
    }
};

// Divides a row's numbers by the sum of its weights.
template <class Softmax>
void store_result(const Found<Softmax>& row, int64_t dim, float* to) {
    const float sum = row.softmax->sum();
    for (int64_t i = 0; i < dim; ++i) to[i] = row.out[i] / sum;
}

}  // namespace attention
