// Online softmax (Milakov and Gimelshein 2018).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "exponential.h"
#include "linear/inputs.h"
#include "tile.h"

namespace attention {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Whether any number is larger. Sooner known than the largest number, which is seldom needed.
inline bool exceeds(linear::Vector x, float bound) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(reinterpret_cast<__m256>(x > bound)) != 0;
#else
    return tile::horizontal_max(x) > bound;
#endif
}

// exp(x) in each lane.
inline linear::Vector exponential_of(float x) {
    linear::Vector of[1] = {tile::broadcast<linear::Vector>(x)};
    exponentials::power(of, 0.f, exponentials::kAccurate);
    return of[0];
}

// The softmax of one row whose scores arrive in parts. Its weights are rounded to bfloat16 if kRounds, but not in its sum,
// which has 16 lanes.
template <bool kRounds>
struct OnlineSoftmax {
    using Vector = linear::Vector;
    static constexpr int64_t kLanes = tile::kLanes<Vector>, kParts = 16 / kLanes;
    // The sums are seldom rescaled: weights may be as large as exp(kSlack), which float32 and bfloat16 hold as well as 1.
    static constexpr float kSlack = 8.f;
    float largest = kMinusInfinity;  // or up to kSlack less than the largest score
    Vector sums[kParts] = {};

    // Turns the row's next scores into weights, perhaps in place, relative to about the largest score so far. Rescales the
    // sums and the row's output if that grew. Of `count` scores, a multiple of 16, only those in [hidden, visible) are used.
    // Not inline: a caller's numbers would take registers.
    template <class Input>
    [[gnu::noinline]] void update(float* scores, int64_t hidden, int64_t visible, int64_t count, Input* weights, float* out,
                                  int64_t dim) {
        if (hidden >= count) return std::fill(weights, weights + count, Input{});
        for (int64_t j = 0; j < hidden; ++j) scores[j] = kMinusInfinity;
        for (int64_t j = std::max<int64_t>(0, visible); j < count; ++j) scores[j] = kMinusInfinity;
        Vector highest = tile::load<Vector>(scores);
        for (int64_t j = kLanes; j < count; j += kLanes)
            highest = tile::maximum(highest, tile::load<Vector>(scores + j));
        if (exceeds(highest, largest + kSlack)) rescale(tile::horizontal_max(highest), out, dim);
        Vector totals[kParts];  // in registers
        exponentials::for_each_vector<kParts>([&](int i) { totals[i] = sums[i]; });
        constexpr int64_t kTogether = 4 * kLanes;
        int64_t j = 0;
        for (; j + kTogether <= count; j += kTogether) weigh<4>(scores + j, largest, weights + j, totals);
        for (; j < count; j += 16) weigh<kParts>(scores + j, largest, weights + j, totals);
        exponentials::for_each_vector<kParts>([&](int i) { sums[i] = totals[i]; });
    }

    float sum() const {
        tile::f32x8 halves[2];
        std::memcpy(halves, sums, sizeof halves);
        return tile::horizontal_sum(halves[0] + halves[1]);
    }

private:
    void rescale(float top, float* out, int64_t dim) {
        if (largest != kMinusInfinity) {  // else there is nothing
            const Vector scale = exponential_of(largest - top);
            for (int64_t i = 0; i < dim; ++i) out[i] *= scale[0];
            for (Vector& sum : sums) sum *= scale;
        }
        largest = top;
    }

    // N vectors of scores.
    template <int N, class Input>
    [[gnu::always_inline]] static void weigh(const float* scores, float shift, Input* weights, Vector (&totals)[kParts]) {
        Vector numbers[N];
        exponentials::for_each_vector<N>([&](int i) { numbers[i] = tile::load<Vector>(scores + i * kLanes); });
        if constexpr (kRounds) {
            exponentials::power(numbers, shift * exponentials::kLog2e, exponentials::kShort);
        } else {  // the difference first: rounding the products of huge scores would leave large powers
            exponentials::for_each_vector<N>([&](int i) { numbers[i] = numbers[i] - shift; });
            exponentials::power(numbers, 0.f, exponentials::kAccurate);
        }
        exponentials::for_each_vector<N>([&](int i) { totals[i % kParts] += numbers[i]; });
        if constexpr (kRounds)
            linear::store_inputs(numbers, weights);
        else
            exponentials::for_each_vector<N>([&](int i) { tile::store(weights + i * kLanes, numbers[i]); });
    }
};

// Adds what a row found at later keys to what it found before them: its largest score, its sums, and `columns` numbers of
// output, which are not yet divided by the sums. Those with the smaller largest score are scaled to the other's.
template <class Softmax>
void merge(Softmax& row, float* out, const Softmax& later, const float* later_out, int64_t columns) {
    if (later.largest == kMinusInfinity) return;
    if (row.largest == kMinusInfinity) {
        row = later;
        std::copy(later_out, later_out + columns, out);
        return;
    }
    const bool grew = later.largest > row.largest;
    const float scale = exponential_of(-std::abs(later.largest - row.largest))[0];
    for (int part = 0; part < Softmax::kParts; ++part)
        row.sums[part] = grew ? row.sums[part] * scale + later.sums[part] : later.sums[part] * scale + row.sums[part];
    for (int64_t i = 0; i < columns; ++i)
        out[i] = grew ? std::fma(out[i], scale, later_out[i]) : std::fma(later_out[i], scale, out[i]);
    if (grew) row.largest = later.largest;
}

}  // namespace attention
