// Draws a token by Gumbel-max: the largest weight / E, where E is exponentially distributed and a function of a row's
// key and of the token. (log(weight / E) is the logit over the temperature plus Gumbel noise.) Computes the numbers of
// platforms/gumbel.py to the bit, but of few tokens: of most, the hash alone tells that they cannot win.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "sampling/peak.h"
#include "sampling/weights.h"
#include "tile.h"
#include "vectors.h"

namespace sampling {

using tile::f32x8, tile::i32x8, tile::u32x8;

// A row's 64 random bits.
struct Key {
    uint32_t low, high;
};

constexpr uint32_t kGolden = 0x9e3779b1u;

// A number for each token, of which random_bits() changes all but the upper 16 bits. x: kGolden * token + key.low.
inline u32x8 mixed(u32x8 x, const Key& key) {
    x = (x ^ x >> 16) * 0x7feb352du;
    return ((x ^ x >> 15) + key.high) * 0x846ca68bu;
}

// 31 random bits for each token.
inline i32x8 random_bits(u32x8 mixed) {
    return reinterpret_cast<i32x8>((mixed ^ mixed >> 16) >> 1);
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
        const Row row{logits, size, by, lowest_kept(by)};
        const int64_t groups = (size + kGroup - 1) / kGroup, first = peak / kGroup;
        enter_group<true>(row, first, kUnit);  // its heavy token makes the others' hurdle high
        const int64_t alive = std::count_if(tops, tops + groups, [&](float top) { return top >= row.floor; });
        for (int64_t group = 0; group < groups; group += 8) {
            const f32x8 group_tops = weights::load_some(tops, group, groups);
            if (!vectors::any(group_tops >= row.floor)) continue;
            const f32x8 top_weights = weights::weigh(group_tops, by);
            for (int64_t i = 0; i < 8; ++i) {
                if (group_tops[i] < row.floor || group + i == first) continue;
                if (2 * alive < groups)
                    enter_group<true>(row, group + i, top_weights[i]);
                else
                    enter_group<false>(row, group + i, top_weights[i]);
            }
        }
    }

    // Behind the last there are numbers that weigh nothing up to a multiple of 8, and any ids.
    void enter(const int32_t* ids, const float* weights, int64_t count) {
        for (int64_t i = 0; i < count; i += 8) {
            const u32x8 tokens = tile::load<u32x8>(ids + i);
            enter_eight(tokens, tile::load<f32x8>(weights + i), mixed(tokens * kGolden + key_.low, key_));
        }
    }

private:
    struct Row {
        const float* logits;
        int64_t size;
        weights::Scale by;
        float floor;  // tokens with smaller logits weigh less than the cut
    };

    static constexpr float kUnit = 0x1p42f;  // the largest weight
    // A score that is smaller by this factor is smaller however its parts are rounded.
    static constexpr float kCertain = 1 - 1e-5f;

    float lowest_kept(const weights::Scale& by) const {
        constexpr double kMargin = 1e-3;  // of the exponents; their errors are below 1e-5
        // In float, whose log2 C libraries have had for long: a wheel with that of double runs on later systems alone.
        const float bits = std::log2(static_cast<float>(static_cast<double>(cut_) - 0.5));
        const double exponent = bits - weights::kUnitBits - kMargin;
        return static_cast<float>(by.peak + exponent / by.scale);
    }

    // The largest random bits with which a token of this weight may be as good as the best: E > u * log2(e).
    float limit(float weight) const {
        constexpr float kFactor = 0x1p31f / 1.442695f / kCertain;
        return weight / best_ * kFactor;
    }

    // The largest number of mixed() with which a token of this weight may be as good as the best.
    uint32_t most(float weight) const {
        const float bits = limit(weight);
        return bits < 0x1p31f ? static_cast<uint32_t>(bits) << 1 | 0xffff : ~0u;
    }

    // top: no weight of the group is larger, but for rounding. kLooks: for a group with few tokens above the floor.
    template <bool kLooks>
    void enter_group(const Row& row, int64_t group, float top) {
        constexpr u32x8 kLanes{0, 1, 2, 3, 4, 5, 6, 7};
        constexpr int kVectors = 4;
        if (limit(top) < 0.5f) return;
        const int64_t end = std::min(row.size, (group + 1) * kGroup);
        uint32_t most = this->most(top);
        for (int64_t first = group * kGroup; first < end; first += 8 * kVectors) {
            if constexpr (kLooks) {
                i32x8 some{};
                for (int j = 0; j < kVectors; ++j)
                    some |= weights::load_some(row.logits, first + 8 * j, end) >= row.floor;
                if (!vectors::any(some)) continue;
            }
            const u32x8 tokens = kLanes + static_cast<uint32_t>(first);
            u32x8 numbers[kVectors], least = ~u32x8{};
#pragma GCC unroll 4
            for (uint32_t j = 0; j < kVectors; ++j) {
                numbers[j] = mixed((tokens + 8 * j) * kGolden + key_.low, key_);
                least = numbers[j] < least ? numbers[j] : least;
            }
            if (!vectors::any(least <= most)) continue;
            for (int j = 0; j < kVectors; ++j)
                if (vectors::any(numbers[j] <= most))
                    enter_eight(tokens + 8u * j,
                                weights::weigh(weights::load_some(row.logits, first + 8 * j, end), row.by), numbers[j]);
            most = this->most(top);
        }
    }

    void enter_eight(u32x8 tokens, f32x8 weights, u32x8 numbers) {
        const f32x8 scores = vectors::where(weights >= cut_, weights / exponential(random_bits(numbers)));
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
