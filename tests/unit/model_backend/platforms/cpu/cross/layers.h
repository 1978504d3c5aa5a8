// Whole layers in one call: a decoder's and a vision tower's, from fixed numbers. Included by driver.cpp.
#pragma once

namespace {

// Matrices and vectors of layers, kept until the end of this object.
class Weights {
public:
    // form: as in mm_linear; 0, 9 (then Q8_0) or one of those of bfloat16.
    Weights(Numbers& numbers, int64_t form) : numbers_(numbers), form_(form) {}

    const float* vector(int64_t size) {
        floats_.push_back(numbers_.floats(size));
        return floats_.back().data();
    }

    linear::Matrix matrix(int64_t in, int64_t out) {
        const float* bias = vector(out);
        const int64_t panels = (out + linear::kPanel - 1) / linear::kPanel * linear::kPanel;
        if (form_ == 0) return {vector(panels * in), bias, form_, in, out};
        if (form_ == 9) {
            Panels matrix(numbers_);
            matrix.add_words<int64_t>({1, 64, 8, out, 0});
            matrix.align();
            matrix.add<grouped::Codes8, grouped::HalfScales<128>>(out, grouped::kGroup, 256, in);
            bytes_.push_back(matrix.bytes());
            return {bytes_.back().data(), bias, form_, in, out};
        }
        halves_.push_back(numbers_.bfloat16(panels * in, -2));
        return {halves_.back().data(), bias, form_, in, out};
    }

private:
    Numbers& numbers_;
    const int64_t form_;
    std::list<std::vector<float>> floats_;
    std::list<std::vector<uint16_t>> halves_;
    std::list<std::vector<uint8_t>> bytes_;
};

// A prompt of two tiles of `tokens` and `tokens - 1` behind 5 tokens that are in the cache, of which the last two and an earlier
// one get logits. Few are computed by a team of threads.
void decoder_of(const char* name, int64_t form, int64_t cache, int64_t tokens) {
    const int64_t rows = 2 * tokens - 1;
    constexpr int64_t kBefore = 5, kHidden = 64, kInner = 96, kHeads = 4, kKvHeads = 2, kDim = 16, kLayers = 2;
    Numbers numbers(8);
    Weights weights(numbers, form);
    std::vector<decoder::Layer> layers;
    for (const bool second : {false, true}) {
        decoder::Layer layer{};
        layer.attention_norm = weights.vector(kHidden);
        layer.mlp_norm = weights.vector(kHidden);
        if (second) {
            layer.q_norm = weights.vector(kDim);
            layer.k_norm = weights.vector(kDim);
            layer.after_attention_norm = weights.vector(kHidden);
            layer.after_mlp_norm = weights.vector(kHidden);
            layer.query_rope = 1;
            layer.window = 7;
        }
        layer.qkv = weights.matrix(kHidden, (kHeads + 2 * kKvHeads) * kDim);
        layer.attention_out = weights.matrix(kHeads * kDim, kHidden);
        layer.gate_up = weights.matrix(kHidden, 2 * kInner);
        layer.down = weights.matrix(kInner, kHidden);
        layers.push_back(layer);
    }
    const decoder::Shape shape{kLayers, kHidden, kHeads, kKvHeads, kDim, kDim, 0, 8, cache == 2 ? 4 : 0, cache, 1e-5f, 0.25f};
    auto hidden = numbers.floats(rows * kHidden, 1);
    const auto cos = numbers.floats(2 * rows * kDim / 2), sin = numbers.floats(2 * rows * kDim / 2);
    const auto added = numbers.floats(2 * kHidden);
    constexpr int64_t kBlocks = 2, kLayerNumbers = kBlocks * 16 * 2 * kKvHeads * kDim;
    std::vector<float> kv(kLayers * kLayerNumbers);  // as floats, or half of it as bfloat16
    const std::vector<int64_t> table{1, 0}, tiles{0, tokens, kBefore, 0, tokens, tokens - 1, kBefore + tokens, 0};
    const std::vector<int64_t> logits{rows / 5, rows - 2, rows - 1}, added_rows{1, rows / 2};
    std::vector<int64_t> slots;
    for (int64_t i = kBefore; i < kBefore + rows; ++i) slots.push_back(table[i / 16] * 16 + i % 16);
    const decoder::Step step{hidden.data(), cos.data(), sin.data(), reinterpret_cast<char*>(kv.data()), slots.data(),
                             table.data(), tiles.data(), logits.data(), rows, 2, 3, kBlocks,
                             kLayerNumbers * static_cast<int64_t>(sizeof(float)), nullptr, added.data(), added_rows.data(), 2, 1};
    mm_decoder(layers.data(), &shape, &step);
    hidden.resize(logits.size() * kHidden);
    write(std::string("decoder, ") + name, hidden);
    write(std::string("KV cache, ") + name, kv);
}

void decoders() {
    for (const int64_t tokens : {10, 2}) {
        decoder_of("float32", 0, 0, tokens);
        decoder_of("bfloat16, widened", 1, 1, tokens);
        decoder_of("bfloat16", 4, 2, tokens);
        decoder_of("bfloat16, tiled", linear::kTiled, 2, tokens);
        decoder_of("Q8_0", 9, 0, tokens);
    }
}

void feed_forward_blocks() {
    constexpr int64_t kRows = 11, kSize = 64, kInner = 96;
    Numbers numbers(9);
    for (const int64_t form : {0, 4})
        for (const int64_t gated : {0, 1}) {
            Weights weights(numbers, form);
            feed_forward::Block block{{weights.vector(kSize), gated ? nullptr : weights.vector(kSize),
                                       gated ? weights.vector(kSize) : nullptr, 1e-5f},
                                      weights.matrix(kSize, (1 + gated) * kInner),
                                      weights.matrix(kInner, kSize), form ? 6 : 2, gated};
            auto x = numbers.floats(kRows * kSize, 1);
            mm_feed_forward(&block, x.data(), kRows);
            write("feed-forward block", x);
        }
}

void attention_blocks() {
    constexpr int64_t kSize = 64, kHeads = 2, kDim = 40;
    const std::vector<int64_t> lengths{270, 17, 9};
    Numbers numbers(11);
    for (const int64_t form : {0, 4})
        for (const bool scaled : {false, true}) {
            Weights weights(numbers, form);
            self_attention::Block block{{weights.vector(kSize), scaled ? nullptr : weights.vector(kSize),
                                         scaled ? weights.vector(kSize) : nullptr, 1e-5f},
                                        weights.matrix(kSize, 3 * kHeads * kDim),
                                        weights.matrix(kHeads * kDim, kSize), kHeads, form != 0};
            auto x = numbers.floats(296 * kSize, 1);
            mm_self_attention(&block, x.data(), lengths.data(), lengths.size());
            write("attention block", x);
        }
}

}  // namespace
