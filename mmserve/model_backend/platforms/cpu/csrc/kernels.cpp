// The functions that Python calls, on plain addresses. Tensors are contiguous float32 unless stated otherwise.
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "activations.h"
#include "attention/attention.h"
#include "attention/encoder.h"
#include "decoder/decode_step.h"
#include "decoder/decoder.h"
#include "decoder/feed_forward.h"
#include "decoder/self_attention.h"
#include "grouped/float8_linear.h"
#include "grouped/gguf_linear.h"
#include "grouped/grouped_linear.h"
#include "linear/linear.h"
#include "linear/tiled_linear.h"
#include "norms.h"
#include "sampling/sampling.h"

namespace {

// Turns `half` pairs: number i and number i + half, or two adjacent numbers.
template <bool kAdjacent>
void rotate(float* x, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        float *first = kAdjacent ? x + 2 * i : x + i, *second = kAdjacent ? first + 1 : first + half;
        const float a = *first, b = *second;
        *first = std::fma(a, cos[i], -(b * sin[i]));  // which product is rounded is not left to the compiler
        *second = std::fma(b, cos[i], a * sin[i]);
    }
}

// Calls run(cache), with an empty value of the type of KV cache: see mm_attention.
template <class Run>
void dispatch_cache(int64_t cache, const Run& run) {
    if (cache == 0) return run(std::type_identity<attention::KvCache<linear::Exact>>());
    if (cache == 1) return run(std::type_identity<attention::KvCache<linear::Widened>>());
    run(std::type_identity<attention::KvCache<linear::Rounded>>());
}

// Writes K and V of a row, kv: [2, kv_heads, dim], into the cache.
template <class Cache>
void store_row(void* layer_kv, int64_t slot, const float* kv, int64_t kv_heads, int64_t dim) {
    Cache::store(static_cast<typename Cache::Number*>(layer_kv), slot, kv, kv_heads, dim);
}

}  // namespace

