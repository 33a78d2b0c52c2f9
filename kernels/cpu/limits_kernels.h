// What the machine gives at most: a plain ascending read, and multiply-adds from registers alone.
#pragma once
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

static uint64_t sum_words(const void* p, int64_t n) {
  uint64_t sums[32] = {};
  const char* bytes = static_cast<const char*>(p);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    uint64_t words[32];
    memcpy(words, bytes + i * 8, 256);
    for (int j = 0; j < 32; j++) sums[j] += words[j];
  }
  for (; i < n; i++) {
    uint64_t word;
    memcpy(&word, bytes + i * 8, 8);
    sums[0] += word;
  }
  for (int j = 1; j < 32; j++) sums[0] += sums[j];
  return sums[0];
}

// Every loop over them is unrolled, or the compiler keeps them in memory. More sums than latency times instructions per cycle, fewer than AVX2 has registers.
constexpr int kPeakSums = 12;

static double peak_fma(int64_t steps, float* sink) {
  native sums[kPeakSums];
#pragma GCC unroll 12
  for (int j = 0; j < kPeakSums; j++) sums[j] = native_set1(sink[j]);  // of equal ones the compiler would keep one
  const native a = native_set1(sink[0]), b = native_set1(sink[1]);
  for (int64_t i = 0; i < steps; i++)
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; j++) sums[j] = fma(a, b, sums[j]);
  native parts[16 / kNativeLanes];
#pragma GCC unroll 12
  for (int j = 0; j < kPeakSums; j++) {
    for (native& part : parts) part = sums[j];
    store(sink, add(load(sink), join(parts)));
  }
  return 2.0 * kPeakSums * kNativeLanes * double(steps);
}

#if defined(COLIBRI_HAS_DPBF16)
static double peak_dpbf16(int64_t steps, float* sink) {
  __m512 sums[kPeakSums];
#pragma GCC unroll 12
  for (int j = 0; j < kPeakSums; j++) sums[j] = _mm512_setzero_ps();
  const __m512bh a = (__m512bh)_mm512_loadu_si512(sink), b = (__m512bh)_mm512_loadu_si512(sink + 16);
  for (int64_t i = 0; i < steps; i++)
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; j++) asm("vdpbf16ps %2, %1, %0" : "+v"(sums[j]) : "v"(a), "v"(b));
#pragma GCC unroll 12
  for (int j = 0; j < kPeakSums; j++) store(sink, add(load(sink), f32x16{sums[j]}));
  return 4.0 * kPeakSums * 16 * double(steps);
}

static double peak_dpbusd(int64_t steps, float* sink) {
  __m512i sums[kPeakSums];
#pragma GCC unroll 12
  for (int j = 0; j < kPeakSums; j++) sums[j] = _mm512_setzero_si512();
  const __m512i a = _mm512_loadu_si512(sink), b = _mm512_loadu_si512(sink + 16);
  for (int64_t i = 0; i < steps; i++)
#pragma GCC unroll 12
    for (int j = 0; j < kPeakSums; j++) asm("vpdpbusd %2, %1, %0" : "+v"(sums[j]) : "v"(a), "v"(b));
#pragma GCC unroll 12
  for (int j = 0; j < kPeakSums; j++) store(sink, add(load(sink), f32x16{_mm512_cvtepi32_ps(sums[j])}));
  return 8.0 * kPeakSums * 16 * double(steps);
}
#endif

}  // namespace COLIBRI_ISA
}  // namespace colibri
