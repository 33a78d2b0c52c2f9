// Compiled for the baseline machine; see simd.h for what may be included here.
#define COLIBRI_ISA isa_portable
#define COLIBRI_ISA_NAME "portable"
#define COLIBRI_SIMD_PORTABLE
#include "isa_table.h"

namespace colibri {
const KernelTable* table_portable() { return &COLIBRI_ISA::kTable; }
}  // namespace colibri
