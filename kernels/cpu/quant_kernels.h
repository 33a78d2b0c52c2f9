// Tiles of the product with int8 and int4 weights: within a group of K exact int32 sums, then one fma with the product of
// the two scales; groups ascending, one accumulator per (row, column). Integers are exact in any order, so every path and
// tile size gives the same bits.
//
// vpdpbusd can only take its signed operand from a row's broadcast, so the weights are the unsigned ones, and the start of
// a sum takes their zero point out again. Paths without it widen to 16 bits for vpmaddwd (vpmaddubsw would saturate).
#pragma once
#include "gemm_kernels.h"
#include "quant_types.h"

namespace colibri {
namespace COLIBRI_ISA {

#if defined(COLIBRI_SIMD_AVX512)
using Ints = __m512i;
constexpr int kIntLanes = 16;
COLIBRI_INLINE Ints ints_set1(int32_t x) { return _mm512_set1_epi32(x); }
COLIBRI_INLINE f32x16 to_float16(const Ints* p) { return {_mm512_cvtepi32_ps(p[0])}; }
COLIBRI_INLINE Ints load_bytes(const char* p) { return _mm512_loadu_si512(p); }
COLIBRI_INLINE Ints low_nibbles(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
COLIBRI_INLINE Ints high_nibbles(Ints x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
#if !defined(__AVX512VNNI__)
COLIBRI_INLINE Ints even_bytes(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi16(255)); }
COLIBRI_INLINE Ints odd_bytes(Ints x) { return _mm512_srli_epi16(x, 8); }
COLIBRI_INLINE Ints multiply_add(Ints acc, Ints a, Ints b) { return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)); }
#endif
#elif defined(COLIBRI_SIMD_AVX2)
using Ints = __m256i;
constexpr int kIntLanes = 8;
COLIBRI_INLINE Ints ints_set1(int32_t x) { return _mm256_set1_epi32(x); }
COLIBRI_INLINE f32x16 to_float16(const Ints* p) { return {_mm256_cvtepi32_ps(p[0]), _mm256_cvtepi32_ps(p[1])}; }
COLIBRI_INLINE Ints load_bytes(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
COLIBRI_INLINE Ints low_nibbles(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
COLIBRI_INLINE Ints high_nibbles(Ints x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)); }
COLIBRI_INLINE Ints even_bytes(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi16(255)); }
COLIBRI_INLINE Ints odd_bytes(Ints x) { return _mm256_srli_epi16(x, 8); }
COLIBRI_INLINE Ints multiply_add(Ints acc, Ints a, Ints b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
#else
struct Ints {
  int32_t v[16];
};
constexpr int kIntLanes = 16;
COLIBRI_INLINE Ints ints_set1(int32_t x) {
  Ints r;
  for (int i = 0; i < 16; i++) r.v[i] = x;
  return r;
}
COLIBRI_INLINE f32x16 to_float16(const Ints* p) {
  f32x16 r;
  for (int i = 0; i < 16; i++) r.v[i] = float(p->v[i]);
  return r;
}
#endif

constexpr int kIntVectors = kPanel / kIntLanes;

template <int Rows>
struct Sums {
  Ints v[Rows][kIntVectors];
};

COLIBRI_INLINE int32_t load_i32(const char* p) {
  int32_t x;
  memcpy(&x, p, 4);
  return x;
}

// Bytes of a row's number: 2 where quads are multiplied as two pairs of 16-bit numbers.
#if defined(COLIBRI_SIMD_PORTABLE) || defined(__AVX512VNNI__)
constexpr int kRowNumber = 1;
#else
constexpr int kRowNumber = 2;
#endif

// Quads (4 numbers of K) of an octet: how their bytes come from the packed weights.
struct WeightsInt8 {
  static constexpr int kStep = kPanel * kOctet;
#if !defined(COLIBRI_SIMD_PORTABLE)
  COLIBRI_INLINE Ints quad(const char* w, int j, int v) { return load_bytes(w + (j * kIntVectors + v) * kIntLanes * 4); }
#else
  COLIBRI_INLINE int number(const char* w, int j, int column, int i) {
    return static_cast<unsigned char>(w[(j * kPanel + column) * 4 + i]);
  }
#endif
};
struct WeightsInt4 {
  static constexpr int kStep = kPanel * kOctet / 2;
#if !defined(COLIBRI_SIMD_PORTABLE)
  COLIBRI_INLINE Ints quad(const char* w, int j, int v) {
    const Ints x = load_bytes(w + v * kIntLanes * 4);
    return j ? high_nibbles(x) : low_nibbles(x);
  }
#else
  COLIBRI_INLINE int number(const char* w, int j, int column, int i) {
    return static_cast<unsigned char>(w[column * 4 + i]) >> (4 * j) & 15;
  }
#endif
};

template <int Rows, class Weights>
COLIBRI_INLINE void multiply_octet(Sums<Rows>& sums, const char* a, const char* w) {
#pragma GCC unroll 2
  for (int j = 0; j < 2; j++, a += Rows * 4 * kRowNumber) {
#if defined(COLIBRI_SIMD_PORTABLE)
    for (int i = 0; i < 4; i++) {
      int16_t number[kPanel];
      for (int c = 0; c < kPanel; c++) number[c] = int16_t(Weights::number(w, j, c, i));
      for (int r = 0; r < Rows; r++) {
        const int16_t x = static_cast<signed char>(a[4 * r + i]);
        for (int c = 0; c < kPanel; c++) sums.v[r][c / 16].v[c % 16] += number[c] * x;
      }
    }
#elif defined(__AVX512VNNI__)
    const Ints w0 = Weights::quad(w, j, 0), w1 = Weights::quad(w, j, 1);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; r++) {
      const Ints x = ints_set1(load_i32(a + 4 * r));
      // Not the intrinsic: GCC 12 copies the accumulators around it.
      asm("vpdpbusd %2, %1, %0" : "+v"(sums.v[r][0]) : "v"(w0), "v"(x));
      asm("vpdpbusd %2, %1, %0" : "+v"(sums.v[r][1]) : "v"(w1), "v"(x));
    }
#else
#pragma GCC unroll 4
    for (int v = 0; v < kIntVectors; v++) {
      const Ints x = Weights::quad(w, j, v), even = even_bytes(x), odd = odd_bytes(x);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; r++) {
        sums.v[r][v] = multiply_add(sums.v[r][v], even, ints_set1(load_i32(a + 8 * r)));
        sums.v[r][v] = multiply_add(sums.v[r][v], odd, ints_set1(load_i32(a + 8 * r + 4)));
      }
    }
#endif
  }
}

