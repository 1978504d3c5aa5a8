// The largest logit of a row, and of each group of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "vectors.h"

namespace sampling {

using tile::f32x8;

constexpr int64_t kGroup = 256;  // logits whose largest is kept
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Peak {
    float value = kMinusInfinity;
    int64_t index = 0;
    bool finite = true;  // all logits are
};

// The first of the largest logits. tops: room for the largest of each group of kGroup.
inline Peak find_peak(const float* row, int64_t size, float* tops) {
    Peak peak;
    int64_t group = 0;
    f32x8 poison[2] = {};  // x * 0 is not 0 if x is not finite
    for (int64_t first = 0; first < size; first += kGroup) {
        const int64_t end = std::min(size, first + kGroup);
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
        const float top = tops[first / kGroup] = tile::horizontal_max(vectors::larger(highest[0], highest[1]));
        if (top > peak.value) {
            peak.value = top;
            group = first;
        }
    }
    for (int j = 0; j < 8; ++j) peak.finite &= poison[0][j] == 0.f && poison[1][j] == 0.f;
    const float* found = std::find(row + group, row + std::min(size, group + kGroup), peak.value);
    peak.index = std::min(found - row, size - 1);
    return peak;
}

}  // namespace sampling
