// The innermost loop of float32 products on AVX2, in assembly. For 96 multiply-adds it has 172 instructions with bfloat16 weights
// and 176 with float32, where GCC 12 makes about 212, some of which copy sums and weights between registers. A core that runs another
// thread beside this one, as those of virtual machines often do, completes about three instructions a cycle, and then their
// number is what counts.
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

// Sets the sums. A round has four steps, each of 128 bytes of weights. It fetches a line for each, or one in all where the
// four are the same one.
#define MMSERVE_LOOP(add, step_inputs)                                                                                 \
    asm volatile(                                                                                                      \
        "vmovups %[mask], %%ymm12\n" MMSERVE_ZERO(0) MMSERVE_ZERO(1) MMSERVE_ZERO(2) MMSERVE_ZERO(3) MMSERVE_ZERO(4)   \
        MMSERVE_ZERO(5) "1: prefetcht1 (%[from])\n test %k[several], %k[several]\n jnz 3f\n"                           \
        "2: lea (%[from],%[step],4), %[from]\n" add(0) add(1) add(2) add(3)                                            \
        "add $512, %[weights]\n add $16*" #step_inputs ", %[x]\n dec %[rounds]\n jnz 1b\n jmp 4f\n"                    \
        "3: prefetcht1 (%[from],%[step])\n prefetcht1 (%[from],%[step],2)\n prefetcht1 (%[from],%[step3])\n jmp 2b\n"  \
        "4:\n"                                                                                                         \
        : [x] "+r"(x), [weights] "+r"(weights), [from] "+r"(from), [rounds] "+r"(rounds), MMSERVE_SUMS(0),             \
          MMSERVE_SUMS(1), MMSERVE_SUMS(2), MMSERVE_SUMS(3), MMSERVE_SUMS(4), MMSERVE_SUMS(5)                          \
        : [stride] "r"(4 * stride), [stride3] "r"(12 * stride), [stride5] "r"(20 * stride), [step] "r"(ahead.step),    \
          [step3] "r"(3 * ahead.step), [several] "r"(several), [mask] "m"(mask), [rows] "i"(M)                         \
        : "memory", "cc", "ymm12", "ymm13", "ymm14", "ymm15")

// Inputs of a round.
template <class Number>
constexpr int64_t kRoundInputs = std::is_same_v<Number, float> ? 4 : 8;

// The sums of `rounds` rounds, at least one. They stay in registers as long as nothing takes their address.
template <class Number, int M>
[[gnu::always_inline]] inline tile::Sums<Vector, M, 2> sum_rounds(int64_t rounds, const float* x, int64_t stride,
                                                                  const Number* weights, const Ahead& ahead) {
    static_assert(M <= 6 && kPanel == 32);
    const Words mask = Words{} + 0xffff0000u;
    const char* from = ahead.from;
    const int several = 4 * ahead.step > memory::kLine;
    Vector sum[6][2];
    if constexpr (std::is_same_v<Number, float>)
        MMSERVE_LOOP(MMSERVE_ADD_FLOAT, 1);
    else
        MMSERVE_LOOP(MMSERVE_ADD_PAIR, 2);
    tile::Sums<Vector, M, 2> sums;
    tile::each<M, 2>([&](int m, int c) { sums.sum[m][c] = sum[m][c]; });
    return sums;
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
template <class Number>
constexpr int64_t kRoundInputs = 0;

#endif

}  // namespace linear
