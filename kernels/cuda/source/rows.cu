// What works on rows without weights of their own: merge, residual addition, embedding, RMSNorm, RoPE.
#include "layout.cuh"

// y[r] = sum in order over t in row_offsets[r] .. row_offsets[r + 1] of parts[part[t]][index[t]]; no term: zero.
// part: null where there is one part.
extern "C" __global__ void merge_rows(const u64* parts, const u32* part, const u32* index, const u32* row_offsets,
                                      float* y, u32 rows, u32 hidden) {
  u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (u64)rows * hidden) return;
  u32 row = (u32)(at / hidden), column = (u32)(at % hidden), first = row_offsets[row], end = row_offsets[row + 1];
  float sum = 0.f;
  for (u32 t = first; t < end; t++) {
    const float* source = (const float*)parts[part ? part[t] : 0];
    float term = flush(source[(u64)index[t] * hidden + column]);
    sum = t == first ? term : __fadd_rn(sum, term);
  }
  y[at] = sum;
}

extern "C" __global__ void add_rows(float* x, const float* y, u64 count) {
  u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) x[at] = __fadd_rn(x[at], y[at]);
}

extern "C" __global__ void embed_rows(const u8* table, const u32* ids, float* y, u32 rows, u32 k, int dtype, u32 group) {
  u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (u64)rows * k) return;
  u32 id = ids[at / k], column = (u32)(at % k);
  const u8* panel = table + (u64)(id / 32) * panel_bytes(dtype, k, group);
  float value = weight_at(panel, dtype, column, id % 32, group);
  if (scaled(dtype)) value = __fmul_rn(value, scale_at(panel, dtype, column, id % 32, group));
  y[at] = flush(value);
}

// Sixteen threads a row, as docs/numerics.md orders the sum.
extern "C" __global__ void rms_norm_rows(const float* x, const float* weight, void* y, u32 rows, u32 n, float eps, int bf16) {
  u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 16, lane = threadIdx.x % 16;
  bool live = row < rows;
  const float* values = x + (u64)(live ? row : 0) * n;
  float sum = 0.f;
  for (u32 i = lane; live && i < n; i += 16) sum = __fmaf_rn(values[i], values[i], sum);
  sum = __shfl_sync(0xffffffffu, tree16(sum), 0, 16);
  float inverse = __fdiv_rn(1.f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)n), eps)));
  for (u32 i = lane; live && i < n; i += 16) {
    float value = __fmul_rn(__fmul_rn(values[i], inverse), weight[i]);
    if (bf16) ((u16*)y)[(u64)row * n + i] = round_bf16(value);
    else ((float*)y)[(u64)row * n + i] = value;
  }
}

// Rotates q and k by halves, writes k and v to their place in the paged cache [pages, kv_heads, page, head_dim].
extern "C" __global__ void rope_and_store(const float* qkv, const float* cosine, const float* sine, const u32* page_of_row,
                                          const u32* slot_of_row, const u32* position, float* q, void* k_cache,
                                          void* v_cache, u32 rows, u32 heads, u32 kv_heads, u32 head_dim, u32 page,
                                          int bf16) {
  u32 half = head_dim / 2, vectors = heads + 2 * kv_heads;
  u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (u64)rows * vectors * half) return;
  u32 row = (u32)(at / (vectors * half)), vector = (u32)(at / half % vectors), i = (u32)(at % half);
  const float* source = qkv + ((u64)row * vectors + vector) * head_dim;
  float first = source[i], second = source[i + half];
  if (vector < heads + kv_heads) {
    float c = cosine[(u64)position[row] * half + i], s = sine[(u64)position[row] * half + i], a = first;
    first = __fsub_rn(__fmul_rn(a, c), __fmul_rn(second, s));
    second = __fadd_rn(__fmul_rn(second, c), __fmul_rn(a, s));
  }
  if (vector < heads) {
    float* out = q + ((u64)row * heads + vector) * head_dim;
    out[i] = first;
    out[i + half] = second;
    return;
  }
  u32 head = (vector - heads) % kv_heads;
  void* cache = vector < heads + kv_heads ? k_cache : v_cache;
  u64 place = (((u64)page_of_row[row] * kv_heads + head) * page + slot_of_row[row]) * head_dim + i;
  if (bf16) {
    ((u16*)cache)[place] = round_bf16(first);
    ((u16*)cache)[place + half] = round_bf16(second);
  } else {
    ((float*)cache)[place] = flush(first);
    ((float*)cache)[place + half] = flush(second);
  }
}
