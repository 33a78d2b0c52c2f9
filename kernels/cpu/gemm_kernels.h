// Tiles of the matrix product: `rows` rows times 32 columns, one accumulator per (row, column), K ascending in pairs, the
// odd element of a pair first. Every tile size, path and K block gives the same bits.
#pragma once
#include "gemm_types.h"
#include "math16.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

constexpr int kVectors = kPanel / kNativeLanes;  // native vectors across a panel

struct WeightsBf16 {
  static constexpr int kStep = kPanel * 4;  // bytes of one pair row
  COLIBRI_INLINE void load_pairs(const char* w, int v, native& even, native& odd) {
    load_pairs_bf16(w + v * kNativeLanes * 4, even, odd);
  }
};
struct WeightsFp16 {
  static constexpr int kStep = kPanel * 4;
  COLIBRI_INLINE void load_pairs(const char* w, int v, native& even, native& odd) {
    load_pairs_fp16(w + v * kNativeLanes * 4, even, odd);
  }
};
struct WeightsF32 {
  static constexpr int kStep = kPanel * 8;
  COLIBRI_INLINE void load_pairs(const char* w, int v, native& even, native& odd) {
    const float* p = reinterpret_cast<const float*>(w) + v * kNativeLanes;
    even = native_load(p);
    odd = native_load(p + kPanel);
  }
};

template <int Rows>
struct Accumulators {
  native v[Rows][kVectors];
};

template <int Rows>
COLIBRI_INLINE void start(Accumulators<Rows>& acc, const GemmTile& t) {
  if (t.resume) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) acc.v[r][v] = native_load(t.sums + r * kPanel + v * kNativeLanes);
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) acc.v[r][v] = native_zero();
    }
  }
}

// sums: [rows][32]
static __attribute__((noinline)) void finish_rows(const TileEnd& t, const float* sums, int rows, bool bf16_rows) {
  for (int r = 0; r < rows; r++, sums += kPanel) {
    f32x16 lo = load(sums), hi = load(sums + 16);
    if (t.finish == kSilu) {
      const f32x16 h = silu_mul(lo, hi);
      if (bf16_rows) {
        uint32_t pairs[8];
        uint16_t halves[16];
        store_bf16(halves, h);
        memcpy(pairs, halves, 32);
        for (int j = 0; j < 8; j++) static_cast<uint32_t*>(t.h)[j * rows + r] = pairs[j];
      } else {
        float values[16];
        store(values, t.round_h ? round_bf16(h) : h);
        for (int j = 0; j < 8; j++) memcpy(static_cast<float*>(t.h) + 2 * (j * rows + r), values + 2 * j, 8);
      }
      continue;
    }
    if (t.finish == kSiluRows) {
      store(static_cast<float*>(t.h) + 16 * r, silu_mul(lo, hi));
      continue;
    }
    if (t.finish == kScale) {
      const f32x16 s = set1(t.scale[r]);
      lo = mul(s, lo);
      hi = mul(s, hi);
    }
    float* y = t.y[r] + t.column;
    if (t.columns >= kPanel) {
      store(y, lo);
      store(y + 16, hi);
    } else {
      store_n(y, lo, clamp16(t.columns));
      if (t.columns > 16) store_n(y + 16, hi, clamp16(t.columns - 16));
    }
  }
}

// Through memory: the arithmetic of the end is not worth a copy per tile size.
template <int Rows>
COLIBRI_INLINE void finish(const Accumulators<Rows>& acc, const GemmTile& t, bool bf16_rows) {
  alignas(64) float end[Rows * kPanel];
  float* const sums = t.spill ? t.sums : end;
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++) {
    store(sums + r * kPanel, join(&acc.v[r][0]));
    store(sums + r * kPanel + 16, join(&acc.v[r][kVectors / 2]));
  }
  if (!t.spill) finish_rows(t, sums, Rows, bf16_rows);
}

// Asks for a line of the weights' own stream. Of few rows, which wait for nothing but memory, it leaves the outer caches to
// what runs between the experts (the plan, the merge, attention); more rows are a few per cent quicker with it in them.
template <int Rows>
COLIBRI_INLINE void ask_for_stream(const char* p) {
  __builtin_prefetch(p, 0, Rows < kStreamOnlyRows ? 0 : 3);
}

// Asks for `lines` cache lines from p on, for the L2 cache.
COLIBRI_INLINE const char* ask_for(const char* p, int lines) {
  for (int i = 0; i < lines; i++) __builtin_prefetch(p + 64 * i, 0, 2);
  return p + 64 * lines;
}

// step(w) for `steps` steps of K of `Bytes` bytes of weights each; prefetch.lines: in every `Every` steps.
template <int Rows, int Bytes, int Every, class Step>
COLIBRI_INLINE void walk(const char* w, int64_t steps, const Prefetch& prefetch, Step step) {
  if (prefetch.ahead) {
    const int64_t ahead = prefetch.ahead;
#pragma GCC unroll 2
    for (int64_t k = 0; k < steps; k++, w += Bytes) {
#pragma GCC unroll 4
      for (int i = 0; i < Bytes; i += 64) ask_for_stream<Rows>(w + ahead + i);
      step(w);
    }
    return;
  }
  if (prefetch.next) {
    const char* next = prefetch.next;
    for (; steps >= Every; steps -= Every) {
      next = ask_for(next, prefetch.lines);
#pragma GCC unroll 2
      for (int i = 0; i < Every; i++, w += Bytes) step(w);
    }
  }
#pragma GCC unroll 2
  for (; steps > 0; steps--, w += Bytes) step(w);
}

