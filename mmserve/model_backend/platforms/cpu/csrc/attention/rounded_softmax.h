// Online softmax (softmax.h) whose weights are rounded to bfloat16, as inputs of a product.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear/inputs.h"
#include "softmax.h"
#include "tile.h"

namespace attention {

// The softmax of one row whose scores arrive in parts. The sum is that of the weights before they are rounded, in 16 lanes.
struct RoundedSoftmax {
    using Vector = linear::Vector;
    static constexpr int64_t kLanes = tile::kLanes<Vector>, kParts = 16 / kLanes;
    float largest = softmax::kMinusInfinity;
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
        if (const float top = tile::horizontal_max(highest); top > largest) {
            if (largest != softmax::kMinusInfinity) {  // else they are zeros
                const float scale = softmax::short_exponential(tile::broadcast<Vector>(largest), top)[0];
                for (int64_t i = 0; i < dim; ++i) out[i] *= scale;
                for (Vector& sum : sums) sum *= scale;
            }
            largest = top;
        }
        for (int64_t j = 0; j < count; j += 16)
            for (int64_t part = 0, first = j; part < kParts; ++part, first += kLanes) {
                const Vector numbers = softmax::short_exponential(tile::load<Vector>(scores + first), largest);
                linear::store_inputs(numbers, weights + first);
                sums[part] += numbers;
            }
    }

    float sum() const {
        float total = 0.f;
        for (const Vector& part : sums)
            for (int i = 0; i < kLanes; ++i) total += part[i];
        return total;
    }
};

}  // namespace attention
