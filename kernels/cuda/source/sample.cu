// Sampling and log-probabilities, as docs/numerics.md has them: float64 sums over ids ascending, one after the other.
#include "math.cuh"

#define TOKENS 1024

// Larger keys come first in candidate order: z descending, id ascending. -0 and +0 are one.
__device__ inline u64 candidate_key(float z, u32 id) {
  u32 bits = z == 0.f ? 0u : __float_as_uint(z);
  u32 ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (u64)ascending << 32 | (0xffffffffu - id);
}

// The largest value of `count`, the lower id of equals; all threads get it. Whether any is NaN or +Inf: *bad.
__device__ inline u64 block_largest(const float* logits, u32 count, u64* shared, bool* bad) {
  u64 best = 0;
  u32 wrong = 0;
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
    float value = flush(logits[i]);
    if (!(value < __uint_as_float(0x7f800000u))) wrong = 1;
    u64 key = candidate_key(value, i);
    best = key > best ? key : best;
  }
  if (wrong) best = ~0ull;
  shared[threadIdx.x] = best;
  __syncthreads();
  for (u32 step = blockDim.x / 2; step; step /= 2) {
    if (threadIdx.x < step && shared[threadIdx.x + step] > shared[threadIdx.x]) shared[threadIdx.x] = shared[threadIdx.x + step];
    __syncthreads();
  }
  best = shared[0];
  *bad = best == ~0ull;
  return best;
}

__device__ inline float value_of(u64 key) {
  u32 ascending = (u32)(key >> 32);
  return __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
}

// totals[row] = sum of exp(l - l_max) over ids ascending; largest[row] = l_max. status[row]: 0, 1 for NaN or +Inf, 2 where
// nothing is finite. A block a row.
extern "C" __global__ void __launch_bounds__(TOKENS)
    softmax_totals(const float* logits, float* largest, double* totals, u32* status, u32 count) {
  DYNAMIC_SHARED(shared);
  u64* keys = (u64*)shared;          // [threads]
  float* e = (float*)(keys + blockDim.x);  // [threads]
  const float* values = logits + (u64)blockIdx.x * count;
  bool bad;
  float most = value_of(block_largest(values, count, keys, &bad));
  bool none = !bad && !finite(most);
  double total = 0.0;
  for (u32 first = 0; first < count && !bad && !none; first += blockDim.x) {
    u32 i = first + threadIdx.x;
    if (i < count) e[threadIdx.x] = exp32(__fsub_rn(flush(values[i]), most));
    __syncthreads();
    u32 here = min(count - first, blockDim.x);
    if (threadIdx.x == 0)
      for (u32 j = 0; j < here; j++) total += (double)e[j];
    __syncthreads();
  }
  if (threadIdx.x) return;
  largest[blockIdx.x] = most;
  totals[blockIdx.x] = total;
  status[blockIdx.x] = bad ? 1u : none ? 2u : 0u;
}

__device__ inline double sum_ascending(const float* e, u32 count) {
  double total = 0.0;
  for (u32 i = 0; i < count; i++) total += e[i] < 0.f ? 0.0 : (double)e[i];
  return total;
}

__device__ inline void drop_below(const float* logits, float* e, u32 count, float temperature, u64 least, double min_e) {
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
    u64 key = candidate_key(__fdiv_rn(flush(logits[i]), temperature), i);
    if (key < least || (double)e[i] < min_e) e[i] = -1.f;
  }
  __syncthreads();
}

// One block. result[0]: the id; result[1]: 0, 1 for NaN or +Inf, 2 where nothing is finite, 3 where the largest
// logit / T is not finite. keys [padded], a power of two at least count: the candidates. e [count].
extern "C" __global__ void __launch_bounds__(TOKENS)
    sample_token(const float* logits, u64* keys, float* e, u32* result, u32 count, u32 padded, float temperature, u32 top_k,
                 double top_p, double min_p, double uniform) {
  DYNAMIC_SHARED(shared);
  u64* block_keys = (u64*)shared;  // [threads]
  bool bad;
  u64 best = block_largest(logits, count, block_keys, &bad);
  float most = value_of(best);
  u32 state = bad ? 1u : !finite(most) ? 2u : 0u;
  float top = temperature > 0.f ? __fdiv_rn(most, temperature) : 0.f;
  if (state == 0 && !finite(top)) state = 3;
  if (state != 0 || temperature == 0.f) {
    if (threadIdx.x == 0) result[0] = 0xffffffffu - (u32)best, result[1] = state;
    return;
  }
  for (u32 i = threadIdx.x; i < padded; i += blockDim.x) {
    float z = i < count ? __fdiv_rn(flush(logits[i]), temperature) : 0.f;
    if (i < count) e[i] = exp32(__fsub_rn(z, top));
    keys[i] = i < count ? candidate_key(z, i) : 0;
  }
  __syncthreads();
  u32 kept = top_k && top_k < count ? top_k : count;
  bool chosen = kept < count || top_p < 1.0;
  // Bitonic sort, largest key first.
  for (u32 size = 2; chosen && size <= padded; size *= 2)
    for (u32 step = size / 2; step; step /= 2) {
      for (u32 i = threadIdx.x; i < padded; i += blockDim.x) {
        u32 other = i ^ step;
        if (other <= i) continue;
        u64 a = keys[i], b = keys[other];
        if ((i & size) == 0 ? a < b : a > b) keys[i] = b, keys[other] = a;
      }
      __syncthreads();
    }
  // e becomes -1 where the candidate is dropped; adding zero instead of it changes no sum.
  u64 least = chosen ? keys[kept - 1] : 0;
  drop_below(logits, e, count, temperature, least, -1.0);
  if (top_p < 1.0) {
    if (threadIdx.x == 0) {
      double needed = top_p * sum_ascending(e, count), running = 0.0;
      for (u32 i = 0; i < kept; i++) {
        running += (double)e[0xffffffffu - (u32)keys[i]];
        if (running < needed) continue;
        least = keys[i];
        break;
      }
      block_keys[0] = least;
    }
    __syncthreads();
    least = block_keys[0];
  }
  drop_below(logits, e, count, temperature, least, min_p);
  if (threadIdx.x) return;
  double target = uniform * sum_ascending(e, count), running = 0.0;
  result[1] = 4;  // never: the running sum ends above the target, uniform being below 1
  for (u32 i = 0; i < count; i++) {
    running += e[i] < 0.f ? 0.0 : (double)e[i];
    if (running <= target) continue;
    result[0] = i;
    result[1] = 0;
    return;
  }
}
