// Memory for weights and scratch: 64-byte aligned, on huge pages where large.
#pragma once
#include <cstddef>
#include <cstdint>

namespace colibri {

// From this size on, memory comes in multiples of 2 MiB, advised to be huge pages.
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kHugeThreshold = kHugePage / 2;

// Zeroed, 64-byte aligned (2 MiB from kHugeThreshold on). Throws std::bad_alloc. Release with the same size.
void* allocate(size_t bytes);
void release(void* p, size_t bytes) noexcept;

// Memory that only grows (by half at least) and is kept between calls, up to a bound.
class Scratch {
 public:
  // What a call leaves allocated at most; a larger need is met and given back by trim().
  static constexpr size_t kKeep = size_t(256) << 20;

  Scratch() = default;
  ~Scratch() { release(data_, size_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `bytes`, contents undefined; pointers from before are void.
  template <class T>
  T* get(size_t count) {
    return static_cast<T*>(reserve(count * sizeof(T)));
  }
  void trim() noexcept;
  size_t size() const { return size_; }

 private:
  void* reserve(size_t bytes);

  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace colibri
