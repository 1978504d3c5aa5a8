// Products of 16 rows with whole-number weights in tile registers (AMX-INT8). Sums within 32 inputs are integers, and these
// are added as grouped_linear.h does, so the bits are those of all other ways.
#pragma once

#ifdef __AMX_INT8__

#include "grouped/byte_products.h"
#include "linear/tile_registers.h"

namespace grouped {

constexpr int kTileRows = 16;
constexpr int kLeastTileRows = 9;  // fewer are as fast without: a tile takes the time of 16

// A block's inputs of one part, and its quads.
template <int kParts>
using TileRegisters = linear::tiles::Configured<kGroup / kParts>;

// The codes of a block as a byte each, four neighbouring inputs of 16 outputs side by side: `codes`, or a copy in `bytes`.
template <class Codes>
inline const uint8_t* as_bytes(const uint8_t* codes, uint8_t* bytes) {
    for (int pair = 0; pair < kQuads / 2; ++pair) {
        const Quads quads = load_quads(Codes(), codes, pair);
        _mm512_store_si512(bytes + 128 * pair, quads.first);
        _mm512_store_si512(bytes + 128 * pair + 64, quads.second);
    }
    return bytes;
}

template <>
inline const uint8_t* as_bytes<Codes8>(const uint8_t* codes, uint8_t*) {
    return codes;
}

// The sums of the digits of 16 rows and one of kParts parts of a block: [digit, row, output].
template <int kNumDigits, int kParts>
inline void tile_sums(TileRegisters<kParts>& registers, const uint8_t* bytes, const Inputs& x, int64_t k, int part,
                      int32_t (&sums)[2][kTileRows][kOutputs]) {
    constexpr int kInputs = kGroup / kParts;
    constexpr int64_t kSumsNbytes = sizeof sums[0][0];
    registers.template load<6>(bytes + part * kInputs * kOutputs, 4 * kOutputs);
    registers.template load<4>(x.low + k + part * kInputs, x.K);
    registers.template zero<0>();
    registers.template add_byte_products<0, 4, 6>();
    if constexpr (kNumDigits > 1) {
        registers.template load<5>(x.high + k + part * kInputs, x.K);
        registers.template zero<1>();
        registers.template add_byte_products<1, 5, 6>();
        registers.template store<1>(sums[1], kSumsNbytes);
    }
    registers.template store<0>(sums[0], kSumsNbytes);
}

// As product(), of 16 rows, of which `count` are stored.
template <class Codes, class Group, int kNumDigits>
inline void tiled_product(TileRegisters<Group::kParts>& registers, int64_t group_size, const Inputs& x,
                          const uint8_t* panel, bool fetches, int64_t count, float* out, int64_t ldc,
                          const tile::Epilogue& epilogue) {
    constexpr int kParts = Group::kParts;
    const int64_t next_panel = panel_nbytes<Codes, Group>(x.K, group_size), blocks_of_row = x.K / kGroup;
    alignas(64) int32_t sums[2][kTileRows][kOutputs];
    alignas(64) uint8_t bytes[kGroup * kOutputs];
    tile::f32x16 totals[kTileRows] = {};
    for (int64_t k = 0; k < x.K;) {
        const auto* group = reinterpret_cast<const Group*>(panel);
        const Integers zeros = zeros_together(*group, 0);
        panel += sizeof(Group);
        for (int64_t end = std::min(x.K, k + group_size), block = 0; k < end; k += kGroup, ++block) {
            if (fetches) prefetch(panel + next_panel, Codes::kNbytes);
            const BlockScale* blocks = x.blocks + k / kGroup;
            const uint8_t* weights = as_bytes<Codes>(panel, bytes);
            for (int part = 0; part < kParts; ++part) {
                tile_sums<kNumDigits, kParts>(registers, weights, x, k, part, sums);
                const auto scales = group->template scale_of<tile::f32x16>(kParts * block + part, 0);
#pragma GCC unroll 16
                for (int m = 0; m < kTileRows; ++m) {
                    const BlockScale& of_row = blocks[m * blocks_of_row];
                    __m512i sum = _mm512_load_si512(sums[0][m]);
                    if constexpr (kNumDigits > 1)
                        sum = _mm512_add_epi32(sum, _mm512_slli_epi32(_mm512_load_si512(sums[1][m]), 8));
                    if constexpr (Group::kHasZeros)
                        sum = _mm512_add_epi32(
                            sum, _mm512_mullo_epi32(zeros, _mm512_set1_epi32(of_row.negative_sum_of<kParts>(part))));
                    totals[m] += reinterpret_cast<tile::f32x16>(_mm512_cvtepi32_ps(sum)) * (scales * of_row.scale);
                }
            }
            if constexpr (Group::kHasMinima) {
                const auto minima = group->template minimum_of<tile::f32x16>(block, 0);
#pragma GCC unroll 16
                for (int m = 0; m < kTileRows; ++m) totals[m] += minima * blocks[m * blocks_of_row].total;
            }
            panel += Codes::kNbytes;
        }
    }
    for (int64_t m = 0; m < count; ++m) epilogue.store(totals[m], 0, out + m * ldc);
}

}  // namespace grouped

#endif
