// rope_and_store.
#include "kv_view.h"
#include "ops.h"

namespace colibri {
namespace {

nb::object rope_and_store(Backend& backend, nb::handle qkv_array, nb::handle cos_array, nb::handle sin_array, nb::handle k,
                    nb::handle v, nb::handle page_table, nb::handle row_sequence, nb::handle positions, int64_t heads) {
  View qkv(qkv_array, "qkv", kF32, {kAny, kAny});
  const int64_t rows = qkv.shape(0);
  KvView kv({k, v, page_table, row_sequence, positions}, rows, true);
  const int64_t d = kv.head_dim(), width = qkv.shape(1);
  if (heads < 1 || heads % kv.kv_heads())
    fail_value("heads", "a multiple of kv_heads (" + std::to_string(kv.kv_heads()) + ")", std::to_string(heads));
  if (width / d != heads + 2 * kv.kv_heads() || width % d)
    fail_value("qkv", "(heads + 2 kv_heads) * head_dim = " + std::to_string((heads + 2 * kv.kv_heads()) * d) + " columns",
               qkv.describe());
  View cos(cos_array, "rope.cos", kF32, {kAny, d / 2});
  View sin(sin_array, "rope.sin", kF32, {cos.shape(0), d / 2});
  for (int64_t r = 0; r < rows; r++)
    if (kv.position(r) >= cos.shape(0))
      fail_value(element("kv.positions", r).c_str(), below(cos.shape(0), "positions of the RoPE table"),
                 std::to_string(kv.position(r)));
  kv.check_own_slots();
  const float *x = qkv.as<float>(), *c = cos.as<float>(), *s = sin.as<float>();
  nb::object result = new_array(kF32, {rows, heads * d});
  View out(result, "out", kF32, {rows, heads * d}, true);
  float* q = out.as<float>();
  const int64_t element = int64_t(dtype_size(kv.bf16() ? kBf16 : kF32));
  {
    Call call(backend);
    backend.pool.run(rows, 4, rows * width * 8, [&](int64_t begin, int64_t end, int) {
      RopeRow row{};
      row.head_stride = kv.head_stride();
      row.heads = heads;
      row.kv_heads = kv.kv_heads();
      row.head_dim = d;
      row.bf16 = kv.bf16();
      for (int64_t r = begin; r < end; r++) {
        row.qkv = x + r * width;
        row.cos = c + kv.position(r) * (d / 2);
        row.sin = s + kv.position(r) * (d / 2);
        row.q = q + r * heads * d;
        row.k = static_cast<char*>(kv.k()) + kv.own_slot(r) * element;
        row.v = static_cast<char*>(kv.v()) + kv.own_slot(r) * element;
        backend.kernels.rope_and_store_row(row);
      }
    });
  }
  return result;
}

}  // namespace

void bind_rope(BackendClass& c) {
  c.def("rope_and_store", &rope_and_store, nb::arg("qkv"), nb::arg("cos"), nb::arg("sin"), nb::arg("k"), nb::arg("v"),
        nb::arg("page_table"), nb::arg("row_sequence"), nb::arg("positions"), nb::arg("heads"),
        nb::sig("def rope_and_store(self, qkv: object, cos: object, sin: object, k: object, v: object, page_table: object, "
                "row_sequence: object, positions: object, heads: int) -> numpy.typing.NDArray[numpy.float32]"));
}

}  // namespace colibri
