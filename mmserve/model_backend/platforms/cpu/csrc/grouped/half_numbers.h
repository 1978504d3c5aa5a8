// Vectors of floats from numbers in half precision, and from bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tile.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace half_numbers {

template <class V>
struct OfLanes {
    static constexpr int kSize = tile::kLanes<V>;
    typedef uint16_t Halves __attribute__((vector_size(2 * kSize)));
    typedef int16_t SignedHalves __attribute__((vector_size(2 * kSize)));
    typedef int32_t Words __attribute__((vector_size(4 * kSize)));
};

// Finite numbers.
template <class V>
inline V widen(const uint16_t* from) {
#if defined(__AVX512F__)
    if constexpr (tile::kLanes<V> == 16)
        return reinterpret_cast<V>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#endif
#if defined(__F16C__)
    if constexpr (tile::kLanes<V> == 8)
        return reinterpret_cast<V>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#endif
#if defined(__aarch64__)
    if constexpr (tile::kLanes<V> == 8) {
        const auto halves = vreinterpretq_f16_u16(vld1q_u16(from));
        const float32x4_t floats[2] = {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
        return tile::load<V>(floats);
    }
#endif
    // A float's exponents are 112 more, and its fraction is 13 bits longer.
    using Words = typename OfLanes<V>::Words;
    const Words bits = __builtin_convertvector(tile::load<typename OfLanes<V>::Halves>(from), Words);
    const V magnitude = reinterpret_cast<V>((bits & 0x7fff) << 13) * 0x1p112f;
    const Words sign = (bits & 0x8000) << 16;
    return reinterpret_cast<V>(reinterpret_cast<Words>(magnitude) | sign);
}

// GCC 12 would convert to numbers four times as long byte by byte, which made products of one row take up to twice as long.
#if defined(__AVX512F__)
inline __m512i words_from(const uint8_t* from, std::integral_constant<int, 16>) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m512i words_from(const int8_t* from, std::integral_constant<int, 16>) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#endif
#if defined(__AVX2__)
inline __m256i words_from(const uint8_t* from, std::integral_constant<int, 8>) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
inline __m256i words_from(const int8_t* from, std::integral_constant<int, 8>) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
#else
template <class Byte>
inline typename OfLanes<tile::f32x8>::Words words_from(const Byte* from, std::integral_constant<int, 8>) {
    typedef Byte Bytes __attribute__((vector_size(8)));
    const auto halves = __builtin_convertvector(tile::load<Bytes>(from), OfLanes<tile::f32x8>::SignedHalves);
    return __builtin_convertvector(halves, OfLanes<tile::f32x8>::Words);
}
#endif

template <class V, class Byte>
inline V from_bytes(const Byte* from) {
    const auto words = words_from(from, std::integral_constant<int, tile::kLanes<V>>());
    return __builtin_convertvector(reinterpret_cast<typename OfLanes<V>::Words>(words), V);
}

}  // namespace half_numbers
