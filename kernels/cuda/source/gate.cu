// The gate: logits, the k largest with softmax over them, the experts' histogram; grouping by device prefix sums.
#include "layout.cuh"

#define GATE_ROWS 16
#define GATE_WARPS 8

// logits[row, e]. A block: 16 rows times `width` experts (8, 16 or 32, by the number of experts alone). K is cut into
// 8 * (32 / width) segments whatever the number of rows; each is summed in ascending order by one lane, and the
// segments are added ascending. bad[row]: set where the row or a logit is not finite.
extern "C" __global__ void __launch_bounds__(256)
    gate_logits(const void* x, u32 x_stride, int x_bf16, const u8* weight, float* logits, u32* bad, u32 rows, u32 k,
                u32 experts, u32 width, int dtype) {
  DYNAMIC_SHARED(shared);
  float* partial = (float*)shared;  // [segments][16 rows][width]
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = (experts + width - 1) / width;
  u32 segments = GATE_WARPS * (32 / width), segment = warp * (32 / width) + lane / width;
  u32 first = blockIdx.x / blocks * GATE_ROWS, expert = blockIdx.x % blocks * width + lane % width;
  u32 length = (k + segments * 8 - 1) / (segments * 8) * 8, begin = segment * length, end = min(begin + length, k);
  const u8* panel = weight + (u64)(expert / 32) * panel_bytes(dtype, k, 32);
  float sum[GATE_ROWS];
#pragma unroll
  for (u32 r = 0; r < GATE_ROWS; r++) sum[r] = 0.f;
  if (expert < experts)
    for (u32 at = begin; at < end; at += 4) {  // x_stride is a multiple of 8, zeros behind k
      float w[4];
      for (u32 i = 0; i < 4; i++) w[i] = at + i < k ? weight_at(panel, dtype, at + i, expert % 32, 32) : 0.f;
#pragma unroll
      for (u32 r = 0; r < GATE_ROWS; r++) {
        if (first + r >= rows) continue;
        float value[4];
        u64 place = (u64)(first + r) * x_stride + at;
        if (x_bf16) {
          uint2 two = *(const uint2*)((const u16*)x + place);
          value[0] = widen_bf16((u16)two.x), value[1] = widen_bf16((u16)(two.x >> 16));
          value[2] = widen_bf16((u16)two.y), value[3] = widen_bf16((u16)(two.y >> 16));
        } else {
          float4 four = *(const float4*)((const float*)x + place);
          value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
        }
        for (u32 i = 0; i < 4; i++) {
          if (!finite(value[i])) bad[first + r] = 1;
          sum[r] = __fmaf_rn(value[i], w[i], sum[r]);
        }
      }
    }
#pragma unroll
  for (u32 r = 0; r < GATE_ROWS; r++) partial[(segment * GATE_ROWS + r) * width + lane % width] = sum[r];
  __syncthreads();
  for (u32 i = threadIdx.x; i < GATE_ROWS * width; i += 32 * GATE_WARPS) {
    u32 row = first + i / width, column = blockIdx.x % blocks * width + i % width;
    if (row >= rows || column >= experts) continue;
    float total = 0.f;
    for (u32 s = 0; s < segments; s++) total = __fadd_rn(total, partial[s * GATE_ROWS * width + i]);
    logits[(u64)row * experts + column] = total;
    if (!finite(total)) bad[row] = 1;
  }
}

// Largest first, ties (and -0 = +0) to the lower id.
__device__ inline bool before(float a, u32 i, float b, u32 j) { return a > b || (a == b && i < j); }

