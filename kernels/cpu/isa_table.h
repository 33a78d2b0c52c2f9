// The body of every instruction-path unit: all kernels, and the table of them.
#pragma once
#include "kernel_table.h"
#include "attention_block_kernels.h"
#include "attention_row_kernels.h"
#include "dequantise_kernels.h"
#include "elementwise_kernels.h"
#include "embed_kernels.h"
#include "gate_kernels.h"
#include "gemm_kernels.h"
#include "limits_kernels.h"
#include "math16.h"
#include "merge_kernels.h"
#include "norm_kernels.h"
#include "pack_kernels.h"
#include "quant_kernels.h"
#include "quantise_kernels.h"
#include "rope_kernels.h"
#include "sampling_kernels.h"
#include "self_test_kernels.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// constexpr: a dynamic initialiser would run this path's instructions on every machine at load time.
constexpr KernelTable make_table() {
  KernelTable t{};
  t.isa = COLIBRI_ISA_NAME;
  t.gemm_f32[kWeightBf16] = fma_kernels<kFmaRows, WeightsBf16>();
  t.gemm_f32[kWeightFp16] = fma_kernels<kFmaRows, WeightsFp16>();
  t.gemm_f32[kWeightF32] = fma_kernels<kFmaRows, WeightsF32>();
#if defined(COLIBRI_HAS_DPBF16)
  t.gemm_bf16 = dpbf16_kernels();
  t.self_test = self_test;
#endif
  t.pack_panel = pack_panel;
  t.quant = quant_kernels();
  t.quantise_panel = quantise_panel;
  t.dequantise_pairs = dequantise_pairs;
  t.add_inplace = add_inplace;
  t.rms_norm_row = rms_norm_row;
  t.embed_row = embed_row;
  t.embed_quant_row = embed_quant_row;
  t.rope_and_store_row = rope_and_store_row;
  t.attend_row = attend_row;
  t.attend_block = attend_block;
  t.gate_rows = gate_rows;
  t.merge_row = merge_row;
  t.largest_logit = largest_logit;
  t.first_equal = first_equal;
  t.temper = temper;
  t.sum_words = sum_words;
  t.peak[0] = peak_fma;
#if defined(COLIBRI_HAS_DPBF16)
  t.peak[1] = peak_dpbf16;
  t.peak[2] = peak_dpbusd;
#endif
  return t;
}

static constexpr KernelTable kTable = make_table();

}  // namespace COLIBRI_ISA
}  // namespace colibri
