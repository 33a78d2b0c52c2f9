// The packed layout, version 1 (docs/numerics.md), element by element: panels of 32 columns.
#pragma once
#include "math.cuh"

enum Dtype { FP32 = 0, FP16 = 1, BF16 = 2, INT8 = 3, INT4 = 4 };

__device__ inline bool scaled(int dtype) { return dtype >= INT8; }

__device__ inline u64 panel_bytes(int dtype, u32 k, u32 group) {
  u32 even = (k + 1) / 2 * 2, octets = (k + 7) / 8;
  if (dtype == FP32) return (u64)even * 128;
  if (!scaled(dtype)) return (u64)even * 64;
  return (u64)((k + group - 1) / group) * 64 + (u64)octets * (dtype == INT8 ? 256 : 128);
}

// Where the group of K that holds element k begins in its panel: its 32 scales, then its numbers.
__device__ inline u64 group_start(int dtype, u32 k, u32 group) {
  return (u64)(k / group) * (64 + (dtype == INT8 ? 32 : 16) * group);
}

// Weight or number at (k, column) of a panel, widened; for an element the panel has.
__device__ inline float weight_at(const u8* panel, int dtype, u32 k, u32 column, u32 group) {
  if (dtype == FP32) return ((const float*)panel)[k * 32 + column];
  u32 pair = (k / 2 * 32 + column) * 2 + k % 2;
  if (dtype == FP16) return widen_fp16(((const u16*)panel)[pair]);
  if (dtype == BF16) return widen_bf16(((const u16*)panel)[pair]);
  const u8* numbers = panel + group_start(dtype, k, group) + 64;
  u32 inside = k % group;
  if (dtype == INT8) return (float)((int)numbers[(inside / 4 * 32 + column) * 4 + inside % 4] - 128);
  u8 both = numbers[(inside / 8 * 32 + column) * 4 + inside % 4];
  return (float)((int)(inside % 8 >= 4 ? both >> 4 : both & 15) - 8);
}

__device__ inline float scale_at(const u8* panel, int dtype, u32 k, u32 column, u32 group) {
  return widen_bf16(((const u16*)(panel + group_start(dtype, k, group)))[column]);
}