// A warp a row: slot s is the s-th largest logit; weights exp(l_s - l_0) over their sum in slot order. A bad row gets
// zeros, and as keys `experts`, a bucket behind the last. histogram [experts + 1] counts keys.
extern "C" __global__ void __launch_bounds__(128)
    gate_top_k(const float* logits, const u32* bad, u16* chosen, float* weights, u32* keys, u32* histogram, u32 rows,
               u32 experts, u32 k) {
  u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* values = logits + (u64)row * experts;
  bool wrong = bad[row] != 0;
  float last = __uint_as_float(0x7f800000u), largest = 0.f, total = 0.f, mine = 0.f;
  u32 last_id = 0, my_id = 0;
  for (u32 slot = 0; slot < k; slot++) {
    float best = -__uint_as_float(0x7f800000u);
    u32 id = 0xffffffffu;
    for (u32 e = lane; e < experts && !wrong; e += 32)
      if ((slot == 0 || before(last, last_id, values[e], e)) && before(values[e], e, best, id)) best = values[e], id = e;
    for (int step = 16; step; step >>= 1) {
      float other = __shfl_xor_sync(0xffffffffu, best, step);
      u32 other_id = __shfl_xor_sync(0xffffffffu, id, step);
      if (before(other, other_id, best, id)) best = other, id = other_id;
    }
    if (slot == 0) largest = best;
    float e = wrong ? 0.f : exp32(__fsub_rn(best, largest));
    total = __fadd_rn(total, e);
    if (lane == slot) mine = e, my_id = wrong ? experts : id;
    last = best, last_id = id;
  }
  if (lane >= k) return;
  u64 place = (u64)row * k + lane;
  chosen[place] = (u16)(wrong ? 0 : my_id);
  weights[place] = wrong ? 0.f : __fdiv_rn(mine, total);
  keys[place] = my_id;
  atomicAdd(&histogram[my_id], 1u);
}

extern "C" __global__ void count_keys(const u32* keys, u32* histogram, u32 count) {
  u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) atomicAdd(&histogram[keys[at]], 1u);
}

// Exclusive prefix sum of one value a thread over the block; `sums` [threads / 32]. Returns the total, too.
__device__ inline u32 block_scan(u32 value, u32* sums, u32* total) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, running = value;
  for (u32 step = 1; step < 32; step *= 2) {
    u32 other = __shfl_up_sync(0xffffffffu, running, step);
    if (lane >= step) running += other;
  }
  if (lane == 31) sums[warp] = running;
  __syncthreads();
  u32 below = 0, all = 0;
  for (u32 w = 0; w < blockDim.x / 32; w++) {
    if (w < warp) below += sums[w];
    all += sums[w];
  }
  __syncthreads();
  *total = all;
  return below + running - value;
}

#define DIGITS 16

// One block. offsets [buckets + 1] from the histogram; order: the keys' indices, sorted stably by key: a radix sort, four
// bits at a time, every thread with its own run of keys. scratch [count].
extern "C" __global__ void __launch_bounds__(512)
    group_keys(const u32* keys, const u32* histogram, u32* offsets, u32* order, u32* scratch, u32 count, u32 buckets) {
  DYNAMIC_SHARED(shared);
  u32* sums = (u32*)shared;                      // [32]
  u32* places = (u32*)shared + 32;               // [DIGITS][threads]
  u32 threads = blockDim.x, thread = threadIdx.x, total, base = 0;
  for (u32 first = 0; first < buckets; first += threads) {
    u32 bucket = first + thread, value = bucket < buckets ? histogram[bucket] : 0;
    u32 before_it = block_scan(value, sums, &total);
    if (bucket < buckets) offsets[bucket] = base + before_it;
    base += total;
  }
  if (thread == 0) offsets[buckets] = base;
  u32 run = (count + threads - 1) / threads, begin = min(thread * run, count), end = min(begin + run, count);
  u32 passes = 1;
  while (passes < 8 && buckets > 1u << 4 * passes) passes++;
  // The passes alternate between two arrays such that the last one writes `order`.
  for (u32 pass = 0; pass < passes; pass++) {
    u32* to = (passes - pass) % 2 ? order : scratch;
    const u32* from = pass == 0 ? nullptr : (passes - pass) % 2 ? scratch : order;
    for (u32 digit = 0; digit < DIGITS; digit++) places[digit * threads + thread] = 0;
    for (u32 i = begin; i < end; i++) places[(keys[from ? from[i] : i] >> 4 * pass) % DIGITS * threads + thread]++;
    u32 done = 0;
    for (u32 digit = 0; digit < DIGITS; digit++) {  // digit by digit, thread by thread
      u32 mine = places[digit * threads + thread];
      u32 below = block_scan(mine, sums, &total);
      places[digit * threads + thread] = done + below;
      done += total;
    }
    for (u32 i = begin; i < end; i++) {
      u32 index = from ? from[i] : i;
      to[places[(keys[index] >> 4 * pass) % DIGITS * threads + thread]++] = index;
    }
    __syncthreads();
  }
}
