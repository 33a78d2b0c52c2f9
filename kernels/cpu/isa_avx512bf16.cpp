// Compiled with this path's own flags (CMakeLists.txt); see simd.h for what may be included here.
#include "kernel_table.h"
#if defined(__x86_64__)
#define COLIBRI_ISA isa_avx512bf16
#define COLIBRI_ISA_NAME "avx512bf16"
#define COLIBRI_SIMD_AVX512
#include "isa_table.h"

namespace colibri {
const KernelTable* table_avx512bf16() { return &COLIBRI_ISA::kTable; }
}  // namespace colibri
#else
namespace colibri {
const KernelTable* table_avx512bf16() { return nullptr; }
}  // namespace colibri
#endif
