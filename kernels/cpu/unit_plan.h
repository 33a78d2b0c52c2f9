// A worker's batch of units: its checks, and where each entry's result goes.
#pragma once
#include <cstdint>
#include <vector>

namespace colibri {

constexpr uint32_t kMaxTopK = 16;

// UnitBatch of colibri.kernels.api.
struct UnitBatchView {
  const uint32_t *group_expert, *group_count;
  const uint32_t *entry_row, *entry_slot, *entry_unit;
  const float* entry_weight;
  const uint32_t* unit_slots;
  int64_t groups, entries, units;
};

struct UnitPlan {
  // Entries of unit u in slot order: order[first[u]] .. order[first[u + 1]].
  std::vector<int64_t> first, order;
  // Units with more than one slot.
  std::vector<int64_t> folded;
};

// Checks everything that indexes or weighs anything, then fills `plan`. Throws std::invalid_argument that names the field.
void plan_units(const UnitBatchView& batch, int64_t rows, UnitPlan& plan);

}  // namespace colibri
