// The extension module colibri.kernels._native.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "dispatch.h"
#include "memory.h"
#include "ops.h"

namespace {

namespace nb = nanobind;
using namespace colibri;

struct Block {
  void* data;
  size_t bytes;
};

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> alloc(size_t bytes) {
  Block* block = new Block{allocate(bytes), bytes};
  nb::capsule owner(block, [](void* p) noexcept {
    Block* b = static_cast<Block*>(p);
    release(b->data, b->bytes);
    delete b;
  });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(block->data, {bytes}, owner);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "CPU kernels. Used through colibri.kernels.cpu.backend only.";
  m.def("alloc", &alloc, nb::arg("bytes"),
        "Zeroed bytes, 64-byte aligned; from 1 MiB on, whole 2 MiB pages advised to be huge.");
  m.def("supported_isas", &supported_isas, "Instruction paths that this machine runs, best first.");

  BackendClass c(m, "Backend");
  c.def(
       "__init__",
       [](Backend* self, int threads, std::optional<std::string> isa, std::optional<std::vector<int>> cpus) {
         new (self) Backend(threads, isa.value_or(""), cpus.value_or(std::vector<int>{}));
       },
       nb::arg("threads") = 1, nb::arg("isa") = nb::none(), nb::arg("cpus") = nb::none())
      .def_prop_ro("isa", [](const Backend& b) { return std::string(b.kernels.isa); })
      .def_prop_ro("fallback", [](const Backend& b) { return b.choice.fallback; })
      .def_prop_ro("threads", [](const Backend& b) { return b.pool.threads(); })
      .def("close", &Backend::close);
  bind_elementwise(c);
}
