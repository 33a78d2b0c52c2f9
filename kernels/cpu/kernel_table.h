// The table of kernels: one instance per instruction path.
//
// A kernel is a plain function over plain data: no allocation, no threads, no exceptions, no Python. Splitting work over
// threads and checking arguments happen above (the op files), compiled once for the baseline machine.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace colibri {

struct KernelTable {
  const char* isa;

  // x[i] += y[i] for i in [0, n)
  void (*add_inplace)(float* x, const float* y, int64_t n);
};

// nullptr where the path was not compiled in (other architecture).
const KernelTable* table_avx512bf16();
const KernelTable* table_avx512();
const KernelTable* table_avx2();
const KernelTable* table_portable();

}  // namespace colibri
