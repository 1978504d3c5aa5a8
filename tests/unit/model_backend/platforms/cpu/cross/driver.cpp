// Computes products, norms, activations, attention, layers and samples from fixed numbers and writes the results, a line
// each: a name, a colon and the bits of every number. Equal texts on two machines mean equal bits. With the argument
// "features" it writes what Linux says the CPU has instead. Linked with the kernels of one level.
#include <sys/auxv.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <list>
#include <string>
#include <vector>

#include "functions.h"

namespace {

// The same numbers everywhere, from -1 to 1 times a power of two.
class Numbers {
public:
    explicit Numbers(uint64_t seed) : state_(seed) {}

    uint32_t bits() {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state_ >> 33);
    }

    float one(int exponent = 0) { return std::ldexp(static_cast<float>(bits()) / (1u << 30) - 1.f, exponent); }

    std::vector<float> floats(int64_t count, int exponent = 0) {
        std::vector<float> numbers(count);
        for (float& number : numbers) number = one(exponent);
        return numbers;
    }

    std::vector<uint16_t> bfloat16(int64_t count, int exponent = 0) {
        std::vector<uint16_t> numbers(count);
        for (uint16_t& number : numbers) {
            const float value = one(exponent);
            uint32_t bits;
            std::memcpy(&bits, &value, sizeof bits);
            number = bits >> 16;
        }
        return numbers;
    }

private:
    uint64_t state_;
};

void write(const std::string& name, const std::vector<float>& numbers) {
    std::printf("%s:", name.c_str());
    for (const float number : numbers) {
        uint32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        std::printf(" %08x", bits);
    }
    std::printf("\n");
}

}  // namespace

#include "quantized.h"

#include "layers.h"  // after Panels

namespace {

void products() {
    constexpr int64_t K = 96, N = 64;
    Numbers numbers(1);
    const auto bias = numbers.floats(N);
    const auto exact = numbers.floats(K * N);
    const auto short_weights = numbers.bfloat16(K * N);
    const auto tiny = numbers.bfloat16(K * N, -70);
    const struct {
        const char* name;
        const void* panels;
        int weights, exponent;
    } cases[] = {{"float32", exact.data(), 0, 0},
                 {"bfloat16", short_weights.data(), 1, 0},
                 {"rounded", short_weights.data(), 4, 0},
                 {"rounded, denormal results", tiny.data(), 4, -58},
                 {"rounded, denormal inputs", short_weights.data(), 4, -127},
                 {"tiled", short_weights.data(), linear::kTiled, 0},
                 {"tiled, denormal results", tiny.data(), linear::kTiled, -58}};
    for (const auto& each : cases)
        for (const int64_t rows : {1, 5, 29}) {
            const auto x = numbers.floats(rows * K, each.exponent);
            std::vector<float> out(rows * N);
            mm_linear(x.data(), each.panels, each.weights, bias.data(), out.data(), rows, K, N, 0);
            write(each.name, out);
            mm_linear(x.data(), each.panels, each.weights, nullptr, out.data(), rows, K, N, 0);
            write(std::string(each.name) + ", no bias", out);
        }
}

void rows() {
    constexpr int64_t kRows = 7, kSize = 64;
    Numbers numbers(2);
    const auto x = numbers.floats(kRows * kSize, 3), weight = numbers.floats(kSize), bias = numbers.floats(kSize);
    std::vector<float> out(kRows * kSize);
    mm_rms_norm(x.data(), weight.data(), 1e-5f, out.data(), kRows, kSize);
    write("rms norm", out);
    mm_layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, out.data(), kRows, kSize);
    write("layer norm", out);
    out = x;
    mm_head_norm(out.data(), kSize, weight.data(), 1e-5f, kRows, 3, 16);
    write("head norm", out);
    mm_add_scaled(out.data(), x.data(), weight.data(), kRows, kSize);
    write("scaled addend", out);
    for (const int64_t adjacent : {0, 1}) {
        out = x;
        const auto cos = numbers.floats(kRows * 8), sin = numbers.floats(kRows * 8);
        mm_rotate(out.data(), kSize, cos.data(), sin.data(), kRows, 4, 16, 16, adjacent);
        write("rotated", out);
    }
    for (int64_t activation = 0; activation < 8; ++activation) {
        out = x;
        mm_activation(out.data(), kRows, kSize, activation);
        write("activation", out);
        std::vector<float> half(kRows * kSize / 2);
        mm_act_and_mul(x.data(), half.data(), kRows, kSize / 2, activation);
        write("activation and product", half);
    }
}

