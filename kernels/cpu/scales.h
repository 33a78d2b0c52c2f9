// A look at the scales of packed matrices.
#pragma once
#include <string>

#include "args.h"

namespace colibri {

// The first in the order of the data, counted as (panel * groups + group) * 32 + column; -1: all are finite.
// ValueError for sizes that are out of range or are not those of `data`.
int64_t first_not_finite_scale(nb::handle data, const std::string& dtype, int64_t n, int64_t k, int64_t group);

}  // namespace colibri
