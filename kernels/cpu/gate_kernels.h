// The k largest logits of each row and their softmax.
//
// Sixteen rows at a time. Up to kColumns experts: the rows are turned, so that a lane is a row, and each expert is placed
// among the k best of all sixteen. More experts: blocks of 64, of which only the largest value is kept; k times the best
// block is looked up, and its next value put in its place. Neither branches on a logit for k = 2, nor holds more than the
// k best of a row.
#pragma once
#include "gate_simd.h"
#include "gate_types.h"
#include "math16.h"

namespace colibri {
namespace COLIBRI_ISA {

constexpr int kColumns = 128;
constexpr int kBlock = 64;
constexpr int kMaxBlocks = 16;

// The best of sixteen rows: slot s of row r at [s][r].
struct Chosen {
  float logits[kMaxChosen][16];
  int32_t ids[kMaxChosen][16];
  uint32_t bad;  // rows with NaN or Inf, a bit each
};

// What orders sixteen logits of one row, or, of a column, one logit of sixteen rows.
struct ByLogit {};
struct ByInt16 {
  f32x16 scale;
};
COLIBRI_INLINE f32x16 key_of(const ByLogit&, f32x16 x) { return x; }
COLIBRI_INLINE f32x16 key_of(const ByInt16& by, f32x16 x) { return rint(mul(x, by.scale)); }

COLIBRI_INLINE f32x16 magnitude(f32x16 x) { return max(x, neg(x)); }
// 32767 over the largest magnitude; 0, so that all are equal, where that is no finite number.
COLIBRI_INLINE f32x16 int16_scale(f32x16 largest) {
  const f32x16 scale = div(set1(32767.0f), largest);
  // Above zero as well: of zeros alone the largest may be -0.
  return select(less(scale, set1(__builtin_inff())), max(scale, zero16()), zero16());
}

#define COLIBRI_INLINE_LAMBDA __attribute__((always_inline))

// f(the id in all lanes, its logits in 16 rows); rows that are not there repeat the first.
template <class F>
COLIBRI_INLINE void for_columns(const float* x, int64_t n, int rows, F f) {
  for (int64_t c = 0; c < n; c += 16) {
    const int width = clamp16(n - c);
    f32x16 v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) {
      const float* from = x + (r < rows ? r : 0) * n + c;
      v[r] = width == 16 ? load(from) : load_n(from, width);
    }
    transpose16(v);
    const f32x16 first = set1(float(c));
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
      if (j == width) break;
      f(add(first, set1(float(j))), v[j]);
    }
  }
}

template <class Order>
COLIBRI_INLINE void choose_2_of_columns(const float* x, int64_t n, int rows, Order order, Chosen& out) {
  const f32x16 lowest = set1(-__builtin_inff());
  f32x16 first = lowest, second = lowest, id0 = zero16(), id1 = zero16(), sum = zero16();
  for_columns(x, n, rows, [&](f32x16 here, f32x16 logit) COLIBRI_INLINE_LAMBDA {
    sum = poison(sum, logit);
    const f32x16 key = key_of(order, logit);
    const mask16 above0 = greater(key, first), above1 = greater(key, second);
    // Values by minimum and maximum alone: a chain through masks would be three times as long.
    second = max(second, min(first, key));
    first = max(first, key);
    id1 = select(above0, id0, select(above1, here, id1));
    id0 = select(above0, here, id0);
  });
  store(out.logits[0], first);
  store(out.logits[1], second);
  store_int32(out.ids[0], id0);
  store_int32(out.ids[1], id1);
  out.bad = to_bits(is_nan(sum));
}

