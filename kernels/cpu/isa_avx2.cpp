// Compiled with this path's own flags (CMakeLists.txt); see simd.h for what may be included here.
#include "kernel_table.h"
#if defined(__x86_64__)
#define COLIBRI_ISA isa_avx2
#define COLIBRI_ISA_NAME "avx2"
#define COLIBRI_SIMD_AVX2
#include "isa_table.h"

namespace colibri {
const KernelTable* table_avx2() { return &COLIBRI_ISA::kTable; }
}  // namespace colibri
#else
namespace colibri {
const KernelTable* table_avx2() { return nullptr; }
}  // namespace colibri
#endif
