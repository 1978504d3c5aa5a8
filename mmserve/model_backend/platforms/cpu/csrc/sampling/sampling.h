// Chooses a token of each row of logits. Computes the numbers of TorchSampling (platforms/sampling.py) to the bit: each
// logit has an integer weight, so sums of weights are exact in any order and on any number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "aligned_memory.h"
#include "sampling/candidates.h"
#include "sampling/nucleus.h"
#include "sampling/peak.h"
#include "sampling/race.h"
#include "sampling/weights.h"
#include "parallel.h"
#include "tile.h"
#include "vectors.h"

namespace sampling {

using tile::f32x8, tile::i32x8, vectors::kBlock;

constexpr int64_t kNotFinite = -1, kNoTokenAllowed = -2;
// A logit whose exponent is lower by this than that of a weight from kCertainWeight on weighs less, however both are
// rounded: the exponents' and powers' errors are below 1e-5.
constexpr double kMargin = 1e-3;
constexpr float kCertainWeight = 0x1p20f;

// How a row is sampled. scale: log2(e) / temperature, 0 takes the largest logit. top_k 0, top_p 1 and min_weight 0 are
// off. The key's halves are integers of 32 bits.
struct Draw {
    double scale, top_k, top_p, min_weight, key_low, key_high;
};

// Memory that a thread keeps from row to row.
struct Scratch {
    memory::ReusableArray<float> tops, sorted;
    Candidates candidates;
    Nucleus nucleus;
};

class Row {
public:
    // tops: of the groups, from find_peak.
    Row(const float* logits, int64_t size, const Peak& peak, const float* tops, const Draw& draw, Scratch& scratch)
        : logits_(logits),
          size_(size),
          by_{peak.value, static_cast<float>(draw.scale)},
          peak_(peak.index),
          draw_(draw),
          key_{static_cast<uint32_t>(draw.key_low), static_cast<uint32_t>(draw.key_high)},
          tops_(tops),
          scratch_(scratch),
          candidates_(scratch.candidates) {
        top_k_ = draw.top_k < static_cast<double>(size) ? static_cast<int64_t>(draw.top_k) : 0;
        min_weight_ = std::max(1.f, static_cast<float>(draw.min_weight));
    }

    int64_t choose() {
        if (!top_k_) return draw_from_row(cut_of_row());
        if (const int64_t chosen = draw_from_largest(); chosen >= 0) return chosen;
        collect(kHeadWeight);
        if (candidates_.count() < top_k_) collect(1.f);
        return draw_from_top_k(candidates_.smallest_kept<false>(std::min(top_k_, candidates_.count())));
    }

private:
    float cut_of_row() {
        if (draw_.top_p >= 1) return min_weight_;
        return scratch_.nucleus.cut(logits_, size_, tops_, by_, draw_.top_p, min_weight_);
    }

    int64_t draw_from_row(float cut) {
        Race race(key_, cut);
        race.enter_row(logits_, size_, tops_, peak_, by_);
        return race.winner();
    }

    // With top-k, the other tokens' weights do not matter. So logits are compared, and only those of the groups with
    // large ones; few are weighed. Returns -1 if that does not tell.
    int64_t draw_from_largest() {
        if (top_k_ > num_groups()) return -1;
        float floor = kth_top();  // at least k logits are as large
        if (!(floor > kMinusInfinity) || weights::weigh_one(floor, by_) < kCertainWeight / 2) return -1;
        floor = static_cast<float>(floor - kMargin / draw_.scale);
        collect_logits(floor);
        const float kth = candidates_.smallest_kept<false>(top_k_);
        return kth < kCertainWeight ? -1 : draw_from_top_k(kth);
    }

    int64_t num_groups() const { return (size_ + kGroup - 1) / kGroup; }

    // The k-th largest of the groups' largest logits.
    float kth_top() {
        float* sorted = scratch_.sorted.at_least(num_groups());
        std::copy_n(tops_, num_groups(), sorted);
        std::nth_element(sorted, sorted + top_k_ - 1, sorted + num_groups(), std::greater<>());
        return sorted[top_k_ - 1];
    }