// Whether the registers hold a tile's totals beside the sums of a group.
#if defined(COLIBRI_SIMD_AVX512)
constexpr int kRowsInRegisters = 7;
#elif defined(COLIBRI_SIMD_AVX2)
constexpr int kRowsInRegisters = 1;
#else
constexpr int kRowsInRegisters = 0;
#endif
template <int Rows>
constexpr bool kTotalsInRegisters = Rows <= kRowsInRegisters;

template <int Rows>
COLIBRI_INLINE void take_total(const f32x16 (*total)[2], const float* out, int r, f32x16& lo, f32x16& hi) {
  lo = kTotalsInRegisters<Rows> ? total[r][0] : load(out + r * kPanel);
  hi = kTotalsInRegisters<Rows> ? total[r][1] : load(out + r * kPanel + 16);
}
template <int Rows>
COLIBRI_INLINE void keep_total(f32x16 (*total)[2], float* out, int r, f32x16 lo, f32x16 hi) {
  if constexpr (kTotalsInRegisters<Rows>) {
    total[r][0] = lo;
    total[r][1] = hi;
  } else {
    store(out + r * kPanel, lo);
    store(out + r * kPanel + 16, hi);
  }
}

// The groups of K. One plain loop over octets: more of them (unrolled, or one for each kind of prefetch) would shuffle the
// sums between registers where a group ends.
template <int Rows, class Weights, bool Ahead>
COLIBRI_INLINE void multiply_groups(const QuantTile& t, float* out) {
  f32x16 total[kTotalsInRegisters<Rows> ? Rows : 1][2];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; r++) keep_total<Rows>(total, out, r, zero16(), zero16());
  const char* a = static_cast<const char*>(t.a);
  const char* w = static_cast<const char*>(t.w);
  const float* scale = t.a_scale;
  const int32_t* start = t.a_start;
  const char* ask = t.prefetch.next;
  const int64_t whole = t.group / kOctet, ahead = t.prefetch.ahead, step = t.prefetch.step;
  for (int64_t left = t.octets; left > 0; left -= whole) {
    const uint16_t* const weight_scale = reinterpret_cast<const uint16_t*>(w);
    if (Ahead) ask_for_stream<Rows>(w + ahead);
    w += kScaleBytes;
    Sums<Rows> sums;
#pragma GCC unroll 12
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < kIntVectors; v++) sums.v[r][v] = ints_set1(start[r]);
    }
    const char* const end = w + (left < whole ? left : whole) * Weights::kStep;