extern "C" {

// Whether products of bfloat16 are fastest in tile registers.
int mm_has_tiles() {
#ifdef __AMX_TILE__
    return 1;
#else
    return 0;
#endif
}

void mm_set_threads(int count) {
    pool::shared().set_threads(count);
}

// Use fewer threads while other processes compute: see pool::Pool::leave_cores.
void mm_leave(const int32_t* busy_cores, int64_t count, int64_t share, int64_t min_threads) {
    pool::shared().leave_cores(busy_cores, count, share, min_threads);
}

// From now on these products are computed so: see linear/ways.h. Not while another function runs.
void mm_choose_ways(const linear::Choice* choices, int64_t count) {
    linear::choices().assign(choices, choices + count);
}

// weights: 0 float32, 1 bfloat16, 4 bfloat16 with the inputs rounded to bfloat16; whole numbers: 5 codes of 4 bits, 6 of 8
// bits, 7 of 8 bits with inputs rounded to 8 bits, 8 E4M3, 9 formats of GGUF; 10 as 4, summed as tile registers do; 11 as
// 10, without tile registers.
void mm_linear(const float* x, const void* panels, int weights, const float* bias, float* out, int64_t M, int64_t K,
               int64_t N, int add) {
    const linear::Job job{x, out, M, K, N, {bias, add != 0}, linear::ways_of(weights, M, K, N)};
    switch (weights) {
        case 0:
            return linear::run<linear::Exact>(job, static_cast<const float*>(panels));
        case 1:
            return linear::run<linear::Widened>(job, static_cast<const uint16_t*>(panels));
        case 5:
            return grouped::run<grouped::Codes4, grouped::WideInputs>(job, static_cast<const uint8_t*>(panels));
        case 6:
            return grouped::run<grouped::Codes8, grouped::WideInputs>(job, static_cast<const uint8_t*>(panels));
        case 7:
            return grouped::run<grouped::Codes8, grouped::NarrowInputs>(job, static_cast<const uint8_t*>(panels));
        case 8:
            return float8::run(job, static_cast<const uint8_t*>(panels));
        case 9:
            return grouped::run_gguf(job, static_cast<const uint8_t*>(panels));
        case linear::kTiled:
            return linear::tiles::run<linear::tiles::Best>(job, static_cast<const uint16_t*>(panels));
        case linear::kEmulatedTiles:
            return linear::tiles::run<linear::tiles::Emulated>(job, static_cast<const uint16_t*>(panels));
        default:
            return linear::run<linear::Rounded>(job, static_cast<const uint16_t*>(panels));
    }
}

// Rows `indices` of the matrix as floats: [rows, K]. weights: as in mm_linear, but 0, 1, 4, 9 or 10.
void mm_rows(const void* panels, int weights, const int64_t* indices, float* out, int64_t rows, int64_t K) {
    pool::parallel_for_rows(rows, K, [=](int64_t row) {
        float* to = out + row * K;
        if (weights == 0)
            linear::load_weight_row<linear::Float32>(static_cast<const float*>(panels), indices[row], K, to);
        else if (weights == 9)
            grouped::load_gguf_row(static_cast<const uint8_t*>(panels), indices[row], K, to);
        else
            linear::load_weight_row<linear::Bfloat16>(static_cast<const uint16_t*>(panels), indices[row], K, to);
    });
}

void mm_rms_norm(const float* x, const float* weight, float eps, float* out, int64_t rows, int64_t size) {
    pool::parallel_for_rows(rows, size, [=](int64_t row) {
        norms::rms_norm(x + row * size, weight, eps, out + row * size, size);
    });
}

// RMSNorm of each of the first `heads` heads of each row, in place. weight: [dim].
void mm_head_norm(float* x, int64_t stride, const float* weight, float eps, int64_t rows, int64_t heads, int64_t dim) {
    pool::parallel_for_rows(rows, heads * dim, [=](int64_t row) {
        for (float *head = x + row * stride, *end = head + heads * dim; head < end; head += dim)
            norms::rms_norm(head, weight, eps, head, dim);
    });
}

void mm_layer_norm(const float* x, const float* weight, const float* bias, float eps, float* out, int64_t rows,
                   int64_t size) {
    pool::parallel_for_rows(rows, size, [=](int64_t row) {
        norms::layer_norm(x + row * size, weight, bias, eps, out + row * size, size);
    });
}

// x += addend * scale: [rows, size], with the scale [size] of each column.
void mm_add_scaled(float* x, const float* addend, const float* scale, int64_t rows, int64_t size) {
    pool::parallel_for_rows(rows, 2 * size, [=](int64_t row) {
        const float* from = addend + row * size;
        float* to = x + row * size;
        for (int64_t i = 0; i < size; ++i) to[i] += from[i] * scale[i];
    });
}

// Rotary embedding of the first `size` numbers of each of the first `heads` heads of each row, in place. cos and sin:
// [rows, size / 2].
void mm_rotate(float* x, int64_t stride, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t dim,
               int64_t size, int64_t adjacent) {
    const int64_t half = size / 2;
    pool::parallel_for_rows(rows, heads * size, [=](int64_t row) {
        const float *c = cos + row * half, *s = sin + row * half;
        for (int64_t head = 0; head < heads; ++head) {
            float* from = x + row * stride + head * dim;
            if (adjacent)
                rotate<true>(from, c, s, half);
            else
                rotate<false>(from, c, s, half);
        }
    });
}

// x = act(x), in place: [rows, size]. activation: see activations::dispatch.
void mm_activation(float* x, int64_t rows, int64_t size, int64_t activation) {
    activations::dispatch(activation, [=]<class V>(auto act, V) {
        pool::parallel_for_rows(rows, 2 * size, [=](int64_t row) {
            for (float *at = x + row * size, *end = at + size; at < end; at += tile::kLanes<V>)
                tile::store_first(at, act(tile::load_first<V>(at, end - at)), end - at);
        });
    });
}

// x [rows, 2 * size]: gate, then up. out = act(gate) * up: [rows, size]. activation: see activations::dispatch.
void mm_act_and_mul(const float* x, float* out, int64_t rows, int64_t size, int64_t activation) {
    activations::dispatch(activation, [=]<class V>(auto act, V) {
        pool::parallel_for_rows(rows, 4 * size, [=](int64_t row) {
            const float *gate = x + row * 2 * size, *up = gate + size;
            for (int64_t i = 0; i < size; i += tile::kLanes<V>) {
                const V activated = act(tile::load_first<V>(gate + i, size - i));
                tile::store_first(out + row * size + i, activated * tile::load_first<V>(up + i, size - i), size - i);
            }
        });
    });
}

// Writes each row's K and V into the cache at slot_mapping[row], then computes attention (see attention::Job).
// kv: [rows, 2, kv_heads, dim], rows q_stride apart. layer_kv: see attention/kv_cache.h.
// cache: 0 float32, 1 bfloat16, 2 bfloat16 and the inputs of both products rounded to it. window: 0 for none. ends:
// [rows] or null.
void mm_attention(const float* q, const float* kv, const int64_t* slot_mapping, void* layer_kv, int cache,
                  const int64_t* tables, const int64_t* tiles, float* out, int64_t rows, int64_t num_tiles,
                  int64_t q_stride, int64_t table_stride, int64_t heads, int64_t kv_heads, int64_t dim, int64_t window,
                  const int64_t* ends, float scale) {
    const attention::Job job{q,     layer_kv, tables, tiles, out,    q_stride, table_stride,
                             heads, kv_heads, dim,    scale, window, ends};
    static thread_local attention::SegmentMemory segments;
    dispatch_cache(cache, [&]<class Cache>(std::type_identity<Cache>) {
        pool::parallel_for_rows(rows, 2 * kv_heads * dim, [&](int64_t row) {
            store_row<Cache>(layer_kv, slot_mapping[row], kv + row * q_stride, kv_heads, dim);
        });
        attention::run<Cache>(job, num_tiles, segments);
    });
}

// Attention without a mask within each of some sequences, whose rows follow each other. qkv: [rows, 3, heads, dim],
// out: [rows, heads, dim]. dim: a multiple of 8. rounds: the inputs of both products are rounded to bfloat16.
void mm_encoder_attention(const float* qkv, float* out, const int64_t* lengths, int64_t sequences, int64_t heads,
                          int64_t dim, int rounds) {
    const encoder_attention::Job job{qkv, out, heads, dim};
    if (rounds) encoder_attention::run<linear::Rounded>(job, lengths, sequences);
    else encoder_attention::run<linear::Exact>(job, lengths, sequences);
}

// See sampling::run. Rows are `stride` numbers apart.
void mm_sample(const float* logits, int64_t stride, int64_t rows, int64_t size, const sampling::Draw* draws,
               int may_ban, int64_t* chosen) {
    sampling::run(logits, stride, rows, size, draws, may_ban != 0, chosen);
}

// See sampling::find_finite.
void mm_finite(const float* logits, int64_t stride, int64_t rows, int64_t size, bool* finite) {
    sampling::find_finite(logits, stride, rows, size, finite);
}

// See sampling::ban.
void mm_ban(float* logits, int64_t stride, int64_t size, const int64_t* rows, int64_t count, const uint32_t* allowed,
            int64_t words) {
    sampling::ban(logits, stride, size, rows, count, allowed, words);
}

}  // extern "C"

