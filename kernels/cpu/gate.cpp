// gate: logits, the k largest of each row, their softmax; top_k: the same from logits that are there already.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "gemm.h"
#include "ops.h"

namespace colibri {
namespace {

constexpr int64_t kMaxExperts = 65536;
constexpr int64_t kChunk = 128;

void check_experts(const char* name, int64_t experts, int64_t k) {
  if (experts > kMaxExperts) fail_value(name, "at most 65536 experts", std::to_string(experts));
  const int64_t most = std::min<int64_t>(experts, kMaxChosen);
  if (k < 1 || k > most) fail_value("k", "1 .. " + std::to_string(most) + " (experts, at most 16)", std::to_string(k));
}

// What a gate returns: new arrays and where they lie.
class Result {
 public:
  Result(int64_t rows, int64_t k)
      : arrays_{new_array(kBf16, {rows, k}), new_array(kF32, {rows, k}), new_array(kBool, {rows})},
        ids_(arrays_[0], "experts", kBf16, {rows, k}, true),
        weights_(arrays_[1], "weights", kF32, {rows, k}, true),
        ok_(arrays_[2], "ok", kBool, {rows}, true) {}

  void place(GateRows& g) const {
    g.ids = ids_.as<uint16_t>();
    g.weights = weights_.as<float>();
    g.ok = ok_.as<bool>();
  }
  nb::tuple tuple(int64_t differing) const { return nb::make_tuple(arrays_[0], arrays_[1], arrays_[2], differing); }

 private:
  nb::object arrays_[3];
  View ids_, weights_, ok_;
};

GateRows from_row(GateRows g, int64_t row, int64_t rows) {
  g.logits += row * g.experts;
  g.ids += row * g.k;
  g.weights += row * g.k;
  g.ok += row;
  g.rows = rows;
  return g;
}

// Rows of which the logits themselves would have chosen otherwise, in whatever slot.
int64_t count_differing(const KernelTable& kernels, const GateRows& g) {
  int64_t differing = 0;
  for (int64_t row = 0; row < g.rows; row += 16) {
    const GateRows mine = from_row(g, row, std::min<int64_t>(16, g.rows - row));
    uint16_t ids[16 * kMaxChosen];
    float weights[16 * kMaxChosen];
    bool ok[16];
    GateRows exact = mine;
    exact.int16 = false;
    exact.ids = ids;
    exact.weights = weights;
    exact.ok = ok;
    kernels.gate_rows(exact);
    for (int64_t r = 0; r < mine.rows; r++)
      differing += std::memcmp(mine.ids + r * g.k, ids + r * g.k, size_t(g.k) * sizeof(uint16_t)) != 0;
  }
  return differing;
}

int64_t choose(Backend& backend, const GateRows& g) {
  std::atomic<int64_t> differing{0};
  backend.pool.run(g.rows, kChunk, g.rows * g.experts * 4, [&](int64_t begin, int64_t end, int) {
    const GateRows mine = from_row(g, begin, end - begin);
    backend.kernels.gate_rows(mine);
    if (g.int16) differing += count_differing(backend.kernels, mine);
  });
  return differing;
}

// Returns (experts, weights, ok, differing).
nb::tuple gate(Backend& backend, nb::handle x_array, nb::handle weight_object, int64_t k, bool int16) {
  PackedMatrix weight(weight_object, "weight");
  const Matrix& w = weight.matrix;
  View x(x_array, "x", kF32 | kBf16, {kAny, w.k});
  check_experts("weight", w.n, k);
  const int64_t rows = x.shape(0);
  const Result result(rows, k);
  GateRows g{nullptr, rows, w.n, int(k), int16, nullptr, nullptr, nullptr};
  result.place(g);
  int64_t differing = 0;
  {
    Call call(backend);
    float* logits = backend.scratch_dense.get<float>(size_t(rows * w.n));
    // NaN and Inf in a row reach every logit: weights are finite, and no sum comes back from them.
    linear_rows(backend, Rows{static_cast<const char*>(x.data()), x.dtype() == kBf16, w.k, nullptr}, rows, w, logits);
    g.logits = logits;
    differing = choose(backend, g);
  }
  return result.tuple(differing);
}

// Returns (experts, weights, ok, differing).
nb::tuple top_k(Backend& backend, nb::handle logits_array, int64_t k, bool int16) {
  View logits(logits_array, "logits", kF32, {kAny, kAny});
  check_experts("logits", logits.shape(1), k);
  const Result result(logits.shape(0), k);
  GateRows g{logits.as<float>(), logits.shape(0), logits.shape(1), int(k), int16, nullptr, nullptr, nullptr};
  result.place(g);
  int64_t differing = 0;
  {
    Call call(backend);
    differing = choose(backend, g);
  }
  return result.tuple(differing);
}

void top_k_pass(Backend& backend, nb::handle logits_array, int64_t k, int64_t times) {
  View logits(logits_array, "logits", kF32, {kAny, kAny});
  check_experts("logits", logits.shape(1), k);
  const Result result(logits.shape(0), k);
  GateRows g{logits.as<float>(), logits.shape(0), logits.shape(1), int(k), false, nullptr, nullptr, nullptr};
  result.place(g);
  Call call(backend);
  for (int64_t i = 0; i < times; i++) backend.kernels.gate_rows(g);
}

}  // namespace

void bind_gate(BackendClass& c) {
  c.def("gate", &gate, nb::arg("x"), nb::arg("weight"), nb::arg("k"), nb::arg("int16"),
        nb::sig("def gate(self, x: object, weight: object, k: int, int16: bool) -> tuple[numpy.typing.NDArray[numpy.uint16], "
                "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.bool_], int]"),
        "(experts, weights, ok, rows that fp32 would have routed otherwise)");
  c.def("top_k", &top_k, nb::arg("logits"), nb::arg("k"), nb::arg("int16"),
        nb::sig("def top_k(self, logits: object, k: int, int16: bool) -> tuple[numpy.typing.NDArray[numpy.uint16], "
                "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.bool_], int]"),
        "(experts, weights, ok, rows that fp32 would have routed otherwise)");
  c.def("top_k_pass", &top_k_pass, nb::arg("logits"), nb::arg("k"), nb::arg("times"),
        nb::sig("def top_k_pass(self, logits: object, k: int, times: int) -> None"),
        "top_k so many times over, on one thread, without results.");
}

}  // namespace colibri
