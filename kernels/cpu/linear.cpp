// linear and packing.
#include <algorithm>

#include "quant_gemm.h"
#include "ops.h"

namespace colibri {
namespace {

// x: fp32, or bf16 with bf16 or quantised weights.
nb::object linear(Backend& backend, nb::handle x_array, nb::handle weight) {
  PackedMatrix w(weight, "weight", Quantised::kAllowed);
  const bool narrow = w.matrix.type == kWeightBf16 || w.matrix.quantised();
  View x(x_array, "x", narrow ? kF32 | kBf16 : kF32, {kAny, w.matrix.k});
  nb::object result = new_array(kF32, {x.shape(0), w.matrix.n});
  View out(result, "out", kF32, {x.shape(0), w.matrix.n}, true);
  const Rows rows{static_cast<const char*>(x.data()), x.dtype() == kBf16, w.matrix.k, nullptr};
  {
    Call call(backend);
    const auto multiply = w.matrix.quantised() ? quant_linear_rows : linear_rows;
    multiply(backend, rows, x.shape(0), w.matrix, out.as<float>());
  }
  return result;
}

// Fills in what the panels of one matrix share, and where row c of panel p comes from.
template <class RowOf>
void pack_matrix(const KernelTable& kernels, const Matrix& m, WeightType from, int64_t valid_k, int64_t begin, int64_t end,
                 char* out, RowOf row_of) {
  PackPanel panel{};
  panel.from = from;
  panel.to = m.type;
  panel.k = valid_k;
  panel.k2 = m.pairs();
  for (int64_t p = begin; p < end; p++) {
    for (int c = 0; c < kPanel; c++) panel.row[c] = row_of(p, c);
    panel.out = out + p * m.panel_bytes();
    kernels.pack_panel(panel);
  }
}

WeightType target_type(const View& v, bool to_bf16) { return to_bf16 ? kWeightBf16 : weight_type(v.dtype()); }

// Returns (dtype, n, k, data).
nb::tuple pack_linear(Backend& backend, nb::handle weight, bool to_bf16) {
  View w(weight, "weight", kWeightDtypes, {kAny, kAny});
  check_extents(w);
  const Matrix m{target_type(w, to_bf16), w.shape(0), w.shape(1), nullptr};
  nb::object block = new_bytes(size_t(m.bytes()));
  View out(block, "out", kU8, {m.bytes()}, true);
  {
    Call call(backend);
    backend.pool.run(m.panels(), 1, 2 * m.bytes(), [&](int64_t begin, int64_t end, int) {
      pack_matrix(backend.kernels, m, weight_type(w.dtype()), m.k, begin, end, static_cast<char*>(out.data()),
                  [&](int64_t p, int c) { return row_at(w, p * kPanel + c); });
    });
  }
  return nb::make_tuple(weight_type_name(m.type), m.n, m.k, block);
}

// Returns (dtype, hidden, ffn, data).
nb::tuple pack_expert(Backend& backend, nb::handle gate_array, nb::handle up_array, nb::handle down_array, bool to_bf16) {
  View gate(gate_array, "gate", kWeightDtypes, {kAny, kAny});
  check_extents(gate);
  const int64_t ffn = gate.shape(0), hidden = gate.shape(1);
  View up(up_array, "up", gate.dtype(), {ffn, hidden});
  View down(down_array, "down", gate.dtype(), {hidden, ffn});
  const Expert e(target_type(gate, to_bf16), hidden, ffn, nullptr);
  nb::object block = new_bytes(size_t(e.bytes()));
  View out(block, "out", kU8, {e.bytes()}, true);
  const WeightType from = weight_type(gate.dtype());
  char* const data = static_cast<char*>(out.data());
  const int64_t first = e.gate_up.panels();
  constexpr int kHalf = kPanel / 2;
  {
    Call call(backend);
    backend.pool.run(first + e.down.panels(), 1, 2 * e.bytes(), [&](int64_t begin, int64_t end, int) {
      if (begin < first)
        pack_matrix(backend.kernels, e.gate_up, from, hidden, begin, std::min(end, first), data, [&](int64_t p, int c) {
          return c < kHalf ? row_at(gate, p * kHalf + c) : row_at(up, p * kHalf + c - kHalf);
        });
      if (end > first)
        pack_matrix(backend.kernels, e.down, from, ffn, std::max(begin, first) - first, end - first,
                    data + e.gate_up.bytes(), [&](int64_t p, int c) { return row_at(down, p * kPanel + c); });
    });
  }
  return nb::make_tuple(weight_type_name(e.gate_up.type), hidden, ffn, block);
}

}  // namespace

void bind_linear(BackendClass& c) {
  c.def("linear", &linear, nb::arg("x"), nb::arg("weight"),
        nb::sig("def linear(self, x: object, weight: object) -> numpy.typing.NDArray[numpy.float32]"));
  c.def("pack_linear", &pack_linear, nb::arg("weight"), nb::arg("to_bf16"),
        nb::sig("def pack_linear(self, weight: object, to_bf16: bool) "
                "-> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8]]"),
        "(dtype, n, k, data)");
  c.def("pack_expert", &pack_expert, nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::arg("to_bf16"),
        nb::sig("def pack_expert(self, gate: object, up: object, down: object, to_bf16: bool) "
                "-> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8]]"),
        "(dtype, hidden, ffn, data)");
}

}  // namespace colibri
