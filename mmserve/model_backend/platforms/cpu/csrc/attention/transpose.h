// Rows of 32-bit words become columns, as many of each as a vector has words.
#pragma once

#include <cstdint>
#include <utility>

#include "linear/panels.h"

namespace attention {

using linear::Words;

constexpr int64_t kSide = tile::kLanes<linear::Vector>;

// The first or the second of two rows that exchange blocks of `kStep` words: where the words of two are read from.
template <int64_t kStep, bool kSecond, int64_t... kWord>
inline Words places(std::integer_sequence<int64_t, kWord...>) {
    return Words{static_cast<uint32_t>(kSecond ? (kWord & kStep ? kSide + kWord : kWord + kStep)
                                               : (kWord & kStep ? kSide + kWord - kStep : kWord))...};
}

template <int64_t kStep = kSide / 2>
[[gnu::always_inline]] inline void transpose(Words (&rows)[kSide]) {
    constexpr std::make_integer_sequence<int64_t, kSide> words{};
#pragma GCC unroll 16
    for (int64_t row = 0; row < kSide; ++row)
        if (!(row & kStep)) {
            const Words first = rows[row], second = rows[row + kStep];
            rows[row] = __builtin_shuffle(first, second, places<kStep, false>(words));
            rows[row + kStep] = __builtin_shuffle(first, second, places<kStep, true>(words));
        }
    if constexpr (kStep > 1) transpose<kStep / 2>(rows);
}

}  // namespace attention
