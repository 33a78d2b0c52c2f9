// The k largest logits of each row and their softmax.
//
// Sixteen rows at a time. Up to kColumns experts: the rows are turned, so that a lane is a row, and each expert is placed
// among the k best of all sixteen. More experts: by blocks (gate_block_kernels.h). Neither branches on a logit for k = 2, nor
// holds more than the k best of a row.
#pragma once
#include "gate_block_kernels.h"

namespace colibri {
namespace COLIBRI_ISA {

constexpr int kColumns = 128;

// f(the id in all lanes, its logits in 16 rows); rows that are not there repeat the first.
template <class F>
COLIBRI_INLINE void for_columns(const float* x, int64_t n, int rows, F f) {
  for (int64_t c = 0; c < n; c += 16) {
    const int width = clamp16(n - c);
    f32x16 v[16];
    COLIBRI_UNROLL(16)
    for (int r = 0; r < 16; r++) {
      const float* from = x + (r < rows ? r : 0) * n + c;
      v[r] = width == 16 ? load(from) : load_n(from, width);
    }
    transpose16(v);
    const f32x16 first = set1(float(c));
    COLIBRI_UNROLL(16)
    for (int j = 0; j < 16; j++) {
      if (j == width) break;
      f(add(first, set1(float(j))), v[j]);
    }
  }
}

// The order of sixteen rows, a lane each.
COLIBRI_INLINE void order_columns(ByLogit&, const float*, int64_t, int) {}
COLIBRI_INLINE void order_columns(ByInt16& by, const float* x, int64_t n, int rows) {
  f32x16 largest = zero16();
  for_columns(x, n, rows, [&](f32x16, f32x16 logit) COLIBRI_INLINE_LAMBDA { largest = max(largest, magnitude(logit)); });
  by.scale = int16_scale(largest);
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
static void gate_in_order(const GateRows& g) {
  const int64_t n = g.experts;
  if (n > kColumns && n <= kMaxBlocks * kBlock) return gate_of_blocks<Order>(g);
  for (int64_t row = 0; row < g.rows; row += 16) {
    const float* x = g.logits + row * n;
    const int rows = clamp16(g.rows - row);
    Chosen c;
    c.bad = 0;
    if (n > kColumns) {
      for (int r = 0; r < rows; r++) {
        Order order;
        order_row(order, x + r * n, n);
        choose_of_many(x + r * n, n, r, g.k, order, c);
      }
    } else {
      Order order;
      order_columns(order, x, n, rows);
      if (g.k == 2)
        choose_2_of_columns(x, n, rows, order, c);
      else
        choose_of_columns(x, n, rows, g.k, order, c);
    }
    finish_rows(g, row, rows, c);
  }
}

static void gate_rows(const GateRows& g) {
  if (g.int16)
    gate_in_order<ByInt16>(g);
  else
    gate_in_order<ByLogit>(g);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
