// add_inplace, and the plain read that memory-bound kernels are measured against.
#include <atomic>

#include "ops.h"

namespace colibri {
namespace {

void add_inplace(Backend& backend, nb::handle x_array, nb::handle y_array) {
  View x(x_array, "x", kF32, {kAny, kAny}, true);
  View y(y_array, "y", kF32, {x.shape(0), x.shape(1)});
  float* xs = x.as<float>();
  const float* ys = y.as<float>();
  const int64_t n = x.size();
  Call call(backend);
  constexpr int64_t kBlock = 4096;
  backend.pool.run((n + kBlock - 1) / kBlock, 4, n * 12, [&](int64_t begin, int64_t end, int) {
    const int64_t from = begin * kBlock, to = end * kBlock < n ? end * kBlock : n;
    backend.kernels.add_inplace(xs + from, ys + from, to - from);
  });
}

uint64_t read_pass(Backend& backend, nb::handle array) {
  View data(array, "data", kU8, {kAny});
  const char* p = static_cast<const char*>(data.data());
  const int64_t words = data.size() / 8;
  std::atomic<uint64_t> sum{0};
  {
    Call call(backend);
    constexpr int64_t kBlock = 16384;
    backend.pool.run((words + kBlock - 1) / kBlock, 1, data.size(), [&](int64_t begin, int64_t end, int) {
      const int64_t from = begin * kBlock, to = end * kBlock < words ? end * kBlock : words;
      sum += backend.kernels.sum_words(p + from * 8, to - from);
    });
  }
  return sum;
}

}  // namespace

void bind_elementwise(BackendClass& c) {
  c.def("add_inplace", &add_inplace, nb::arg("x"), nb::arg("y"));
  c.def("read_pass", &read_pass, nb::arg("data"),
        "Sum of the data's 64-bit words modulo 2^64, read once in ascending order by all threads.");
}

}  // namespace colibri
