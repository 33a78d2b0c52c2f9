// Grouped products on tensor cores (mma.m16n8k16, bf16 in, fp32 sums; sm_80 up), and the whole expert FFN with them in one
// persistent launch.
//
// Weights are the matrix's rows of an mma (16 columns of a panel), rows of x its columns. For one (row, column), whatever
// the number of rows, the tile or the company:
//   K is cut into four segments of whole 128s; within a segment mma steps of 16 ascend, K inside a step in the order
//   that gives lane t of a quad elements 4t .. 4t + 3; with scales each group of K is summed by itself from zero and
//   joined by fma(sum, scale, segment); segments are added ascending. So a tile may be narrow (four warps, a segment
//   each) or wide (eight warps, one segment after the other), and the bits are the same.
#pragma once
#include "layout.cuh"

#define SEGMENTS 4
#define STEP 32    // elements of K of a stage
#define STAGES 4
#define X_PITCH 24  // words of a row of x in a stage: 16 and 8 against bank conflicts

// How a format's numbers lie in a stage (rows of 128 bytes: 32 columns of one word) and become bf16 pairs in registers.
struct Bf16 {
  static constexpr int dtype = BF16, rows = 16, pitch = 36;
  static constexpr bool scales = false;
  __device__ static const u8* row(const u8* panel, u32 k0, u32 r, u32, u32 k, bool* valid) {
    *valid = k0 / 2 + r < (k + 1) / 2;
    return panel + (u64)(k0 / 2 + r) * 128;
  }
  // Elements 4t .. 4t + 3 of half a stage.
  __device__ static void pairs(const u32* stage, u32 half, u32 t, u32 column, u32* low, u32* high) {
    *low = stage[(half * 8 + 2 * t) * pitch + column];
    *high = stage[(half * 8 + 2 * t + 1) * pitch + column];
  }
};

struct Int8 {
  static constexpr int dtype = INT8, rows = 8, pitch = 40;
  static constexpr bool scales = true;
  __device__ static const u8* row(const u8* panel, u32 k0, u32 r, u32 group, u32 k, bool* valid) {
    *valid = k0 / 4 + r < (k + 7) / 8 * 2;
    return panel + group_start(dtype, k0, group) + 64 + (k0 % group / 4 + r) * 128;
  }
  __device__ static void pairs(const u32* stage, u32 half, u32 t, u32 column, u32* low, u32* high) {
    // A number n is stored as n + 128. Its low seven bits below an exponent of 128 are 128 + (n mod 128); 128 or, where
    // n is negative, 256 is taken away. All exact.
    u32 word = stage[(half * 4 + t) * pitch + column] ^ 0x80808080u, bits = word & 0x7f7f7f7fu, sign = word & 0x80808080u;
    *low = add_bf16x2(__byte_perm(bits, 0x43434343u, 0x4140), __byte_perm(sign, 0xc3c3c3c3u, 0x4140));
    *high = add_bf16x2(__byte_perm(bits, 0x43434343u, 0x4342), __byte_perm(sign, 0xc3c3c3c3u, 0x4342));
  }
};

struct Int4 {
  static constexpr int dtype = INT4, rows = 4, pitch = 40;
  static constexpr bool scales = true;
  __device__ static const u8* row(const u8* panel, u32 k0, u32 r, u32 group, u32 k, bool* valid) {
    *valid = k0 / 8 + r < (k + 7) / 8;
    return panel + group_start(dtype, k0, group) + 64 + (k0 % group / 8 + r) * 128;
  }
  __device__ static void pairs(const u32* stage, u32 half, u32 t, u32 column, u32* low, u32* high) {
    // Nibbles are n + 8: below an exponent of 128 they are 136 + n.
    u32 bits = stage[(half * 2 + t / 2) * pitch + column] >> (t % 2 * 4) & 0x0f0f0f0fu;
    *low = add_bf16x2(__byte_perm(bits, 0x43434343u, 0x4140), 0xc308c308u);
    *high = add_bf16x2(__byte_perm(bits, 0x43434343u, 0x4342), 0xc308c308u);
  }
};

// One product: what a tile reads and the part of K it covers.
struct Product {
  const u8* weight;  // packed [n, k]
  const u16* x;
  const u32* entry_row;  // row of x for each entry; null: the entry's own number
  u32 x_stride, k, n, group;
};

// Sums of a warp: 32 columns (two of an mma) times 8 * N rows. Lane 4g + t holds columns g, g + 8 and rows 2t, 2t + 1.
template <int N>
struct Sums {
  float at[2][N][4];
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) at[i][n][e] = 0.f;
  }
  __device__ void add(const Sums& other) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) at[i][n][e] = __fadd_rn(at[i][n][e], other.at[i][n][e]);
  }
  // this += other * scale of the column, then other = 0.
  __device__ void join(Sums& other, const u16* scale, u32 lane) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float s = widen_bf16(scale[i * 16 + e / 2 * 8 + lane / 4]);
