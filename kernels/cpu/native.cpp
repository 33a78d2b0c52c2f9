// The extension module colibri.kernels._native.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "dispatch.h"
#include "ops.h"
#include "scales.h"

namespace {

namespace nb = nanobind;
using namespace colibri;

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "CPU kernels. Used through colibri.kernels.cpu only.";
  m.def("alloc", &new_bytes, nb::arg("bytes"), nb::sig("def alloc(bytes: int) -> numpy.typing.NDArray[numpy.uint8]"),
        "Zeroed bytes, 64-byte aligned; from 1 MiB on, whole 2 MiB pages advised to be huge.");
  m.def("supported_isas", &supported_isas, "Instruction paths that this machine runs, best first.");
  m.def("first_not_finite_scale", &first_not_finite_scale, nb::arg("data"), nb::arg("dtype"), nb::arg("n"), nb::arg("k"),
        nb::arg("group"),
        nb::sig("def first_not_finite_scale(data: object, dtype: str, n: int, k: int, group: int) -> int"),
        "Of a packed matrix: (panel * groups + group) * 32 + column of the first scale in the order of the data that is "
        "NaN or Inf, or -1.");

  BackendClass c(m, "Backend");
  c.def(
       "__init__",
       [](Backend* self, int threads, std::optional<std::string> isa, std::optional<std::vector<int>> cpus,
          bool distrust) {
         new (self) Backend(threads, isa.value_or(""), cpus.value_or(std::vector<int>{}), distrust);
       },
       nb::arg("threads") = 1, nb::arg("isa") = nb::none(), nb::arg("cpus") = nb::none(),
       nb::arg("distrust_special_instructions") = false)
      .def_prop_ro("isa", [](const Backend& b) { return std::string(b.kernels.isa); })
      .def_prop_ro("fallback", [](const Backend& b) { return b.choice.fallback; })
      .def_prop_ro("threads", [](const Backend& b) { return b.pool.threads(); })
      .def("close", &Backend::close);
  bind_attention(c);
  bind_elementwise(c);
  bind_embed(c);
  bind_expert_units(c);
  bind_gate(c);
  bind_group(c);
  bind_limits(c);
  bind_linear(c);
  bind_merge(c);
  bind_norm(c);
  bind_quantise(c);
  bind_dequantise(c);
  bind_rope(c);
  bind_sampling(c);
}