template <class Order>
COLIBRI_INLINE void choose_of_columns(const float* x, int64_t n, int rows, int k, Order order, Chosen& out) {
  const f32x16 lowest = set1(-__builtin_inff());
  f32x16 sum = zero16();
  float ids[kMaxChosen][16] = {};
  for (int s = 0; s < k; s++) store(out.logits[s], lowest);
  for_columns(x, n, rows, [&](f32x16 here, f32x16 logit) COLIBRI_INLINE_LAMBDA {
    sum = poison(sum, logit);
    const f32x16 key = key_of(order, logit);
    mask16 above = greater(key, load(out.logits[k - 1]));
    if (!to_bits(above)) return;
    for (int s = k - 1; s > 0; s--) {
      const f32x16 next = load(out.logits[s - 1]);
      const mask16 higher = greater(key, next);
      store(out.logits[s], select(higher, next, select(above, key, load(out.logits[s]))));
      store(ids[s], select(higher, load(ids[s - 1]), select(above, here, load(ids[s]))));
      above = higher;
    }
    store(out.logits[0], select(above, key, load(out.logits[0])));
    store(ids[0], select(above, here, load(ids[0])));
  });
  for (int s = 0; s < k; s++) store_int32(out.ids[s], load(ids[s]));
  out.bad = to_bits(is_nan(sum));
}

// Keys u * 16 .. of block b; behind the row's end -inf.
template <bool kWhole, class Order>
COLIBRI_INLINE f32x16 block_keys(const float* x, int64_t n, int64_t b, int u, const Order& order, f32x16* raw) {
  const int64_t at = b * kBlock + u * 16;
  if (kWhole) {
    *raw = load(x + at);
    return key_of(order, *raw);
  }
  const int count = clamp16(n - at);
  *raw = load_n(x + (count ? at : 0), count);
  return select(first_n(count), key_of(order, *raw), set1(-__builtin_inff()));
}

// A bit for each row with NaN or Inf.
static uint32_t rows_with_nan(const float* x, int64_t n, int rows) {
  uint32_t found = 0;
  for (int r = 0; r < rows; r++) {
    f32x16 sum = zero16();
    for (int64_t i = 0; i < n; i += 16) sum = poison(sum, load_n(x + r * n + i, clamp16(n - i)));
    found |= uint32_t(to_bits(is_nan(sum)) != 0) << r;
  }
  return found;
}

// Where a block's keys are equal to one of them, a bit each.
template <class F>
COLIBRI_INLINE uint64_t bits64(F f) {
  return uint64_t(to_bits(f(0))) | uint64_t(to_bits(f(1))) << 16 | uint64_t(to_bits(f(2))) << 32 | uint64_t(to_bits(f(3))) << 48;
}

// `window + 63 - at` is a window of 64 that takes position `at` away from a minimum.
struct Window {
  float v[2 * kBlock - 1];
};
constexpr Window make_window() {
  Window w{};
  for (float& x : w.v) x = __builtin_inff();
  w.v[kBlock - 1] = -__builtin_inff();
  return w;
}
static constexpr Window kWindow = make_window();

