// Estimates, from part of a row, between which weights the smallest one that top-p keeps lies.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>

#include "aligned_memory.h"
#include "sampling/peak.h"
#include "sampling/split.h"
#include "sampling/weights.h"
#include "vectors.h"

namespace sampling {

constexpr int64_t kLine = 16;           // neighbouring logits that are taken together: a cache line
constexpr int64_t kLines = 256;         // that are taken of a row, at least
constexpr int64_t kPivots = 64;         // weights of the sample, and of the tops, among which the bracket's ends are
constexpr double kDeviations = 3;       // of the estimate, on both sides of it
constexpr int64_t kFewer = 64;          // at least this part of the row is expected from the bracket's low end on
constexpr int64_t kFew = 16;            // if it is less than this part, the bracket has no high end
constexpr float kHeadWeight = 0x1p30f;  // 2^-12 of the largest: the low end for a row that is too short for a sample

// The largest of each group, and a sample of the others: each of the sample stands for `stride` tokens. So the estimate
// is good for peaked rows, where few tokens weigh most, and for flat ones. It decides the time only: the cut is exact.
class RowSample {
public:
    // tops: of the groups, from find_peak.
    Bracket estimate(const float* logits, int64_t size, const float* tops, const weights::Scale& by, double top_p) {
        if (size < 2 * kLine * kLines) return {kHeadWeight, kInfinity};
        take(logits, size, tops, by);
        const std::array<float, 2 * kPivots> pivots = choose_pivots();
        const double needed = top_p * mass(0.f);
        const auto first_with = [&](double least_mass, double least_count) {
            return std::partition_point(pivots.begin(), pivots.end(), [&](float pivot) {
                const Tally part = tally(pivot);
                return part.mass < least_mass || part.count < least_count;
            });
        };
        const auto middle = first_with(needed, 0);
        const double margin = kDeviations * deviation(middle == pivots.end() ? 0.f : *middle, top_p);
        const double tokens = static_cast<double>(size);
        const auto low = first_with(needed + margin, tokens / kFewer);
        if (low == pivots.end()) return {0.f, kInfinity};
        if (tally(*low).count < tokens / kFew) return {*low, kInfinity};
        const auto high = first_with(needed - margin, 0);
        return {*low, high == pivots.begin() ? kInfinity : high[-1]};
    }

private:
    struct Tally {
        double mass, count;
    };

    void take(const float* logits, int64_t size, const float* tops, const weights::Scale& by) {
        const int64_t lines = size / kLine, step = lines / kLines;
        count_ = (lines + step - 1) / step * kLine;
        num_tops_ = (size + kGroup - 1) / kGroup;
        stride_ = static_cast<double>(size) / static_cast<double>(count_);
        sample_ = sample_memory_.at_least(count_);
        tops_ = tops_memory_.at_least(num_tops_ + kPadding);
        for (int64_t i = 0; i < count_; i += kLine) {
            const float* line = logits + i * step;
            const float top = tops[i * step / kGroup];
            const f32x8 halves[2] = {tile::load<f32x8>(line), tile::load<f32x8>(line + 8)};
            for (int j = 0; j < 2; ++j) tile::store(sample_ + i + 8 * j, halves[j]);
            if (tile::horizontal_max(vectors::larger(halves[0], halves[1])) == top)
                sample_[i + (std::find(line, line + kLine, top) - line)] = kMinusInfinity;
        }
        std::copy_n(tops, num_tops_, tops_);
        std::fill_n(tops_ + num_tops_, kPadding, kMinusInfinity);
        for (const auto& [numbers, count] : {std::pair(sample_, count_), std::pair(tops_, num_tops_)})
            for (int64_t i = 0; i < count; i += 8)
                tile::store(numbers + i, weights::weigh(tile::load<f32x8>(numbers + i), by));
    }

    // In descending order.
    std::array<float, 2 * kPivots> choose_pivots() const {
        std::array<float, 2 * kPivots> pivots;
        for (int64_t i = 0; i < kPivots; ++i) {
            pivots[i] = sample_[(2 * i + 1) * count_ / (2 * kPivots)];
            pivots[kPivots + i] = tops_[(2 * i + 1) * num_tops_ / (2 * kPivots)];
        }
        std::sort(pivots.begin(), pivots.end(), std::greater<>());
        return pivots;
    }

    // Estimates of the row's weights that are at least `least`.
    Tally tally(float least) const {
        const Tally sample = tally(sample_, count_, least), tops = tally(tops_, num_tops_, least);
        return {stride_ * sample.mass + tops.mass, stride_ * sample.count + tops.count};
    }

    double mass(float least) const { return tally(least).mass; }

    // In float: an estimate needs no more. Numbers behind the last, up to a multiple of 16, are zero or less.
    static Tally tally(const float* numbers, int64_t count, float least) {
        f32x8 mass[2] = {};
        i32x8 found[2] = {};
        for (int64_t i = 0; i < count; i += 16)
#pragma GCC unroll 2
            for (int j = 0; j < 2; ++j) {
                const f32x8 x = tile::load<f32x8>(numbers + i + 8 * j);
                const i32x8 mask = x >= least;
                mass[j] += vectors::where(mask, x);
                found[j] += mask;
            }
        const f32x8 total = mass[0] + mass[1];
        const i32x8 count_of = found[0] + found[1];
        Tally all{0, 0};
        for (int lane = 0; lane < 8; ++lane) {
            all.mass += static_cast<double>(total[lane]);
            all.count -= static_cast<double>(count_of[lane]);
        }
        return all;
    }

    // The standard deviation of mass(least) - top_p * mass(0).
    double deviation(float least, double top_p) const {
        const float above = static_cast<float>((1 - top_p) * (1 - top_p)), below = static_cast<float>(top_p * top_p);
        f32x8 squares{};
        for (int64_t i = 0; i < count_; i += 8) {
            const f32x8 x = tile::load<f32x8>(sample_ + i);
            squares += x * x * (vectors::where(x >= least, tile::broadcast(above - below)) + below);
        }
        double sum = 0;
        for (int lane = 0; lane < 8; ++lane) sum += static_cast<double>(squares[lane]);
        return std::sqrt(sum * stride_ * (stride_ - 1));
    }

    memory::ReusableArray<float> sample_memory_, tops_memory_;
    float *sample_ = nullptr, *tops_ = nullptr;
    int64_t count_ = 0, num_tops_ = 0;
    double stride_ = 1;
};

}  // namespace sampling
