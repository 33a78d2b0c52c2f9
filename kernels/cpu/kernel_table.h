// The table of kernels: one instance per instruction path.
//
// A kernel is a plain function over plain data: no allocation, no threads, no exceptions, no Python. Splitting work over
// threads and checking arguments happen above (the op files), compiled once for the baseline machine.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "dense_types.h"
#include "gate_types.h"
#include "gemm_types.h"
#include "quant_types.h"

namespace colibri {

// `steps` times the same count of multiply-adds; returns the operations, two each. sink: 32 floats, read and written.
using PeakFunction = double (*)(int64_t steps, float* sink);
constexpr int kPeakKinds = 3;
constexpr const char* kPeakNames[kPeakKinds] = {"fp32", "bf16", "int8"};

struct KernelTable {
  const char* isa;

  // Whether this path's special instructions compute what the others do; nullptr: it has none. Needs DAZ + FTZ.
  bool (*self_test)();

  // Rows packed as fp32, by weight type; rows packed as bf16 with bf16 weights (max_rows 0 where there is no such path).
  GemmKernels gemm_f32[kWeightTypes];
  GemmKernels gemm_bf16;
  void (*pack_panel)(const PackPanel& p);
  // Weights of integers with scales: the product, making them, and int4 as bf16. Needs DAZ + FTZ.
  QuantKernels quant;
  void (*quantise_panel)(const QuantPanel& p);
  void (*dequantise_pairs)(const DequantPairs& d);

  // x[i] += y[i] for i in [0, n)
  void (*add_inplace)(float* x, const float* y, int64_t n);

  // One row; into y, or, unless nullptr, rounded into y_bf16.
  void (*rms_norm_row)(const float* x, const float* weight, int64_t n, float eps, float* y, uint16_t* y_bf16);
  // One row of a packed matrix, widened; `column`: its first element.
  void (*embed_row)(const void* column, WeightType type, int64_t k, float* y);
  // The same for weights with scales; `panel`: its first byte, `column`: 0 .. 31.
  void (*embed_quant_row)(const void* panel, int column, WeightType type, int64_t k, int group, float* y);
  void (*rope_and_store_row)(const RopeRow& row);
  // Queries of one row, all seeing the same keys; queries of any rows. Scratch: attention_scratch() floats.
  void (*attend_row)(const AttentionWork& work, float* scratch);
  void (*attend_block)(const AttentionWork& work, float* scratch);
  // The k largest logits of each row and their softmax.
  void (*gate_rows)(const GateRows& g);
  // y = terms[0] + terms[1] + ... of n elements each; zeros without terms.
  void (*merge_row)(const float* const* terms, int64_t count, int64_t n, float* y);
  // Sampling: the largest of n > 0 values (false: one is NaN or +Inf); the first index that equals a value; z and e.
  bool (*largest_logit)(const float* x, int64_t n, float* largest);
  int64_t (*first_equal)(const float* x, int64_t n, float value);
  float (*temper)(const float* x, int64_t n, float largest, float temperature, float* z, float* e);
  // Limits. Sum of `n` 64-bit words modulo 2^64: a plain ascending read; multiply-adds by kind (nullptr: no instruction).
  uint64_t (*sum_words)(const void* p, int64_t n);
  PeakFunction peak[kPeakKinds];
};

// nullptr where the path was not compiled in (other architecture).
const KernelTable* table_avx512bf16();
const KernelTable* table_avx512();
const KernelTable* table_avx2();
const KernelTable* table_portable();

}  // namespace colibri
