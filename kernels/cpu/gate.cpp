// gate: logits, the k largest of each row, their softmax.
#include "gemm.h"
#include "ops.h"

namespace colibri {
namespace {

constexpr int64_t kMaxTopK = 16;
constexpr int64_t kMaxExperts = 65536;

// Whether no element is NaN or Inf: none has an exponent of all ones.
template <class T>
bool all_finite(const T* x, int64_t n, T exponent) {
  T bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= T((x[i] & exponent) == exponent);
  return !bad;
}

// Returns (experts, weights, ok).
nb::tuple gate(Backend& backend, nb::handle x_array, nb::handle weight_object, int64_t k) {
  PackedMatrix weight(weight_object, "weight");
  const Matrix& w = weight.matrix;
  View x(x_array, "x", kF32 | kBf16, {kAny, w.k});
  if (w.n > kMaxExperts) fail_value("weight", "at most 65536 experts", std::to_string(w.n));
  const int64_t most = w.n < kMaxTopK ? w.n : kMaxTopK;
  if (k < 1 || k > most) fail_value("k", "1 .. " + std::to_string(most) + " (experts, at most 16)", std::to_string(k));
  const int64_t rows = x.shape(0);
  const bool bf16 = x.dtype() == kBf16;
  nb::tuple result = nb::make_tuple(new_array(kBf16, {rows, k}), new_array(kF32, {rows, k}), new_array(kBool, {rows}));
  View experts(result[0], "experts", kBf16, {rows, k}, true);  // uint16
  View weights(result[1], "weights", kF32, {rows, k}, true);
  View ok(result[2], "ok", kBool, {rows}, true);
  uint16_t* ids = experts.as<uint16_t>();
  float* shares = weights.as<float>();
  bool* good = ok.as<bool>();
  const char* values = bf16 ? reinterpret_cast<const char*>(x.as<uint16_t>()) : reinterpret_cast<const char*>(x.as<float>());
  {
    Call call(backend);
    float* logits = backend.scratch_dense.get<float>(size_t(rows * w.n));
    linear_rows(backend, Rows{values, bf16, w.k, nullptr}, rows, w, logits);
    backend.pool.run(rows, 16, rows * (w.n + w.k) * 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++) {
        const char* row = values + r * w.k * (bf16 ? 2 : 4);
        const bool finite = bf16 ? all_finite<uint16_t>(reinterpret_cast<const uint16_t*>(row), w.k, 0x7f80)
                                 : all_finite<uint32_t>(reinterpret_cast<const uint32_t*>(row), w.k, 0x7f800000u);
        good[r] = finite && backend.kernels.gate_row(logits + r * w.n, w.n, int(k), ids + r * k, shares + r * k);
        if (good[r]) continue;
        for (int64_t s = r * k; s < (r + 1) * k; s++) {
          ids[s] = 0;
          shares[s] = 0.0f;
        }
      }
    });
  }
  return result;
}

}  // namespace

void bind_gate(BackendClass& c) {
  c.def("gate", &gate, nb::arg("x"), nb::arg("weight"), nb::arg("k"),
        nb::sig("def gate(self, x: object, weight: object, k: int) -> tuple[numpy.typing.NDArray[numpy.uint16], "
                "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.bool_]]"),
        "(experts, weights, ok)");
}

}  // namespace colibri