// One pair of K: the odd products of all rows (on AVX-512 of all columns, too), then the even ones: no sum waits for its last product.
template <int Rows, class Weights>
COLIBRI_INLINE void multiply_pair(Accumulators<Rows>& acc, const float* a, const char* w) {
#if defined(COLIBRI_SIMD_AVX512)
  native even[kVectors], odd[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) Weights::load_pairs(w, v, even[v], odd[v]);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++) {
    const native x1 = native_set1(a[2 * r + 1]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc.v[r][v] = fma(x1, odd[v], acc.v[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++) {
    const native x0 = native_set1(a[2 * r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc.v[r][v] = fma(x0, even[v], acc.v[r][v]);
  }
#else
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) {
    native even, odd;
    Weights::load_pairs(w, v, even, odd);
    asm("" : "+r"(a));  // the broadcasts are loads again for each v: kept in registers they would push out accumulators
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) acc.v[r][v] = fma(native_set1(a[2 * r + 1]), odd, acc.v[r][v]);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) acc.v[r][v] = fma(native_set1(a[2 * r]), even, acc.v[r][v]);
  }
#endif
}

template <int Rows, class Weights>
static __attribute__((noinline)) void tile_fma(const GemmTile& t) {
  Accumulators<Rows> acc;
  start(acc, t);
  const float* a = static_cast<const float*>(t.a);
  walk<Rows, Weights::kStep, kPrefetchPairs>(static_cast<const char*>(t.w), t.k2, t.prefetch, [&](const char* w) __attribute__((always_inline)) {
    if constexpr (Rows >= 8) {  // of many rows, a page ahead: they outgrow the L2 cache
#pragma GCC unroll 4
      for (int i = 0; i < Rows * 8; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(a) + 4096 + i, 0, 3);
    }
    multiply_pair<Rows, Weights>(acc, a, w);
    a += 2 * Rows;
  });
  finish(acc, t, false);
}

template <int Rows, class Weights>
constexpr void fill_fma(GemmKernels& k) {
  k.tile[Rows] = tile_fma<Rows, Weights>;
  if constexpr (Rows > 1) fill_fma<Rows - 1, Weights>(k);
}

template <int MaxRows, class Weights>
constexpr GemmKernels fma_kernels() {
  GemmKernels k{};
  k.max_rows = k.many_rows = MaxRows;
  fill_fma<MaxRows, Weights>(k);
  return k;
}

#if defined(COLIBRI_SIMD_AVX512) && defined(__AVX512BF16__)
#define COLIBRI_HAS_DPBF16 1

// vdpbf16ps adds the odd product, then the even one, each with its own rounding, subnormals flushed (self_test_kernels.h).
template <int Rows>
static __attribute__((noinline)) void tile_dpbf16(const GemmTile& t) {
  Accumulators<Rows> acc;
  start(acc, t);
  const int32_t* a = static_cast<const int32_t*>(t.a);
  walk<Rows, kPanel * 4, kPrefetchPairs>(static_cast<const char*>(t.w), t.k2, t.prefetch, [&](const char* w) __attribute__((always_inline)) {
    const __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + 64);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
      if constexpr (Rows > 14) {  // sums and weights fill the registers
        asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc.v[r][0].v) : "v"(w0), "m"(a[r]));
        asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc.v[r][1].v) : "v"(w1), "m"(a[r]));
        continue;
      }
      const __m512bh x = (__m512bh)_mm512_set1_epi32(a[r]);
      acc.v[r][0].v = _mm512_dpbf16_ps(acc.v[r][0].v, w0, x);
      acc.v[r][1].v = _mm512_dpbf16_ps(acc.v[r][1].v, w1, x);
    }
    a += Rows;
  });
  finish(acc, t, true);
}

template <int Rows>
constexpr void fill_dpbf16(GemmKernels& k) {
  k.tile[Rows] = tile_dpbf16<Rows>;
  if constexpr (Rows > 1) fill_dpbf16<Rows - 1>(k);
}

constexpr GemmKernels dpbf16_kernels() {
  GemmKernels k{};
  k.max_rows = kMaxTile;
  k.many_rows = 12;  // 13 to 15 in one tile spare the panel a second pass
  fill_dpbf16<kMaxTile>(k);
  return k;
}
#endif

// As many accumulators as the registers hold.
#if defined(COLIBRI_SIMD_AVX512)
constexpr int kFmaRows = 13;
#elif defined(COLIBRI_SIMD_AVX2)
constexpr int kFmaRows = 3;
#else
constexpr int kFmaRows = 2;
#endif

}  // namespace COLIBRI_ISA
}  // namespace colibri