// Sixteen rows (beyond `rows`: the first again): a lane is a row where their blocks are compared; each looks up its own block.
template <int kBlocks, bool kWhole, class Order>
static void choose_of_blocks(const float* x, int64_t n, int rows, int k, const Order* orders, Chosen& out) {
  const f32x16 lowest = set1(-__builtin_inff());
  const float* x_of[16];
  f32x16 most[kBlocks][16];  // of block b of row r: the largest keys of four
  f32x16 sum[4] = {zero16(), zero16(), zero16(), zero16()};
  for (int r = 0; r < 16; r++) {
    x_of[r] = x + (r < rows ? r : 0) * n;
    // Not unrolled whole: the compiler would keep all 64 vectors for the sums.
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; b++) {
      f32x16 keys[4], raw;
#pragma GCC unroll 4
      for (int u = 0; u < 4; u++) {
        keys[u] = block_keys<kWhole>(x_of[r], n, b, u, orders[r], &raw);
        sum[u] = poison(sum[u], raw);
      }
      most[b][r] = max(max(keys[0], keys[1]), max(keys[2], keys[3]));
    }
  }
  out.bad = to_bits(is_nan(add(add(sum[0], sum[1]), add(sum[2], sum[3])))) ? rows_with_nan(x, n, rows) : 0;
  f32x16 best[kBlocks];  // of block b: the largest key that is not chosen yet
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; b++) best[b] = maxima16(most[b]);
  float value[16];
  int32_t block[16], block_before[16];
  uint64_t chosen[16] = {};  // of `block_before`, as far as they have its value: bits up to the latest
  float value_before[16];
  for (int s = 0; s < k; s++) {
    f32x16 largest = best[0], of = zero16();
#pragma GCC unroll 4
    for (int b = 1; b < kBlocks; b++) {
      of = select(greater(best[b], largest), set1(float(b)), of);  // of equal ones the first
      largest = max(best[b], largest);
    }
    store(value, largest);
    store(out.logits[s], largest);
    store_int32(block, of);
    f32x16 left[16];
    for (int r = 0; r < 16; r++) {
      const f32x16 t = set1(value[r]);
      const int b = block[r];
      f32x16 keys[4], raw;
#pragma GCC unroll 4
      for (int u = 0; u < 4; u++) keys[u] = block_keys<kWhole>(x_of[r], n, b, u, orders[r], &raw);
      uint64_t same = bits64([&](int u) COLIBRI_INLINE_LAMBDA { return equal(keys[u], t); });
      if (s > 0) same &= ~(chosen[r] & -uint64_t(b == block_before[r] && value[r] == value_before[r]));
      const int at = __builtin_ctzll(same | uint64_t(1) << 63);  // found where nothing is, in rows with NaN
      const int64_t id = int64_t(b) * kBlock + at;
      out.ids[s][r] = int32_t(id < n ? id : n - 1);
      if (s + 1 == k) continue;
      // What comes after this one: all others at first, later smaller keys, and equal ones with a higher id.
      const uint64_t rest = same & (same - 1);
#pragma GCC unroll 4
      for (int u = 0; u < 4; u++) {
        if (s == 0)
          keys[u] = min(keys[u], load(kWindow.v + kBlock - 1 - at + 16 * u));
        else
          keys[u] = select(less(keys[u], t), keys[u], select(from_bits(uint32_t(rest >> (16 * u)) & 0xffffu), keys[u], lowest));
      }
      left[r] = max(max(keys[0], keys[1]), max(keys[2], keys[3]));
      block_before[r] = b;
      value_before[r] = value[r];
      chosen[r] = (uint64_t(2) << at) - 1;
    }
    if (s + 1 == k) break;
    const f32x16 next = maxima16(left);
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; b++) best[b] = select(equal(of, set1(float(b))), next, best[b]);
  }
}

// One row of any length: every logit that is above the worst of the kept ones is put in its place among them.
template <class Order>
static void choose_of_many(const float* x, int64_t n, int row, int k, const Order& order, Chosen& out) {
  f32x16 sum = zero16();
  int kept = 0;
  float worst = -__builtin_inff();
  for (int64_t i = 0; i < n; i += 16) {
    const int count = clamp16(n - i);
    const f32x16 logits = load_n(x + i, count);
    sum = poison(sum, logits);
    const f32x16 keys = key_of(order, logits);
    float key[16];
    store(key, keys);
    uint32_t candidates = (count == 16 ? 0xffffu : (1u << count) - 1u);
    if (kept == k) candidates &= to_bits(greater(keys, set1(worst)));
    for (; candidates; candidates &= candidates - 1u) {
      const int lane = __builtin_ctz(candidates);
      if (kept == k && !(key[lane] > worst)) continue;
      int at = kept < k ? kept : k - 1;
      for (; at > 0 && key[lane] > out.logits[at - 1][row]; at--) {
        out.logits[at][row] = out.logits[at - 1][row];
        out.ids[at][row] = out.ids[at - 1][row];
      }
      out.logits[at][row] = key[lane];
      out.ids[at][row] = int32_t(i + lane);
      if (kept < k) kept++;
      worst = out.logits[k - 1][row];
    }
  }
  out.bad |= uint32_t(to_bits(is_nan(sum)) != 0) << row;
}

template <class Order>
COLIBRI_INLINE void choose_blocks_of_rows(const float* x, int64_t n, int rows, int k, const Order* orders, Chosen& out) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  if (n == 16 * kBlock)
    choose_of_blocks<16, true>(x, n, rows, k, orders, out);
  else if (n == 4 * kBlock)
    choose_of_blocks<4, true>(x, n, rows, k, orders, out);
  else if (blocks <= 4)
    choose_of_blocks<4, false>(x, n, rows, k, orders, out);
  else if (blocks <= 8)
    choose_of_blocks<8, false>(x, n, rows, k, orders, out);
  else
    choose_of_blocks<16, false>(x, n, rows, k, orders, out);
}

