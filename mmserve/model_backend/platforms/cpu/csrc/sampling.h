// Chooses a token of each row of logits. Computes the numbers of TorchSampling (platforms/sampling.py) to the bit: each
// logit has an integer weight, so sums of weights are exact in any order and on any number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "aligned_memory.h"
#include "selection.h"
#include "thread_pool.h"
#include "tile.h"
#include "vectors.h"

namespace sampling {

using tile::f32x8, tile::i32x8, vectors::kBlock;

constexpr int64_t kNotFinite = -1, kNoTokenAllowed = -2;
constexpr int kUnitBits = 42;           // the largest logit's weight is 2^42
constexpr float kHeadWeight = 0x1p30f;  // 2^-12 of the largest: the candidates that are looked at first
constexpr int64_t kPadding = 16;        // whole vectors are written and read
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// How a row is sampled. scale: log2(e) / temperature, 0 takes the largest logit. top_k 0, top_p 1 and min_weight 0 are
// off. uniform: in [0, 1).
struct Draw {
    double scale, top_k, top_p, min_weight, uniform;
};

struct Peak {
    float value = kMinusInfinity;
    int64_t index = 0;
    bool finite = true;  // all logits are
};

// The first of the largest logits.
inline Peak find_peak(const float* row, int64_t size) {
    Peak peak;
    int64_t block = 0;
    f32x8 poison[2] = {};  // x * 0 is not 0 if x is not finite
    vectors::for_blocks(size, [&](int64_t first, int64_t end) {
        f32x8 highest[2] = {tile::broadcast(kMinusInfinity), tile::broadcast(kMinusInfinity)};
        int64_t i = first;
        for (; i + 16 <= end; i += 16)
            for (int j = 0; j < 2; ++j) {
                const f32x8 values = tile::load<f32x8>(row + i + 8 * j);
                highest[j] = vectors::larger(values, highest[j]);
                poison[j] += values * 0.f;
            }
        for (; i < end; ++i) {
            highest[0][0] = std::max(highest[0][0], row[i]);
            poison[0][0] += row[i] * 0.f;
        }
        if (const float top = tile::horizontal_max(vectors::larger(highest[0], highest[1])); top > peak.value) {
            peak.value = top;
            block = first;
        }
    });
    for (int j = 0; j < 8; ++j) peak.finite &= poison[0][j] == 0.f && poison[1][j] == 0.f;
    const float* found = std::find(row + block, row + std::min(size, block + kBlock), peak.value);
    peak.index = std::min(found - row, size - 1);
    return peak;
}

// The weights 2^42 * exp2((x - peak) * scale), rounded to integers. Each operation is rounded separately, as torch's
// are: a fused multiply-add would give other bits.
inline f32x8 weigh(f32x8 x, float peak, float scale) {
    using tile::rounded;
    // The weight of 2^-64 is 0. Comparing keeps the product from being fused with the sum that follows.
    const f32x8 t = vectors::larger(rounded((x - peak) * scale), tile::broadcast(-64.f));
    constexpr float kToInteger = 0x1.8p23f + kUnitBits;  // leaves n + 42 in the lowest bits
    const f32x8 shifted = rounded(t + kToInteger);
    const f32x8 r = t - (shifted - kToInteger);
    f32x8 y = tile::broadcast(1.535336196e-04f);
#pragma GCC unroll 8
    for (float c : {1.339887502e-03f, 9.618436918e-03f, 5.550332367e-02f, 2.402264774e-01f, 6.931471825e-01f, 1.f})
        y = rounded(y * r) + c;
    // Multiplies with 2^(n + 42): y is within a factor of 2 of 1, and the other bits of `shifted` are shifted out.
    y = reinterpret_cast<f32x8>(reinterpret_cast<i32x8>(y) + (reinterpret_cast<i32x8>(shifted) << 23));
    return vectors::nearest_integer(y);
}

// Memory that a thread keeps from row to row.
struct Scratch {
    memory::ReusableArray<int64_t> block_sums;
    memory::ReusableArray<float> weights, selected;
    memory::ReusableArray<int32_t> ids;
};

class Row {
public:
    Row(const float* logits, int64_t size, const Peak& peak, const Draw& draw, Scratch& scratch)
        : logits_(logits), size_(size), peak_(peak.value), scale_(static_cast<float>(draw.scale)), draw_(draw) {
        const int64_t blocks = (size + kBlock - 1) / kBlock;
        sums_ = scratch.block_sums.at_least(blocks);
        top_k_ = draw.top_k < static_cast<double>(size) ? static_cast<int64_t>(draw.top_k) : 0;
        min_weight_ = std::max(1.f, static_cast<float>(draw.min_weight));
        if (is_truncated()) {
            weights_ = scratch.weights.at_least(size + kPadding);
            selected_ = scratch.selected.at_least(size + kPadding);
            ids_ = scratch.ids.at_least(size + kPadding);
        }
    }

    int64_t choose() {
        if (!is_truncated()) return draw_from_all();
        const bool depends_on_row = top_k_ || draw_.top_p < 1;
        for (const float floor : {depends_on_row ? kHeadWeight : min_weight_, 1.f}) {
            const int64_t total = collect(floor);
            if (const float cut = smallest_kept(total, floor == 1.f); cut > 0) return draw_from_candidates(cut);
        }
        __builtin_unreachable();
    }

private:
    bool is_truncated() const { return top_k_ || draw_.top_p < 1 || draw_.min_weight > 0; }

