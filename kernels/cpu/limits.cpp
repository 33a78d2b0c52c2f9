// What kernels are measured against: reading memory, and multiply-adds from registers.
#include <nanobind/stl/string.h>

#include <atomic>
#include <string>

#include "ops.h"

namespace colibri {
namespace {

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

double peak_pass(Backend& backend, const std::string& kind, int64_t steps) {
  const PeakFunction* found = nullptr;
  for (int i = 0; i < kPeakKinds; i++)
    if (kind == kPeakNames[i]) found = &backend.kernels.peak[i];
  if (!found) fail_value("kind", "'fp32', 'bf16' or 'int8'", "'" + kind + "'");
  if (!*found) return 0.0;
  if (steps < 1 || steps > int64_t(1) << 32) fail_value("steps", "1 .. 2^32", std::to_string(steps));
  std::atomic<int64_t> blocks{0};
  constexpr int64_t kBlock = 1024;
  const int64_t items = (steps + kBlock - 1) / kBlock;
  double operations = 0.0;
  {
    Call call(backend);
    // As if it touched memory, so that all threads take part.
    backend.pool.run(items, 1, items * Pool::kInlineBytes, [&](int64_t begin, int64_t end, int) {
      float sink[32] = {};
      (*found)((end - begin) * kBlock, sink);
      blocks += end - begin;
    });
    float sink[32] = {};
    operations = (*found)(1, sink) * kBlock * double(blocks.load());
  }
  return operations;
}

}  // namespace

void bind_limits(BackendClass& c) {
  c.def("read_pass", &read_pass, nb::arg("data"),
        "Sum of the data's 64-bit words modulo 2^64, read once in ascending order by all threads.");
  c.def("peak_pass", &peak_pass, nb::arg("kind"), nb::arg("steps"),
        "Multiply-adds from registers, by all threads: the operations done (two each), 0 where the path has no such "
        "instruction. kind: 'fp32', 'bf16' or 'int8'.");
}

}  // namespace colibri
