// The body of every instruction-path unit: all kernels, and the table of them.
#pragma once
#include "kernel_table.h"
#include "elementwise_kernels.h"
#include "math16.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// constexpr: a dynamic initialiser would run this path's instructions on every machine at load time.
constexpr KernelTable make_table() {
  KernelTable t{};
  t.isa = COLIBRI_ISA_NAME;
  t.add_inplace = add_inplace;
  return t;
}

static constexpr KernelTable kTable = make_table();

}  // namespace COLIBRI_ISA
}  // namespace colibri
