// rms_norm.
#include <cmath>

#include "ops.h"

namespace colibri {
namespace {

nb::object rms_norm(Backend& backend, nb::handle x_array, nb::handle weight_array, double eps, bool to_bf16) {
  View x(x_array, "x", kF32, {kAny, kAny});
  const int64_t rows = x.shape(0), n = x.shape(1);
  View weight(weight_array, "weight", kF32, {n});
  if (!(std::isfinite(eps) && eps >= 0)) fail_value("eps", "a finite number >= 0", std::to_string(eps));
  const float* xs = x.as<float>();
  const float* ws = weight.as<float>();
  nb::object result = new_array(to_bf16 ? kBf16 : kF32, {rows, n});
  View out(result, "out", kF32 | kBf16, {rows, n}, true);
  uint16_t* half = to_bf16 ? out.as<uint16_t>() : nullptr;
  float* full = half ? nullptr : out.as<float>();
  {
    Call call(backend);
    backend.pool.run(rows, 8, rows * n * 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        backend.kernels.rms_norm_row(xs + r * n, ws, n, float(eps), full ? full + r * n : nullptr,
                                     half ? half + r * n : nullptr);
    });
  }
  return result;
}

}  // namespace

void bind_norm(BackendClass& c) {
  c.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("to_bf16"),
        nb::sig("def rms_norm(self, x: object, weight: object, eps: float, to_bf16: bool) -> "
                "numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint16]"));
}

}  // namespace colibri
