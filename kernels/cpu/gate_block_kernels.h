// The gate of many experts: blocks of 64, of which only the largest value is kept; k times the best block is looked up, and
// its next value put in its place.
#pragma once
#include "gate_chosen_kernels.h"

namespace colibri {
namespace COLIBRI_ISA {

constexpr int kBlock = 64;
constexpr int kMaxBlocks = 16;

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

// Up to sixteen rows before any block is looked up.
template <int kBlocks, class Order>
struct SeenRows {
  const float* x;
  int rows;
  Order order[16];
  f32x16 most[kBlocks][16];  // of block b of row r: the largest keys of four
  f32x16 sum[4];             // NaN where one of the rows has a NaN or Inf
};

template <int kBlocks, bool kWhole, class Order>
COLIBRI_INLINE void see_row(SeenRows<kBlocks, Order>& seen, int r, int64_t n) {
  const float* const x = seen.x + r * n;
  order_row(seen.order[r], x, n);
  const Order order = seen.order[r];
  f32x16 sum[4];
  for (int u = 0; u < 4; u++) sum[u] = r ? seen.sum[u] : zero16();
  // Not unrolled whole: the compiler would keep all 64 vectors for the sums.
  COLIBRI_UNROLL(4)
  for (int b = 0; b < kBlocks; b++) {
    f32x16 keys[4], raw;
    COLIBRI_UNROLL(4)
    for (int u = 0; u < 4; u++) {
      keys[u] = block_keys<kWhole>(x, n, b, u, order, &raw);
      sum[u] = poison(sum[u], raw);
    }
    seen.most[b][r] = max(max(keys[0], keys[1]), max(keys[2], keys[3]));
  }
  for (int u = 0; u < 4; u++) seen.sum[u] = sum[u];
}

template <int kBlocks, class Order>
COLIBRI_INLINE void begin_rows(SeenRows<kBlocks, Order>& seen, const float* x, int rows) {
  seen.x = x;
  seen.rows = rows;
  for (int b = 0; b < kBlocks; b++)
    for (int r = rows; r % 8; r++) seen.most[b][r] = zero16();
}

COLIBRI_INLINE f32x16 maxima_of_rows(const f32x16* v, int rows) { return rows > 8 ? maxima<16>(v) : maxima<8>(v); }

// Chooses of the rows in `seen`: a lane is a row where their blocks are compared; each looks up its own block. Meanwhile the
// `next_rows` rows behind them are seen: memory is read all the time.
template <int kBlocks, bool kWhole, class Order>
static void choose_of_blocks(SeenRows<kBlocks, Order>& seen, int64_t n, int k, int next_rows, Chosen& out) {
  const f32x16 lowest = set1(-__builtin_inff());
  const float* const x = seen.x;
  const int rows = seen.rows;
  Order orders[16];
  memcpy(orders, seen.order, sizeof orders);
  const bool bad = to_bits(is_nan(add(add(seen.sum[0], seen.sum[1]), add(seen.sum[2], seen.sum[3])))) != 0;
  out.bad = bad ? rows_with_nan(x, n, rows) : 0;
  f32x16 best[kBlocks];  // of block b: the largest key that is not chosen yet
  COLIBRI_UNROLL(4)
  for (int b = 0; b < kBlocks; b++) best[b] = maxima_of_rows(seen.most[b], rows);
  int32_t block[16], block_before[16];
  float value[16], value_before[16];
  uint64_t chosen[16] = {};  // of `block_before`, as far as they have its value: bits up to the latest
  f32x16 left[16];
  for (int r = rows; r % 8; r++) left[r] = lowest;
  begin_rows(seen, next_rows ? x + 16 * n : x, next_rows);
  int seeing = 0;
  for (int s = 0; s < k; s++) {
    f32x16 largest = best[0], of = zero16();
    COLIBRI_UNROLL(4)
    for (int b = 1; b < kBlocks; b++) {
      of = select(greater(best[b], largest), set1(float(b)), of);  // of equal ones the first
      largest = max(best[b], largest);
    }
    store(value, largest);
    store(out.logits[s], largest);
    store_int32(block, of);
    for (int r = rows; r < 16; r++) out.ids[s][r] = 0;
    for (int r = 0; r < rows; r++) {
      if (seeing < next_rows && seeing * k <= s * 16 + r) see_row<kBlocks, kWhole>(seen, seeing++, n);
      const f32x16 t = set1(value[r]);
      const int b = block[r];
      f32x16 keys[4], raw;
      COLIBRI_UNROLL(4)
      for (int u = 0; u < 4; u++) keys[u] = block_keys<kWhole>(x + r * n, n, b, u, orders[r], &raw);
      uint64_t same = bits64([&](int u) COLIBRI_INLINE_LAMBDA { return equal(keys[u], t); });
      if (s > 0) same &= ~(chosen[r] & -uint64_t(b == block_before[r] && value[r] == value_before[r]));
      const int at = __builtin_ctzll(same | uint64_t(1) << 63);  // found where nothing is, in rows with NaN
      const int64_t id = int64_t(b) * kBlock + at;
      out.ids[s][r] = int32_t(id < n ? id : n - 1);
      if (s + 1 == k) continue;
      // What comes after this one: all others at first, later smaller keys, and equal ones with a higher id.
      const uint64_t rest = same & (same - 1);
      COLIBRI_UNROLL(4)
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
    const f32x16 next = maxima_of_rows(left, rows);
    COLIBRI_UNROLL(4)
    for (int b = 0; b < kBlocks; b++) best[b] = select(equal(of, set1(float(b))), next, best[b]);
  }
}

template <int kBlocks, bool kWhole, class Order>
static void gate_of(const GateRows& g) {
  const int64_t n = g.experts;
  SeenRows<kBlocks, Order> seen;
  begin_rows(seen, g.logits, clamp16(g.rows));
  for (int r = 0; r < seen.rows; r++) see_row<kBlocks, kWhole>(seen, r, n);
  for (int64_t row = 0; row < g.rows; row += 16) {
    Chosen c;
    choose_of_blocks<kBlocks, kWhole>(seen, n, g.k, clamp16(g.rows - row - 16), c);
    finish_rows(g, row, clamp16(g.rows - row), c);
  }
}

// Rows of more than `kColumns` logits, and at most kMaxBlocks blocks.
template <class Order>
static void gate_of_blocks(const GateRows& g) {
  const int64_t blocks = (g.experts + kBlock - 1) / kBlock;
  if (g.experts == 16 * kBlock)
    gate_of<16, true, Order>(g);
  else if (g.experts == 4 * kBlock)
    gate_of<4, true, Order>(g);
  else if (blocks <= 4)
    gate_of<4, false, Order>(g);
  else if (blocks <= 8)
    gate_of<8, false, Order>(g);
  else
    gate_of<16, false, Order>(g);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
