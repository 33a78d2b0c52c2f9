// first_not_finite_scale: where a packed int8 or int4 matrix has a scale that is NaN or Inf.
#include <cstring>
#include <string>

#include "matrix.h"
#include "scales.h"

namespace colibri {
namespace {

constexpr uint16_t kExponent = 0x7f80;

// Whether one of a group's scales, [32] in bf16, has all bits of its exponent. Without branches, so that it becomes vectors:
// lines lie far apart, and their misses overlap only if nothing waits for the one before.
inline bool special(const char* group) {
  uint16_t scale[kPanel];
  std::memcpy(scale, group, sizeof scale);
  unsigned found = 0;
  for (int c = 0; c < kPanel; c++) found |= (scale[c] & kExponent) == kExponent;
  return found;
}

}  // namespace

int64_t first_not_finite_scale(nb::handle data, const std::string& dtype, int64_t n, int64_t k, int64_t group) {
  for (const auto& [name, value] : {std::pair{"n", n}, std::pair{"k", k}})
    if (value < 1 || value > kMaxExtent) fail_value(name, "1 to 2^31", std::to_string(value));
  Matrix m{parse_quantised(dtype, group), n, k, nullptr, int(group)};
  View packed(data, "data", kU8, {m.bytes()});
  m.data = static_cast<const char*>(packed.data());
  const int64_t whole = kScaleBytes + group / kOctet * octet_bytes(m.type), groups = m.groups(), panels = m.panels();
  nb::gil_scoped_release release;
  for (int64_t p = 0; p < panels; p++) {
    const char* const panel = m.panel(p);
    bool found = false;
    for (int64_t g = 0; g < groups; g++) found |= special(panel + g * whole);
    if (!found) continue;
    for (int64_t g = 0; g < groups; g++)
      for (int64_t c = 0; c < kPanel; c++) {
        uint16_t scale;
        std::memcpy(&scale, panel + g * whole + c * 2, 2);
        if ((scale & kExponent) == kExponent) return (p * groups + g) * kPanel + c;
      }
  }
  return -1;
}

}  // namespace colibri
