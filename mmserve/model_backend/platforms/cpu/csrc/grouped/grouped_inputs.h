// Inputs of products with whole-number weights, as integers: of 16 bits, 32 with a scale, or of 8 bits, a row with a scale.
// Where the CPU multiplies bytes, an integer is kept as two digits, 256 high + low, from -128 to 127.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "grouped/byte_vectors.h"
#include "grouped/rounding.h"
#include "linear/tasks.h"

namespace grouped {

#ifdef __AMX_INT8__
constexpr int64_t kReadBehind = 16;  // rows that tiles may read behind the last
#else
constexpr int64_t kReadBehind = 0;
#endif

// Of 32 inputs: x = scale * q, the sum of the q, and that of the first 16.
struct BlockScale {
    float scale;
    int32_t sum, first_sum;

    float total() const { return scale * static_cast<float>(sum); }  // of the x

    // Of one of `parts` equal parts.
    template <int parts>
    int32_t sum_of(int part) const {
        if constexpr (parts == 1) return sum;
        return part ? sum - first_sum : first_sum;
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

    // Stores 32 integers from input k on.
    void store(int64_t k, const int16_t* values, float scale) const {
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
        const int32_t first = horizontal_sum(of_first);
        blocks[k / kGroup] = {scale, first + horizontal_sum(of_second), first};
    }

private:
    typedef int8_t i8x8 __attribute__((vector_size(8)));

    static void store_bytes(i16x8 integers, int8_t* to) {
        const auto bytes = __builtin_convertvector(integers, i8x8);
        std::memcpy(to, &bytes, sizeof bytes);
    }
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
        float largest = 0.f, sum = 0.f;
        for (int64_t k = 0; k < to.K; ++k) {
            largest = std::max(largest, std::fabs(x[k]));
            sum += x[k];
        }
        const float scale = largest > 0.f ? largest / 127.5f : std::numeric_limits<float>::epsilon();
        for (int64_t k = 0; k < to.K; k += kGroup) {
            int16_t q[kGroup];
            for (int64_t i = 0; i < kGroup; ++i) {
                const float steps = std::nearbyint(x[k + i] / scale);
                q[i] = static_cast<int16_t>(std::min(127.f, std::max(-128.f, steps)));
            }
            to.store(k, q, scale + 0.f * sum);  // NaN if a number is NaN or infinite
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