#pragma unroll
        for (int n = 0; n < N; n++) at[i][n][e] = __fmaf_rn(other.at[i][n][e], s, at[i][n][e]);
      }
    other.clear();
  }
};

// One stage of K times 8 * N rows: `weights` of one panel, `rows` of x.
template <class F, int N>
__device__ inline void multiply_stage(Sums<N>& sums, const u32* weights, const u32* rows, u32 lane) {
  u32 g = lane / 4, t = lane % 4;
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    u32 a[2][4];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      F::pairs(weights, half, t, i * 16 + g, &a[i][0], &a[i][2]);
      F::pairs(weights, half, t, i * 16 + g + 8, &a[i][1], &a[i][3]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
      const uint2 pair = *(const uint2*)(rows + (n * 8 + g) * X_PITCH + half * 8 + 2 * t);
      u32 b[2] = {pair.x, pair.y};
      mma_bf16(sums.at[0][n], a[0], b);
      mma_bf16(sums.at[1][n], a[1], b);
    }
  }
}

__device__ inline u32 segment_length(u32 k) { return (k + 128 * SEGMENTS - 1) / (128 * SEGMENTS) * 128; }

__device__ inline bool group_ends(u32 k0, u32 group, u32 k) { return (k0 + STEP) % group == 0 || k0 + STEP >= k; }

template <class F>
__device__ inline const u8* panel_of(const Product& p, u32 panel) {
  return p.weight + (u64)panel * panel_bytes(F::dtype, p.k, p.group);
}

// Bytes of a stage for `panels` panels and `count` rows.
template <class F>
__host__ __device__ constexpr u32 stage_bytes(u32 panels, u32 count) {
  return panels * (F::rows * F::pitch * 4 + (F::scales ? 64 : 0)) + count * X_PITCH * 4;
}

// Starts copying one stage with `threads` threads: `panels` panels, then their scales where a group ends, then `count` rows.
template <class F, int threads, int panels, int count>
__device__ inline void load_stage(u8* stage, const Product& p, u32 first_panel, u32 first, u32 live, u32 k0, u32 thread) {
  u32 total_panels = (p.n + 31) / 32;
  constexpr u32 weight_bytes = F::rows * F::pitch * 4;
#pragma unroll
  for (u32 c = thread; c < panels * F::rows * 8; c += threads) {
    u32 which = c / (F::rows * 8), r = c / 8 % F::rows;
    bool valid;
    const u8* source = F::row(panel_of<F>(p, first_panel + which), k0, r, p.group, p.k, &valid);
    valid = valid && first_panel + which < total_panels;
    copy_async(stage + which * weight_bytes + r * F::pitch * 4 + c % 8 * 16, valid ? source + c % 8 * 16 : p.weight, valid);
  }
  u8* scales = stage + panels * weight_bytes;
  if (F::scales && group_ends(k0, p.group, p.k) && thread < panels * 4) {
    bool valid = first_panel + thread / 4 < total_panels;
    const u8* source = panel_of<F>(p, first_panel + thread / 4) + group_start(F::dtype, k0, p.group) + thread % 4 * 16;
    copy_async(scales + thread * 16, valid ? source : p.weight, valid);
  }
  u8* rows = scales + (F::scales ? panels * 64 : 0);
#pragma unroll
  for (u32 c = thread; c < count * 4; c += threads) {
    u32 row = c / 4, at = k0 + c % 4 * 8;
    bool valid = row < live && at < p.x_stride;
    u32 source = first + (row < live ? row : 0);
    if (p.entry_row) source = p.entry_row[source];
    copy_async(rows + row * X_PITCH * 4 + c % 4 * 16, valid ? p.x + (u64)source * p.x_stride + at : p.x, valid);
  }
}

// What becomes of the sums of one tile.
struct Target {
  u16* h;                     // SwiGLU: bf16 [entries, h_stride], gate and up being the halves of a panel
  float* out;                 // else fp32 [entries, n]
  const float* entry_weight;  // multiplied with; null: stored as they are
  u32 h_stride;
};

__device__ inline void store_out(const Target& to, u32 entry, u32 column, u32 n, float value) {
  if (column >= n) return;
  to.out[(u64)entry * n + column] = to.entry_weight ? __fmul_rn(to.entry_weight[entry], value) : value;
}

