// Finds the k-th largest number, or the one at which the largest numbers reach a sum, without sorting all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "vectors.h"

namespace selection {

using tile::f32x8, tile::i32x8;

constexpr int64_t kSorted = 64;  // so few numbers are sorted
constexpr int kSamples = 33;

// Of the numbers above a pivot, and how many equal it.
struct Above {
    int64_t count = 0, sum = 0, equal = 0;
};

// All numbers are integers from 1 on; behind the last there are zeros up to a multiple of 8.
inline Above find_above(const float* numbers, int64_t count, float pivot) {
    Above above;
    vectors::for_blocks(count, [&](int64_t first, int64_t end) {
        vectors::BlockSum sum;
        i32x8 larger{}, equal{};
        for (int64_t i = first; i < end; i += 8) {
            const f32x8 x = tile::load<f32x8>(numbers + i);
            const i32x8 mask = x > pivot;
            sum.add(vectors::where(mask, x));
            larger -= mask;
            equal -= x == pivot;
        }
        above.sum += sum.value();
        for (int lane = 0; lane < 8; ++lane) {
            above.count += larger[lane];
            above.equal += equal[lane];
        }
    });
    return above;
}

// The median of some of them.
inline float choose_pivot(const float* numbers, int64_t count) {
    float samples[kSamples];
    for (int i = 0; i < kSamples; ++i) samples[i] = numbers[(2 * i + 1) * count / (2 * kSamples)];
    std::nth_element(samples, samples + kSamples / 2, samples + kSamples);
    return samples[kSamples / 2];
}

// Keeps the numbers above the pivot, or those below. `to` may be `numbers`.
inline int64_t keep_side(const float* numbers, int64_t count, float pivot, bool larger, float* to) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i += 8) {
        const f32x8 x = tile::load<f32x8>(numbers + i);
        const i32x8 below = (x < pivot) & (x > 0.f);
        kept += vectors::store_some(larger ? x > pivot : below, x, to + kept);
    }
    std::fill_n(to + kept, 8, 0.f);
    return kept;
}

// The largest v for which the numbers x >= v are at least `needed` in number, or in sum if kSum. All numbers together
// are. They are as in find_above; `selected` is memory for 8 more. Quickselect (Hoare 1961).
template <bool kSum>
float smallest_kept(const float* numbers, int64_t count, int64_t needed, float* selected) {
    while (count > kSorted) {
        const float pivot = choose_pivot(numbers, count);
        const Above above = find_above(numbers, count, pivot);
        const int64_t larger = kSum ? above.sum : above.count;
        const int64_t equal = kSum ? above.equal * static_cast<int64_t>(pivot) : above.equal;
        const bool is_larger = above.count > 0 && larger >= needed;
        if (!is_larger && larger + equal >= needed) return pivot;
        count = keep_side(numbers, count, pivot, is_larger, selected);
        numbers = selected;
        if (!is_larger) needed -= larger + equal;
    }
    if (numbers != selected) std::copy_n(numbers, count, selected);
    std::sort(selected, selected + count, std::greater<>());
    int64_t i = 0;
    while (i + 1 < count && (needed -= kSum ? static_cast<int64_t>(selected[i]) : 1) > 0) ++i;
    return selected[i];
}

}  // namespace selection
