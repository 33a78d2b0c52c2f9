// DAZ + FTZ, round to nearest even, no traps: set for the pool's own threads and, for the length of a call, for callers.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace colibri {

#if defined(__x86_64__)
inline uint64_t read_float_control() { return _mm_getcsr(); }
inline void write_float_control(uint64_t v) { _mm_setcsr(static_cast<unsigned>(v)); }
constexpr uint64_t kKernelFloatControl = 0x1f80 | 0x8040;  // all exceptions masked | FTZ | DAZ
#elif defined(__aarch64__)
inline uint64_t read_float_control() {
  uint64_t v;
  asm volatile("mrs %0, fpcr" : "=r"(v));
  return v;
}
inline void write_float_control(uint64_t v) { asm volatile("msr fpcr, %0" : : "r"(v)); }
constexpr uint64_t kKernelFloatControl = uint64_t(1) << 24;  // FZ
#else
#error "no way known to flush subnormals on this architecture"
#endif

// Restores the caller's whole control word, sticky flags included.
class FloatControlScope {
 public:
  FloatControlScope() : saved_(read_float_control()) { write_float_control(kKernelFloatControl); }
  ~FloatControlScope() { write_float_control(saved_); }
  FloatControlScope(const FloatControlScope&) = delete;
  FloatControlScope& operator=(const FloatControlScope&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace colibri
