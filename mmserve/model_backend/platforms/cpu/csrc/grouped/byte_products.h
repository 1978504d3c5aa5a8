// Products of a group of whole-number weights with bytes (AVX512-VNNI): the sums of grouped_linear.h, for which the digits
// of the inputs are multiplied one after the other.
#pragma once

#ifdef __AVX512VNNI__

#include <immintrin.h>

#include "grouped/grouped_inputs.h"
#include "grouped/grouped_weights.h"

namespace grouped {

typedef uint16_t u16x32 __attribute__((vector_size(64)));

struct Quads {
    __m512i first, second;
};

// The zero points of a panel's outputs, or zeros.
template <class Group>
inline __m512i zeros_of_16(const Group& group) {
    if constexpr (!Group::kHasZeros) return _mm512_setzero_si512();
    else
        return _mm512_inserti64x4(_mm512_castsi256_si512(reinterpret_cast<__m256i>(group.zeros_of(0))),
                                  reinterpret_cast<__m256i>(group.zeros_of(8)), 1);
}

// Two quads of inputs, of 16 outputs.
inline Quads load_quads(Codes4, const uint8_t* codes, int pair) {
    const __m512i both = _mm512_loadu_si512(codes + pair * 64), mask = _mm512_set1_epi8(15);
    return {_mm512_and_si512(both, mask), _mm512_and_si512(_mm512_srli_epi16(both, 4), mask)};
}

// The higher bits of a quad's codes, where they belong in its bytes.
template <int kHigh>
inline __m512i higher_bits(const uint8_t* codes, int quad) {
    using Codes = CodesAbove4<kHigh>;
    const auto bits = tile::load<u16x32>(codes + Codes4::kNbytes + quad / Codes::kTogether * 64);
    const int right = quad % Codes::kTogether * kHigh - 4;
    const auto moved = reinterpret_cast<__m512i>(right > 0 ? bits >> right : bits << -right);
    return _mm512_and_si512(moved, _mm512_set1_epi8(Codes::kMask << 4));
}

template <int kHigh>
inline Quads load_quads(CodesAbove4<kHigh>, const uint8_t* codes, int pair) {
    const Quads low = load_quads(Codes4(), codes, pair);
    return {_mm512_or_si512(low.first, higher_bits<kHigh>(codes, 2 * pair)),
            _mm512_or_si512(low.second, higher_bits<kHigh>(codes, 2 * pair + 1))};
}

inline Quads load_quads(Codes8, const uint8_t* codes, int pair) {
    return {_mm512_loadu_si512(codes + pair * 128), _mm512_loadu_si512(codes + pair * 128 + 64)};
}

inline __m512i add_products(__m512i sums, __m512i weights, const int8_t* inputs) {
    return _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(tile::load<int32_t>(inputs)));
}

// The sums of one of kParts parts of the 32 inputs of M rows from input k on: [M, 16 outputs].
template <int M, class Codes, int kNumDigits, int kParts, bool kHasZeros, int part>
inline void block_sums(const uint8_t* codes, __m512i zeros, const Inputs& x, int64_t k, __m512i (&sums)[M]) {
    constexpr int kPairs = kQuads / 2 / kParts;
    constexpr int kSets = M <= 4 ? 2 : 1;  // more sums do not wait for each other
    __m512i low[kSets][M], high[kSets][M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
        for (int set = 0; set < kSets; ++set) low[set][m] = high[set][m] = _mm512_setzero_si512();
        if constexpr (kHasZeros) {
            const int32_t sum = x.blocks[(m * x.K + k) / kGroup].sum_of<kParts>(part);
            low[0][m] = _mm512_mullo_epi32(zeros, _mm512_set1_epi32(-sum));
        }
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
        __m512i of_high = high[0][m];
        sums[m] = low[0][m];
        if constexpr (kSets > 1) {
            of_high = _mm512_add_epi32(of_high, high[1][m]);
            sums[m] = _mm512_add_epi32(sums[m], low[1][m]);
        }
        if constexpr (kNumDigits > 1) sums[m] = _mm512_add_epi32(sums[m], _mm512_slli_epi32(of_high, 8));
    }
}

}  // namespace grouped

#endif