// A panel times up to 8 * N rows by four warps, a segment of K each, every warp with its own pipeline.
template <class F, int N>
__device__ void narrow_tile(u8* shared, const Product& p, u32 panel, u32 first, u32 live, const Target& to, bool swiglu) {
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  constexpr u32 bytes = stage_bytes<F>(1, 8 * N), weight_bytes = F::rows * F::pitch * 4;
  u8* stages = shared + warp * STAGES * bytes;
  u32 begin = warp * segment_length(p.k), end = min(begin + segment_length(p.k), p.k);
  u32 steps = begin < end ? (end - begin + STEP - 1) / STEP : 0;
  Sums<N> sums, inner;
  sums.clear();
  inner.clear();
  for (u32 s = 0; s < STAGES - 1; s++) {
    if (s < steps) load_stage<F, 32, 1, 8 * N>(stages + s * bytes, p, panel, first, live, begin + s * STEP, lane);
    copy_commit();
  }
  for (u32 s = 0; s < steps; s++) {
    copy_wait<STAGES - 2>();
    __syncwarp();
    u32 next = s + STAGES - 1, k0 = begin + s * STEP;
    if (next < steps)
      load_stage<F, 32, 1, 8 * N>(stages + next % STAGES * bytes, p, panel, first, live, begin + next * STEP, lane);
    copy_commit();
    const u8* stage = stages + s % STAGES * bytes;
    const u32* rows = (const u32*)(stage + weight_bytes + (F::scales ? 64 : 0));
    multiply_stage<F, N>(F::scales ? inner : sums, (const u32*)stage, rows, lane);
    if (F::scales && group_ends(k0, p.group, p.k)) sums.join(inner, (const u16*)(stage + weight_bytes), lane);
  }
  // Each warp's sums, [column][row] with one row of padding, where its stages were.
  constexpr u32 width = 8 * N + 1;
  static_assert(32 * width * 4 <= STAGES * bytes, "a warp's sums fit its stages");
  float* partial = (float*)stages;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        partial[(i * 16 + e / 2 * 8 + g) * width + n * 8 + 2 * t + e % 2] = sums.at[i][n][e];
  __syncthreads();
  auto total = [&](u32 column, u32 row) {
    float sum = ((const float*)shared)[column * width + row];
    for (u32 s = 1; s < SEGMENTS; s++)
      sum = __fadd_rn(sum, ((const float*)(shared + s * STAGES * bytes))[column * width + row]);
    return sum;
  };
  if (swiglu) {
    for (u32 i = threadIdx.x; i < 16 * live; i += 32 * SEGMENTS) {
      u32 row = i / 16, column = i % 16;
      u16 value = round_bf16(silu_mul(total(column, row), total(column + 16, row)));
      to.h[(u64)(first + row) * to.h_stride + panel * 16 + column] = value;
    }
  } else {
    for (u32 i = threadIdx.x; i < 32 * live; i += 32 * SEGMENTS)
      store_out(to, first + i / 32, panel * 32 + i % 32, p.n, total(i % 32, i / 32));
  }
}

// Four panels times up to 16 * N rows by eight warps: panel by panel, half of the rows each.
template <class F, int N>
__device__ void wide_tile(u8* shared, const Product& p, u32 block, u32 first, u32 live, const Target& to, bool swiglu) {
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, mine = warp % 4, side = warp / 4;
  constexpr u32 bytes = stage_bytes<F>(4, 16 * N), weight_bytes = F::rows * F::pitch * 4;
  u32 length = segment_length(p.k), steps = (p.k + STEP - 1) / STEP;
  Sums<N> total, sums, inner;
  total.clear();
  sums.clear();
  inner.clear();
  for (u32 s = 0; s < STAGES - 1; s++) {
    if (s < steps) load_stage<F, 256, 4, 16 * N>(shared + s * bytes, p, block * 4, first, live, s * STEP, threadIdx.x);
    copy_commit();
  }
  u32 segments = 0;
  for (u32 s = 0; s < steps; s++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    u32 next = s + STAGES - 1, k0 = s * STEP;
    if (next < steps)
      load_stage<F, 256, 4, 16 * N>(shared + next % STAGES * bytes, p, block * 4, first, live, next * STEP, threadIdx.x);
    copy_commit();
    const u8* stage = shared + s % STAGES * bytes;
    const u32* rows = (const u32*)(stage + 4 * weight_bytes + (F::scales ? 256 : 0)) + side * 8 * N * X_PITCH;
    multiply_stage<F, N>(F::scales ? inner : sums, (const u32*)(stage + mine * weight_bytes), rows, lane);
    if (F::scales && group_ends(k0, p.group, p.k))
      sums.join(inner, (const u16*)(stage + 4 * weight_bytes + mine * 64), lane);
    if ((k0 + STEP) % length == 0 || s + 1 == steps) {
      if (segments++ == 0) total = sums;
      else total.add(sums);
      sums.clear();
    }
  }
  for (; segments < SEGMENTS; segments++) total.add(sums);  // what lies beyond K: zeros, as the narrow tile adds them
  u32 panel = block * 4 + mine;
  if (panel * 32 >= p.n) return;
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      u32 row = side * 8 * N + n * 8 + 2 * t + e % 2, column = e / 2 * 8 + g;
      if (row >= live) continue;
      if (swiglu) {
        u16 value = round_bf16(silu_mul(total.at[0][n][e], total.at[1][n][e]));
        to.h[(u64)(first + row) * to.h_stride + panel * 16 + column] = value;
      } else {
        store_out(to, first + row, panel * 32 + column, p.n, total.at[0][n][e]);
        store_out(to, first + row, panel * 32 + 16 + column, p.n, total.at[1][n][e]);
      }
    }
}