    void collect_logits(float floor) {
        candidates_.start(size_);
        for (int64_t group = 0; group < num_groups(); ++group) {
            if (tops_[group] < floor) continue;
            const int64_t end = std::min(size_, (group + 1) * kGroup);
            for (int64_t i = group * kGroup; i < end; i += 8) {
                const f32x8 values = weights::load_some(logits_, i, end);
                if (const i32x8 mask = values >= floor; vectors::any(mask)) candidates_.add(mask, values, i);
            }
        }
        candidates_.finish(by_);
    }

    // Finds the tokens of at least this weight.
    void collect(float floor) {
        candidates_.start(size_);
        vectors::for_blocks(size_, [&](int64_t first, int64_t end) {
            const weights::Block block(logits_ + first, end - first, by_);
            for (int64_t i = 0; i < block.size(); i += 8)
                candidates_.add(block.eight(i) >= floor, block.eight(i), first + i);
        });
        candidates_.finish();
    }

    // kth: the smallest weight that top-k keeps; all tokens of at least this weight are candidates.
    int64_t draw_from_top_k(float kth) {
        float cut = std::max(min_weight_, kth);
        if (draw_.top_p < 1)
            cut = std::max(cut, candidates_.smallest_kept<true>(share(candidates_.sum(kth), draw_.top_p)));
        Race race(key_, cut);
        candidates_.enter(race);
        return race.winner();
    }

    const float* logits_;
    int64_t size_;
    weights::Scale by_;
    int64_t peak_;
    const Draw& draw_;
    Key key_;
    const float* tops_;
    Scratch& scratch_;
    Candidates& candidates_;
    int64_t top_k_;
    float min_weight_;
};

// chosen: a token id, or kNotFinite or kNoTokenAllowed. may_ban: -inf is a banned token, not a wrong number.
inline void run(const float* logits, int64_t stride, int64_t rows, int64_t size, const Draw* draws, bool may_ban,
                int64_t* chosen) {
    pool::parallel_for(rows, [=](int64_t row) {
        thread_local Scratch scratch;
        const float* own = logits + row * stride;
        float* tops = scratch.tops.at_least(size / kGroup + 1);
        const Peak peak = find_peak(own, size, tops);
        if (may_ban && peak.value == kMinusInfinity)
            chosen[row] = kNoTokenAllowed;
        else if (!std::isfinite(peak.value) || (!may_ban && !peak.finite))
            chosen[row] = kNotFinite;
        else if (draws[row].scale == 0)
            chosen[row] = peak.index;
        else
            chosen[row] = Row(own, size, peak, tops, draws[row], scratch).choose();
    });
}

// Whether each row's numbers are all finite.
inline void find_finite(const float* logits, int64_t stride, int64_t rows, int64_t size, bool* finite) {
    pool::parallel_for(rows, [=](int64_t row) {
        thread_local Scratch scratch;
        float* tops = scratch.tops.at_least(size / kGroup + 1);
        finite[row] = find_peak(logits + row * stride, size, tops).finite;
    });
}

// Sets the logits of banned tokens to -inf: token 32 w + b of rows[i] is allowed if bit b of allowed[i * words + w] is 1.
inline void ban(float* logits, int64_t stride, int64_t size, const int64_t* rows, int64_t count,
                const uint32_t* allowed, int64_t words) {
    pool::parallel_for_rows(count, size, [=](int64_t i) {
        float* row = logits + rows[i] * stride;
        for (int64_t word = 0, first = 0; first < size; ++word, first += 32) {
            const uint32_t bits = allowed[i * words + word];
            const int64_t end = std::min(size, first + 32);
            if (bits == 0)
                std::fill(row + first, row + end, kMinusInfinity);
            else if (bits != ~uint32_t{0})
                for (int64_t token = first; token < end; ++token)
                    row[token] = bits >> (token - first) & 1 ? row[token] : kMinusInfinity;
        }
    });
}

}  // namespace sampling
