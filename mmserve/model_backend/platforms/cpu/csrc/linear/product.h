// The products of a tile of rows and a panel in each mode. In every mode a sum has one order, so variants of a tile and
// instruction sets give the same bits.
#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "linear/inputs.h"
#include "linear/loop_avx2.h"
#include "linear/panels.h"
#include "tile.h"

namespace linear {

template <int M, int C>
using Sums = tile::Sums<Vector, M, C>;

// Each mode's add() must be inline, so that sums stay in registers. Of the C vectors of weights kNear follow each other, and
// the next ones are `apart` numbers further.

// float32 inputs and weights. Inputs in ascending order.
struct Exact : Float32 {
    using Input = float;
    static constexpr bool kAscends = true;
    static Rows<float> inputs(const Job& job) { return unrounded(job); }
    static constexpr bool kFlushes = false;

    template <int M, int C, int kNear = C, class Rows>
    [[gnu::always_inline]] static void add(Sums<M, C>& sums, const Rows& x, const float* weights,
                                           int64_t apart = 0) {
        sums.add(x, 0, load<C, kNear>(weights, apart).of);
    }
};

// bfloat16 weights, widened: the bits of `Exact` with the same numbers.
struct Widened : Bfloat16 {
    using Input = float;
    static constexpr bool kAscends = true;
    static Rows<float> inputs(const Job& job) { return unrounded(job); }
    static constexpr bool kFlushes = false;

    template <int M, int C, int kNear = C, class Rows>
    [[gnu::always_inline]] static void add(Sums<M, C>& sums, const Rows& x, const uint16_t* weights,
                                           int64_t apart = 0) {
        sums.add(x, 0, load<C, false, kNear>(weights, apart).of);
        sums.add(x, 1, load<C, true, kNear>(weights, apart).of);
    }

    template <int M, int C, class Rows>
    [[gnu::always_inline]] static void add_last(Sums<M, C>& sums, const Rows& x, const uint16_t* weights) {
        sums.add(x, 0, load<C, false>(weights).of);
    }
};

// bfloat16 weights and inputs, summed as VDPBF16PS does: of two neighbouring inputs the odd one first, then the even one,
// each by a fused multiply-add to the nearest float, denormal numbers as zeros. BFMLALT and BFMLALB of AArch64 are these
// multiply-adds, but for a sum just below the smallest normal number (FlushDenormals). Without such instructions, the same bits by multiply-adds of floats.
struct Rounded : Bfloat16 {
    static constexpr bool kAscends = false;
    static constexpr bool kFlushes = true;

#if defined(__AVX512BF16__)
    using Input = uint16_t;

    template <int M, int C, int kNear = C, class Rows>
    [[gnu::always_inline]] static void add(Sums<M, C>& sums, const Rows& x, const uint16_t* weights,
                                           int64_t apart = 0) {
        __m512bh numbers[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c)
            numbers[c] = reinterpret_cast<__m512bh>(tile::keep_in_register(tile::load<Words>(word_vector<kNear>(weights, apart, c))));
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(tile::load<int32_t>(x.at(m))));
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c)
                sums.sum[m][c] = reinterpret_cast<Vector>(
                    _mm512_dpbf16_ps(reinterpret_cast<__m512>(sums.sum[m][c]), pair, numbers[c]));
        }
    }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    using Input = uint16_t;

    template <int M, int C, int kNear = C, class Rows>
    [[gnu::always_inline]] static void add(Sums<M, C>& sums, const Rows& x, const uint16_t* weights,
                                           int64_t apart = 0) {
        bfloat16x8_t numbers[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) numbers[c] = reinterpret_cast<bfloat16x8_t>(tile::load<Words>(word_vector<kNear>(weights, apart, c)));
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const auto pair = reinterpret_cast<bfloat16x8_t>(Words{} + tile::load<uint32_t>(x.at(m)));
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const auto odd = vbfmlaltq_f32(reinterpret_cast<float32x4_t>(sums.sum[m][c]), numbers[c], pair);
                sums.sum[m][c] = reinterpret_cast<Vector>(vbfmlalbq_f32(odd, numbers[c], pair));
            }
        }
    }
#else
    using Input = float;

    template <int M, int C, int kNear = C, class Rows>
    [[gnu::always_inline]] static void add(Sums<M, C>& sums, const Rows& x, const uint16_t* weights,
                                           int64_t apart = 0) {
        sums.add(x, 1, load<C, true, kNear>(weights, apart).of);
        sums.add(x, 0, load<C, false, kNear>(weights, apart).of);
    }
