// dequantize_pairs: any part of a packed int4 matrix as the packed bf16 matrix of the same weights would have it.
#include <algorithm>
#include <cstring>
#include <string>

#include "matrix.h"
#include "ops.h"

namespace colibri {
namespace {

constexpr int64_t kPairBytes = kPanel * 4;  // two neighbouring elements of K of all columns of a panel
constexpr int kPairs = kOctet / 2;

inline float widen(uint16_t h) {
  const uint32_t bits = uint32_t(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Nearest even; subnormals are zeros of their sign, NaN stays a quiet NaN. Plain integers, so that loops become vectors.
inline uint32_t narrow(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40u, zero = bits >> 16 & 0x8000u;
  return magnitude < 0x00800000u ? zero : magnitude > 0x7f800000u ? nan : rounded;
}

// Eight elements of K: words [32] of nibbles and scales [32] to pairs [4][32].
void octet(const char* numbers, const float* scale, uint32_t* out) {
  uint32_t words[kPanel];
  std::memcpy(words, numbers, sizeof words);
  for (int pair = 0; pair < kPairs; pair++) {
    const int shift = (pair & 1) * 16 + (pair >> 1) * 4;  // k = j and 4 + j are the halves of byte j
    for (int c = 0; c < kPanel; c++) {
      const int32_t even = int32_t(words[c] >> shift & 15u) - 8, odd = int32_t(words[c] >> (shift + 8) & 15u) - 8;
      out[pair * kPanel + c] = narrow(float(even) * scale[c]) | narrow(float(odd) * scale[c]) << 16;
    }
  }
}

// Pairs [begin, end) of the matrix, counted through all panels; elements of K from `live` on are zeros.
void pairs(const Matrix& m, int64_t live, int64_t begin, int64_t end, char* out) {
  const int64_t group_octets = m.group / kOctet, group_bytes = kScaleBytes + group_octets * octet_bytes(kWeightInt4);
  int64_t held = -1;  // the group whose scales are widened
  float scale[kPanel];
  uint32_t block[kPairs * kPanel];
  for (int64_t at = begin; at < end;) {
    const int64_t panel = at / m.pairs(), pair = at % m.pairs(), o = pair / kPairs, g = o / group_octets;
    const char* const group = m.panel(panel) + g * group_bytes;
    if (held != panel * m.groups() + g) {
      held = panel * m.groups() + g;
      uint16_t stored[kPanel];
      std::memcpy(stored, group, sizeof stored);
      for (int c = 0; c < kPanel; c++) scale[c] = widen(stored[c]);
    }
    octet(group + kScaleBytes + (o - g * group_octets) * octet_bytes(kWeightInt4), scale, block);
    for (int64_t k = std::max(live, o * kOctet); k < (o + 1) * kOctet; k++)
      for (int c = 0; c < kPanel; c++) block[(k - o * kOctet) / 2 * kPanel + c] &= k & 1 ? 0x0000ffffu : 0xffff0000u;
    const int64_t count = std::min({end - at, kPairs - pair % kPairs, m.pairs() - pair});
    std::memcpy(out + (at - begin) * kPairBytes, block + pair % kPairs * kPanel, size_t(count * kPairBytes));
    at += count;
  }
}

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
    backend.pool.run(count, 64, out.size(), [&](int64_t begin, int64_t end, int) {
      pairs(m, live, first + begin, first + end, to + begin * kPairBytes);
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
