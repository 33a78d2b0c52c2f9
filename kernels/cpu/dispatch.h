// The choice of an instruction path at run time.
#pragma once
#include <string>
#include <vector>

#include "kernel_table.h"

namespace colibri {

// Names of the paths that this machine can run, best first.
std::vector<std::string> supported_isas();

struct IsaChoice {
  const KernelTable* table;
  // Empty, or why another path than the asked one was taken (the start-up self-test failed).
  std::string fallback;
};

// `requested`: a path's name, or empty for COLIBRI_ISA, or, that unset or empty too, the best of this machine. Throws
// std::invalid_argument when the name is unknown or this machine cannot run it. A path with special instructions whose
// self-test fails, or all of them with `distrust`, gives way to the next one.
IsaChoice choose_isa(const std::string& requested, bool distrust);

}  // namespace colibri
