// The tokens of a row that may be chosen, in the order of the vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aligned_memory.h"
#include "sampling/race.h"
#include "sampling/selection.h"
#include "sampling/split.h"
#include "sampling/weights.h"
#include "vectors.h"

namespace sampling {

using tile::f32x8, vectors::kBlock;

class Candidates {
public:
    void start(int64_t size) {
        weights_ = weights_memory_.at_least(size + kPadding);
        ids_ = ids_memory_.at_least(size + kPadding);
        selected_ = selected_memory_.at_least(size + kPadding);
        count_ = 0;
    }

    // Keeps those of eight numbers whose lane of `mask` is -1; the first is of token `first`.
    void add(tile::i32x8 mask, f32x8 numbers, int64_t first) {
        count_ += vectors::store_some(mask, numbers, weights_ + count_, first, ids_ + count_);
    }

    // Ends the adding. Of weights, or of logits to be weighed now.
    void finish() { std::fill_n(weights_ + count_, 8, 0.f); }

    void finish(const weights::Scale& by) {
        for (int64_t i = 0; i < count_; i += 8)
            tile::store(weights_ + i, weights::weigh(tile::load<f32x8>(weights_ + i), by));
        finish();
    }

    int64_t count() const { return count_; }

    // The smallest weight of the largest that are at least `needed` in number, or in sum if kSum.
    template <bool kSum>
    float smallest_kept(int64_t needed) {
        return selection::smallest_kept<kSum>(weights_, count_, needed, selected_);
    }

    // The sum of those of at least weight `cut`.
    int64_t sum(float cut) const {
        int64_t total = 0;
        vectors::for_blocks(count_, [&](int64_t first, int64_t end) {
            vectors::BlockSum sum;
            for (int64_t i = first; i < end; i += 8) {
                const f32x8 weights = tile::load<f32x8>(weights_ + i);
                sum.add(vectors::where(weights >= cut, weights));
            }
            total += sum.value();
        });
        return total;
    }

    void enter(Race& race) const { race.enter(ids_, weights_, count_); }

private:
    memory::ReusableArray<float> weights_memory_, selected_memory_;
    memory::ReusableArray<int32_t> ids_memory_;
    float *weights_ = nullptr, *selected_ = nullptr;
    int32_t* ids_ = nullptr;
    int64_t count_ = 0;
};

}  // namespace sampling
