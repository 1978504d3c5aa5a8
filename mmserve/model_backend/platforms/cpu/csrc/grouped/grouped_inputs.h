// Inputs of products with whole-number weights, as integers: of 16 bits, 32 with a scale, or of 8 bits, a row with a scale.
// Where the CPU multiplies bytes, an integer is kept as two digits, 256 high + low, from -128 to 127.
#pragma once

#include <cstdint>

#include "grouped/byte_vectors.h"
#include "grouped/rounding.h"
#include "linear/tasks.h"

namespace grouped {

#ifdef __AMX_INT8__
constexpr int64_t kReadBehind = 16;  // rows that tiles may read behind the last
#else
constexpr int64_t kReadBehind = 0;
#endif

// Of 32 inputs: x = scale * q. Sums of the q are negative, as zero points of weights are multiplied with them.
struct BlockScale {
    float scale, total;  // total: the sum of the x
    int32_t negative_sum, negative_first_sum;  // of all, of the first 16

    // Of one of `parts` equal parts.
    template <int parts>
    int32_t negative_sum_of(int part) const {
        if constexpr (parts == 1) return negative_sum;
        return part ? negative_sum - negative_first_sum : negative_first_sum;
    }
};

// [M, K] each; the integers are `q`, or `low` and, of 16 bits, `high`.
struct Inputs {
    int16_t* q;  // of four neighbours the second and the third are exchanged, as weights are paired
    int8_t *low, *high;
    BlockScale* blocks;  // [M, K / 32]
    int64_t K;

    Inputs row(int64_t index) const {
        return {q + index * K, low + index * K, high + index * K, blocks + index * K / kGroup, K};
    }

    // Of 32 inputs of a row, from input k on.
    const BlockScale& block(int64_t row, int64_t k) const {
        return blocks[row * (static_cast<uint64_t>(K) / kGroup) + static_cast<uint64_t>(k) / kGroup];
    }

    // Stores 32 integers from input k on.
    void store(int64_t k, const int16_t* values, float scale) const {
        const BothSums sums = store_integers(k, values);
        blocks[k / kGroup] = {scale, scale * static_cast<float>(sums.all), -sums.all, -sums.first};
    }

private:
    // Of 32 integers, and of the first 16.
    struct BothSums {
        int32_t all, first;
    };

#ifdef __AVX512VNNI__
    BothSums store_integers(int64_t k, const int16_t* values) const {
        // In halves, as they were stored: the whole would wait until both are in the cache.
        const __m512i integers = _mm512_inserti64x4(_mm512_castsi256_si512(tile::load<__m256i>(values)),
                                                    tile::load<__m256i>(values + kGroup / 2), 1);
        const __m512i above = _mm512_srai_epi16(_mm512_add_epi16(integers, _mm512_set1_epi16(128)), 8);
        const __m256i bytes[] = {_mm512_cvtepi16_epi8(integers), _mm512_cvtepi16_epi8(above)};
        std::memcpy(low + k, bytes, sizeof bytes[0]);
        std::memcpy(high + k, bytes + 1, sizeof bytes[1]);
        const __m512i pairs = _mm512_madd_epi16(integers, _mm512_set1_epi16(1));
        const auto first = reinterpret_cast<i32x8>(_mm512_castsi512_si256(pairs));
        const auto second = reinterpret_cast<i32x8>(_mm512_extracti64x4_epi64(pairs, 1));
        return {horizontal_sum(first + second), horizontal_sum(first)};
    }
#else
    typedef int8_t i8x8 __attribute__((vector_size(8)));

    static void store_bytes(i16x8 integers, int8_t* to) {
        const auto bytes = __builtin_convertvector(integers, i8x8);
        std::memcpy(to, &bytes, sizeof bytes);
    }

    BothSums store_integers(int64_t k, const int16_t* values) const {
        i32x8 of_first{}, of_second{};
        for (int i = 0; i < kGroup; i += 8) {
            const auto integers = tile::load<i16x8>(values + i);
            (i < kGroup / 2 ? of_first : of_second) += __builtin_convertvector(integers, i32x8);
            if constexpr (kMultipliesBytes) {
                store_bytes(integers, low + k + i);
                store_bytes((integers + 128) >> 8, high + k + i);
            } else {
                const auto paired = __builtin_shuffle(integers, i16x8{0, 2, 1, 3, 4, 6, 5, 7});
                std::memcpy(q + k + i, &paired, sizeof paired);
            }
        }
        return {horizontal_sum(of_first + of_second), horizontal_sum(of_first)};
    }
#endif
};

// `order`: null, or which input comes first, second...
struct WideInputs {
    static constexpr int kNumDigits = 2;

    static void quantize(const float* x, const int32_t* order, const Inputs& to) {
        for (int64_t k = 0; k < to.K; k += kGroup) {
            float ordered[kGroup];
            int16_t q[kGroup];
            if (order)
                for (int64_t i = 0; i < kGroup; ++i) ordered[i] = x[order[k + i]];
            const float scale = round_group(order ? ordered : x + k, q);
            to.store(k, q, scale);
        }
    }
};

// As checkpoints of 8-bit weights and inputs are made for: half of 255 steps is the largest magnitude.
struct NarrowInputs {
    static constexpr int kNumDigits = 1;

    static void quantize(const float* x, const int32_t*, const Inputs& to) {
        const float scale = narrow_scale(x, to.K);  // NaN if a number is NaN or infinite
        for (int64_t k = 0; k < to.K; k += kGroup) {
            int16_t q[kGroup];
            round_narrow(x + k, scale, q);
            to.store(k, q, scale);
        }
    }
};

// The result is valid until the same thread calls this again.
template <class Rounding>
Inputs quantize_inputs(const linear::Job& job, const int32_t* order) {
    static thread_local memory::ReusableArray<int16_t> q;
    static thread_local memory::ReusableArray<BlockScale> blocks;
    const int64_t count = job.M * job.K, behind = kReadBehind * job.K;
    int16_t* integers = q.at_least(count + behind);
    auto* digits = reinterpret_cast<int8_t*>(integers);
    const Inputs all{integers, digits, digits + count, blocks.at_least((count + behind) / kGroup), job.K};
    pool::parallel_for_rows(job.M, job.K, [&](int64_t row) {
        Rounding::quantize(job.x + row * job.K, order, all.row(row));
    });
    return all;
}

}  // namespace grouped
