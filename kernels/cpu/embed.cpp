// embed: rows of a packed matrix.
#include "matrix.h"
#include "ops.h"

namespace colibri {
namespace {

nb::object embed(Backend& backend, nb::handle table_object, nb::handle ids_array) {
  PackedMatrix table(table_object, "table", Quantised::kAllowed);
  const Matrix& m = table.matrix;
  View ids_view(ids_array, "ids", kU32, {kAny});
  const int64_t rows = ids_view.shape(0);
  const uint32_t* ids = ids_view.as<uint32_t>();
  for (int64_t r = 0; r < rows; r++)
    if (ids[r] >= m.n)
      fail_value(element("ids", r).c_str(), below(m.n, "vocabulary"), std::to_string(ids[r]));
  nb::object result = new_array(kF32, {rows, m.k});
  View out(result, "out", kF32, {rows, m.k}, true);
  float* y = out.as<float>();
  constexpr int64_t kColumn = 4;  // bytes between columns of a panel: one fp32 element, or a pair of 2-byte ones
  {
    Call call(backend);
    backend.pool.run(rows, 4, rows * m.k * 64, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++) {
        if (m.quantised()) {
          backend.kernels.embed_quant_row(m.panel(ids[r] / kPanel), int(ids[r] % kPanel), m.type, m.k, m.group, y + r * m.k);
          continue;
        }
        backend.kernels.embed_row(m.panel(ids[r] / kPanel) + ids[r] % kPanel * kColumn, m.type, m.k, y + r * m.k);
      }
    });
  }
  return result;
}

}  // namespace

void bind_embed(BackendClass& c) {
  c.def("embed", &embed, nb::arg("table"), nb::arg("ids"),
        nb::sig("def embed(self, table: object, ids: object) -> numpy.typing.NDArray[numpy.float32]"));
}

}  // namespace colibri
