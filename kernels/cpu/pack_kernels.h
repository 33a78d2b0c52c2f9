// Packing 32 rows of a matrix into one panel.
#pragma once
#include "gemm_types.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// Elements k0 .. k0+31 of a row as 2-byte elements of type `to`, zeros beyond its end.
static void gather_halves(const PackPanel& p, const void* row, int64_t k0, uint16_t* out) {
  memset(out, 0, 64);
  const int64_t left = p.k - k0;
  if (!row || left <= 0) return;
  const int n = left < 32 ? int(left) : 32;
  if (p.from == p.to) {
    memcpy(out, static_cast<const char*>(row) + k0 * 2, size_t(n) * 2);
  } else if (p.from == kWeightF32) {
    float t[32] = {};
    memcpy(t, static_cast<const char*>(row) + k0 * 4, size_t(n) * 4);
    store_bf16(out, load(t));
    store_bf16(out + 16, load(t + 16));
  } else {
    uint16_t t[32] = {};
    memcpy(t, static_cast<const char*>(row) + k0 * 2, size_t(n) * 2);
    store_bf16(out, load_fp16(t));
    store_bf16(out + 16, load_fp16(t + 16));
  }
}

// Through a small square, so that rows at a large power-of-two distance are read once and not evicted by each other.
static void pack_panel(const PackPanel& p) {
  uint32_t square[kPanel][16];
  uint32_t* out = static_cast<uint32_t*>(p.out);
  if (p.to == kWeightF32) {
    for (int64_t k0 = 0; k0 < 2 * p.k2; k0 += 16) {
      const int64_t left = p.k - k0;
      const size_t n = left <= 0 ? 0 : left < 16 ? size_t(left) : 16;
      for (int c = 0; c < kPanel; c++) {
        memset(square[c], 0, 64);
        if (p.row[c] && n) memcpy(square[c], static_cast<const char*>(p.row[c]) + k0 * 4, n * 4);
      }
      for (int j = 0; j < 16 && k0 + j < 2 * p.k2; j++)
        for (int c = 0; c < kPanel; c++) out[(k0 + j) * kPanel + c] = square[c][j];
    }
    return;
  }
  for (int64_t j0 = 0; j0 < p.k2; j0 += 16) {
    for (int c = 0; c < kPanel; c++) {
      uint16_t halves[32];
      gather_halves(p, p.row[c], 2 * j0, halves);
      memcpy(square[c], halves, 64);
    }
    for (int j = 0; j < 16 && j0 + j < p.k2; j++)
      for (int c = 0; c < kPanel; c++) out[(j0 + j) * kPanel + c] = square[c][j];
  }
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
