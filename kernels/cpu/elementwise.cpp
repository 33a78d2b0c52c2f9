// add_inplace.
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

}  // namespace

void bind_elementwise(BackendClass& c) {
  c.def("add_inplace", &add_inplace, nb::arg("x"), nb::arg("y"));
}

}  // namespace colibri
