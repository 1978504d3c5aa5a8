// The functions of the kernels that driver.cpp calls, as kernels.cpp defines them.
#pragma once

#include "decoder/decoder.h"
#include "decoder/feed_forward.h"
#include "decoder/self_attention.h"
#include "grouped/float8_linear.h"
#include "grouped/gguf_linear.h"
#include "linear/linear.h"
#include "sampling/sampling.h"

extern "C" {

void mm_set_threads(int count);
void mm_linear(const float* x, const void* panels, int weights, const float* bias, float* out, int64_t M, int64_t K,
               int64_t N, int add);
void mm_rows(const void* panels, int weights, const int64_t* indices, float* out, int64_t rows, int64_t K);
void mm_rms_norm(const float* x, const float* weight, float eps, float* out, int64_t rows, int64_t size);
void mm_head_norm(float* x, int64_t stride, const float* weight, float eps, int64_t rows, int64_t heads, int64_t dim);
void mm_layer_norm(const float* x, const float* weight, const float* bias, float eps, float* out, int64_t rows,
                   int64_t size);
void mm_add_scaled(float* x, const float* addend, const float* scale, int64_t rows, int64_t size);
void mm_rotate(float* x, int64_t stride, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t dim,
               int64_t size, int64_t adjacent);
void mm_activation(float* x, int64_t rows, int64_t size, int64_t activation);
void mm_act_and_mul(const float* x, float* out, int64_t rows, int64_t size, int64_t activation);
void mm_attention(const float* q, const float* kv, const int64_t* slot_mapping, void* layer_kv, int cache,
                  const int64_t* tables, const int64_t* tiles, float* out, int64_t rows, int64_t num_tiles,
                  int64_t q_stride, int64_t table_stride, int64_t heads, int64_t kv_heads, int64_t dim, int64_t window,
                  const int64_t* ends, float scale);
void mm_encoder_attention(const float* qkv, float* out, const int64_t* lengths, int64_t sequences, int64_t heads,
                          int64_t dim, int rounds);
void mm_sample(const float* logits, int64_t stride, int64_t rows, int64_t size, const sampling::Draw* draws,
               int may_ban, int64_t* chosen);
void mm_ban(float* logits, int64_t stride, int64_t size, const int64_t* rows, int64_t count, const uint32_t* allowed,
            int64_t words);
void mm_decoder(const decoder::Layer* layers, const decoder::Shape* shape, const decoder::Step* step);
void mm_feed_forward(const feed_forward::Block* block, float* x, int64_t rows);
void mm_self_attention(const self_attention::Block* block, float* x, const int64_t* lengths, int64_t sequences);

}  // extern "C"
