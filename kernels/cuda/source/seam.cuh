// The names the kernels use for what a GPU has and C++ has not: inline PTX here, an emulation header on a CPU (tests).
// No header of the CUDA toolkit is needed, so NVRTC alone compiles every kernel.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef COLIBRI_CUDA_ON_CPU
#include "cuda_on_cpu.h"
#else

#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) u8 name[]

__device__ inline float widen_fp16(u16 bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

// Waits until *counter has reached `target`: false after about two seconds, so that no launch waits for ever.
__device__ inline bool wait_for(const u32* counter, u32 target) {
  for (u32 turn = 0; turn < (1u << 24); turn++) {
    u32 seen;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    if (seen >= target) return true;
    __nanosleep(100);
  }
  return false;
}

#if __CUDA_ARCH__ >= 800
__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes global to shared, both aligned to 16; zeros where `valid` is false (nothing is read then).
__device__ inline void copy_async(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `left` groups of this thread are under way.
template <int left>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// d += a b, bf16 in, fp32 sums: fragments as PTX documents mma.m16n8k16.
__device__ inline void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two bf16 sums; used where they are exact.
__device__ inline u32 add_bf16x2(u32 a, u32 b) {
  u32 y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(0x3f803f80u), "r"(b));
  return y;
}
#endif
#endif
