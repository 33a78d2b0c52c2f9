// The extension module _faults of `make sanitize`: what the sanitisers must end a process for.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <vector>

#include "races.h"

namespace {

namespace nb = nanobind;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

NB_MODULE(_faults, m) {
  m.def("read", [](const Floats& x, int64_t at) { return x.data()[at]; });
  m.def("write", [](Floats& x, int64_t at) { x.data()[at] = 1.0f; });
  m.def("use_after_free", [](int64_t at) {
    auto* block = new std::vector<int>(16);
    const int* data = block->data();
    delete block;
    return data[at];
  });
  m.def("on_the_stack", [](int64_t at) {
    volatile int local[4] = {1, 2, 3, 4};
    return int(local[at]);
  });
  m.def("sum", [](int32_t a, int32_t b) { return a + b; });
  m.def("shift", [](int32_t a, int32_t by) { return a << by; });
  m.def("misaligned", [](const Floats& x) {
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(x.data()) + 1);
  });
  add_races(m);
}
