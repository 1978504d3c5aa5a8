// Vectors of floats, and the innermost matrix product: a few rows of A times some columns of B, with the sums in
// registers. Each result is a sum over k in an order that does not depend on the number of rows or the vectors' width,
// so a sequence's results depend neither on its batch nor on the instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace tile {

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));

#if defined(__AVX512VL__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif
constexpr int kMaxRows = 6;  // with 16 columns: 12 sums of 16 registers, or 24 of 32

template <class V>
constexpr int64_t kLanes = sizeof(V) / sizeof(float);

template <class V>
inline V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class V>
inline void store(float* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

// The first `count` numbers of a vector. The others are zeros when loaded, and are not stored.
template <class V = f32x8>
inline V load_first(const float* from, int64_t count) {
    if (count >= kLanes<V>) return load<V>(from);
    V value{};
    std::memcpy(&value, from, count * sizeof(float));
    return value;
}

template <class V>
inline void store_first(float* to, V value, int64_t count) {
    if (count >= kLanes<V>) return store(to, value);
    std::memcpy(to, &value, count * sizeof(float));
}

template <class V = f32x8>
inline V broadcast(float x) {
    return x - V{};  // a sum with zeros would lose the sign of a zero
}

// Makes the compiler load the value once. It would load it in every instruction that uses it, which made products of 3
// and 4 rows slower than those of 6.
template <class V>
inline V keep_in_register(V value) {
#ifdef __AVX2__
    asm("" : "+v"(value));
#elif defined(__aarch64__)
    if constexpr (sizeof value == 16) asm("" : "+w"(value));
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

// Of floats, or of integers. b where one of them is NaN.
template <class V>
inline V maximum(V a, V b) {
#ifdef __AVX512F__
    if constexpr (std::is_same_v<V, f32x16>)  // GCC 12 makes two instructions of the expression below
        return reinterpret_cast<V>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#endif
    return a > b ? a : b;
}

// As maximum.
template <class V>
inline V minimum(V a, V b) {
#ifdef __AVX512F__
    if constexpr (std::is_same_v<V, f32x16>)
        return reinterpret_cast<V>(_mm512_min_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#endif
    return a < b ? a : b;
}

inline float horizontal_max(f32x4 x) {
    x = maximum(x, __builtin_shuffle(x, i32x4{2, 3, 0, 1}));
    return std::max(x[0], x[1]);
}

inline float horizontal_max(f32x8 x) {
    x = maximum(x, __builtin_shuffle(x, i32x8{4, 5, 6, 7, 0, 1, 2, 3}));
    x = maximum(x, __builtin_shuffle(x, i32x8{2, 3, 0, 1, 6, 7, 4, 5}));
    return std::max(x[0], x[1]);
}

inline float horizontal_max(f32x16 x) {
    f32x8 halves[2];
    std::memcpy(halves, &x, sizeof x);
    return horizontal_max(maximum(halves[0], halves[1]));
}

inline float horizontal_sum(f32x8 x) {
    x += __builtin_shuffle(x, i32x8{4, 5, 6, 7, 0, 1, 2, 3});
    x += __builtin_shuffle(x, i32x8{2, 3, 0, 1, 6, 7, 4, 5});
    return x[0] + x[1];
}

// 8 neighbouring numbers from bfloat16, which is the upper half of a float.
inline f32x8 widen(const uint16_t* from) {
    return reinterpret_cast<f32x8>(__builtin_convertvector(load<u16x8>(from), u32x8) << 16);
}

inline float widen_one(const uint16_t* from) {
    const uint32_t bits = uint32_t{*from} << 16;
    return load<float>(&bits);
}

// Calls body(m, c) for M times C registers.
template <int M, int C, class Body>
[[gnu::always_inline]] inline void each(const Body& body) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) body(m, c);
}

// Applied to a sum before it is stored: adds the column's bias, and the number that is stored there (a residual).
struct Epilogue {
    const float* bias = nullptr;
    bool add = false;

    Epilogue at(int64_t column) const { return {bias ? bias + column : nullptr, add}; }

    // Stores the sums of columns from `column` on.
    template <class V>
    void store(V sum, int64_t column, float* out) const {
        if (bias) sum += load<V>(bias + column);
        if (add) sum += load<V>(out);
        tile::store(out, sum);
    }

    // The same for M rows and C vectors of columns, which stay in registers.
    template <class V, int M, int C>
    [[gnu::always_inline]] void store_all(const V (&sums)[M][C], float* out, int64_t ldc) const {
        V sum[M][C];
        each<M, C>([&](int m, int c) { sum[m][c] = sums[m][c]; });
        if (bias) each<M, C>([&](int m, int c) { sum[m][c] += load<V>(bias + c * kLanes<V>); });
        if (add) each<M, C>([&](int m, int c) { sum[m][c] += load<V>(out + m * ldc + c * kLanes<V>); });
        each<M, C>([&](int m, int c) { tile::store(out + m * ldc + c * kLanes<V>, sum[m][c]); });
    }

    // The same for M rows of some columns. Not inline: a call beside the sums would take their registers.
    [[gnu::noinline]] void store_rows(const float* sums, int64_t stride, int64_t M, int64_t columns, float* out,
                                      int64_t ldc) const {
        for (int64_t m = 0; m < M; ++m, sums += stride, out += ldc)
            for (int64_t column = 0; column < columns; ++column) {
                float sum = sums[column];
                if (bias) sum += bias[column];
                out[column] = add ? sum + out[column] : sum;
            }
    }
};

// Where M rows begin, which are `stride` numbers apart. Of many rows every fourth has an address of its own: GCC 12 would compute an
// offset for each row, have no registers for some, and read one from a vector register in each round of a loop.
template <int M, class Number>
class RowAddresses {
public:
    RowAddresses(Number* first, int64_t stride) : stride_(stride) {
        for (int i = 0; i < kGroups; ++i) {
            first_[i] = first + i * kTogether * stride;
            if constexpr (kGroups > 1) first_[i] = separate(first_[i]);
        }
    }

    Number* at(int row) const { return first_[row / kTogether] + row % kTogether * stride_; }

    // By some numbers of each row.
    void advance(int64_t numbers) {
        for (int i = 0; i < kGroups; ++i) first_[i] += numbers;
    }

private:
    static constexpr int kTogether = M > kMaxRows ? 4 : M, kGroups = (M + kTogether - 1) / kTogether;

    // Keeps the compiler from deriving the address from others.
    static Number* separate(Number* address) {
#if defined(__x86_64__) || defined(__aarch64__)
        asm("" : "+r"(address));
#endif
        return address;
    }

    Number* first_[kGroups];
    int64_t stride_;
};

// The sums of M rows and C vectors of columns.
template <class V, int M, int C>
struct Sums {
    static constexpr int64_t kColumns = C * kLanes<V>;
    static constexpr bool kFillRegisters = M * C + C + 2 >= kRegisters;  // with C numbers of B and 2 more
    V sum[M][C] = {};

    // Adds the products of column k of A, from where a.at(row) says that its rows begin, and one row of B.
    template <class Rows>
    void add(const Rows& a, int64_t k, const V (&b)[C]) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const V x = broadcast<V>(a.at(m)[k]);
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) {
                sum[m][c] += x * b[c];
                // GCC 12 would make some sums in the register of x, and keep others in memory.
                if constexpr (kFillRegisters) sum[m][c] = keep_in_register(sum[m][c]);
            }
        }
    }

    void store(float* out, int64_t ldc, const Epilogue& epilogue) const { epilogue.store_all(sum, out, ldc); }

    // The first `columns` columns.
    void store_some(float* out, int64_t ldc, const Epilogue& epilogue, int64_t columns) const {
        float rows[M * kColumns];
        store(rows, kColumns, {});
        epilogue.store_rows(rows, kColumns, M, columns, out, ldc);
    }
};

// Calls run(M) with the number of rows, at most kMost, as a compile-time constant, so that sums can be registers.
template <int kMost = kMaxRows, class Run>
inline void dispatch_rows(int64_t M, const Run& run) {
    if constexpr (kMost > 1)
        if (M < kMost) return dispatch_rows<kMost - 1>(M, run);
    run(std::integral_constant<int, kMost>());
}

}  // namespace tile
