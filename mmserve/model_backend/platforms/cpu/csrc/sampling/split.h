// One pass over a row: sums of all weights and of those above a bracket, and the weights within the bracket.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "aligned_memory.h"
#include "sampling/weights.h"
#include "vectors.h"

namespace sampling {

using tile::f32x8, tile::i32x8, vectors::kBlock;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kPadding = 16;  // numbers behind the last that whole vectors write and read

// Weights from `low` on and below `high`.
struct Bracket {
    float low, high;
};

struct Sums {
    int64_t all = 0, above = 0;
};

// Stores the weights within the bracket at `to`, in order, and moves it behind them.
#if defined(__AVX512F__) && defined(__AVX512DQ__)

inline Sums split_block(const weights::Block& block, const Bracket& bracket, float*& to) {
    const __m512 low = _mm512_set1_ps(bracket.low), high = _mm512_set1_ps(bracket.high);
    __m512i all[2] = {}, above[2] = {};
    float* next = to;
    for (int64_t i = 0; i < block.size(); i += 16) {
        const __m512 x = _mm512_load_ps(block.begin() + i);
        const __mmask16 is_above = _mm512_cmp_ps_mask(x, high, _CMP_GE_OQ);
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            const __m512i half = _mm512_cvtps_epi64(_mm256_load_ps(block.begin() + i + 8 * j));
            all[j] = _mm512_add_epi64(all[j], half);
            above[j] = _mm512_mask_add_epi64(above[j], static_cast<__mmask8>(is_above >> 8 * j), above[j], half);
        }
        const __mmask16 is_within = _mm512_mask_cmp_ps_mask(_mm512_knot(is_above), x, low, _CMP_GE_OQ);
        _mm512_storeu_ps(next, _mm512_maskz_compress_ps(is_within, x));  // compressing into memory is slow on Zen 4
        next += __builtin_popcount(is_within);
    }
    to = next;
    return {_mm512_reduce_add_epi64(_mm512_add_epi64(all[0], all[1])),
            _mm512_reduce_add_epi64(_mm512_add_epi64(above[0], above[1]))};
}

#else

inline Sums split_block(const weights::Block& block, const Bracket& bracket, float*& to) {
    vectors::BlockSum all, above;
    for (int64_t i = 0; i < block.size(); i += 8) {
        const f32x8 x = block.eight(i);
        const i32x8 is_above = x >= bracket.high;
        all.add(x);
        above.add(vectors::where(is_above, x));
        to += vectors::store_some((x >= bracket.low) & ~is_above, x, to);
    }
    return {all.value(), above.value()};
}

#endif

// A row split by a bracket.
class Split {
public:
    // Returns the row's sums.
    Sums run(const float* logits, int64_t size, const weights::Scale& by, const Bracket& bracket) {
        within_ = within_memory_.at_least(size + kPadding);
        Sums sums;
        float* to = within_;
        vectors::for_blocks(size, [&](int64_t first, int64_t end) {
            const Sums block = split_block({logits + first, end - first, by}, bracket, to);
            sums.all += block.all;
            sums.above += block.above;
        });
        count_ = to - within_;
        std::fill_n(to, 8, 0.f);
        return sums;
    }

    // The weights within the bracket, in the row's order; behind the last there are 8 zeros.
    const float* within() const { return within_; }
    int64_t count() const { return count_; }

    int64_t sum_within() const {
        int64_t sum = 0;
        vectors::for_blocks(count_, [&](int64_t first, int64_t end) { sum += sum_of(first, end); });
        return sum;
    }

private:
    // Of up to kBlock numbers; behind the last of all there are zeros.
    int64_t sum_of(int64_t first, int64_t end) const {
        vectors::BlockSum sum;
        for (int64_t i = first; i < end; i += 8) sum.add(tile::load<f32x8>(within_ + i));
        return sum.value();
    }

    memory::ReusableArray<float> within_memory_;
    float* within_ = nullptr;
    int64_t count_ = 0;
};

}  // namespace sampling
