// Products of a group of whole-number weights with bytes (byte_vectors.h): the sums of grouped_linear.h, for which the digits
// of the inputs are multiplied one after the other.
#pragma once

#include "grouped/byte_vectors.h"

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)

#include "grouped/grouped_inputs.h"
#include "grouped/grouped_weights.h"

namespace grouped {

constexpr int64_t kQuadNbytes = 4 * kOutputs;  // of a panel

struct Quads {
    Bytes first, second;
};

// Two quads of inputs, of the kTogether outputs that `codes` begin with.
inline Quads load_quads(Codes4, const uint8_t* codes, int pair) {
    const Bytes both = load_bytes(codes + pair * kQuadNbytes);
    return {lower_halves(both), upper_halves(both)};
}

// The higher bits of a quad's codes, where they belong in its bytes.
template <int kHigh>
inline Bytes higher_bits(const uint8_t* codes, int quad) {
    using Codes = CodesAbove4<kHigh>;
    const Bytes bits = load_bytes(codes + Codes4::kNbytes + quad / Codes::kTogether * kQuadNbytes);
    return moved_bits(bits, quad % Codes::kTogether * kHigh - 4, Codes::kMask << 4);
}

template <int kHigh>
inline Quads load_quads(CodesAbove4<kHigh>, const uint8_t* codes, int pair) {
    const Quads low = load_quads(Codes4(), codes, pair);
    return {either(low.first, higher_bits<kHigh>(codes, 2 * pair)),
            either(low.second, higher_bits<kHigh>(codes, 2 * pair + 1))};
}

inline Quads load_quads(Codes8, const uint8_t* codes, int pair) {
    return {load_bytes(codes + pair * 2 * kQuadNbytes), load_bytes(codes + pair * 2 * kQuadNbytes + kQuadNbytes)};
}

// The sums of one of kParts parts of the 32 inputs of M rows from input k on: of each row kTogether outputs, those that
// `codes` begin with.
template <int M, class Codes, int kNumDigits, int kParts, bool kHasZeros, int part>
[[gnu::always_inline]] inline void block_sums(const uint8_t* codes, const Integers& zeros, const Inputs& x, int64_t k,
                                              Integers (&sums)[M]) {
    constexpr int kPairs = kQuads / 2 / kParts;
    constexpr int kSets = M <= kMostByteRows / 2 ? 2 : 1;  // more sums do not wait for each other
    Integers low[kSets][M], high[kSets][M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
        for (int set = 0; set < kSets; ++set) low[set][m] = high[set][m] = no_integers();
        if constexpr (kHasZeros) low[0][m] = multiply(zeros, x.block(m, k).negative_sum_of<kParts>(part));
    }
#pragma GCC unroll 4
    for (int pair = part * kPairs; pair < (part + 1) * kPairs; ++pair) {
        const Quads weights = load_quads(Codes(), codes, pair);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const int64_t at = m * x.K + k + 8 * pair;
            low[0][m] = add_products(low[0][m], weights.first, x.low + at);
            if constexpr (kNumDigits > 1) high[0][m] = add_products(high[0][m], weights.first, x.high + at);
            low[kSets - 1][m] = add_products(low[kSets - 1][m], weights.second, x.low + at + 4);
            if constexpr (kNumDigits > 1)
                high[kSets - 1][m] = add_products(high[kSets - 1][m], weights.second, x.high + at + 4);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
        Integers of_high = high[0][m];
        sums[m] = low[0][m];
        if constexpr (kSets > 1) {
            of_high = add(of_high, high[1][m]);
            sums[m] = add(sums[m], low[1][m]);
        }
        if constexpr (kNumDigits > 1) sums[m] = add(sums[m], times_256(of_high));
    }
}

}  // namespace grouped

#endif
