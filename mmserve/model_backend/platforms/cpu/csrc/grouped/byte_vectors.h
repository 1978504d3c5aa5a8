// The operations on vectors of bytes and of their sums that products of whole numbers need, where a CPU multiplies bytes
// without a sign with bytes with one: AVX512-VNNI, and i8mm of AArch64. kTogether outputs of a panel at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "grouped/grouped_weights.h"
#include "tile.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#endif

namespace grouped {

#if defined(__AVX512VNNI__)

constexpr bool kMultipliesBytes = true;
constexpr int kTogether = 16;
constexpr int kMostByteRows = 8;  // of one product: two digits each, and their weights, of 32 registers
typedef uint16_t u16x32 __attribute__((vector_size(64)));
using Bytes = __m512i;     // four inputs' weights of each output
using Integers = __m512i;  // a number of each output
using Floats = tile::f32x16;

inline Bytes load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }
inline Bytes lower_halves(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Bytes upper_halves(Bytes x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
inline Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }

// The bits of `mask`, after all have moved right, or left if that is negative.
inline Bytes moved_bits(Bytes x, int right, int mask) {
    const auto bits = reinterpret_cast<u16x32>(x);
    const auto moved = reinterpret_cast<__m512i>(right > 0 ? bits >> right : bits << -right);
    return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(mask)));
}

inline Integers no_integers() { return _mm512_setzero_si512(); }
inline Integers add(Integers a, Integers b) { return _mm512_add_epi32(a, b); }
inline Integers times_256(Integers x) { return _mm512_slli_epi32(x, 8); }
inline Integers multiply(Integers x, int32_t by) { return _mm512_mullo_epi32(x, _mm512_set1_epi32(by)); }

// sums + the products of each output's four weights and the four inputs.
inline Integers add_products(Integers sums, Bytes weights, const int8_t* inputs) {
    return _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(tile::load<int32_t>(inputs)));
}

// The zero points of the outputs from `first` on, or zeros.
template <class Group>
inline Integers zeros_together(const Group& group, int first) {
    if constexpr (!Group::kHasZeros) return no_integers();
    else if constexpr (Group::kZero != 0) return _mm512_set1_epi32(Group::kZero);
    else
        return _mm512_inserti64x4(_mm512_castsi256_si512(reinterpret_cast<__m256i>(group.zeros_of(first))),
                                  reinterpret_cast<__m256i>(group.zeros_of(first + 8)), 1);
}

template <class Group>
inline Floats scales_together(const Group& group, int64_t part, int first) {
    return group.template scale_of<Floats>(part, first);
}

template <class Group>
inline Floats minima_together(const Group& group, int64_t block, int first) {
    return group.template minimum_of<Floats>(block, first);
}

inline void add_scaled(Floats& to, Integers sums, Floats scales, float scale) {
    to += reinterpret_cast<Floats>(_mm512_cvtepi32_ps(sums)) * (scales * scale);
}

inline void add_scaled(Floats& to, Floats minima, float scale) { to += minima * scale; }

inline void store(const tile::Epilogue& epilogue, Floats sums, int64_t column, float* out) {
    epilogue.store(sums, column, out);
}

#elif defined(__ARM_FEATURE_MATMUL_INT8)

constexpr bool kMultipliesBytes = true;
constexpr int kTogether = 8;
constexpr int kMostByteRows = 6;
constexpr int kVectors = 2;
struct Bytes {
    uint8x16_t of[kVectors];
};
struct Integers {
    int32x4_t of[kVectors];
};
struct Floats {
    tile::f32x4 of[kVectors];
};

inline Bytes load_bytes(const uint8_t* from) { return {vld1q_u8(from), vld1q_u8(from + 16)}; }
inline Bytes lower_halves(Bytes x) { return {x.of[0] & 15, x.of[1] & 15}; }
inline Bytes upper_halves(Bytes x) { return {x.of[0] >> 4, x.of[1] >> 4}; }
inline Bytes either(Bytes a, Bytes b) { return {a.of[0] | b.of[0], a.of[1] | b.of[1]}; }

inline Bytes moved_bits(Bytes x, int right, int mask) {
    const uint8x16_t only = vdupq_n_u8(static_cast<uint8_t>(mask));
    const auto moved = [=](uint8x16_t bits) { return (right > 0 ? bits >> right : bits << -right) & only; };
    return {moved(x.of[0]), moved(x.of[1])};
}

inline Integers no_integers() { return {}; }
inline Integers add(Integers a, Integers b) { return {a.of[0] + b.of[0], a.of[1] + b.of[1]}; }
inline Integers times_256(Integers x) { return {x.of[0] << 8, x.of[1] << 8}; }
inline Integers multiply(Integers x, int32_t by) { return {x.of[0] * by, x.of[1] * by}; }

inline Integers add_products(Integers sums, Bytes weights, const int8_t* inputs) {
    const auto numbers = vreinterpretq_s8_s32(vdupq_n_s32(tile::load<int32_t>(inputs)));
    return {vusdotq_s32(sums.of[0], weights.of[0], numbers), vusdotq_s32(sums.of[1], weights.of[1], numbers)};
}

template <class Group>
inline Integers zeros_together(const Group& group, int first) {
    Integers zeros{};
    if constexpr (Group::kHasZeros) {
        const tile::i32x8 points = group.zeros_of(first);
        std::memcpy(&zeros, &points, sizeof zeros);
    }
    return zeros;
}

inline Floats split(tile::f32x8 numbers) {
    Floats halves;
    std::memcpy(&halves, &numbers, sizeof halves);
    return halves;
}

template <class Group>
inline Floats scales_together(const Group& group, int64_t part, int first) {
    return split(group.template scale_of<tile::f32x8>(part, first));
}

template <class Group>
inline Floats minima_together(const Group& group, int64_t block, int first) {
    return split(group.template minimum_of<tile::f32x8>(block, first));
}

inline void add_scaled(Floats& to, Integers sums, Floats scales, float scale) {
    for (int i = 0; i < kVectors; ++i)
        to.of[i] += reinterpret_cast<tile::f32x4>(vcvtq_f32_s32(sums.of[i])) * (scales.of[i] * scale);
}

inline void add_scaled(Floats& to, Floats minima, float scale) {
    for (int i = 0; i < kVectors; ++i) to.of[i] += minima.of[i] * scale;
}

inline void store(const tile::Epilogue& epilogue, Floats sums, int64_t column, float* out) {
    for (int i = 0; i < kVectors; ++i) epilogue.store(sums.of[i], column + 4 * i, out + 4 * i);
}

#else

constexpr bool kMultipliesBytes = false;

#endif

}  // namespace grouped
