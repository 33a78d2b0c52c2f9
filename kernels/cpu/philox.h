// Philox4x32-10: a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once
#include <array>
#include <cstdint>

namespace colibri {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xd2511f53u) * c[0], b = uint64_t(0xcd9e8d57u) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ key[1], uint32_t(a)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return c;
}

// 53 random bits in [0, 1) for one output token.
inline double philox_uniform(uint64_t seed, uint32_t choice, uint64_t output_index) {
  const auto x = philox4x32({uint32_t(output_index), uint32_t(output_index >> 32), choice, 0},
                            {uint32_t(seed), uint32_t(seed >> 32)});
  return double((uint64_t(x[0]) << 32 | x[1]) >> 11) * 0x1p-53;
}

}  // namespace colibri
