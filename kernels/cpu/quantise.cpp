// quantize_linear and quantize_expert: matrices -> panels of int8 or int4 numbers with scales.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <nanobind/stl/string.h>

#include "matrix.h"
#include "ops.h"

namespace colibri {
namespace {

template <class T>
int64_t first_not_finite(const T* x, int64_t n, T exponent) {
  for (int64_t i = 0; i < n; i++)
    if ((x[i] & exponent) == exponent) return i;
  return -1;
}

// A matrix [n, k] of finite numbers.
void check_weights(const View& v) {
  check_extents(v);
  v.require_alignment(dtype_size(v.dtype()));
  const int64_t bad = v.dtype() == kF32 ? first_not_finite(static_cast<const uint32_t*>(v.data()), v.size(), 0x7f800000u)
                      : first_not_finite(static_cast<const uint16_t*>(v.data()), v.size(),
                                         uint16_t(v.dtype() == kBf16 ? 0x7f80 : 0x7c00));
  if (bad >= 0)
    fail_value(v.name(), "finite weights",
               "NaN or Inf at [" + std::to_string(bad / v.shape(1)) + ", " + std::to_string(bad % v.shape(1)) + "]");
}

// Importances [k], scaled so that the largest is 1; empty where there are none.
std::vector<float> importances(nb::handle array, const char* name, WeightType type, int64_t k) {
  if (array.is_none()) return {};
  if (type != kWeightInt4) fail_value(name, "None with int8", "importances");
  View v(array, name, kF32, {k});
  const float* x = v.as<float>();
  float most = 0.0f;
  for (int64_t i = 0; i < k; i++) {
    if (!std::isfinite(x[i]) || x[i] < 0.0f)
      fail_value(element(name, i).c_str(), "a finite number, at least 0", std::to_string(x[i]));
    most = std::max(most, x[i]);
  }
  std::vector<float> scaled(x, x + k);
  if (most > 0.0f)
    for (float& s : scaled) s = s / most;
  return scaled;
}

struct Source {
  WeightType from;
  int64_t k;
  const float* importance;  // or nullptr
};

// Panels [begin, end) of a matrix; row_of(p, c): where column c of panel p comes from.
template <class RowOf>
void quantise_matrix(const KernelTable& kernels, const Matrix& m, const Source& source, int64_t begin, int64_t end, char* out,
                     RowOf row_of) {
  QuantPanel panel{};
  panel.from = source.from;
  panel.to = m.type;
  panel.k = source.k;
  panel.octets = m.octets();
  panel.group = m.group;
  panel.importance = source.importance;
  for (int64_t p = begin; p < end; p++) {
    for (int c = 0; c < kPanel; c++) panel.row[c] = row_of(p, c);
    panel.out = out + p * m.panel_bytes();
    kernels.quantise_panel(panel);
  }
}

const float* data_or_null(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

// Returns (dtype, n, k, data, group).
nb::tuple quantize_linear(Backend& backend, nb::handle weight, const std::string& dtype, int64_t group, nb::handle importance) {
  const WeightType type = parse_quantised(dtype, group);
  View w(weight, "weight", kWeightDtypes, {kAny, kAny});
  check_weights(w);
  const Matrix m{type, w.shape(0), w.shape(1), nullptr, int(group)};
  const std::vector<float> scaled = importances(importance, "importance", type, m.k);
  nb::object block = new_bytes(size_t(m.bytes()));
  View out(block, "out", kU8, {m.bytes()}, true);
  const Source source{weight_type(w.dtype()), m.k, data_or_null(scaled)};
  {
    Call call(backend);
    backend.pool.run(m.panels(), 1, 64 * m.bytes(), [&](int64_t begin, int64_t end, int) {
      quantise_matrix(backend.kernels, m, source, begin, end, static_cast<char*>(out.data()),
                      [&](int64_t p, int c) { return row_at(w, p * kPanel + c); });
    });
  }
  return nb::make_tuple(dtype, m.n, m.k, block, group);
}

// Returns (dtype, hidden, ffn, data, group).
nb::tuple quantize_expert(Backend& backend, nb::handle gate_array, nb::handle up_array, nb::handle down_array,
                          const std::string& dtype, int64_t group, nb::handle hidden_importance, nb::handle ffn_importance) {
  const WeightType type = parse_quantised(dtype, group);
  View gate(gate_array, "gate", kWeightDtypes, {kAny, kAny});
  const int64_t ffn = gate.shape(0), hidden = gate.shape(1);
  View up(up_array, "up", gate.dtype(), {ffn, hidden});
  View down(down_array, "down", gate.dtype(), {hidden, ffn});
  for (const View* v : {&gate, &up, &down}) check_weights(*v);
  const std::vector<float> of_hidden = importances(hidden_importance, "importance[0]", type, hidden);
  const std::vector<float> of_ffn = importances(ffn_importance, "importance[1]", type, ffn);
  const Expert e(type, hidden, ffn, nullptr, int(group));
  nb::object block = new_bytes(size_t(e.bytes()));
  View out(block, "out", kU8, {e.bytes()}, true);
  const WeightType from = weight_type(gate.dtype());
  const Source into{from, hidden, data_or_null(of_hidden)}, outof{from, ffn, data_or_null(of_ffn)};
  char* const data = static_cast<char*>(out.data());
  const int64_t first = e.gate_up.panels();
  constexpr int kHalf = kPanel / 2;
  {
    Call call(backend);
    backend.pool.run(first + e.down.panels(), 1, 64 * e.bytes(), [&](int64_t begin, int64_t end, int) {
      if (begin < first)
        quantise_matrix(backend.kernels, e.gate_up, into, begin, std::min(end, first), data, [&](int64_t p, int c) {
          return c < kHalf ? row_at(gate, p * kHalf + c) : row_at(up, p * kHalf + c - kHalf);
        });
      if (end > first)
        quantise_matrix(backend.kernels, e.down, outof, std::max(begin, first) - first, end - first, data + e.gate_up.bytes(),
                        [&](int64_t p, int c) { return row_at(down, p * kPanel + c); });
    });
  }
  return nb::make_tuple(dtype, hidden, ffn, block, group);
}

}  // namespace

void bind_quantise(BackendClass& c) {
  c.def("quantize_linear", &quantize_linear, nb::arg("weight"), nb::arg("dtype"), nb::arg("group"),
        nb::arg("importance").none(),
        nb::sig("def quantize_linear(self, weight: object, dtype: str, group: int, importance: object | None) "
                "-> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8], int]"),
        "(dtype, n, k, data, group)");
  c.def("quantize_expert", &quantize_expert, nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::arg("dtype"),
        nb::arg("group"), nb::arg("hidden_importance").none(), nb::arg("ffn_importance").none(),
        nb::sig("def quantize_expert(self, gate: object, up: object, down: object, dtype: str, group: int, "
                "hidden_importance: object | None, ffn_importance: object | None) "
                "-> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8], int]"),
        "(dtype, hidden, ffn, data, group)");
}

}  // namespace colibri
