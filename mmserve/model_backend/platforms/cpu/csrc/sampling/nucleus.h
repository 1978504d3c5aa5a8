// Finds the weight from which top-p keeps tokens, which depends on the row's sum.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aligned_memory.h"
#include "sampling/bracket.h"
#include "sampling/selection.h"
#include "sampling/split.h"
#include "sampling/weights.h"

namespace sampling {

// Part of a total, rounded down, as the reference computes it.
inline int64_t share(int64_t total, double part) {
    return static_cast<int64_t>(static_cast<double>(total) * part);
}

// Each pass over the row splits it by a bracket, until the bracket holds the cut. Keeps its memory from row to row.
class Nucleus {
public:
    // The smallest weight that is kept, at least min_weight, which is at least 1. top_p: below 1.
    float cut(const float* logits, int64_t size, const float* tops, const weights::Scale& by, double top_p,
              float min_weight) {
        Bracket bracket = sample_.estimate(logits, size, tops, by, top_p);
        bracket = {std::max(bracket.low, min_weight), std::max(bracket.high, min_weight)};
        for (;;) {
            const Sums sums = split_.run(logits, size, by, bracket);
            const int64_t needed = std::max(share(sums.all, top_p), int64_t{1});
            if (sums.above >= needed)
                bracket = {bracket.high, kInfinity};
            else if (sums.above + split_.sum_within() >= needed)
                return cut_within(needed - sums.above, size);
            else if (bracket.low <= min_weight)
                return min_weight;
            else
                bracket = {min_weight, bracket.low};
        }
    }

private:
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