#pragma GCC unroll 1
    do {
      if (Ahead) {
#pragma GCC unroll 4
        for (int i = 0; i < Weights::kStep; i += 64) ask_for_stream<Rows>(w + ahead + i);
      } else {
        __builtin_prefetch(ask, 0, 2);
        __builtin_prefetch(ask + 64, 0, 2);
        ask += step;
      }
      multiply_octet<Rows, Weights>(sums, a, w);
      a += Rows * kOctet * kRowNumber;
      w += Weights::kStep;
    } while (w != end);
    const f32x16 w0 = load_bf16(weight_scale), w1 = load_bf16(weight_scale + 16);
    asm("" : "+r"(out));  // totals in memory stay there: the compiler would keep a second copy
#pragma GCC unroll 12
    for (int r = 0; r < Rows; r++) {
      const f32x16 s = set1(scale[r]);
      f32x16 lo, hi;
      take_total<Rows>(total, out, r, lo, hi);
      keep_total<Rows>(total, out, r, fma(to_float16(&sums.v[r][0]), mul(s, w0), lo),
                       fma(to_float16(&sums.v[r][kIntVectors / 2]), mul(s, w1), hi));
    }
    scale += Rows;
    start += Rows;
  }
  if constexpr (kTotalsInRegisters<Rows>) {
#pragma GCC unroll 12
    for (int r = 0; r < Rows; r++) {
      store(out + r * kPanel, total[r][0]);
      store(out + r * kPanel + 16, total[r][1]);
    }
  }
}

template <int Rows, class Weights>
static __attribute__((noinline)) void tile_quant(const QuantTile& t) {
  alignas(64) float out[Rows * kPanel];
  float* totals = out;
  asm("" : "+r"(totals));  // in memory where they are not in registers
  if (t.prefetch.ahead)
    multiply_groups<Rows, Weights, true>(t, totals);
  else
    multiply_groups<Rows, Weights, false>(t, totals);
  finish_rows(t, totals, Rows, false);
}

// 16 values of a row from k on (whole sixteens), zeros beyond `n`.
COLIBRI_INLINE f32x16 row_values(const QuantRowTile& p, int r, int64_t k, int n) {
  const char* const block = static_cast<const char*>(p.x[r]) + k / 16 * p.block;
  if (p.bf16) {
    const uint16_t* x = reinterpret_cast<const uint16_t*>(block);
    return n < 16 ? load_bf16_n(x, n) : load_bf16(x);
  }
  const float* x = reinterpret_cast<const float*>(block);
  return n < 16 ? load_n(x, n) : load(x);
}

