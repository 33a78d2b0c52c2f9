#include "unit_plan.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace colibri {
namespace {

[[noreturn]] void fail(const char* field, int64_t index, const std::string& expected, const std::string& got) {
  throw std::invalid_argument("batch." + std::string(field) + "[" + std::to_string(index) + "]: expected " + expected +
                              ", got " + got);
}

void below(const char* field, const uint32_t* values, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; i++)
    if (values[i] >= limit) fail(field, i, "below " + std::to_string(limit), std::to_string(values[i]));
}

void check_groups(const UnitBatchView& b) {
  int64_t total = 0;
  for (int64_t g = 0; g < b.groups; g++) {
    if (g && b.group_expert[g] <= b.group_expert[g - 1])
      fail("group_expert", g, "more than " + std::to_string(b.group_expert[g - 1]) + " (ascending)",
           std::to_string(b.group_expert[g]));
    if (b.group_count[g] == 0) fail("group_count", g, "at least 1", "0");
    total += b.group_count[g];
  }
  if (total != b.entries)
    throw std::invalid_argument("batch.group_count: expected a sum of " + std::to_string(b.entries) + " entries, got " +
                                std::to_string(total));
}

}  // namespace

void plan_units(const UnitBatchView& b, int64_t rows, UnitPlan& plan) {
  check_groups(b);
  below("entry_row", b.entry_row, b.entries, rows);
  below("entry_slot", b.entry_slot, b.entries, kMaxTopK);
  below("entry_unit", b.entry_unit, b.entries, b.units);
  for (int64_t e = 0; e < b.entries; e++)
    if (!std::isfinite(b.entry_weight[e])) fail("entry_weight", e, "a finite number", std::to_string(b.entry_weight[e]));

  plan.first.assign(size_t(b.units) + 1, 0);
  plan.folded.clear();
  for (int64_t u = 0; u < b.units; u++) {
    const uint32_t n = b.unit_slots[u];
    if (n < 1 || n > kMaxTopK) fail("unit_slots", u, "1 to " + std::to_string(kMaxTopK), std::to_string(n));
    plan.first[u + 1] = plan.first[u] + n;
    if (n > 1) plan.folded.push_back(u);
  }
  if (plan.first[b.units] != b.entries)
    throw std::invalid_argument("batch.unit_slots: expected a sum of " + std::to_string(b.entries) + " entries, got " +
                                std::to_string(plan.first[b.units]));

  // As many places as entries and no place taken twice: every unit gets exactly its entries.
  plan.order.assign(size_t(b.entries), -1);
  for (int64_t e = 0; e < b.entries; e++) {
    const uint32_t unit = b.entry_unit[e], slots = b.unit_slots[unit], slot = b.entry_slot[e];
    if (slots > 1 && slot >= slots)
      fail("entry_slot", e, "below " + std::to_string(slots) + " (unit " + std::to_string(unit) + " folds slots 0.." +
           std::to_string(slots - 1) + ")", std::to_string(slot));
    int64_t& place = plan.order[plan.first[unit] + (slots > 1 ? slot : 0)];
    if (place >= 0)
      fail("entry_unit", e, "one entry for each slot of unit " + std::to_string(unit),
           "entries " + std::to_string(place) + " and " + std::to_string(e) + " for slot " + std::to_string(slot));
    place = e;
  }
  for (int64_t u : plan.folded)
    for (int64_t i = plan.first[u] + 1; i < plan.first[u + 1]; i++) {
      const uint32_t row = b.entry_row[plan.order[plan.first[u]]], other = b.entry_row[plan.order[i]];
      if (other != row)
        fail("entry_row", plan.order[i], std::to_string(row) + " (unit " + std::to_string(u) + " folds slots of one row)",
             std::to_string(other));
    }
}

}  // namespace colibri
