// Computes products with whole-number weights for many rows, which takes the tile instructions for bytes, and row by row,
// which does not, and writes what differs. The instructions are those of this CPU ("iron"), or are done by a handler.
#include "grouped/gguf_linear.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "traps.h"

namespace {

using namespace grouped;

std::mt19937 random_bits(1);
int cases = 0;

// Panels with random codes, and with scales whose bytes make no number above 1, in float and in half precision.
template <class Codes, class Group>
std::vector<uint8_t> panels(int64_t K, int64_t count, int64_t group_size) {
    std::vector<uint8_t> found;
    const auto add = [&](int64_t nbytes, uint32_t limit) {
        for (int64_t i = 0; i < nbytes; ++i) found.push_back(static_cast<uint8_t>(random_bits() % limit));
    };
    for (int64_t panel = 0; panel < count; ++panel)
        for (int64_t k = 0; k < K; k += group_size) {
            add(sizeof(Group), 0x3b);
            add(std::min(group_size, K - k) / kGroup * Codes::kNbytes, 256);
        }
    return found;
}

template <class Codes, class Group, class Rounding>
std::vector<float> product(const std::vector<float>& x, int64_t M, int64_t K, int64_t N, int64_t group_size,
                           const std::vector<uint8_t>& weights, const std::vector<float>& bias) {
    std::vector<float> out(M * N);
    const linear::Job job{x.data(), out.data(), M, K, N, {bias.data(), false}, linear::default_ways(6, M)};
    multiply<Codes, Group, Rounding::kNumDigits>(job, N, quantize_inputs<Rounding>(job, nullptr), group_size,
                                                 weights.data());
    return out;
}

template <class Codes, class Group, class Rounding = WideInputs>
void compare(const char* name, int64_t group_size) {
    constexpr int64_t K = 512, kPanels = 3, N = kPanels * kOutputs;
    const auto weights = panels<Codes, Group>(K, kPanels, group_size);
    const std::vector<float> bias(N, 0.5f);
    for (const int64_t M : {9, 16, 35}) {
        std::vector<float> x(M * K), alone;
        for (float& number : x) number = static_cast<float>(random_bits()) / (1u << 31) - 1.f;
        const auto whole = product<Codes, Group, Rounding>(x, M, K, N, group_size, weights, bias);
        for (int64_t row = 0; row < M; ++row) {
            const std::vector<float> one(x.begin() + row * K, x.begin() + (row + 1) * K);
            const auto found = product<Codes, Group, Rounding>(one, 1, K, N, group_size, weights, bias);
            alone.insert(alone.end(), found.begin(), found.end());
        }
        if (std::memcmp(whole.data(), alone.data(), whole.size() * sizeof whole[0]))
            std::printf("%s, %ld rows: other bits than row by row\n", name, M);
        ++cases;
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
    compare<Codes4, Scales>("4 bits", 128);
    compare<Codes8, Scales, NarrowInputs>("8 bits, inputs of 8 bits", 512);
    compare<Codes6, SuperblockSignedScales>("Q6_K", 256);
    compare<Codes4, SuperblockScalesAndMinima>("Q4_K", 256);
    std::printf("%d cases, %ld instructions in the handler\n", cases, traps::count.load());
}