    int64_t target(int64_t total) const { return static_cast<int64_t>(static_cast<double>(total) * draw_.uniform); }

    // Calls body(weights, index of the first) for the vectors of a block; returns the sum of its weights. Tokens beyond
    // the row's end have weight 0.
    template <class Body>
    int64_t for_block(int64_t first, const Body& body) const {
        const int64_t end = std::min(size_, first + kBlock);
        vectors::BlockSum sum;
        int64_t i = first;
        for (; i + 8 <= end; i += 8) {
            const f32x8 weights = weigh(tile::load<f32x8>(logits_ + i), peak_, scale_);
            sum.add(weights);
            body(weights, i);
        }
        if (i < end) {
            f32x8 values = tile::broadcast(kMinusInfinity);
            for (int64_t j = i; j < end; ++j) values[j - i] = logits_[j];
            const f32x8 weights = weigh(values, peak_, scale_);
            sum.add(weights);
            body(weights, i);
        }
        return sum.value();
    }

    // The first token whose cumulated weight exceeds the target.
    int64_t draw_from_all() {
        int64_t total = 0, block = 0;
        for (int64_t first = 0; first < size_; first += kBlock)
            total += sums_[first / kBlock] = for_block(first, [](f32x8, int64_t) {});
        int64_t left = target(total);
        while (left >= sums_[block]) left -= sums_[block++];
        int64_t chosen = -1;
        for_block(block * kBlock, [&](f32x8 weights, int64_t first) {
            for (int j = 0; j < 8 && chosen < 0; ++j) {
                left -= static_cast<int64_t>(weights[j]);
                if (left < 0) chosen = first + j;
            }
        });
        return chosen;
    }

    // Finds the tokens of at least this weight, in the order of the vocabulary. Returns the sum of all weights.
    int64_t collect(float floor) {
        int64_t total = 0;
        count_ = 0;
        for (int64_t first = 0; first < size_; first += kBlock)
            total += for_block(first, [&](f32x8 weights, int64_t i) {
                count_ += vectors::store_some(weights >= floor, weights, weights_ + count_, i, ids_ + count_);
            });
        std::fill_n(weights_ + count_, 8, 0.f);
        return total;
    }

    // The smallest weight that top-k, top-p and min-p keep; 0 if the candidates are too few to tell. total: of the
    // whole row. all: every token with a weight is a candidate.
    float smallest_kept(int64_t total, bool all) {
        float cut = min_weight_;
        if (top_k_ && (count_ >= top_k_ || !all)) {
            if (count_ < top_k_) return 0;
            const float kth = selection::smallest_kept<false>(weights_, count_, top_k_, selected_);
            total = sum_blocks(kth);
            cut = std::max(cut, kth);
        }
        if (draw_.top_p < 1) {
            const auto needed = static_cast<int64_t>(static_cast<double>(total) * draw_.top_p);
            if (!all && sum_blocks(1) < needed) return 0;
            cut = std::max(cut, selection::smallest_kept<true>(weights_, count_, needed, selected_));
        }
        return cut;
    }

    // The sum of the candidates of at least weight `cut`. Leaves the sum of each block in sums_.
    int64_t sum_blocks(float cut) {
        int64_t total = 0;
        vectors::for_blocks(count_, [&](int64_t first, int64_t end) {
            vectors::BlockSum sum;
            for (int64_t i = first; i < end; i += 8) {
                const f32x8 weights = tile::load<f32x8>(weights_ + i);
                sum.add(vectors::where(weights >= cut, weights));
            }
            total += sums_[first / kBlock] = sum.value();
        });
        return total;
    }

    int64_t draw_from_candidates(float cut) {
        int64_t left = target(sum_blocks(cut)), block = 0;
        while (left >= sums_[block]) left -= sums_[block++];
        for (int64_t i = block * kBlock;; ++i)
            if (weights_[i] >= cut && (left -= static_cast<int64_t>(weights_[i])) < 0) return ids_[i];
    }

    const float* logits_;
    int64_t size_;
    float peak_, scale_;
    const Draw& draw_;
    int64_t* sums_;  // of blocks of tokens, or of candidates
    int64_t top_k_;
    float min_weight_;
    float *weights_ = nullptr, *selected_ = nullptr;  // candidates, and memory for the selection among them
    int32_t* ids_ = nullptr;
    int64_t count_ = 0;
};

// chosen: a token id, or kNotFinite or kNoTokenAllowed. may_ban: -inf is a banned token, not a wrong number.
inline void run(const float* logits, int64_t stride, int64_t rows, int64_t size, const Draw* draws, bool may_ban,
                int64_t* chosen) {
    pool::parallel_for(rows, [=](int64_t row) {
        thread_local Scratch scratch;
        const float* own = logits + row * stride;
        const Peak peak = find_peak(own, size);
        if (may_ban && peak.value == kMinusInfinity)
            chosen[row] = kNoTokenAllowed;
        else if (!std::isfinite(peak.value) || (!may_ban && !peak.finite))
            chosen[row] = kNotFinite;
        else if (draws[row].scale == 0)
            chosen[row] = peak.index;
        else
            chosen[row] = Row(own, size, peak, draws[row], scratch).choose();
    });
}

// Whether each row's numbers are all finite.
inline void find_finite(const float* logits, int64_t stride, int64_t rows, int64_t size, bool* finite) {
    pool::parallel_for(rows, [=](int64_t row) { finite[row] = find_peak(logits + row * stride, size).finite; });
}

}  // namespace sampling
