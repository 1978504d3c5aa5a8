// The inputs of a product: float32 as they are, or rounded to bfloat16.
#pragma once

#include <array>
#include <cstdint>

#include "aligned_memory.h"
#include "linear/panels.h"
#include "linear/tasks.h"
#include "tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace linear {

// Rows of `stride` numbers.
template <class Number>
struct Rows {
    const Number* first;
    int64_t stride;

    const Number* at(int64_t row) const { return first + row * stride; }
};

// Numbers between two rows of a copy: an even number, so that pairs can be read, and no multiple of 4 KiB, because lines
// at such distances displace each other in the first-level cache.
template <class Number>
constexpr int64_t copy_stride(int64_t K) {
    const int64_t line = memory::kLine / sizeof(Number), lines = (K + line - 1) / line;
    return (lines + (lines % 16 == 0)) * line;
}

typedef uint16_t Halves __attribute__((vector_size(2 * tile::kLanes<Vector>)));

// Rounds to the nearest bfloat16, to an even one in the middle, in the upper half of each word; the lower half is not
// cleared. NaN stays NaN.
inline Words rounded_words(Vector x) {
    const Words bits = reinterpret_cast<Words>(x), magnitude = bits & 0x7fffffffu;
    const Words nearest = bits + 0x7fffu + (bits >> 16 & 1u);
    return magnitude > 0x7f800000u ? bits | 0x400000u : nearest;
}

inline void store_rounded(Vector x, uint16_t* out) {
    const Halves halves = __builtin_convertvector(rounded_words(x) >> 16, Halves);
    std::memcpy(out, &halves, sizeof halves);
}

inline void round_row(const float* x, int64_t K, uint16_t* out) {
    for (int64_t k = 0; k < K; k += tile::kLanes<Vector>) store_rounded(tile::load_first<Vector>(x + k, K - k), out + k);
}

// As rounded_words for the inputs of products alone, for which a denormal number is a zero.
inline Words rounded_inputs(Vector x) {
    const Words bits = reinterpret_cast<Words>(x);
    return (bits & 0x7fffffffu) < 0x800000u ? bits & 0x80000000u : rounded_words(x) & 0xffff0000u;
}

inline void store_inputs(Vector x, float* out) {
    tile::store(out, reinterpret_cast<Vector>(rounded_inputs(x)));
}

#ifdef __AVX512BF16__
inline void store_inputs(Vector x, uint16_t* out) {
    const __m256bh halves = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));
    std::memcpy(out, &halves, sizeof halves);
}

// Numbers of `even` and `odd` in turn.
inline Words input_pairs(Vector even, Vector odd) {
    constexpr auto kInTurn = [] {
        std::array<uint16_t, 32> places{};
        for (int i = 0; i < 32; ++i) places[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
        return places;
    }();
    const __m512bh halves = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(odd), reinterpret_cast<__m512>(even));
    return reinterpret_cast<Words>(
        _mm512_permutexvar_epi16(_mm512_loadu_si512(kInTurn.data()), reinterpret_cast<__m512i>(halves)));
}
#else
inline void store_inputs(Vector x, uint16_t* out) {
    const Halves halves = __builtin_convertvector(rounded_inputs(x) >> 16, Halves);
    std::memcpy(out, &halves, sizeof halves);
}

inline Words input_pairs(Vector even, Vector odd) {
    return rounded_inputs(even) >> 16 | rounded_inputs(odd);
}
#endif

// Neighbouring vectors, two at a time where one instruction rounds both.
template <int N, class Input>
inline void store_inputs(const Vector (&x)[N], Input* out) {
    constexpr int64_t kLanes = tile::kLanes<Vector>;
    int i = 0;
#ifdef __AVX512BF16__
    if constexpr (sizeof(Input) == sizeof(uint16_t))
        for (; i + 2 <= N; i += 2) {
            const __m512bh halves =
                _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(x[i + 1]), reinterpret_cast<__m512>(x[i]));
            std::memcpy(out + i * kLanes, &halves, sizeof halves);
        }
#endif
    for (; i < N; ++i) store_inputs(x[i], out + i * kLanes);
}

// x * scale as inputs.
template <class Input>
inline void round_inputs(const float* x, int64_t K, Input* out, float scale = 1.f) {
    for (int64_t k = 0; k < K; k += tile::kLanes<Vector>)
        store_inputs(tile::load_first<Vector>(x + k, K - k) * scale, out + k);
}

// Rounds x [M, K] to bfloat16, stored as Number. Zeros follow each row up to its stride, or up to a whole vector. The
// result is valid until the same thread calls this again.
template <class Number>
Rows<Number> rounded(const Job& job) {
    static thread_local memory::ReusableArray<Number> reusable;
    const int64_t K = job.K, stride = copy_stride<Number>(K);
    Number* rows = reusable.at_least(job.M * stride);
    pool::parallel_for_rows(job.M, K, [=](int64_t row) { round_inputs(job.x + row * K, K, rows + row * stride); });
    return {rows, stride};
}

// x as it is, or a copy where many rows would displace each other in the cache.
inline Rows<float> unrounded(const Job& job) {
    constexpr int64_t kPage = 4096 / sizeof(float);
    if (job.K % kPage || job.M < 8) return {job.x, job.K};
    static thread_local memory::ReusableArray<float> reusable;
    const int64_t K = job.K, stride = copy_stride<float>(K);
    float* rows = reusable.at_least(job.M * stride);
    pool::parallel_for_rows(job.M, K, [=](int64_t row) {
        std::memcpy(rows + row * stride, job.x + row * K, K * sizeof(float));
    });
    return {rows, stride};
}

// While it exists, this thread treats denormal numbers as zeros, as bfloat16 dot products do on every CPU that has them.
// x86 looks at the rounded result, AArch64 at the exact one: a sum that would round up to 2^-126 is a zero there.
class FlushDenormals {
public:
    FlushDenormals() : before_(mode()) { set_mode(before_ | kFlush); }
    ~FlushDenormals() { set_mode(before_); }
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

private:
#if defined(__x86_64__)
    static constexpr uint64_t kFlush = _MM_FLUSH_ZERO_ON | 0x40;  // results, and operands (DAZ)
    static uint64_t mode() { return _mm_getcsr(); }
    static void set_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
    static constexpr uint64_t kFlush = 1 << 24;  // results and operands (FZ)
    static uint64_t mode() {
        uint64_t mode;
        asm volatile("mrs %0, fpcr" : "=r"(mode)::"memory");
        return mode;
    }
    static void set_mode(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else
    static constexpr uint64_t kFlush = 0;
    static uint64_t mode() { return 0; }
    static void set_mode(uint64_t) {}
#endif
    const uint64_t before_;
};

}  // namespace linear
