// Products by plain FMA on any card: one accumulator per (row, column), K ascending in pairs, the odd element first, as
// docs/numerics.md has it. A block: 16 rows times one panel of 32 columns.
#include "layout.cuh"

#define PLAIN_ROWS 16
#define PLAIN_K 32

// What becomes of a finished sum: stored; times the entry's weight; or silu(gate) * up, gate and up being neighbours.
enum Epilogue { STORE = 0, WEIGHTED = 1, SWIGLU = 2 };

extern "C" __global__ void __launch_bounds__(128)
    plain_product(const void* x, u32 x_stride, int x_bf16, const u32* entry_row, const float* entry_weight,
                  const u64* experts, u64 offset, const u32* tile_group, const u32* group_first, const u32* group_offset,
                  void* out, u32 out_stride, int out_bf16, u32 k, u32 n, int dtype, u32 group, int epilogue) {
  DYNAMIC_SHARED(shared);
  float(*w)[33] = (float(*)[33])shared;
  float(*rows)[33] = (float(*)[33])(shared + PLAIN_K * 33 * sizeof(float));
  u32 panels = (n + 31) / 32, panel_index = blockIdx.x % panels, tile = blockIdx.x / panels;
  u32 expert = tile_group[tile], first = group_offset[expert] + (tile - group_first[expert]) * PLAIN_ROWS;
  u32 count = min(group_offset[expert + 1] - first, (u32)PLAIN_ROWS);
  const u8* panel = (const u8*)experts[expert] + offset + panel_index * panel_bytes(dtype, k, group);
  u32 column = threadIdx.x % 32, part = threadIdx.x / 32 * 4, even = (k + 1) / 2 * 2;
  float sum[4] = {0.f, 0.f, 0.f, 0.f}, inner[4] = {0.f, 0.f, 0.f, 0.f};
  for (u32 k0 = 0; k0 < k; k0 += PLAIN_K) {
    for (u32 i = threadIdx.x; i < PLAIN_K * 32; i += 128) {
      u32 at = k0 + i / 32;
      w[i / 32][i % 32] = at < k ? weight_at(panel, dtype, at, i % 32, group) : 0.f;
    }
    for (u32 i = threadIdx.x; i < PLAIN_ROWS * PLAIN_K; i += 128) {
      u32 row = i / PLAIN_K, at = k0 + i % PLAIN_K;
      float value = 0.f;
      if (row < count && at < k) {
        u64 place = (u64)(entry_row ? entry_row[first + row] : first + row) * x_stride + at;
        value = x_bf16 ? widen_bf16(((const u16*)x)[place]) : ((const float*)x)[place];
      }
      rows[row][i % PLAIN_K] = value;
    }
    __syncthreads();
    // Not beyond K: a zero product would turn a sum of -0 to +0.
    u32 pairs = min(even - k0, (u32)PLAIN_K) / 2;
    for (u32 j = 0; j < pairs; j++)
#pragma unroll
      for (u32 r = 0; r < 4; r++) {
        inner[r] = __fmaf_rn(rows[part + r][2 * j + 1], w[2 * j + 1][column], inner[r]);
        inner[r] = __fmaf_rn(rows[part + r][2 * j], w[2 * j][column], inner[r]);
      }
    if (scaled(dtype) && ((k0 + PLAIN_K) % group == 0 || k0 + PLAIN_K >= k)) {
      float scale = scale_at(panel, dtype, k0, column, group);
#pragma unroll
      for (u32 r = 0; r < 4; r++) {
        sum[r] = __fmaf_rn(inner[r], scale, sum[r]);
        inner[r] = 0.f;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (u32 r = 0; r < 4; r++) {
    u32 row = part + r, at = panel_index * 32 + column;
    float value = scaled(dtype) ? sum[r] : inner[r];
    if (epilogue == SWIGLU) {
      float up = __shfl_down_sync(0xffffffffu, value, 16);
      value = silu_mul(value, up);
      at = panel_index * 16 + column;
      if (column >= 16) continue;
    } else if (epilogue == WEIGHTED && row < count) {
      value = __fmul_rn(entry_weight[first + row], value);
    }
    if (row >= count || at >= out_stride) continue;
    u64 place = (u64)(first + row) * out_stride + at;
    if (out_bf16) ((u16*)out)[place] = round_bf16(value);
    else ((float*)out)[place] = value;
  }
}
