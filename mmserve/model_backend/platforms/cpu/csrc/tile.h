// The innermost matrix product: a few rows of A times panels of 16 columns of B, with the sums in registers. Each
// result is a sum over k in ascending order for any number of rows, so a sequence's results do not depend on its batch.
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

// The first `count` of 8 numbers, at most 8. The others are zeros when loaded, and are not stored.
inline f32x8 load_first(const float* from, int64_t count) {
    if (count >= 8) return load<f32x8>(from);
    f32x8 value{};
    std::memcpy(&value, from, count * sizeof(float));
    return value;
}

inline void store_first(float* to, f32x8 value, int64_t count) {
    std::memcpy(to, &value, std::min<int64_t>(count, 8) * sizeof(float));
}

inline f32x8 broadcast(float x) {
    return f32x8{x, x, x, x, x, x, x, x};
}

// Makes the compiler load the value once. It would load it in every instruction that uses it, which made products of 3
// and 4 rows slower than those of 6.
inline f32x8 keep_in_register(f32x8 value) {
#ifdef __AVX2__
    asm("" : "+x"(value));
#endif
    return value;
}

// Keeps the compiler from fusing the product or sum that `value` is with the operation that follows, so that both are
// rounded, as in torch.
inline f32x8 rounded(f32x8 value) {
#if defined(__AVX2__)
    asm("" : "+x"(value));
#elif !defined(__x86_64__)
    asm("" : "+m"(value));
#endif
    return value;
}

inline f32x8 maximum(f32x8 a, f32x8 b) {
    return a > b ? a : b;
}

inline float horizontal_max(f32x8 x) {
    x = maximum(x, __builtin_shuffle(x, i32x8{4, 5, 6, 7, 0, 1, 2, 3}));
    x = maximum(x, __builtin_shuffle(x, i32x8{2, 3, 0, 1, 6, 7, 4, 5}));
    return std::max(x[0], x[1]);
}

// 8 neighbouring numbers from bfloat16, which is the upper half of a float.
inline f32x8 widen(const uint16_t* from) {
    return reinterpret_cast<f32x8>(__builtin_convertvector(load<u16x8>(from), u32x8) << 16);
}

inline float widen_one(const uint16_t* from) {
    const uint32_t bits = uint32_t{*from} << 16;
    return load<float>(&bits);
}

// 16 numbers of a panel, stored as float32 or bfloat16. In bfloat16 number i lies beside number i + 8: one shift and
// one mask then widen all 16, where widening 8 neighbours takes as many instructions for half of them.
struct PanelRow {
    f32x8 halves[2];
};

inline PanelRow load_row(const float* from) {
    return {load<f32x8>(from), load<f32x8>(from + 8)};
}

inline PanelRow load_row(const uint16_t* from) {
    const u32x8 pairs = load<u32x8>(from);
    return {reinterpret_cast<f32x8>(pairs << 16), reinterpret_cast<f32x8>(pairs & 0xffff0000u)};
}

inline float element(const float* row, int64_t column) {
    return row[column];
}

inline float element(const uint16_t* row, int64_t column) {
    return widen_one(row + column % 8 * 2 + column / 8);
}

// Applied to a sum before it is stored: adds the column's bias, and the number that is stored there (a residual).
struct Epilogue {
    const float* bias = nullptr;
    bool add = false;

    Epilogue at(int64_t column) const { return {bias ? bias + column : nullptr, add}; }

    f32x8 operator()(f32x8 sum, int64_t column, const float* out) const {
        if (bias) sum += load<f32x8>(bias + column);
        return add ? sum + load<f32x8>(out) : sum;
    }
};

// C[M, 16 P] = epilogue(A[M, K] B). Row k of B is at b + k * ldb, with the rows of P panels side by side.
// kPrefetch: B is a panel, and the next panel is prefetched into the second-level cache.
template <int M, int P, bool kPrefetch, class W>
inline void product(int64_t K, const float* a, int64_t lda, const W* b, int64_t ldb, float* c, int64_t ldc,
                    const Epilogue& epilogue) {
    f32x8 sum[M][2 * P];
    for (int m = 0; m < M; ++m)
        for (int p = 0; p < 2 * P; ++p) sum[m][p] = f32x8{};
    for (int64_t k = 0; k < K; ++k) {
        if constexpr (kPrefetch) __builtin_prefetch(b + (K + k) * ldb, 0, 2);
        f32x8 numbers[2 * P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const PanelRow row = load_row(b + k * ldb + kColumns * p);
            numbers[2 * p] = keep_in_register(row.halves[0]);
            numbers[2 * p + 1] = keep_in_register(row.halves[1]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const f32x8 x = broadcast(a[m * lda + k]);
#pragma GCC unroll 8
            for (int p = 0; p < 2 * P; ++p) sum[m][p] += x * numbers[p];
        }
    }
    for (int m = 0; m < M; ++m)
        for (int p = 0; p < 2 * P; ++p) {
            float* to = c + m * ldc + 8 * p;
            store(to, epilogue(sum[m][p], 8 * p, to));
        }
}

// Calls run(M) with the number of rows, at most kMaxRows, as a compile-time constant, so that sums can be registers.
template <class Run>
inline void dispatch_rows(int64_t M, const Run& run) {
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

// The product of up to kMaxRows rows and one panel of 16 columns; a row of A has K numbers.
template <bool kPrefetch, class W>
inline void multiply_rows(int64_t M, int64_t K, const float* a, const W* b, int64_t ldb, float* c, int64_t ldc,
                          const Epilogue& epilogue) {
    dispatch_rows(M, [&](auto m) { product<m, 1, kPrefetch>(K, a, K, b, ldb, c, ldc, epilogue); });
}

}  // namespace tile