namespace {

struct Ops {
    static constexpr auto norm = mm_rms_norm;
    static constexpr auto head_norm = mm_head_norm;
    static constexpr auto layer_norm = mm_layer_norm;
    static constexpr auto rotate = mm_rotate;
    static constexpr auto activate = mm_activation;
    static constexpr auto act_and_mul = mm_act_and_mul;
    static constexpr auto add_scaled = mm_add_scaled;
    static constexpr auto encoder_attention = mm_encoder_attention;

    // to[indices[i]] += from[i], of rows of `size` numbers.
    static void add_rows(const float* from, const int64_t* indices, float* to, int64_t rows, int64_t size) {
        pool::parallel_for_rows(rows, size, [=](int64_t row) {
            for (int64_t i = 0; i < size; ++i) to[indices[row] * size + i] += from[row * size + i];
        });
    }

    static void load_rows(const linear::Matrix& matrix, const int64_t* indices, float* out, int64_t rows) {
        mm_rows(matrix.panels, static_cast<int>(matrix.weights), indices, out, rows, matrix.in);
    }

    // See pool::Member::read_ahead.
    static void read_ahead(const linear::Matrix& matrix) {
        const int64_t panels = (matrix.out + linear::kPanel - 1) / linear::kPanel;
        if (pool::Member* member = pool::Member::current())
            member->read_ahead(matrix.panels, linear::panel_nbytes(matrix.weights, matrix.in), panels);
    }

    static void multiply(const linear::Matrix& matrix, const float* x, float* out, int64_t rows, bool add) {
        mm_linear(x, matrix.panels, static_cast<int>(matrix.weights), matrix.bias, out, rows, matrix.in, matrix.out,
                  add);
    }

    static void add(const float* x, float* to, int64_t rows, int64_t size) {
        pool::parallel_for_rows(rows, size, [=](int64_t row) {
            for (int64_t i = row * size; i < (row + 1) * size; ++i) to[i] += x[i];
        });
    }

    static void store(const float* kv, void* layer_kv, int64_t slot, const decoder::Shape& shape) {
        dispatch_cache(shape.cache, [&]<class Cache>(std::type_identity<Cache>) {
            store_row<Cache>(layer_kv, slot, kv, shape.kv_heads, shape.dim);
        });
    }

    static void attend(const float* heads, int64_t stride, void* kv, const decoder::Layer& layer, const decoder::Shape& shape,
                       const decoder::Step& step, float* out, attention::SegmentMemory& segments) {
        const attention::Job job{heads,        kv,          step.tables, step.tiles,     out,       stride,
                                 step.table_stride, shape.heads, shape.kv_heads, shape.dim, shape.attention_scale,
                                 layer.window, layer.whole_images ? step.image_ends : nullptr};
        dispatch_cache(shape.cache, [&]<class Cache>(std::type_identity<Cache>) {
            attention::run<Cache>(job, step.num_tiles, segments);
        });
    }
};

}  // namespace

extern "C" {

void mm_decoder(const decoder::Layer* layers, const decoder::Shape* shape, const decoder::Step* step) {
    decoder::run<Ops>(layers, nullptr, *shape, *step, [] {});
}

// See decoder::run_decode.
void mm_decode(const decoder::Layer* layers, const decoder::Shape* shape, const decoder::Step* step,
               const decoder::Tokens* tokens, const decoder::Output* output) {
    decoder::run_decode<Ops>(layers, *shape, *step, *tokens, *output);
}

// x: [rows, size], in place. See feed_forward::run.
void mm_feed_forward(const feed_forward::Block* block, float* x, int64_t rows) {
    feed_forward::run<Ops>(*block, x, rows);
}

// x: [rows, size], in place. See self_attention::run.
void mm_self_attention(const self_attention::Block* block, float* x, const int64_t* lengths, int64_t sequences) {
    self_attention::run<Ops>(*block, x, lengths, sequences);
}

}  // extern "C"
