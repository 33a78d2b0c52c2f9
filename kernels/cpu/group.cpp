// group: counting sort.
#include <cstring>

#include "ops.h"

namespace colibri {
namespace {

constexpr int64_t kMaxBuckets = int64_t(1) << 24;

void count_and_place(Backend& backend, const uint32_t* keys, int64_t n, int64_t buckets, uint32_t* offsets,
                     uint32_t* order) {
  Call call(backend);
  std::memset(offsets, 0, size_t(buckets + 1) * 4);
  for (int64_t i = 0; i < n; i++) offsets[keys[i]]++;
  uint32_t start = 0;
  for (int64_t b = 0; b < buckets; b++) {
    const uint32_t count = offsets[b];
    offsets[b] = start;
    start += count;
  }
  // Placing moves each start to its bucket's end, which is the next bucket's start.
  for (int64_t i = 0; i < n; i++) order[offsets[keys[i]]++] = uint32_t(i);
  for (int64_t b = buckets; b > 0; b--) offsets[b] = offsets[b - 1];
  offsets[0] = 0;
}

// Returns (offsets, order).
nb::tuple group(Backend& backend, nb::handle keys_array, int64_t buckets) {
  View keys_view(keys_array, "keys", kU32, {kAny});
  if (buckets < 0 || buckets > kMaxBuckets) fail_value("buckets", "0 .. 2^24", std::to_string(buckets));
  const int64_t n = keys_view.shape(0);
  const uint32_t* keys = keys_view.as<uint32_t>();
  for (int64_t i = 0; i < n; i++)
    if (keys[i] >= buckets) fail_value(element("keys", i).c_str(), below(buckets, "buckets"), std::to_string(keys[i]));
  nb::tuple result = nb::make_tuple(new_array(kU32, {buckets + 1}), new_array(kU32, {n}));
  View offsets_view(result[0], "offsets", kU32, {buckets + 1}, true);
  View order_view(result[1], "order", kU32, {n}, true);
  count_and_place(backend, keys, n, buckets, offsets_view.as<uint32_t>(), order_view.as<uint32_t>());
  return result;
}

}  // namespace

void bind_group(BackendClass& c) {
  c.def("group", &group, nb::arg("keys"), nb::arg("buckets"),
        nb::sig("def group(self, keys: object, buckets: int) -> tuple[numpy.typing.NDArray[numpy.uint32], "
                "numpy.typing.NDArray[numpy.uint32]]"),
        "(offsets, order)");
}

}  // namespace colibri