// What a launch computes. FFN (ffn > 0): gate_up with SwiGLU into h, then down into out, `hidden` wide. Else one product:
// x [rows, hidden] by the packed [columns, hidden] at experts[0].
struct Work {
  const u16* x;
  const u32* entry_row;
  const float* entry_weight;
  const u64* experts;  // packed blocks, one a group
  const u32* tile_group;
  const u32* group_first;
  const u32* group_offset;
  u16* h;
  float* out;
  u32* counters;  // [0] next tile, [1] set when a wait gave up, [2 + tile] finished parts of h
  u64 down_offset;
  u32 x_stride, tiles, hidden, ffn, columns, group;
};

// Tiles are taken in order from a counter by blocks that stay: all of gate_up, then all of down, the tiles of rows of one
// group next to each other, so that they find its weights in the cache. A tile of down waits until its rows of h are
// whole; tiles before it have been taken by blocks that run, so the wait ends.
template <class F, int N, bool wide>
__device__ void run_work(const Work& work) {
  DYNAMIC_SHARED(shared);
  constexpr u32 height = wide ? 16 * N : 8 * N, panels = wide ? 4 : 1;
  u32* ticket = (u32*)shared;
  u8* memory = shared + 16;
  u32 padded = (work.ffn + 15) / 16 * 16, up_columns = 2 * padded, down_columns = work.ffn ? work.hidden : work.columns;
  u32 up_parts = (up_columns / 32 + panels - 1) / panels, down_parts = ((down_columns + 31) / 32 + panels - 1) / panels;
  u32 up_tiles = work.tiles * up_parts, total = up_tiles + work.tiles * down_parts;
  for (;;) {
    u32 number = 0, tile = 0, part = 0, group = 0;
    bool up = false;
    auto locate = [&]() {
      up = number < up_tiles;
      u32 parts = up ? up_parts : down_parts, at = up ? number : number - up_tiles;
      group = work.tile_group[at / parts];
      u32 start = work.group_first[group], count = work.group_first[group + 1] - start, inside = at - start * parts;
      part = inside / count;
      tile = start + inside % count;
    };
    if (threadIdx.x == 0) {
      number = atomicAdd(&work.counters[0], 1u);
      *ticket = number;
      if (number < total) {
        locate();
        if (!up && work.ffn && !wait_for(&work.counters[2 + tile], up_parts)) work.counters[1] = 1;
      }
    }
    __syncthreads();
    number = *ticket;
    if (number >= total) return;
    locate();
    u32 first = work.group_offset[group] + (tile - work.group_first[group]) * height;
    u32 live = min(work.group_offset[group + 1] - first, height);
    const u8* weight = (const u8*)work.experts[group];
    Product product;
    Target target;
    if (up) {
      product = {weight, work.x, work.entry_row, work.x_stride, work.hidden, up_columns, work.group};
      target = {work.h, nullptr, nullptr, padded};
    } else if (work.ffn) {
      product = {weight + work.down_offset, work.h, nullptr, padded, padded, work.hidden, work.group};
      target = {nullptr, work.out, work.entry_weight, 0};
    } else {
      product = {weight, work.x, work.entry_row, work.x_stride, work.hidden, work.columns, work.group};
      target = {nullptr, work.out, nullptr, 0};
    }
    if (wide) wide_tile<F, N>(memory, product, part, first, live, target, up);
    else narrow_tile<F, N>(memory, product, part, first, live, target, up);
    if (!up) continue;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&work.counters[2 + tile], 1u);
  }
}

#define GROUPED(name, threads, blocks, F, N, wide)                                                                     \
  extern "C" __global__ void __launch_bounds__(threads, blocks)                                                        \
      name(const u16* x, const u32* entry_row, const float* entry_weight, const u64* experts, const u32* tile_group,   \
           const u32* group_first, const u32* group_offset, u16* h, float* out, u32* counters, u64 down_offset,        \
           u32 x_stride, u32 tiles, u32 hidden, u32 ffn, u32 columns, u32 group) {                                     \
    run_work<F, N, wide>({x, entry_row, entry_weight, experts, tile_group, group_first, group_offset, h, out, counters, \
                          down_offset, x_stride, tiles, hidden, ffn, columns, group});                                 \
  }