// A tile's numbers: scale = largest magnitude of the group / 127, number = rint(x * (127 / largest)). A group whose scale
// is flushed is zero; one with a NaN or Inf has the scale NaN. All rows of a group together: what is written stays in the
// L1 cache, and no row waits for another's division.
static void quantise_tile(const QuantRowTile& p) {
  static_assert(kMaxTile <= 16, "one vector holds a value of each row");
  char* q = static_cast<char*>(p.q);
  float* scales = p.scale;
  int32_t* start = p.start;
  for (int64_t k0 = 0; k0 < p.k; k0 += p.group, scales += p.rows, start += p.rows) {
    const int64_t left = p.k - k0;
    const int n = left < p.group ? int(left) : p.group;
    const int padded = (n + kOctet - 1) / kOctet * kOctet;
    float magnitudes[16] = {};
    uint32_t broken = 0;
    for (int r = 0; r < p.rows; r++) {
      f32x16 most = zero16(), bad = zero16();
      for (int i = 0; i < n; i += 16) {
        const f32x16 x = row_values(p, r, k0 + i, n - i);
        most = max(max(x, neg(x)), most);
        bad = fma(x, zero16(), bad);
      }
      magnitudes[r] = max16(most);
      broken |= uint32_t(to_bits(is_nan(bad)) != 0) << r;
    }
    const f32x16 largest = load(magnitudes), scale = div(largest, set1(127.0f));
    float inverse[16];
    store(inverse, select(greater(scale, zero16()), div(set1(127.0f), largest), zero16()));
    store_n(scales, select(from_bits(broken), set1(__builtin_nanf("")), scale), p.rows);
    alignas(64) signed char number[kMaxTile][kMaxGroup];
    for (int r = 0; r < p.rows; r++) {
      const f32x16 factor = set1(inverse[r]);
      f32x16 sum = zero16();
      for (int i = 0; i < n; i += 16) {
        const f32x16 y = broken >> r & 1 ? zero16() : rint(mul(row_values(p, r, k0 + i, n - i), factor));
        sum = add(sum, y);
        store_s8(number[r] + i, y);
      }
      start[r] = -p.zero * int32_t(tree16(sum));
    }
    for (int i = 0; i < padded; i += 4)
      for (int r = 0; r < p.rows; r++, q += 4 * kRowNumber) {
        const signed char* x = number[r] + i;
#if defined(COLIBRI_SIMD_PORTABLE) || defined(__AVX512VNNI__)
        memcpy(q, x, 4);
#else
        const int16_t pairs[4] = {x[0], x[2], x[1], x[3]};
        memcpy(q, pairs, 8);
#endif
      }
  }
}

template <int Rows, class Weights>
constexpr void fill_quant(QuantKernels& k, WeightType type) {
  k.tile[type - kWeightTypes][Rows] = tile_quant<Rows, Weights>;
  if constexpr (Rows > 1) fill_quant<Rows - 1, Weights>(k, type);
}

// As many sums as the registers hold beside the weights. Several tiles are quickest where the registers hold the totals as
// well (stores of totals take slots of the multiplications); one tile is where they do not, since a second would read the
// panel again: until multiplying takes longer than reading, which for int4 it does from 9 rows on. Two int8 tiles of 8 rows beat
// three of 5.
#if defined(COLIBRI_SIMD_AVX512)
constexpr int kInt8Rows = 12, kInt4Rows = 8, kInt8Pair = 8, kManyRows = kRowsInRegisters;
#elif defined(COLIBRI_SIMD_AVX2)
constexpr int kInt8Rows = 2, kInt4Rows = 2, kInt8Pair = 2, kManyRows = 2;
#else
constexpr int kInt8Rows = 4, kInt4Rows = 4, kInt8Pair = 4, kManyRows = 4;
#endif

constexpr QuantKernels quant_kernels() {
  QuantKernels k{};
  k.max_rows[kWeightInt8 - kWeightTypes] = kInt8Rows;
  k.max_rows[kWeightInt4 - kWeightTypes] = kInt4Rows;
  k.pair_rows[kWeightInt8 - kWeightTypes] = kInt8Pair;
  k.pair_rows[kWeightInt4 - kWeightTypes] = kManyRows;
  k.many_rows = kManyRows;
  k.row_element = kRowNumber;
  k.rows = quantise_tile;
  fill_quant<kInt8Rows, WeightsInt8>(k, kWeightInt8);
  fill_quant<kInt4Rows, WeightsInt4>(k, kWeightInt4);
  return k;
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
