// Products of pairs of 16-bit integers, on CPUs that do not multiply bytes without a sign with bytes with one.
#pragma once

#include <cstdint>
#include <cstring>

#include "grouped/grouped_weights.h"
#include "tile.h"

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace grouped {

// sums + a * b, where both products of an output are added to its sum.
inline i32x8 multiply_add(i32x8 sums, i16x16 a, i16x16 b) {
#ifdef __AVX2__
    sums += reinterpret_cast<i32x8>(__builtin_ia32_pmaddwd256(a, b));
    asm("" : "+x"(sums));  // otherwise the compiler adds products to each other first, and runs out of registers
#elif defined(__aarch64__)
    int32x4_t of[2];
    int16x8_t x[2], y[2];
    std::memcpy(of, &sums, sizeof of);
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    for (int i = 0; i < 2; ++i) {
        const int32x4_t low = vmull_s16(vget_low_s16(x[i]), vget_low_s16(y[i])), high = vmull_high_s16(x[i], y[i]);
        of[i] = vaddq_s32(of[i], vpaddq_s32(low, high));
    }
    std::memcpy(&sums, of, sizeof sums);
#else
    for (int i = 0; i < 8; ++i) sums[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
#endif
    return sums;
}

inline i16x16 broadcast_pair(const int16_t* from) {
    const auto both = tile::load<int32_t>(from);
    return reinterpret_cast<i16x16>(i32x8{both, both, both, both, both, both, both, both});
}

}  // namespace grouped