// Softmax over the chosen logits, in slot order, and where the results go.
static void finish_rows(const GateRows& g, int64_t row, int rows, Chosen& c) {
  const int k = g.k;
  const mask16 bad = from_bits(c.bad);
  f32x16 largest = load(c.logits[0]);
  for (int s = 1; s < k; s++) largest = max(largest, load(c.logits[s]));
  f32x16 sum = zero16();
  for (int s = 0; s < k; s++) {
    const f32x16 e = exp32(sub(load(c.logits[s]), largest));
    store(c.logits[s], e);
    sum = s ? add(sum, e) : e;
  }
  for (int s = 0; s < k; s++) store(c.logits[s], select(bad, zero16(), div(load(c.logits[s]), sum)));
  if (c.bad)
    for (int s = 0; s < k; s++)
      for (int r = 0; r < 16; r++)
        if (c.bad >> r & 1u) c.ids[s][r] = 0;
  uint16_t* ids = g.ids + row * k;
  float* weights = g.weights + row * k;
  if (k == 2) {
    uint16_t pairs[32];
    float shares[32];
    for (int r = 0; r < 16; r++) {
      pairs[2 * r] = uint16_t(c.ids[0][r]);
      pairs[2 * r + 1] = uint16_t(c.ids[1][r]);
      shares[2 * r] = c.logits[0][r];
      shares[2 * r + 1] = c.logits[1][r];
    }
    memcpy(ids, pairs, size_t(rows) * 4);
    memcpy(weights, shares, size_t(rows) * 8);
  } else {
    for (int r = 0; r < rows; r++)
      for (int s = 0; s < k; s++) {
        ids[r * k + s] = uint16_t(c.ids[s][r]);
        weights[r * k + s] = c.logits[s][r];
      }
  }
  for (int r = 0; r < rows; r++) g.ok[row + r] = !(c.bad >> r & 1u);
}

static void gate_rows(const GateRows& g) {
  const int64_t n = g.experts;
  for (int64_t row = 0; row < g.rows; row += 16) {
    const float* x = g.logits + row * n;
    const int rows = int(g.rows - row < 16 ? g.rows - row : 16);
    Chosen c;
    c.bad = 0;
    if (n <= kColumns && !g.int16) {
      if (g.k == 2)
        choose_2_of_columns(x, n, rows, ByLogit{}, c);
      else
        choose_of_columns(x, n, rows, g.k, ByLogit{}, c);
    } else if (n <= kColumns) {
      f32x16 largest = zero16();
      for_columns(x, n, rows, [&](f32x16, f32x16 logit) COLIBRI_INLINE_LAMBDA { largest = max(largest, magnitude(logit)); });
      const ByInt16 order{int16_scale(largest)};
      if (g.k == 2)
        choose_2_of_columns(x, n, rows, order, c);
      else
        choose_of_columns(x, n, rows, g.k, order, c);
    } else if (!g.int16) {
      const ByLogit orders[16] = {};
      if (n <= kMaxBlocks * kBlock)
        choose_blocks_of_rows(x, n, rows, g.k, orders, c);
      else
        for (int r = 0; r < rows; r++) choose_of_many(x + r * n, n, r, g.k, ByLogit{}, c);
    } else {
      ByInt16 orders[16];
      for (int r = 0; r < 16; r++) {
        f32x16 largest = zero16();
        for (int64_t i = 0; i < n; i += 16)
          largest = max(largest, magnitude(load_n(x + (r < rows ? r : 0) * n + i, clamp16(n - i))));
        orders[r].scale = int16_scale(set1(max16(largest)));
      }
      if (n <= kMaxBlocks * kBlock)
        choose_blocks_of_rows(x, n, rows, g.k, orders, c);
      else
        for (int r = 0; r < rows; r++) choose_of_many(x + r * n, n, r, g.k, orders[r], c);
    }
    if (g.int16)  // what was compared were keys; the softmax is of the logits
      for (int s = 0; s < g.k; s++)
        for (int r = 0; r < rows; r++) c.logits[s][r] = x[r * n + c.ids[s][r]];
    finish_rows(g, row, rows, c);
  }
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
