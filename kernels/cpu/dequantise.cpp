// dequantize_pairs: any part of a packed int4 matrix as the packed bf16 matrix of the same weights would have it.
#include <algorithm>
#include <string>

#include "matrix.h"
#include "ops.h"

namespace colibri {
namespace {

// From here on, what is written leaves the caches before anybody reads it.
constexpr int64_t kStreamBytes = 4 << 20;

// data: a packed int4 matrix [n, k]. Fills `out` with pairs first, first + 1, ... of its bf16 panels.
void dequantize_pairs(Backend& backend, nb::handle data, int64_t n, int64_t k, int64_t group, int64_t live, int64_t first,
                      nb::handle out_array) {
  parse_quantised("int4", group);
  for (const auto& [name, value] : {std::pair{"n", n}, std::pair{"k", k}})
    if (value < 1 || value > kMaxExtent) fail_value(name, "1 to 2^31", std::to_string(value));
  if (live < 0 || live > k) fail_value("live", "0 to " + std::to_string(k), std::to_string(live));
  Matrix m{kWeightInt4, n, k, nullptr, int(group)};
  View packed(data, "data", kU8, {m.bytes()});
  View out(out_array, "out", kU8, {kAny}, true);
  const int64_t count = out.size() / kPairBytes, all = m.panels() * m.pairs();
  if (out.size() % kPairBytes) fail_value("out", "a multiple of 128 bytes", std::to_string(out.size()));
  if (first < 0 || first > all || count > all - first)
    fail_value("first", "0 to " + std::to_string(all - count) + ", with pairs left to fill out", std::to_string(first));
  m.data = static_cast<const char*>(packed.data());
  char* const to = static_cast<char*>(out.data());
  {
    Call call(backend);
    const bool stream = out.size() >= kStreamBytes;
    backend.pool.run(count, 64, out.size(), [&](int64_t begin, int64_t end, int) {
      for (int64_t at = first + begin; at < first + end;) {
        const int64_t panel = at / m.pairs(), pair = at % m.pairs(), some = std::min(m.pairs() - pair, first + end - at);
        backend.kernels.dequantise_pairs(
            {m.panel(panel), m.group, live, pair, pair + some, stream, to + (at - first) * kPairBytes});
        at += some;
      }
    });
  }
}

}  // namespace

void bind_dequantise(BackendClass& c) {
  c.def("dequantize_pairs", &dequantize_pairs, nb::arg("data"), nb::arg("n"), nb::arg("k"), nb::arg("group"), nb::arg("live"),
        nb::arg("first"), nb::arg("out"),
        nb::sig("def dequantize_pairs(self, data: object, n: int, k: int, group: int, live: int, first: int, out: object) -> None"));
}

}  // namespace colibri
