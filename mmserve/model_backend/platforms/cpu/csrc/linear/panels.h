// Layout of weights in memory: panels of 32 outputs, the same for every instruction set. The last panel is filled up with
// zero weights. In float32: [panels, K, 32]. In bfloat16: [panels, K / 2, 32, 2], K rounded up to an even number: an
// output's weights of two neighbouring inputs share 32 bits, which are an operand of bfloat16 dot products, and which
// one shift and one mask widen to float32.
#pragma once

#include <cstdint>

#include "linear/ways.h"
#include "tile.h"

namespace linear {

constexpr int64_t kPanel = 32;

#if defined(__AVX512F__)
using Vector = tile::f32x16;
typedef uint32_t Words __attribute__((vector_size(64)));
constexpr int kTileVectors = 2;
constexpr int kMaxRows = 12;  // with kTileVectors a row: 24 sums of 32 registers
constexpr int kMaxSums = 24;
#elif defined(__aarch64__)
using Vector = tile::f32x4;
typedef uint32_t Words __attribute__((vector_size(16)));
constexpr int kTileVectors = 4;
constexpr int kMaxRows = tile::kMaxRows;
constexpr int kMaxSums = 16;  // of a whole panel at once, beside its weights
#else
using Vector = tile::f32x8;
typedef uint32_t Words __attribute__((vector_size(32)));
constexpr int kTileVectors = 2;
constexpr int kMaxRows = tile::kMaxRows;
constexpr int kMaxSums = 8;  // of a whole panel at once, beside its weights
#endif

struct Float32 {
    using Number = float;
    static constexpr int64_t kDepth = 1;  // neighbouring inputs side by side

    static int64_t panel_size(int64_t K) { return kPanel * K; }

    static float element(const float* panel, int64_t output, int64_t k) { return panel[k * kPanel + output]; }
};

struct Bfloat16 {
    using Number = uint16_t;
    static constexpr int64_t kDepth = 2;

    static int64_t panel_size(int64_t K) { return kPanel * (K + K % 2); }

    static float element(const uint16_t* panel, int64_t output, int64_t k) {
        return tile::widen_one(panel + k / 2 * 2 * kPanel + output * 2 + k % 2);
    }
};

// Bytes of a panel of weights that mm_linear calls by this number; 0 for quantized ones.
inline int64_t panel_nbytes(int64_t weights, int64_t K) {
    switch (weights) {
        case kFloat32: return Float32::panel_size(K) * sizeof(float);
        case kBfloat16: case kRounded: case kTiled: case kEmulatedTiles: return Bfloat16::panel_size(K) * sizeof(uint16_t);
        default: return 0;
    }
}

// The weights of C vectors of outputs for one input, as floats.
template <int C>
struct Weights {
    Vector of[C];
};

// kNear vectors follow each other, and the next ones are `apart` numbers further.
template <int C, int kNear = C>
inline Weights<C> load(const float* from, int64_t apart = 0) {
    Weights<C> weights;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
        weights.of[c] =
            tile::keep_in_register(tile::load<Vector>(from + c / kNear * apart + c % kNear * tile::kLanes<Vector>));
    return weights;
}

// Vector c of pairs of inputs, with kNear and `apart` as above.
template <int kNear>
inline const uint16_t* word_vector(const uint16_t* from, int64_t apart, int c) {
    return from + c / kNear * apart + 2 * (c % kNear) * tile::kLanes<Vector>;
}

// Of two neighbouring inputs the even or the odd one. Reads memory each time: AVX2 has no registers for both.
template <int C, bool kOdd, int kNear = C>
inline Weights<C> load(const uint16_t* from, int64_t apart = 0) {
#if defined(__x86_64__) || defined(__aarch64__)
    asm volatile("" : "+r"(from));
#endif
    Weights<C> weights;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
        const Words pairs = tile::load<Words>(word_vector<kNear>(from, apart, c));
        weights.of[c] = tile::keep_in_register(reinterpret_cast<Vector>(kOdd ? pairs & 0xffff0000u : pairs << 16));
    }
    return weights;
}

// The weights of one output as floats: [K].
template <class Layout>
void load_weight_row(const typename Layout::Number* panels, int64_t index, int64_t K, float* out) {
    const auto* panel = panels + index / kPanel * Layout::panel_size(K);
    for (int64_t k = 0; k < K; ++k) out[k] = Layout::element(panel, index % kPanel, k);
}

}  // namespace linear
