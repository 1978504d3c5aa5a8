// The innermost product: a few rows of A times panels of 16 columns of B, kept in registers. A result is the sum over k
// in order, whatever the number of rows: a sequence's numbers do not depend on its neighbours in a batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tile {

typedef float f32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));

constexpr int kColumns = 16;
constexpr int kMaxRows = 6;  // 12 accumulators of 16 registers

template <class V>
inline V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float* to, f32x8 value) {
    std::memcpy(to, &value, sizeof value);
}

inline f32x8 splat(float x) {
    return f32x8{x, x, x, x, x, x, x, x};
}

// Loaded once, not by every instruction that uses it: the compiler's choice for 3 and 4 rows made them slower than 6.
inline f32x8 in_register(f32x8 value) {
#ifdef __AVX2__
    asm("" : "+x"(value));
#endif
    return value;
}

inline f32x8 larger(f32x8 a, f32x8 b) {
    return a > b ? a : b;
}

inline float largest_of(f32x8 x) {
    x = larger(x, __builtin_shuffle(x, i32x8{4, 5, 6, 7, 0, 1, 2, 3}));
    x = larger(x, __builtin_shuffle(x, i32x8{2, 3, 0, 1, 6, 7, 4, 5}));
    return std::max(x[0], x[1]);
}

// 8 neighbouring numbers in bfloat16, which is the upper half of a float.
inline f32x8 widen(const uint16_t* from) {
    return reinterpret_cast<f32x8>(__builtin_convertvector(load<u16x8>(from), u32x8) << 16);
}

inline float widen_one(const uint16_t* from) {
    const uint32_t bits = uint32_t{*from} << 16;
    return load<float>(&bits);
}

// A row of a panel: 16 numbers, as they are or in bfloat16. Of those each of the first eight lies beside its
// counterpart of the last eight: a shift and a mask make floats of all, where eight neighbours would need as much for
// half of them.
struct Row {
    f32x8 halves[2];
};

inline Row row(const float* from) {
    return {load<f32x8>(from), load<f32x8>(from + 8)};
}

inline Row row(const uint16_t* from) {
    const u32x8 pairs = load<u32x8>(from);
    return {reinterpret_cast<f32x8>(pairs << 16), reinterpret_cast<f32x8>(pairs & 0xffff0000u)};
}

inline float one_of(const float* row, int64_t column) {
    return row[column];
}

inline float one_of(const uint16_t* row, int64_t column) {
    return widen_one(row + column % 8 * 2 + column / 8);
}

// What becomes of a sum before it is stored: plus its column's bias, plus what is there.
struct Finish {
    const float* bias = nullptr;
    bool add = false;

    Finish at(int64_t column) const { return {bias ? bias + column : nullptr, add}; }

    f32x8 operator()(f32x8 sum, int64_t column, const float* there) const {
        if (bias) sum += load<f32x8>(bias + column);
        return add ? sum + load<f32x8>(there) : sum;
    }
};

// C[M, 16 P] = A[M, K] B, finished: row k of B is at b + k * ldb, P panels' rows side by side.
// kAhead: B is a panel, and the one behind it is fetched into the second-level cache meanwhile.
template <int M, int P, bool kAhead, class W>
inline void product(int64_t K, const float* a, int64_t lda, const W* b, int64_t ldb, float* c, int64_t ldc,
                    const Finish& finish) {
    f32x8 sum[M][2 * P];
    for (int m = 0; m < M; ++m)
        for (int p = 0; p < 2 * P; ++p) sum[m][p] = f32x8{};
    for (int64_t k = 0; k < K; ++k) {
        if constexpr (kAhead) __builtin_prefetch(b + (K + k) * ldb, 0, 2);
        f32x8 numbers[2 * P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const Row some = row(b + k * ldb + kColumns * p);
            numbers[2 * p] = in_register(some.halves[0]);
            numbers[2 * p + 1] = in_register(some.halves[1]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const f32x8 x = splat(a[m * lda + k]);
#pragma GCC unroll 8
            for (int p = 0; p < 2 * P; ++p) sum[m][p] += x * numbers[p];
        }
    }
    for (int m = 0; m < M; ++m)
        for (int p = 0; p < 2 * P; ++p) {
            float* to = c + m * ldc + 8 * p;
            store(to, finish(sum[m][p], 8 * p, to));
        }
}

// run(rows) with their number as a constant, at most kMaxRows of them: sums are registers then.
template <class Run>
inline void with_rows(int64_t M, const Run& run) {
    switch (M) {
        case 1:
            return run(std::integral_constant<int, 1>());
        case 2:
            return run(std::integral_constant<int, 2>());
        case 3:
            return run(std::integral_constant<int, 3>());
        case 4:
            return run(std::integral_constant<int, 4>());
        case 5:
            return run(std::integral_constant<int, 5>());
        default:
            return run(std::integral_constant<int, kMaxRows>());
    }
}

// The product for any number of rows up to kMaxRows, 16 columns; a row of A has K numbers.
template <bool kAhead, class W>
inline void rows(int64_t M, int64_t K, const float* a, const W* b, int64_t ldb, float* c, int64_t ldc,
                 const Finish& finish) {
    with_rows(M, [&](auto m) { product<m, 1, kAhead>(K, a, K, b, ldb, c, ldc, finish); });
}

}  // namespace tile
