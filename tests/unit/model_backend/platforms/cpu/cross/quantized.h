// Products with the weights of quantized checkpoints, from fixed numbers. Included by driver.cpp.
#pragma once

namespace {

constexpr int64_t kInputs = 512;  // two superblocks

// Bytes of panels of 16 outputs, group by group. Those of scales make no number above 1, in float and in half precision.
class Panels {
public:
    explicit Panels(Numbers& numbers) : numbers_(numbers) {}

    template <class Codes, class Group>
    void add(int64_t outputs, int64_t group_size, uint32_t code_limit = 256, int64_t inputs = kInputs) {
        for (int64_t panel = 0; panel < outputs / grouped::kOutputs; ++panel)
            for (int64_t k = 0; k < inputs; k += group_size) {
                add_bytes(sizeof(Group), 0x3b);
                add_bytes(group_size / grouped::kGroup * Codes::kNbytes, code_limit);
            }
    }

    void add_bytes(int64_t count, uint32_t limit) {
        for (int64_t i = 0; i < count; ++i) bytes_.push_back(static_cast<uint8_t>(numbers_.bits() % limit));
    }

    template <class Word>
    void add_words(std::initializer_list<Word> words) {
        const auto* first = reinterpret_cast<const uint8_t*>(words.begin());
        bytes_.insert(bytes_.end(), first, first + words.size() * sizeof(Word));
    }

    // Zeros up to a whole line.
    void align() { bytes_.resize((bytes_.size() + memory::kLine - 1) / memory::kLine * memory::kLine); }

    const std::vector<uint8_t>& bytes() const { return bytes_; }

private:
    Numbers& numbers_;
    std::vector<uint8_t> bytes_;
};

void write_products(const char* name, Numbers& numbers, int form, const std::vector<uint8_t>& panels, int64_t outputs) {
    for (const int64_t rows : {1, 5, 29}) {
        const auto x = numbers.floats(rows * kInputs);
        std::vector<float> out(rows * outputs);
        mm_linear(x.data(), panels.data(), form, nullptr, out.data(), rows, kInputs, outputs, 0);
        write(name, out);
    }
}

void grouped_products() {
    Numbers numbers(5);
    const struct {
        const char* name;
        int form;
        int64_t group_size;
    } cases[] = {{"4 bits", 5, 128}, {"8 bits", 6, 32}, {"8 bits, inputs of 8 bits", 7, kInputs}, {"E4M3", 8, 128}};
    for (const auto& each : cases) {
        Panels panels(numbers);
        panels.add_words<int64_t>({each.group_size, 0});
        panels.align();
        if (each.form == 5) panels.add<grouped::Codes4, grouped::Scales>(32, each.group_size);
        else if (each.form == 8) panels.add<float8::Codes, grouped::Scales>(32, each.group_size, 0x7f);  // no NaN
        else panels.add<grouped::Codes8, grouped::Scales>(32, each.group_size);
        write_products(each.name, numbers, each.form, panels.bytes(), 32);
    }
}

// A matrix of 16 outputs of each format of a GGUF file.
void gguf_products() {
    constexpr int64_t kFormats[] = {2, 3, 6, 7, 8, 12, 13, 14}, kCount = std::size(kFormats), kEach = grouped::kOutputs;
    Numbers numbers(6);
    Panels header(numbers), panels(numbers);
    constexpr int64_t kNbytes = 2 * sizeof(int64_t) + kCount * sizeof(grouped::GgufSection);
    header.add_words<int64_t>({kCount, (kNbytes + 63) / 64 * 64});
    for (const int64_t format : kFormats) {
        header.add_words<int64_t>({format, kEach, static_cast<int64_t>(panels.bytes().size())});
        grouped::dispatch_gguf(format, [&](auto codes, auto scales) {
            panels.add<decltype(codes), decltype(scales)>(kEach, decltype(scales)::kInputs);
        });
    }
    header.align();
    std::vector<uint8_t> matrix = header.bytes();
    matrix.insert(matrix.end(), panels.bytes().begin(), panels.bytes().end());
    write_products("formats of GGUF", numbers, 9, matrix, kCount * kEach);
    const std::vector<int64_t> indices{0, 17, 40, 50, 79, 81, 100, 127};
    std::vector<float> rows(indices.size() * kInputs);
    mm_rows(matrix.data(), 9, indices.data(), rows.data(), indices.size(), kInputs);
    write("rows of GGUF", rows);
}

}  // namespace
