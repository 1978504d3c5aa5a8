// Ways to read the weights of a product and to divide it into tasks, which all give the same bits. Which is the fastest
// depends on the CPU, the shape and the number of rows: Python measures that (platforms/cpu/ways).
#pragma once

#include <cstdint>
#include <vector>

namespace linear {

struct Ways {
    // How far ahead weights are fetched into the second-level cache; 0: not at all. Layouts of quantized weights fetch the
    // next panel for any other number, and so do rows for which a panel takes several tiles (not of tile registers).
    int64_t ahead_nbytes;
    int64_t task_outputs;  // a multiple of 32
    // Bytes of float32 inputs in one task. Each task reads its weights again, and more inputs do not stay in the cache.
    int64_t task_rows_nbytes;
};

// Weights that are fetched into the second-level cache while a tile is computed: for every Mode::kDepth inputs as many bytes
// as the tile multiplies with, from an address that grows by `step` bytes.
struct Ahead {
    const char* from;
    int64_t step;
};

// What a product of min_rows to max_rows rows is computed with. weights: their kind, as in mm_linear.
struct Choice {
    int64_t weights, K, N, min_rows, max_rows;
    Ways ways;
};

constexpr int kFloat32 = 0, kBfloat16 = 1, kRounded = 4, kFloat8 = 8, kTiled = 10, kEmulatedTiles = 11;
constexpr int64_t kAheadNbytes = 16 << 10;  // further than the CPU's own prefetcher looks
constexpr int64_t kNearNbytes = 1 << 10;    // what it is late for where bfloat16 is widened: a Zen 3 gains a tenth with one row

// With few rows the CPU's own prefetcher keeps up, and reads further on would disturb it: they made products of one row
// with whole numbers take up to twice as long. Where products take longer, that ends with the second row, with whole
// numbers with the third, with E4M3 at once; where those of bfloat16 are emulated, a measurement finds out.
inline Ways default_ways(int weights, int64_t M) {
    const bool takes_longer = weights == kFloat32 || weights == kBfloat16 || weights == kTiled;
    const bool is_fast = weights == kRounded || weights == kEmulatedTiles;
    const int64_t kept_up_with = weights == kFloat8 ? 0 : takes_longer ? 1 : is_fast ? 4 : 2;
    const int64_t few_rows_nbytes = weights == kBfloat16 ? kNearNbytes : 0;
    return {M <= kept_up_with ? few_rows_nbytes : kAheadNbytes, 32, 768 << 10};
}

// Replaced only while nothing is computed.
inline std::vector<Choice>& choices() {
    static std::vector<Choice> choices;
    return choices;
}

inline Ways ways_of(int weights, int64_t M, int64_t K, int64_t N) {
    for (const Choice& choice : choices())
        if (choice.K == K && choice.N == N && choice.weights == weights && choice.min_rows <= M && M <= choice.max_rows)
            return choice.ways;
    return default_ways(weights, M);
}

}  // namespace linear
