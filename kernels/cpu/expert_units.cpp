// expert_units: one call for a worker's batch; its checks.
#include <vector>

#include "ops.h"
#include "units_run.h"

namespace colibri {
namespace {

std::string format_name(const Matrix& m) {
  return std::string(weight_type_name(m.type)) + (m.group ? " with group " + std::to_string(m.group) : "");
}

nb::object expert_units(Backend& backend, nb::handle x_array, nb::handle expert_list, nb::handle group_expert,
                        nb::handle group_count, nb::handle entry_row, nb::handle entry_slot, nb::handle entry_unit,
                        nb::handle entry_weight, nb::handle unit_slots) {
  View x(x_array, "x", kF32 | kBf16, {kAny, kAny});
  const int64_t hidden = x.shape(1);
  const bool bf16 = x.dtype() == kBf16;
  View groups(group_expert, "batch.group_expert", kU32, {kAny});
  View counts(group_count, "batch.group_count", kU32, {groups.shape(0)});
  View rows(entry_row, "batch.entry_row", kU32, {kAny});
  View slots(entry_slot, "batch.entry_slot", kU32, {rows.shape(0)});
  View units(entry_unit, "batch.entry_unit", kU32, {rows.shape(0)});
  View weights(entry_weight, "batch.entry_weight", kF32, {rows.shape(0)});
  View sizes(unit_slots, "batch.unit_slots", kU32, {kAny});
  const UnitBatchView batch{groups.as<uint32_t>(), counts.as<uint32_t>(), rows.as<uint32_t>(), slots.as<uint32_t>(),
                            units.as<uint32_t>(), weights.as<float>(), sizes.as<uint32_t>(),
                            groups.shape(0), rows.shape(0), sizes.shape(0)};

  if (!PySequence_Check(expert_list.ptr()))
    fail_type(std::string("experts: expected a sequence of PackedExpert, got ") +
              nb::str(nb::handle(expert_list.type()).attr("__name__")).c_str());
  const int64_t count = int64_t(nb::len(expert_list));
  if (count != batch.groups)
    fail_value("experts", std::to_string(batch.groups) + " experts, one for each group", std::to_string(count));
  std::vector<PackedExpertBlock> blocks;
  std::vector<Expert> experts;
  blocks.reserve(size_t(count));
  experts.reserve(size_t(count));
  for (int64_t g = 0; g < count; g++) {
    const std::string name = "experts[" + std::to_string(g) + "]";
    blocks.emplace_back(expert_list[size_t(g)], "experts");
    const PackedExpertBlock& b = blocks.back();
    if (b.hidden != hidden)
      fail_value(name.c_str(), "hidden " + std::to_string(hidden) + " as in x", std::to_string(b.hidden));
    const Matrix &w = b.expert.gate_up, &w0 = blocks[0].expert.gate_up;
    if (bf16 && w.type != kWeightBf16 && !w.quantised())
      fail_value(name.c_str(), "bf16, int8 or int4 weights for bf16 rows", weight_type_name(w.type));
    if (b.ffn != blocks[0].ffn || w.type != w0.type || w.group != w0.group)
      fail_value(name.c_str(), "the ffn and dtype of experts[0]", "ffn " + std::to_string(b.ffn) + ", " + format_name(w));
    experts.push_back(b.expert);
  }

  UnitPlan plan;
  plan_units(batch, x.shape(0), plan);
  nb::object result = new_array(kF32, {batch.units, hidden});
  View out(result, "out", kF32, {batch.units, hidden}, true);
  if (batch.entries) {
    Call call(backend);
    const Rows rows_of_x{static_cast<const char*>(x.data()), bf16, hidden, batch.entry_row};
    const auto run_units = experts[0].gate_up.quantised() ? run_quant_units : run_plain_units;
    run_units(backend, rows_of_x, experts, batch, plan, out.as<float>());
  }
  return result;
}

}  // namespace

void bind_expert_units(BackendClass& c) {
  c.def("expert_units", &expert_units, nb::arg("x"), nb::arg("experts"), nb::arg("group_expert"), nb::arg("group_count"),
        nb::arg("entry_row"), nb::arg("entry_slot"), nb::arg("entry_unit"), nb::arg("entry_weight"), nb::arg("unit_slots"),
        nb::sig("def expert_units(self, x: object, experts: collections.abc.Sequence[object], group_expert: object, "
                "group_count: object, entry_row: object, entry_slot: object, entry_unit: object, entry_weight: object, "
                "unit_slots: object) -> numpy.typing.NDArray[numpy.float32]"));
}

}  // namespace colibri
