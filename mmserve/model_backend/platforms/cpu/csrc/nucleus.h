// Draws from the tokens of at least a certain weight: that of top-p, which depends on the row's sum, or of min-p.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "aligned_memory.h"
#include "bracket.h"
#include "selection.h"
#include "split.h"
#include "weights.h"

namespace sampling {

// Part of a total, rounded down, as the reference computes it.
inline int64_t share(int64_t total, double part) {
    return static_cast<int64_t>(static_cast<double>(total) * part);
}

// Each block's sum of weights, and the tokens that it counts: those of at least `cut`.
struct Blocks {
    const int64_t* sums;
    float cut;
};

// The first token at which the cumulated weight of those counted exceeds `target`.
inline int64_t draw_token(const float* logits, int64_t size, const weights::Scale& by, const Blocks& blocks,
                          int64_t target) {
    int64_t block = 0;
    while (target >= blocks.sums[block]) target -= blocks.sums[block++];
    const int64_t first = block * kBlock;
    const weights::Block drawn(logits + first, std::min(size - first, kBlock), by);
    for (int64_t i = 0;; i += 8) {
        const f32x8 counted = vectors::where(drawn.eight(i) >= blocks.cut, drawn.eight(i));
        for (int j = 0; j < 8; ++j)
            if ((target -= static_cast<int64_t>(counted[j])) < 0) return first + i + j;
    }
}

// Each pass over the row splits it by a bracket, until the bracket holds the cut. Keeps its memory from row to row.
class Nucleus {
public:
    // top_p 1: off. min_weight: at least 1.
    int64_t choose(const float* logits, int64_t size, const float* tops, const weights::Scale& by, double top_p,
                   float min_weight, double uniform) {
        Bracket bracket{min_weight, min_weight};
        if (top_p < 1) {
            bracket = sample_.estimate(logits, size, tops, by, top_p);
            bracket = {std::max(bracket.low, min_weight), std::max(bracket.high, min_weight)};
        }
        const auto draw = [&](float cut) {
            const int64_t num_blocks = (size + kBlock - 1) / kBlock;
            const int64_t* sums = split_.kept(cut, num_blocks);
            const int64_t total = std::accumulate(sums, sums + num_blocks, int64_t{0});
            return draw_token(logits, size, by, {sums, cut}, share(total, uniform));
        };
        for (;;) {
            const Sums sums = split_.run(logits, size, by, bracket);
            const int64_t needed = top_p < 1 ? std::max(share(sums.all, top_p), int64_t{1}) : kMore;
            if (sums.above >= needed)
                bracket = {bracket.high, kInfinity};
            else if (sums.above + split_.sum_within() >= needed)
                return draw(cut_within(needed - sums.above, size));
            else if (bracket.low <= min_weight)
                return draw(min_weight);
            else
                bracket = {min_weight, bracket.low};
        }
    }

private:
    static constexpr int64_t kMore = std::numeric_limits<int64_t>::max();  // than any row's sum

    // The largest weight of the bracket at which its weights reach `needed`.
    float cut_within(int64_t needed, int64_t size) {
        float* selected = selected_memory_.at_least(size + kPadding);
        return selection::smallest_kept<true>(split_.within(), split_.count(), needed, selected);
    }

    RowSample sample_;
    Split split_;
    memory::ReusableArray<float> selected_memory_;
};

}  // namespace sampling
