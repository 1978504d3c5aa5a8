// Draws a token by Gumbel-max: the largest weight / E, where E is exponentially distributed and a function of a row's
// key and of the token. (log(weight / E) is the logit over the temperature plus Gumbel noise.) Computes the numbers of
// platforms/gumbel.py to the bit, but of few tokens: of most, the hash alone tells that they cannot win.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "peak.h"
#include "tile.h"
#include "vectors.h"
#include "weights.h"

namespace sampling {

using tile::f32x8, tile::i32x8, tile::u32x8;

// A row's 64 random bits.
struct Key {
    uint32_t low, high;
};

// 31 random bits for each token.
inline i32x8 random_bits(u32x8 tokens, const Key& key) {
    u32x8 x = tokens * 0x9e3779b1u + key.low;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = ((x ^ x >> 15) + key.high) * 0x846ca68bu;
    return reinterpret_cast<i32x8>((x ^ x >> 16) >> 1);
}

constexpr float kBit = 0x1p-31f;
constexpr int32_t kLargestBits = 0x7fffffff;
constexpr int32_t kQuarter = 1 << 29;           // bits that stand for 0.25
constexpr int32_t kThreeQuarters = 0x3f400000;  // the float 0.75

// -log2(1 - u) where u = (bits + 0.5) / 2^31. Each operation is rounded separately, as torch's are.
inline f32x8 exponential(i32x8 bits) {
    // log2(1 + f) / f for f from -0.25 to 0.5: relative error below 1.1e-7.
    constexpr float kLog2[] = {7.806575298e-02f,  -1.742292643e-01f, 2.163247317e-01f,
                               -2.427236140e-01f, 2.881915271e-01f,  -3.605759144e-01f,
                               4.809020758e-01f,  -7.213484645e-01f, 1.442695022e+00f};
    using tile::rounded;
    const f32x8 u = (__builtin_convertvector(bits, f32x8) + 0.5f) * kBit;
    const f32x8 rest = (__builtin_convertvector(kLargestBits - bits, f32x8) + 0.5f) * kBit;  // 1 - u
    // rest = 2^n * m, with m from 0.75 to 1.5.
    const i32x8 number = reinterpret_cast<i32x8>(rest);
    const i32x8 n = (number - kThreeQuarters) >> 23;
    const f32x8 m = reinterpret_cast<f32x8>(number - (n << 23));
    const i32x8 is_small = bits < kQuarter;
    const f32x8 f = is_small ? -u : m - 1.f;  // a small u is not rounded as 1 - u is
    const f32x8 whole = __builtin_convertvector(n & ~is_small, f32x8);
    f32x8 y = tile::broadcast(kLog2[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 9; ++i) y = rounded(y * f) + kLog2[i];
    return -(rounded(y * f) + whole);
}

// Keeps the best of the tokens that were entered; of equal ones the first in the vocabulary. Tokens of a weight below
// `cut`, which is at least 1, do not count.
class Race {
public:
    Race(const Key& key, float cut) : key_(key), cut_(cut) {}

    int64_t winner() const { return token_; }

    // All tokens of a row. tops: of the groups, from find_peak.
    void enter_row(const float* logits, int64_t size, const float* tops, int64_t peak, const weights::Scale& by) {
        const int64_t groups = (size + kGroup - 1) / kGroup, first = peak / kGroup;
        enter_group(logits, size, first, by, kUnit);  // its heavy token makes the others' hurdle high
        for (int64_t group = 0; group < groups; group += 8) {
            const f32x8 tops_weights = weights::weigh(weights::load_some(tops, group, groups), by);
            const int64_t end = std::min<int64_t>(8, groups - group);
            for (int64_t i = 0; i < end; ++i)
                if (group + i != first && tops_weights[i] >= cut_ * kCertain)
                    enter_group(logits, size, group + i, by, tops_weights[i]);
        }
    }

    // Behind the last there are numbers that weigh nothing up to a multiple of 8, and any ids.
    void enter(const int32_t* ids, const float* weights, int64_t count) {
        for (int64_t i = 0; i < count; i += 8) {
            const u32x8 tokens = tile::load<u32x8>(ids + i);
            enter_eight(tokens, tile::load<f32x8>(weights + i), random_bits(tokens, key_));
        }
    }

private:
    static constexpr float kUnit = 0x1p42f;  // the largest weight
    // A weight, or a score, that is smaller by this factor is smaller however both are rounded.
    static constexpr float kCertain = 1 - 1e-5f;

    // The largest random bits with which a token of this weight may be as good as the best: E > u * log2(e).
    float limit(float weight) const {
        constexpr float kFactor = 0x1p31f / 1.442695f / kCertain;
        return weight / best_ * kFactor;
    }

    // top: no weight of the group is larger, but for rounding.
    void enter_group(const float* logits, int64_t size, int64_t group, const weights::Scale& by, float top) {
        constexpr u32x8 kLanes{0, 1, 2, 3, 4, 5, 6, 7};
        float highest = limit(top);
        if (highest < 0.5f) return;
        const int64_t end = std::min(size, (group + 1) * kGroup);
        int32_t most = integer(highest);
        for (int64_t i = group * kGroup; i < end; i += 8) {
            const u32x8 tokens = kLanes + static_cast<uint32_t>(i);
            const i32x8 bits = random_bits(tokens, key_);
            if (!vectors::any(bits <= most)) continue;
            enter_eight(tokens, weights::weigh(weights::load_some(logits, i, end), by), bits);
            most = integer(limit(top));
        }
    }

    static int32_t integer(float number) {
        return number < 0x1p30f ? static_cast<int32_t>(number) : kLargestBits;
    }

    void enter_eight(u32x8 tokens, f32x8 weights, i32x8 bits) {
        const f32x8 scores = vectors::where(weights >= cut_, weights / exponential(bits));
        if (!vectors::any(scores >= best_)) return;
        for (int lane = 0; lane < 8; ++lane) {
            if (scores[lane] < best_ || (scores[lane] == best_ && tokens[lane] >= token_)) continue;
            best_ = scores[lane];
            token_ = tokens[lane];
        }
    }

    Key key_;
    float cut_;
    float best_ = std::numeric_limits<float>::min();  // smaller than any score
    uint32_t token_ = std::numeric_limits<uint32_t>::max();
};

}  // namespace sampling
