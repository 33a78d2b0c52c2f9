// CUDA on a CPU, for tests: the .cu sources of kernels/cuda run as they are. Every thread of a block is a fiber; blocks run
// one after another. A warp's fibers run, each until it must wait, until all stand at a warp operation (then they go on) or
// at the block's barrier; the barrier opens when every live fiber stands at it. Anything else ends the process, as do a
// warp operation without all 32 lanes, a misaligned asynchronous copy and a wait for what no block has done.
// Dynamic shared memory is filled with 0xff (NaN) before each block.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>
#include <immintrin.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(name) u8* name = emu::block->shared

struct Index { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };

// Saves the callee's registers and changes stacks (x86-64, System V): a hundred times quicker than swapcontext.
extern "C" void emu_switch(void** save, void* load);
asm(".text\n.weak emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

namespace emu {
enum State { READY, AT_WARP, AT_BLOCK, DONE };
constexpr size_t STACK = 64 << 10;

struct Copy { void* to; const void* from; bool valid; unsigned group; };

struct Fiber {
  void* sp;
  State state;
  unsigned lane;
  Index tid;
  uint64_t slot;          // what it shows to its warp
  unsigned regs[6];       // of an mma
  unsigned group;         // asynchronous copies: groups closed so far
  std::vector<Copy> copies;
};

struct Block {
  void* scheduler;
  Fiber* fibers;
  unsigned count, current;
  Index bid, bdim, gdim;
  unsigned char* shared;
  const std::function<void()>* body;
};

inline Block* block = nullptr;
// Bit 0: asynchronous copies happen as late as allowed, at the wait, instead of at once. Bit 1: fibers, warps and blocks
// run in descending order.
inline unsigned schedule = 0;

inline Fiber& me() { return block->fibers[block->current]; }
inline Fiber* warp() { return block->fibers + block->current / 32 * 32; }
inline void leave(State state) { me().state = state; emu_switch(&me().sp, block->scheduler); }
inline void entry() { (*block->body)(); leave(DONE); abort(); }

[[noreturn]] inline void die(const char* message) {
  fprintf(stderr, "cuda_on_cpu: %s, block %u thread %u\n", message, block->bid.x, block->fibers[block->current].tid.x);
  abort();
}

// Until every fiber of the warp stands at the block's barrier or is done.
inline void run_warp(unsigned first, unsigned end) {
  for (;;) {
    for (unsigned n = 0; n < end - first; n++) {
      unsigned i = schedule & 2 ? end - 1 - n : first + n;
      if (block->fibers[i].state != READY) continue;
      block->current = i;
      emu_switch(&block->scheduler, block->fibers[i].sp);
    }
    unsigned at_warp = 0;
    for (unsigned i = first; i < end; i++) at_warp += block->fibers[i].state == AT_WARP;
    if (at_warp == 0) return;
    if (at_warp != 32) die("a warp operation without all of its lanes");
    for (unsigned i = first; i < end; i++) block->fibers[i].state = READY;
  }
}

inline void run_block() {
  unsigned warps = (block->count + 31) / 32;
  for (;;) {
    for (unsigned n = 0; n < warps; n++) {
      unsigned w = schedule & 2 ? warps - 1 - n : n;
      run_warp(w * 32, std::min(w * 32 + 32, block->count));
    }
    unsigned waiting = 0, done = 0;
    for (unsigned i = 0; i < block->count; i++) {
      waiting += block->fibers[i].state == AT_BLOCK;
      done += block->fibers[i].state == DONE;
    }
    if (done == block->count) return;
    if (done) die("a block's barrier after some of its threads have ended");
    for (unsigned i = 0; i < block->count; i++) block->fibers[i].state = READY;
  }
}

inline void launch(unsigned grid, unsigned threads, size_t shared, const std::function<void()>& body) {
  static std::vector<char> stacks;
  static std::vector<Fiber> fibers;
  if (stacks.size() < threads * STACK) stacks.resize(threads * STACK);
  if (fibers.size() < threads) fibers.resize(threads);
  unsigned mode = _mm_getcsr();
  _mm_setcsr(0x1f80 | 0x8040);  // subnormals are zero, in and out
  Block here{};
  block = &here;
  here.fibers = fibers.data(), here.count = threads, here.body = &body;
  here.bdim = {threads, 1, 1}, here.gdim = {grid, 1, 1};
  void* memory = nullptr;  // a new block each time: AddressSanitizer watches its bounds
  if (posix_memalign(&memory, 16, std::max<size_t>(shared, 1))) die("no memory");
  here.shared = (unsigned char*)memory;
  for (unsigned n = 0; n < grid; n++) {
    here.bid = {schedule & 2 ? grid - 1 - n : n, 0, 0};
    memset(here.shared, 0xff, shared);
    for (unsigned i = 0; i < threads; i++) {
      Fiber& f = fibers[i];
      f.state = READY, f.lane = i % 32, f.tid = {i, 0, 0}, f.group = 0;
      f.copies.clear();
      void** sp = (void**)(((uintptr_t)stacks.data() + (i + 1) * STACK) & ~(uintptr_t)15);
      *--sp = nullptr;
      *--sp = (void*)entry;
      for (int r = 0; r < 6; r++) *--sp = nullptr;
      f.sp = sp;
    }
    run_block();
  }
  free(here.shared);
  block = nullptr;
  _mm_setcsr(mode);
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** values, std::index_sequence<I...>) { kernel(*(A*)values[I]...); }

// Launches a kernel as the CUDA driver does: `values` point to the arguments, whose sizes must be right.
template <class... A>
int start(void (*kernel)(A...), unsigned grid, unsigned threads, size_t shared, void** values, const size_t* sizes,
          size_t count) {
  const size_t wanted[] = {sizeof(A)...};
  if (count != sizeof...(A)) return -1;
  for (size_t i = 0; i < count; i++)
    if (sizes[i] != wanted[i]) return (int)i + 1;
  launch(grid, threads, shared, [=] { call(kernel, values, std::index_sequence_for<A...>{}); });
  return 0;
}

inline void sync_warp() { leave(AT_WARP); }

template <class T> T exchange(T value, unsigned lane) {
  Fiber& m = me();
  m.slot = 0;
  memcpy(&m.slot, &value, sizeof value);
  sync_warp();
  T out;
  memcpy(&out, &warp()[lane].slot, sizeof out);
  sync_warp();
  return out;
}

inline void full(unsigned mask) { if (mask != 0xffffffffu) die("a warp operation of part of a warp"); }
}  // namespace emu

#define threadIdx (emu::me().tid)
#define blockIdx (emu::block->bid)
#define blockDim (emu::block->bdim)
#define gridDim (emu::block->gdim)

inline void __syncthreads() { emu::leave(emu::AT_BLOCK); }
inline void __syncwarp() { emu::sync_warp(); }
inline void __threadfence() {}

template <class T> T __shfl_sync(unsigned mask, T v, unsigned source, unsigned width = 32) {
  emu::full(mask);
  return emu::exchange(v, emu::me().lane / width * width + source % width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, unsigned other, unsigned width = 32) {
  emu::full(mask);
  unsigned lane = emu::me().lane, from = lane ^ other;
  return emu::exchange(v, from / width > lane / width ? lane : from);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned step, unsigned width = 32) {
  emu::full(mask);
  unsigned lane = emu::me().lane;
  return emu::exchange(v, lane % width + step < width ? lane + step : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned step, unsigned width = 32) {
  emu::full(mask);
  unsigned lane = emu::me().lane;
  return emu::exchange(v, lane % width >= step ? lane - step : lane);
}
inline unsigned atomicAdd(unsigned* p, unsigned v) { unsigned old = *p; *p = old + v; return old; }

using std::max;
using std::min;
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c))); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  uint64_t bytes = (uint64_t)y << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) out |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}

