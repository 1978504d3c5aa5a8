// The innermost loop of float32 products on AVX2, in assembly. For 48 multiply-adds of bfloat16 weights it has 89 instructions
// where GCC 12 makes 106, some of which copy sums and weights between registers. A core that runs another thread beside this
// one, as those of virtual machines often do, completes about three instructions a cycle, and then their number is what counts.
#pragma once

#include <cstdint>
#include <type_traits>

#include "linear/panels.h"
#include "linear/ways.h"
#include "tile.h"

namespace linear {

#if defined(__AVX2__) && !defined(__AVX512F__)

// Adds an input of one row times the weights in registers 13 and 14.
#define MMSERVE_ADD_ROW(row, input, offset)                  \
    ".if %c[rows] > " #row "\n"                              \
    "vbroadcastss 4*(" #input ")(%[x]" offset "), %%ymm15\n" \
    "vfmadd231ps %%ymm13, %%ymm15, %[left" #row "]\n"        \
    "vfmadd231ps %%ymm14, %%ymm15, %[right" #row "]\n"       \
    ".endif\n"
#define MMSERVE_ADD_ROWS(input)               \
    MMSERVE_ADD_ROW(0, input, "")             \
    MMSERVE_ADD_ROW(1, input, ",%[stride]")   \
    MMSERVE_ADD_ROW(2, input, ",%[stride],2") \
    MMSERVE_ADD_ROW(3, input, ",%[stride3]")  \
    MMSERVE_ADD_ROW(4, input, ",%[stride],4") \
    MMSERVE_ADD_ROW(5, input, ",%[stride5]")

// The weights of one input are 128 bytes of a panel in float32.
#define MMSERVE_ADD_FLOAT(input)                       \
    "vmovups 128*" #input "(%[weights]), %%ymm13\n"    \
    "vmovups 128*" #input "+32(%[weights]), %%ymm14\n" \
    MMSERVE_ADD_ROWS(input)

// And those of two inputs in bfloat16. A weight is the upper half of a float: the odd input's as it is, the even one's after a shift, or
// read two bytes before, which saves the shift where it crosses no cache line. The lower half is masked.
#define MMSERVE_ADD_PAIR(pair)                               \
    "vmovups 128*" #pair "(%[weights]), %%ymm13\n"           \
    "vpslld $16, %%ymm13, %%ymm13\n"                         \
    "vpand 128*" #pair "+30(%[weights]), %%ymm12, %%ymm14\n" \
    MMSERVE_ADD_ROWS(2*pair)                                 \
    "vpand 128*" #pair "(%[weights]), %%ymm12, %%ymm13\n"    \
    "vpand 128*" #pair "+32(%[weights]), %%ymm12, %%ymm14\n" \
    MMSERVE_ADD_ROWS(2*pair+1)

#define MMSERVE_ZERO(row)                                        \
    "vxorps %[left" #row "], %[left" #row "], %[left" #row "]\n" \
    "vxorps %[right" #row "], %[right" #row "], %[right" #row "]\n"
#define MMSERVE_SUMS(row) [left##row] "=&x"(sum[row][0]), [right##row] "=&x"(sum[row][1])

// Sets the sums and goes on to the inputs and weights behind those that were added. Fetches a line for each 128 bytes of weights.
#define MMSERVE_LOOP(first_half, second_half, input_nbytes)                                                                 \
    asm volatile(                                                                                                           \
        "vmovups %[mask], %%ymm12\n" MMSERVE_ZERO(0) MMSERVE_ZERO(1) MMSERVE_ZERO(2) MMSERVE_ZERO(3) MMSERVE_ZERO(4)        \
        MMSERVE_ZERO(5) "1:\n"                                                                                              \
        "prefetcht1 (%[from])\n prefetcht1 (%[from],%[step])\n lea (%[from],%[step],2), %[from]\n"                          \
        first_half second_half                                                                                              \
        "add $256, %[weights]\n add $" #input_nbytes ", %[x]\n dec %[rounds]\n jnz 1b\n"                                    \
        : [x] "+r"(x), [weights] "+r"(weights), [from] "+r"(from), [rounds] "+r"(rounds), MMSERVE_SUMS(0), MMSERVE_SUMS(1), \
          MMSERVE_SUMS(2), MMSERVE_SUMS(3), MMSERVE_SUMS(4), MMSERVE_SUMS(5)                                                \
        : [stride] "r"(4 * stride), [stride3] "r"(12 * stride), [stride5] "r"(20 * stride), [step] "r"(step),               \
          [mask] "m"(mask), [rows] "i"(M)                                                                                   \
        : "memory", "cc", "ymm12", "ymm13", "ymm14", "ymm15")

// Sets `sums` to those of the first inputs, as many as the loop can take, and returns their number.
template <class Number, int M>
[[gnu::always_inline]] inline int64_t sum_first(tile::Sums<Vector, M, 2>& sums, int64_t K, const float* x, int64_t stride,
                                                const Number* weights, Ahead& ahead) {
    constexpr bool kIsFloat = std::is_same_v<Number, float>;
    constexpr int64_t kInputs = kIsFloat ? 2 : 4;  // of a round
    static_assert(M <= 6 && kPanel == 32);
    const Words mask = Words{} + 0xffff0000u;
    const int64_t step = ahead.step;
    const char* from = ahead.from;
    Vector sum[6][2];
    int64_t rounds = K / kInputs;
    if (!rounds) return 0;
    if constexpr (kIsFloat)
        MMSERVE_LOOP(MMSERVE_ADD_FLOAT(0), MMSERVE_ADD_FLOAT(1), 8);
    else
        MMSERVE_LOOP(MMSERVE_ADD_PAIR(0), MMSERVE_ADD_PAIR(1), 16);
    for (int m = 0; m < M; ++m)
        for (int c = 0; c < 2; ++c) sums.sum[m][c] = sum[m][c];
    ahead.from = from;
    return K / kInputs * kInputs;
}

#undef MMSERVE_LOOP
#undef MMSERVE_SUMS
#undef MMSERVE_ZERO
#undef MMSERVE_ADD_PAIR
#undef MMSERVE_ADD_FLOAT
#undef MMSERVE_ADD_ROWS
#undef MMSERVE_ADD_ROW

#else

// Elsewhere the compiler's loop adds all inputs.
template <class Number, int M, int C>
int64_t sum_first(tile::Sums<Vector, M, C>&, int64_t, const float*, int64_t, const Number*, Ahead&) {
    return 0;
}

#endif

}  // namespace linear
