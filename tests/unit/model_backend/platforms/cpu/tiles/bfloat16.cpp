// Computes products with the tile instructions and without them, and writes what differs. The instructions are those of this
// CPU ("iron"), or are done by a signal's handler.
#include "linear/tiled_linear.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "traps.h"

namespace {

using linear::Job;
namespace tiles = linear::tiles;

std::mt19937 random_bits(1);

// With exponents from `low` to `high`.
std::vector<float> numbers(int64_t count, int low, int high) {
    std::vector<float> found(count);
    for (float& number : found)
        number = std::ldexp(static_cast<float>(random_bits()) / (1u << 31) - 1.f, low + random_bits() % (high - low + 1));
    return found;
}

std::vector<uint16_t> panels(int64_t K, int64_t N, int low, int high) {
    const int64_t size = linear::Bfloat16::panel_size(K), count = (N + linear::kPanel - 1) / linear::kPanel;
    std::vector<uint16_t> found(count * size);
    const auto from = numbers(count * size, low, high);
    linear::round_row(from.data(), count * size, found.data());
    if (K % 2)
        for (int64_t panel = 1; panel <= count; ++panel)
            for (int64_t i = 1; i < 2 * linear::kPanel; i += 2) found[panel * size - i] = 0;
    return found;
}

bool differ(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) != 0;
}

template <class Registers>
std::vector<float> product(Job job, const std::vector<uint16_t>& weights, const std::vector<float>& before) {
    std::vector<float> out = before;
    job.out = out.data();
    tiles::run<Registers>(job, weights.data());
    return out;
}

// Leaves NaN in the memory where inputs are rounded: numbers that are read beyond a row must not count.
void leave_nan() {
    constexpr int64_t kRows = 64, kSize = 96;
    const std::vector<float> x(kRows * kSize, NAN), before(kRows);
    product<tiles::Emulated>({x.data(), nullptr, kRows, kSize, 1, {}, linear::default_ways(linear::kTiled, kRows)}, panels(kSize, 1, 0, 0), before);
}

void compare(int64_t M, int64_t K, int64_t N, int low, int high) {
    const auto x = numbers(M * K, low, high), bias = numbers(N, 2 * low, 2 * high);
    const auto before = numbers(M * N, 2 * low, 2 * high);
    const auto weights = panels(K, N, low, high);
    leave_nan();
    for (const bool add : {false, true}) {
        const tile::Epilogue epilogue{add ? nullptr : bias.data(), add};
        const Job job{x.data(), nullptr, M, K, N, epilogue, linear::default_ways(linear::kTiled, M)};
        const auto found = product<tiles::Hardware>(job, weights, before);
        if (differ(found, product<tiles::Emulated>(job, weights, before)))
            std::printf("%ld rows, %ld inputs, %ld outputs: other bits\n", M, K, N);
        if (!std::all_of(found.begin(), found.end(), [](float number) { return std::isfinite(number); }))
            std::printf("%ld rows, %ld inputs, %ld outputs: numbers behind the last input count\n", M, K, N);
        Job last = job;
        last.x += (M - 1) * K;
        last.M = 1;
        const std::vector<float> row(before.end() - N, before.end());
        if (differ({found.end() - N, found.end()}, product<tiles::Hardware>(last, weights, row)))
            std::printf("%ld rows, %ld inputs, %ld outputs: the last has other bits alone\n", M, K, N);
    }
}

}  // namespace

int main(int, char** arguments) {
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    if (arguments[1] == std::string("iron")) {
        if (syscall(SYS_arch_prctl, kRequest, kTileData)) return std::perror("permission"), 1;
    } else {
        traps::install();
    }
    pool::shared().set_threads(2);
    int64_t cases = 0;
    for (const int64_t M : {1, 16, 17, 41})
        for (const int64_t K : {1, 32, 33, 90})
            for (const int64_t N : {1, 32, 70}) {
                compare(M, K, N, -3, 3);
                compare(M, K, N, -70, -61);  // products are denormal numbers
                cases += 2;
            }
    compare(9, 40, 33, -60, 60);
    std::printf("%ld cases, %ld instructions in the handler\n", cases + 1, traps::count.load());
}
