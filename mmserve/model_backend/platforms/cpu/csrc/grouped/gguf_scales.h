// Scales of GGUF's formats, as they lie before the codes of 32 inputs or of a superblock of 256, of 16 outputs. Halves and
// bytes are those of the file, so a weight takes what it takes there, and 1/8 of a bit more where the file packs scales of
// 6 bits.
#pragma once

#include <cstdint>

#include "grouped/grouped_weights.h"
#include "grouped/half_numbers.h"

namespace grouped {

template <int zero>
struct NoMinima {
    static constexpr bool kHasZeros = true, kHasMinima = false;
    static constexpr int kZero = zero;
    static i32x8 zeros_of(int) { return i32x8{} + kZero; }
};

// (code - zero) * scale, in groups of 32.
template <int kZero>
struct HalfScales : NoMinima<kZero> {
    static constexpr int64_t kInputs = 32;
    static constexpr int kParts = 1;
    uint16_t scales[kOutputs];

    template <class V>
    V scale_of(int64_t, int first) const {
        return half_numbers::widen<V>(scales + first);
    }
};

// code * scale + minimum, in groups of 32.
struct HalfScalesAndMinima {
    static constexpr int64_t kInputs = 32;
    static constexpr int kParts = 1;
    static constexpr bool kHasZeros = false, kHasMinima = true;
    uint16_t scales[kOutputs], minima[kOutputs];

    template <class V>
    V scale_of(int64_t, int first) const {
        return half_numbers::widen<V>(scales + first);
    }

    template <class V>
    V minimum_of(int64_t, int first) const {
        return half_numbers::widen<V>(minima + first);
    }
};

// Of a superblock: every 32 inputs have a scale and a minimum of 6 bits, in units of two halves.
struct SuperblockScalesAndMinima {
    static constexpr int64_t kInputs = 256;
    static constexpr int kParts = 1;
    static constexpr bool kHasZeros = false, kHasMinima = true;
    uint16_t scale_unit[kOutputs], minimum_unit[kOutputs];
    uint8_t scales[kInputs / 32][kOutputs], minima[kInputs / 32][kOutputs];

    template <class V>
    V scale_of(int64_t part, int first) const {
        return half_numbers::widen<V>(scale_unit + first) * half_numbers::from_bytes<V>(scales[part] + first);
    }

    template <class V>
    V minimum_of(int64_t part, int first) const {
        return half_numbers::widen<V>(minimum_unit + first) * -half_numbers::from_bytes<V>(minima[part] + first);
    }
};

// Of a superblock: every 16 inputs have a scale of 8 bits with a sign.
struct SuperblockSignedScales : NoMinima<32> {
    static constexpr int64_t kInputs = 256;
    static constexpr int kParts = 2;
    uint16_t scale_unit[kOutputs];
    int8_t scales[kInputs / 16][kOutputs];

    template <class V>
    V scale_of(int64_t part, int first) const {
        return half_numbers::widen<V>(scale_unit + first) * half_numbers::from_bytes<V>(scales[part] + first);
    }
};

}  // namespace grouped
