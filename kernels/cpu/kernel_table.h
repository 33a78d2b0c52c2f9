// The table of kernels: one instance per instruction path.
//
// A kernel is a plain function over plain data: no allocation, no threads, no exceptions, no Python. Splitting work over
// threads and checking arguments happen above (the op files), compiled once for the baseline machine.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "gemm_types.h"

namespace colibri {

struct KernelTable {
  const char* isa;

  // Whether this path's special instructions compute what the others do; nullptr: it has none. Needs DAZ + FTZ.
  bool (*self_test)();

  // Rows packed as fp32, by weight type; rows packed as bf16 with bf16 weights (max_rows 0 where there is no such path).
  GemmKernels gemm_f32[kWeightTypes];
  GemmKernels gemm_bf16;
  void (*pack_panel)(const PackPanel& p);

  // x[i] += y[i] for i in [0, n)
  void (*add_inplace)(float* x, const float* y, int64_t n);
};

// nullptr where the path was not compiled in (other architecture).
const KernelTable* table_avx512bf16();
const KernelTable* table_avx512();
const KernelTable* table_avx2();
const KernelTable* table_portable();

}  // namespace colibri
