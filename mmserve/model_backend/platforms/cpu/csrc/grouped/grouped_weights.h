// Memory layout of the weights of quantized checkpoints: a header, the order of the inputs if it is not ascending, and
// panels of 16 outputs. In a panel each group of inputs has its scales and zero points, then its codes, 32 inputs after
// another.
#pragma once

#include <cstdint>

#include "aligned_memory.h"
#include "tile.h"

namespace grouped {

using tile::i32x8;
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

constexpr int64_t kGroup = 32;     // neighbouring inputs
constexpr int64_t kOutputs = 16;   // of a panel
constexpr int kQuads = kGroup / 4;  // of neighbouring inputs

struct alignas(64) Header {
    int64_t group_size;
    int64_t has_order;  // then int32 [K] follows, up to a whole line

    const int32_t* order() const { return has_order ? reinterpret_cast<const int32_t*>(this + 1) : nullptr; }

    const uint8_t* panels(int64_t K) const {
        const auto* after = reinterpret_cast<const uint8_t*>(this + 1);
        const int64_t line = memory::kLine, nbytes = K * sizeof(int32_t);
        return has_order ? after + (nbytes + line - 1) / line * line : after;
    }
};

// Of one group of a panel.
struct Scales {
    float scales[kOutputs];
    int16_t zeros[kOutputs];

    static constexpr int64_t kInputs = 0;  // as the header says
    static constexpr int kParts = 1;       // of 32 inputs, with a scale each
    static constexpr bool kHasZeros = true, kHasMinima = false;
    static constexpr int kZero = 0;  // not the same for all outputs

    template <class V>
    V scale_of(int64_t, int first) const {
        return tile::load<V>(scales + first);
    }

    i32x8 zeros_of(int first) const { return __builtin_convertvector(tile::load<i16x8>(zeros + first), i32x8); }
};

// Into the second-level cache.
inline void prefetch(const uint8_t* from, int64_t nbytes) {
    for (int64_t at = 0; at < nbytes; at += memory::kLine) __builtin_prefetch(from + at, 0, 2);
    __builtin_prefetch(from + nbytes - 1, 0, 2);  // `from` may lie within a line
}

// [4 pairs of quads, 16 outputs, 4 inputs] bytes, with the first quad in their lower half.
struct Codes4 {
    static constexpr int64_t kNbytes = kGroup / 2 * kOutputs;

    // Inputs 0 and 2 of a quad, or 1 and 3, of 8 outputs.
    static i16x16 pair(const uint8_t* codes, int quad, int odd, int half) {
        const auto words = tile::load<u16x16>(codes + quad / 2 * 64 + half * 32);
        return reinterpret_cast<i16x16>(words >> (8 * odd + quad % 2 * 4) & 15);
    }

    static int code(const uint8_t* codes, int64_t output, int64_t input) {
        return codes[input / 8 * 64 + output * 4 + input % 4] >> input / 4 % 2 * 4 & 15;
    }
};

// As Codes4, then [2^(kHigh - 1) parts of the quads, 16 outputs, 4 inputs] bytes with kHigh more bits of each code, those of
// the first quad lowest.
template <int kHigh>
struct CodesAbove4 {
    static constexpr int64_t kHighNbytes = kGroup * kHigh / 8 * kOutputs;
    static constexpr int64_t kNbytes = Codes4::kNbytes + kHighNbytes;
    static constexpr int kTogether = kQuads / kHigh;  // quads whose bits share bytes
    static constexpr uint16_t kMask = (1 << kHigh) - 1;

    static i16x16 pair(const uint8_t* codes, int quad, int odd, int half) {
        const uint8_t* from = codes + Codes4::kNbytes + quad / kTogether * 64 + half * 32;
        const auto high = tile::load<u16x16>(from) >> (8 * odd + quad % kTogether * kHigh) & kMask;
        return Codes4::pair(codes, quad, odd, half) | reinterpret_cast<i16x16>(high << 4);
    }

    static int code(const uint8_t* codes, int64_t output, int64_t input) {
        const int64_t quad = input / 4, at = quad / kTogether * 64 + output * 4 + input % 4;
        const int high = codes[Codes4::kNbytes + at] >> quad % kTogether * kHigh & kMask;
        return Codes4::code(codes, output, input) | high << 4;
    }
};

using Codes5 = CodesAbove4<1>;
using Codes6 = CodesAbove4<2>;

// [8 quads, 16 outputs, 4 inputs] bytes.
struct Codes8 {
    static constexpr int64_t kNbytes = kGroup * kOutputs;

    static i16x16 pair(const uint8_t* codes, int quad, int odd, int half) {
        const auto words = tile::load<u16x16>(codes + quad * 64 + half * 32);
        return reinterpret_cast<i16x16>(odd ? words >> 8 : words & 255);
    }

    static int code(const uint8_t* codes, int64_t output, int64_t input) {
        return codes[input / 4 * 64 + output * 4 + input % 4];
    }
};

template <class Codes, class Group = Scales>
constexpr int64_t panel_nbytes(int64_t K, int64_t group_size) {
    return (K + group_size - 1) / group_size * sizeof(Group) + K / kGroup * Codes::kNbytes;
}

}  // namespace grouped