void attention_of_sequence() {
    constexpr int64_t kTokens = 70, kHeads = 4, kKvHeads = 2, kDim = 32, kWidth = (kHeads + 2 * kKvHeads) * kDim;
    constexpr int64_t kBlocks = (kTokens + 15) / 16;
    Numbers numbers(3);
    const auto qkv = numbers.floats(kTokens * kWidth, 1);
    std::vector<int64_t> slots(kTokens), table(kBlocks), tiles;
    for (int64_t i = 0; i < kTokens; ++i) slots[i] = i;
    for (int64_t i = 0; i < kBlocks; ++i) table[i] = i;
    for (int64_t first = 0; first < kTokens; first += 10) tiles.insert(tiles.end(), {first, 10, first, 0});
    for (const int format : {0, 1, 2}) {
        std::vector<float> cache(kBlocks * 16 * 2 * kKvHeads * kDim), out(kTokens * kHeads * kDim);
        mm_attention(qkv.data(), qkv.data() + kHeads * kDim, slots.data(), cache.data(), format, table.data(), tiles.data(),
                     out.data(), kTokens, tiles.size() / 4, kWidth, kBlocks, kHeads, kKvHeads, kDim, 0, nullptr, 0.17f);
        write("attention", out);
    }
}

// Decoding sequences whose first 64 tokens are in the same four blocks.
void attention_of_shared_prefix() {
    constexpr int64_t kSequences = 6, kHeads = 4, kKvHeads = 2, kDim = 32, kWidth = (kHeads + 2 * kKvHeads) * kDim;
    constexpr int64_t kShared = 4, kBlocks = kShared + 1, kTokens = 16 * kShared;
    Numbers numbers(5);
    const auto qkv = numbers.floats((kTokens + kSequences) * kWidth, 1);
    std::vector<int64_t> slots, tables, tiles;
    for (int64_t i = 0; i < kTokens; ++i) slots.push_back(i);
    for (int64_t i = 0; i < kSequences; ++i) {
        slots.push_back((kShared + i) * 16);
        for (int64_t block = 0; block < kShared; ++block) tables.push_back(block);
        tables.push_back(kShared + i);
        tiles.insert(tiles.end(), {kTokens + i, 1, kTokens, i});
    }
    for (const int format : {0, 1, 2}) {
        std::vector<float> cache((kShared + kSequences) * 16 * 2 * kKvHeads * kDim), out((kTokens + kSequences) * kHeads * kDim);
        mm_attention(qkv.data(), qkv.data() + kHeads * kDim, slots.data(), cache.data(), format, tables.data(), tiles.data(),
                     out.data(), kTokens + kSequences, kSequences, kWidth, kBlocks, kHeads, kKvHeads, kDim, 0, nullptr, 0.17f);
        write("attention to a shared prefix", out);
    }
}

void attention_of_pictures() {
    constexpr int64_t kHeads = 2, kDim = 40;
    const std::vector<int64_t> lengths{70, 17};
    Numbers numbers(4);
    const auto qkv = numbers.floats(87 * 3 * kHeads * kDim, 1);
    for (const int rounds : {0, 1}) {
        std::vector<float> out(87 * kHeads * kDim);
        mm_encoder_attention(qkv.data(), out.data(), lengths.data(), 2, kHeads, kDim, rounds);
        write(rounds ? "encoder attention, rounded" : "encoder attention", out);
    }
}

void samples() {
    constexpr int64_t kSize = 5000;
    Numbers numbers(7);
    auto logits = numbers.floats(kSize, 4);
    std::vector<sampling::Draw> draws;
    for (const double uniform : {0.03, 0.4, 0.9})
        for (const auto& [top_k, top_p, min_weight] :
             {std::array{0., 1., 0.}, std::array{40., 1., 0.}, std::array{0., 0.8, 0.}, std::array{900., 0.99, 0.}, std::array{0., 1., 0.1}})
            draws.push_back({1.8, top_k, top_p, min_weight, uniform});
    const int64_t rows = draws.size();
    std::vector<int64_t> chosen(rows), row{0};
    const auto write_chosen = [&](const char* name, int may_ban) {
        mm_sample(logits.data(), 0, rows, kSize, draws.data(), may_ban, chosen.data());
        write(name, {chosen.begin(), chosen.end()});
    };
    write_chosen("samples", 0);
    const std::vector<uint32_t> allowed((kSize + 31) / 32, 0x0f0f1234u);
    mm_ban(logits.data(), kSize, kSize, row.data(), 1, allowed.data(), allowed.size());
    write("banned", logits);
    write_chosen("samples of the allowed", 1);
}

}  // namespace

int main(int count, char**) {
    if (count > 1) return std::printf("%lu %lu\n", getauxval(AT_HWCAP), getauxval(AT_HWCAP2)) < 0;
    mm_set_threads(2);
    products();
    grouped_products();
    gguf_products();
    rows();
    decoders();
    feed_forward_blocks();
    attention_blocks();
    attention_of_sequence();
    attention_of_shared_prefix();
    attention_of_pictures();
    samples();
}
