// merge: weighted units of all workers into rows.
#include <vector>

#include "ops.h"

namespace colibri {
namespace {

nb::object merge(Backend& backend, nb::sequence parts, nb::handle part_array, nb::handle index_array,
                 nb::handle offsets_array) {
  std::vector<std::string> names;  // Views keep pointers to them.
  for (size_t i = 0; i < nb::len(parts); i++) names.push_back(element("parts", int64_t(i)));
  std::vector<View> views;
  for (size_t i = 0; i < names.size(); i++) {
    const int64_t width = i ? views[0].shape(1) : kAny;
    views.emplace_back(parts[i], names[i].c_str(), kF32, std::initializer_list<int64_t>{kAny, width});
  }
  if (views.empty()) fail_value("parts", "at least one array", "none");
  const int64_t hidden = views[0].shape(1);
  View part_view(part_array, "part", kU32, {kAny});
  const int64_t terms = part_view.shape(0);
  View index_view(index_array, "index", kU32, {terms});
  View offsets_view(offsets_array, "row_offsets", kU32, {kAny});
  const int64_t rows = offsets_view.shape(0) - 1;
  if (rows < 0) fail_value("row_offsets", "rows + 1 values", "none");
  const uint32_t *part = part_view.as<uint32_t>(), *index = index_view.as<uint32_t>();
  const uint32_t* offsets = offsets_view.as<uint32_t>();
  for (int64_t r = 0; r < rows; r++)
    if (offsets[r] > offsets[r + 1])
      fail_value(element("row_offsets", r + 1).c_str(), "at least " + std::to_string(offsets[r]), std::to_string(offsets[r + 1]));
  if (offsets[0] != 0) fail_value("row_offsets[0]", "0", std::to_string(offsets[0]));
  if (offsets[rows] != terms)
    fail_value(element("row_offsets", rows).c_str(), std::to_string(terms) + " (terms)", std::to_string(offsets[rows]));
  std::vector<const float*> term(static_cast<size_t>(terms));
  for (int64_t t = 0; t < terms; t++) {
    if (part[t] >= views.size())
      fail_value(element("part", t).c_str(), below(int64_t(views.size()), "parts"), std::to_string(part[t]));
    const View& from = views[part[t]];
    if (index[t] >= from.shape(0))
      fail_value(element("index", t).c_str(), below(from.shape(0), "units of part " + std::to_string(part[t])),
                 std::to_string(index[t]));
    term[size_t(t)] = from.as<float>() + int64_t(index[t]) * hidden;
  }
  nb::object result = new_array(kF32, {rows, hidden});
  View out(result, "out", kF32, {rows, hidden}, true);
  float* y = out.as<float>();
  {
    Call call(backend);
    backend.pool.run(rows, 8, (terms + rows) * hidden * 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        backend.kernels.merge_row(term.data() + offsets[r], offsets[r + 1] - offsets[r], hidden, y + r * hidden);
    });
  }
  return result;
}

}  // namespace

void bind_merge(BackendClass& c) {
  c.def("merge", &merge, nb::arg("parts"), nb::arg("part"), nb::arg("index"), nb::arg("row_offsets"),
        nb::sig("def merge(self, parts: collections.abc.Sequence[object], part: object, index: object, "
                "row_offsets: object) -> numpy.typing.NDArray[numpy.float32]"));
}

}  // namespace colibri