#endif

    static Rows<Input> inputs(const Job& job) { return rounded<Input>(job); }

    // The input behind the last is zero.
    template <int M, int C, class Rows>
    [[gnu::always_inline]] static void add_last(Sums<M, C>& sums, const Rows& x, const uint16_t* weights) {
        add<M, C>(sums, x, weights);
    }
};

template <class Mode, int C>
constexpr int64_t kRound = Mode::kAscends && C == kTileVectors ? kRoundInputs<typename Mode::Number> : 0;

// Where the results of a tile go, whose rows are `stride` numbers apart.
struct Results {
    float* first;
    int64_t stride;

    // Fetches C vectors of rows [row, end): they are too far apart for the CPU's own prefetcher, and a store that misses the cache
    // would wait for its line. Must be inline: GCC 12 leaves out calls of a function that does nothing but prefetch.
    template <int C>
    [[gnu::always_inline]] void prefetch(int64_t row, int64_t end) const {
        for (; row < end; ++row)
            for (int64_t i = 0; i < C * tile::kLanes<Vector>; i += memory::kLine / sizeof(float))
                __builtin_prefetch(first + row * stride + i, 1);
    }
};

// A row of results is fetched after each kApart * Mode::kDepth inputs. All rows at once were slower where results come from memory,
// presumably because lines of inputs and weights arrive through the same buffers.
constexpr int64_t kApart = 8;

// M rows times C vectors of outputs. `weights` are those of the first output in its panel.
template <class Mode, int M, int C>
[[gnu::always_inline]] inline Sums<M, C> sums_of(int64_t K, const typename Mode::Input* x, int64_t stride,
                          const typename Mode::Number* weights, Ahead ahead, const Results& results) {
    constexpr int64_t kStep = Mode::kDepth * kPanel, kNbytes = C * tile::kLanes<Vector> * Mode::kDepth * sizeof(*weights);
    Sums<M, C> sums;
    int64_t k = 0, row = 0;
    if (kRound<Mode, C> > 0 || K < M * kApart * Mode::kDepth) {
        results.template prefetch<C>(0, M);
        row = M;
    }
    if constexpr (kRound<Mode, C> > 0)
        if (const int64_t rounds = K / kRound<Mode, C>; rounds > 0) {
            sums = sum_rounds<typename Mode::Number, M>(rounds, x, stride, weights, ahead);
            k = rounds * kRound<Mode, C>;
            ahead.from += k / Mode::kDepth * ahead.step;
            weights += k * kPanel;
        }
    const auto* const end = weights + (K - k) / Mode::kDepth * kStep;
    tile::RowAddresses<M, const typename Mode::Input> rows(x + k, stride);
    while (weights != end) {
        const auto* stop = end;
        if (row < M) {
            results.template prefetch<C>(row, row + 1);
            ++row;
            stop = weights + kApart * kStep;
        }
        for (; weights != stop; weights += kStep, rows.advance(Mode::kDepth)) {
            for (int64_t i = 0; i < kNbytes; i += memory::kLine) __builtin_prefetch(ahead.from + i, 0, 2);
            ahead.from += ahead.step;
            Mode::template add<M, C>(sums, rows, weights);
        }
    }
    if constexpr (Mode::kDepth == 2)
        if (K % 2) Mode::template add_last<M, C>(sums, rows, weights);
    return Sums<M, C>(sums);  // a copy: the caller's sums have an address, and GCC 12 would add to them in memory
}

// Calls put(sums) with the same. They stay in registers where whole rounds of the loop take all inputs.
template <class Mode, int M, int C, class Put>
[[gnu::always_inline]] inline void put_sums(int64_t K, const typename Mode::Input* x, int64_t stride,
                                            const typename Mode::Number* weights, const Ahead& ahead, const Results& results,
                                            const Put& put) {
    if constexpr (kRound<Mode, C> > 0)
        if (K % kRound<Mode, C> == 0 && K > 0) {
            results.template prefetch<C>(0, M);
            return put(sum_rounds<typename Mode::Number, M>(K / kRound<Mode, C>, x, stride, weights, ahead));
        }
    put(sums_of<Mode, M, C>(K, x, stride, weights, ahead, results));
}

}  // namespace linear
