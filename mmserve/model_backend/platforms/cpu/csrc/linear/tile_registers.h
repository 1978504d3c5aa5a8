// Eight registers of 16 rows of 64 bytes, as AMX has them: loads, stores and products. `Emulated` computes on any CPU the
// bits that `Hardware` computes, while FlushDenormals exists.
#pragma once

#include <cstdint>
#include <cstring>

#include "linear/panels.h"
#include "tile.h"

namespace linear::tiles {

constexpr int64_t kRows = 16, kRowNbytes = 64;

class Emulated {
public:
    template <int kTile>
    void zero() {
        std::memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
    }

    // 16 rows, `stride` bytes apart.
    template <int kTile>
    void load(const void* from, int64_t stride) {
        for (int64_t row = 0; row < kRows; ++row)
            std::memcpy(tiles_[kTile][row], static_cast<const char*>(from) + row * stride, kRowNbytes);
    }

    template <int kTile>
    void store(void* to, int64_t stride) const {
        for (int64_t row = 0; row < kRows; ++row)
            std::memcpy(static_cast<char*>(to) + row * stride, tiles_[kTile][row], kRowNbytes);
    }

    // sums[m][n] += x[m][k] w[k][n] of 32 inputs k in bfloat16. x: a row of inputs in each row. w: two inputs of 16
    // outputs in each row. As TDPBF16PS does: the even and the odd inputs have sums of their own, from zero, by fused
    // multiply-adds to the nearest float. The sum of both is added. Denormal numbers are zeros.
    template <int kSums, int kX, int kW>
    void add_products() {
        for (int64_t row = 0; row < kRows; ++row)
            for (int64_t first = 0; first < kRowNbytes; first += sizeof(Vector)) {
                Vector even{}, odd{};
                for (int64_t k = 0; k < kRows; ++k) {
                    const Words pairs = tile::load<Words>(tiles_[kW][k] + first);
                    even += input(kX, row, 2 * k) * reinterpret_cast<Vector>(pairs << 16);
                    odd += input(kX, row, 2 * k + 1) * reinterpret_cast<Vector>(pairs & 0xffff0000u);
                }
                const Vector sums = tile::load<Vector>(tiles_[kSums][row] + first) + (even + odd);
                std::memcpy(tiles_[kSums][row] + first, &sums, sizeof sums);
            }
    }

private:
    Vector input(int tile, int64_t row, int64_t k) const {
        const uint32_t bits = uint32_t{tile::load<uint16_t>(tiles_[tile][row] + 2 * k)} << 16;
        return tile::broadcast<Vector>(tile::load<float>(&bits));
    }

    alignas(64) uint8_t tiles_[8][kRows][kRowNbytes];
};

#ifdef __AMX_TILE__

// What LDTILECFG reads. Registers 4 and 5, the left operands of products, have rows of kLeftNbytes, and 6 and 7, the right
// ones, as many rows as that takes; all else is full size.
template <int kLeftNbytes>
struct alignas(64) Configuration {
    static constexpr uint8_t kRightRows = kLeftNbytes / 4;
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_nbytes[16] = {64, 64, 64, 64, kLeftNbytes, kLeftNbytes, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, kRightRows, kRightRows};
};

template <int kLeftNbytes>
inline constexpr Configuration<kLeftNbytes> kConfiguration{};

// The registers of this thread, while this exists. The process must be permitted to use them (library/tile_permission.py).
// Numbers of registers are written into the instructions, because compilers allocate these registers differently.
template <int kLeftNbytes = kRowNbytes>
class Configured {
public:
    Configured() { asm volatile("ldtilecfg %0" ::"m"(kConfiguration<kLeftNbytes>)); }
    ~Configured() { asm volatile("tilerelease"); }  // the system need not save them any more
    Configured(const Configured&) = delete;
    Configured& operator=(const Configured&) = delete;

    template <int kTile>
    void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
    }

    template <int kTile>
    void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
    }

    template <int kTile>
    void store(void* to, int64_t stride) const {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
    }

    template <int kSums, int kX, int kW>
    void add_products() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
    }

    // The same of bytes, as integers: x with a sign, w without.
    template <int kSums, int kX, int kW>
    void add_byte_products() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
    }
};

using Hardware = Configured<>;
using Best = Hardware;
#else
using Best = Emulated;
#endif

}  // namespace linear::tiles