// ---- what seam.cuh has as PTX
inline float widen_fp16(unsigned short bits) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))); }

inline bool wait_for(const unsigned* counter, unsigned target) {
  if (*counter < target) emu::die("a wait for what no block has done");
  return true;
}

inline void emu_copy(const emu::Copy& c) {
  if (c.valid) memcpy(c.to, c.from, 16);
  else memset(c.to, 0, 16);
}
inline void copy_async(void* to, const void* from, bool valid) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16) emu::die("an asynchronous copy off a 16-byte boundary");
  emu::Copy copy{to, from, valid, emu::me().group};
  if (emu::schedule & 1) emu::me().copies.push_back(copy);
  else emu_copy(copy);
}
inline void copy_commit() { emu::me().group++; }
template <int left> void copy_wait() {
  auto& f = emu::me();
  size_t kept = 0;
  for (auto& c : f.copies) {
    if (c.group + left < f.group) emu_copy(c);
    else f.copies[kept++] = c;
  }
  f.copies.resize(kept);
}

inline float emu_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
inline unsigned add_bf16x2(unsigned a, unsigned b) {
  unsigned out = 0;
  for (int i = 0; i < 2; i++) {
    float sum = emu_bf16(a >> 16 * i & 0xffff) + emu_bf16(b >> 16 * i & 0xffff);
    if (__float_as_uint(sum) & 0xffff) emu::die("a sum that bf16 does not hold");
    out |= (__float_as_uint(sum) >> 16) << 16 * i;
  }
  return out;
}

// Every lane shows its registers, then computes its four sums, K ascending.
inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  auto& m = emu::me();
  memcpy(m.regs, a, 16);
  memcpy(m.regs + 4, b, 8);
  emu::sync_warp();
  emu::Fiber* w = emu::warp();
  unsigned g = m.lane / 4, t = m.lane % 4;
  for (unsigned half = 0; half < 2; half++)
    for (unsigned pair = 0; pair < 4; pair++)
      for (unsigned odd = 0; odd < 2; odd++) {
        auto pick = [&](unsigned lane, unsigned reg) { return emu_bf16(w[lane].regs[reg] >> 16 * odd & 0xffff); };
        float a0 = pick(g * 4 + pair, half * 2), a1 = pick(g * 4 + pair, half * 2 + 1);
        float b0 = pick(t * 8 + pair, 4 + half), b1 = pick(t * 8 + 4 + pair, 4 + half);
        d[0] += a0 * b0, d[1] += a0 * b1, d[2] += a1 * b0, d[3] += a1 * b1;
      }
  emu::sync_warp();
}
