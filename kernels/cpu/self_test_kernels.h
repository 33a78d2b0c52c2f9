// Start-up self-test: is vdpbf16ps on this machine what docs/numerics.md says, two FMAs, odd first, subnormals flushed?
// Run with DAZ + FTZ set. Ordinary data would not show missing flushes; all-tiny data does.
#pragma once
#include "gemm_kernels.h"

#if defined(COLIBRI_HAS_DPBF16)
namespace colibri {
namespace COLIBRI_ISA {

struct TestRandom {
  uint64_t state;
  uint32_t next() {  // xorshift64* (Vigna, 2016)
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return uint32_t(state * 2685821657736338717ull >> 32);
  }
  // A bf16 pattern with a biased exponent in [lo, hi].
  uint16_t bf16(uint32_t lo, uint32_t hi) {
    const uint32_t r = next();
    return uint16_t((r & 0x807fu) | (lo + (r >> 16) % (hi - lo + 1)) << 7);
  }
};

static bool self_test_range(TestRandom& random, uint32_t lo, uint32_t hi, bool cancel) {
  constexpr int kPairs = 48, kRows = 3;
  uint16_t a16[kPairs * kRows * 2], w[kPairs * kPanel * 2];
  float a32[kPairs * kRows * 2];
  for (uint16_t& x : a16) x = random.bf16(lo, hi);
  for (uint16_t& x : w) x = random.bf16(lo, hi);
  if (cancel)  // every second pair repeats the one before with the sign turned, but for the last bit of one weight
    for (int k = 1; k < kPairs; k += 2) {
      memcpy(a16 + k * kRows * 2, a16 + (k - 1) * kRows * 2, kRows * 4);
      for (int i = 0; i < kPanel * 2; i++) w[k * kPanel * 2 + i] = w[(k - 1) * kPanel * 2 + i] ^ (i % 5 ? 0x8000u : 0x8001u);
    }
  for (int i = 0; i < kPairs * kRows * 2; i++) a32[i] = bf16_to_float(a16[i]);
  float y0[kRows][kPanel], y1[kRows][kPanel];
  float* const rows0[kRows] = {y0[0], y0[1], y0[2]};
  float* const rows1[kRows] = {y1[0], y1[1], y1[2]};
  GemmTile t{};
  t.w = w;
  t.k2 = kPairs;
  t.finish = kStore;
  t.columns = kPanel;
  t.a = a16;
  t.y = rows0;
  tile_dpbf16<kRows>(t);
  t.a = a32;
  t.y = rows1;
  tile_fma<kRows, WeightsBf16>(t);
  return memcmp(y0, y1, sizeof y0) == 0;
}

static bool self_test_rounding(TestRandom& random) {
  float x[16];
  uint16_t y[16];
  for (float& v : x) {
    const uint32_t r = random.next();
    // a third each: any pattern, ties, subnormals and zeros
    v = float_from_bits(r % 3 == 0 ? random.next() : r % 3 == 1 ? (random.next() & 0xffff0000u) | 0x8000u : random.next() & 0x80ffffffu);
  }
  store_bf16(y, load(x));
  for (int i = 0; i < 16; i++)
    if (y[i] != float_to_bf16(x[i])) return false;
  return true;
}

static bool self_test() {
  TestRandom random{0x9e3779b97f4a7c15ull};
  bool ok = true;
  for (int i = 0; i < 8; i++) {
    ok &= self_test_range(random, 120, 134, false);  // ordinary
    ok &= self_test_range(random, 110, 140, true);   // cancelling
    ok &= self_test_range(random, 50, 75, false);    // products around and below 2^-126
    ok &= self_test_range(random, 0, 90, false);     // with subnormal inputs
  }
  for (int i = 0; i < 256; i++) ok &= self_test_rounding(random);
  return ok;
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
#endif
