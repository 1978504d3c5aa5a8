// Online softmax (softmax.h) whose weights are rounded to bfloat16, as inputs of a product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "linear/inputs.h"
#include "softmax.h"
#include "tile.h"

namespace attention {

// Whether any number is larger. Sooner known than the largest number, which is seldom needed.
inline bool exceeds(linear::Vector x, float bound) {
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
    return tile::horizontal_max(x) > bound;
#endif
}

// The softmax of one row whose scores arrive in parts. The sum is that of the weights before they are rounded, in 16 lanes.
struct RoundedSoftmax {
    using Vector = linear::Vector;
    static constexpr int64_t kLanes = tile::kLanes<Vector>, kParts = 16 / kLanes;
    // The sums are seldom rescaled: weights may be as large as exp(kSlack), which float32 and bfloat16 hold as well as 1.
    static constexpr float kSlack = 8.f;
    float largest = softmax::kMinusInfinity;  // or up to kSlack less than the largest score
    Vector sums[kParts] = {};

    // As softmax::OnlineSoftmax::update, but the weights are rounded.
    template <class Input>
    void update(float* scores, int64_t hidden, int64_t visible, int64_t count, Input* weights, float* out, int64_t dim) {
        if (hidden >= count) return std::fill(weights, weights + count, Input{});
        for (int64_t j = 0; j < hidden; ++j) scores[j] = softmax::kMinusInfinity;
        for (int64_t j = std::max<int64_t>(0, visible); j < count; ++j) scores[j] = softmax::kMinusInfinity;
        Vector highest = tile::load<Vector>(scores);
        for (int64_t j = kLanes; j < count; j += kLanes)
            highest = tile::maximum(highest, tile::load<Vector>(scores + j));
        if (exceeds(highest, largest + kSlack)) {
            const float top = tile::horizontal_max(highest);
            if (largest != softmax::kMinusInfinity) {  // else there is nothing
                const float scale = softmax::short_exponential(tile::broadcast<Vector>(largest), top)[0];
                for (int64_t i = 0; i < dim; ++i) out[i] *= scale;
                for (Vector& sum : sums) sum *= scale;
            }
            largest = top;
        }
        Vector totals[kParts];  // in registers
        std::memcpy(totals, sums, sizeof totals);
        int64_t j = 0;
        for (; j + 32 <= count; j += 32) weigh<2>(scores + j, weights + j, totals);
        if (j < count) weigh<1>(scores + j, weights + j, totals);
        std::memcpy(sums, totals, sizeof totals);
    }

    float sum() const {
        tile::f32x8 halves[2];
        std::memcpy(halves, sums, sizeof halves);
        return tile::horizontal_sum(halves[0] + halves[1]);
    }

private:
    // N x 16 scores.
    template <int N, class Input>
    void weigh(const float* scores, Input* weights, Vector (&totals)[kParts]) const {
        Vector numbers[N * kParts];
        for (int i = 0; i < N * kParts; ++i) {
            numbers[i] = softmax::short_exponential(tile::load<Vector>(scores + i * kLanes), largest);
            totals[i % kParts] += numbers[i];
        }
        linear::store_inputs(numbers, weights);
    }
};

}  // namespace attention
