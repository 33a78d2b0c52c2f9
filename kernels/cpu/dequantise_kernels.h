// Packed int4 to packed bf16: `scale * number`, rounded once. The numbers of an octet of K of one column are one word.
#pragma once
#include "quant_types.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

constexpr int64_t kOctetPairs = kOctet / 2;

// `words16`: of sixteen columns. number16: their numbers at `shift`. store_products: a pair of K of sixteen columns, what
// load_pairs_bf16 reads. It rounds products alone: those are no subnormals (FTZ), and their NaNs, being those of scales,
// end in 16 zeros, so that rounding leaves them as they are. Stream: past the caches, `out` on a 64-byte boundary.
#if defined(COLIBRI_SIMD_AVX512)
struct words16 {
  __m512i v;
};
COLIBRI_INLINE words16 load_words(const char* p) { return {_mm512_loadu_si512(p)}; }
// The index of a table's entry is the low four bits of its lane, whatever stands above.
COLIBRI_INLINE f32x16 number16(words16 w, int shift) {
  const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(w.v, unsigned(shift)), numbers)};
}
// Not vcvtne2ps2bf16, whose halves would have to be interleaved: no faster.
COLIBRI_INLINE __m512i narrow_pairs(f32x16 even, f32x16 odd) {
  const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
  const __m512i e = _mm512_castps_si512(even.v), o = _mm512_castps_si512(odd.v);
  const __m512i low = _mm512_add_epi32(_mm512_add_epi32(e, half), _mm512_and_si512(_mm512_srli_epi32(e, 16), one));
  const __m512i high = _mm512_add_epi32(_mm512_add_epi32(o, half), _mm512_and_si512(_mm512_srli_epi32(o, 16), one));
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}
template <bool Stream>
COLIBRI_INLINE void store_products(char* out, f32x16 even, f32x16 odd) {
  const __m512i pairs = narrow_pairs(even, odd);
  if (Stream) _mm512_stream_si512(reinterpret_cast<__m512i*>(out), pairs);
  else _mm512_storeu_si512(out, pairs);
}
#elif defined(COLIBRI_SIMD_AVX2)
struct words16 {
  __m256i lo, hi;
};
// With its top bit turned, a nibble is the number in two's complement.
COLIBRI_INLINE words16 load_words(const char* p) {
  const __m256i top = _mm256_set1_epi32(int(0x88888888u));
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_xor_si256(_mm256_loadu_si256(q), top), _mm256_xor_si256(_mm256_loadu_si256(q + 1), top)};
}
COLIBRI_INLINE __m256 number8(__m256i w, int shift) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w, 28 - shift), 28));
}
COLIBRI_INLINE f32x16 number16(words16 w, int shift) { return {number8(w.lo, shift), number8(w.hi, shift)}; }
COLIBRI_INLINE __m256i narrow_pairs(__m256 even, __m256 odd) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
  const __m256i e = _mm256_castps_si256(even), o = _mm256_castps_si256(odd);
  const __m256i low = _mm256_add_epi32(_mm256_add_epi32(e, half), _mm256_and_si256(_mm256_srli_epi32(e, 16), one));
  const __m256i high = _mm256_add_epi32(_mm256_add_epi32(o, half), _mm256_and_si256(_mm256_srli_epi32(o, 16), one));
  return _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa);
}
template <bool Stream>
COLIBRI_INLINE void store_products(char* out, f32x16 even, f32x16 odd) {
  __m256i* const q = reinterpret_cast<__m256i*>(out);
  const __m256i lo = narrow_pairs(even.lo, odd.lo), hi = narrow_pairs(even.hi, odd.hi);
  if (Stream) {
    _mm256_stream_si256(q, lo);
    _mm256_stream_si256(q + 1, hi);
  } else {
    _mm256_storeu_si256(q, lo);
    _mm256_storeu_si256(q + 1, hi);
  }
}
#else
struct words16 {
  uint32_t v[16];
};
COLIBRI_INLINE words16 load_words(const char* p) {
  words16 w;
  memcpy(w.v, p, sizeof w.v);
  return w;
}
COLIBRI_INLINE f32x16 number16(words16 w, int shift) {
  f32x16 r;
  for (int i = 0; i < 16; i++) r.v[i] = float(int32_t(w.v[i] >> shift & 15u) - zero_point(kWeightInt4));
  return r;
}
COLIBRI_INLINE uint32_t narrow_product(float x) {
  const uint32_t u = float_bits(x);
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
template <bool Stream>
COLIBRI_INLINE void store_products(char* out, f32x16 even, f32x16 odd) {
  uint32_t pairs[16];
  for (int i = 0; i < 16; i++) pairs[i] = narrow_product(even.v[i]) | narrow_product(odd.v[i]) << 16;
  memcpy(out, pairs, sizeof pairs);
}
#endif

// An octet of K: words [32] and scales of a group to pairs [4][32].
template <bool Stream>
COLIBRI_INLINE void dequantise_octet(const char* numbers, const f32x16* scale, char* out) {
  const words16 words[2] = {load_words(numbers), load_words(numbers + 64)};
#pragma GCC unroll 4
  for (int pair = 0; pair < int(kOctetPairs); pair++) {
    const int shift = (pair & 1) * 16 + (pair >> 1) * 4;  // k = j and 4 + j are the halves of byte j
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      store_products<Stream>(out + pair * kPairBytes + v * 64, mul(number16(words[v], shift), scale[v]),
                             mul(number16(words[v], shift + 8), scale[v]));
  }
}

// `count` pairs of an octet from its pair `first` on, of which elements from `live` on (counted in the octet) are zeros.
static void dequantise_part(const char* numbers, const f32x16* scale, int64_t first, int64_t count, int64_t live, char* out) {
  alignas(64) char block[kOctetPairs * kPairBytes];
  dequantise_octet<false>(numbers, scale, block);
  for (int64_t pair = first; pair < first + count; pair++) {
    if (live - 2 * pair == 1)
      for (int c = 0; c < kPanel; c++) memset(block + pair * kPairBytes + c * 4 + 2, 0, 2);
    else if (live <= 2 * pair)
      memset(block + pair * kPairBytes, 0, kPairBytes);
  }
  memcpy(out, block + first * kPairBytes, size_t(count * kPairBytes));
}

template <bool Stream>
COLIBRI_INLINE void dequantise_run(const DequantPairs& d) {
  const int64_t group_octets = d.group / kOctet, group_bytes = kScaleBytes + group_octets * octet_bytes(kWeightInt4);
  char* out = d.out;
  for (int64_t pair = d.begin; pair < d.end;) {
    const int64_t g = pair / kOctetPairs / group_octets, group_end = (g + 1) * group_octets * kOctetPairs;
    const int64_t stop = d.end < group_end ? d.end : group_end;
    const char* const group = d.panel + g * group_bytes;
    uint16_t stored[kPanel];
    memcpy(stored, group, sizeof stored);
    const f32x16 scale[2] = {load_bf16(stored), load_bf16(stored + 16)};
    while (pair < stop) {
      const int64_t o = pair / kOctetPairs, at = pair % kOctetPairs;
      const char* const numbers = group + kScaleBytes + (o - g * group_octets) * octet_bytes(kWeightInt4);
      int64_t count = kOctetPairs;
      if (at == 0 && stop - pair >= kOctetPairs && (o + 1) * kOctet <= d.live) {
        dequantise_octet<Stream>(numbers, scale, out);
      } else {
        count = kOctetPairs - at < stop - pair ? kOctetPairs - at : stop - pair;
        dequantise_part(numbers, scale, at, count, d.live - o * kOctet, out);
      }
      pair += count;
      out += count * kPairBytes;
    }
  }
}

static void dequantise_pairs(const DequantPairs& d) {
#if defined(COLIBRI_SIMD_PORTABLE)
  dequantise_run<false>(d);
#else
  if (d.stream && reinterpret_cast<uintptr_t>(d.out) % 64 == 0) {
    dequantise_run<true>(d);
    _mm_sfence();  // whoever is told that the job is done must see them
  } else {
    dequantise_run<false>(d);
  }
#endif
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
