#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace colibri {
namespace {

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void* allocate(size_t bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  if (bytes < kHugeThreshold) {
    void* p = std::aligned_alloc(64, round_up(bytes ? bytes : 1, 64));
    if (!p) throw std::bad_alloc();
    std::memset(p, 0, bytes);
    return p;
  }
  const size_t size = round_up(bytes, kHugePage);
  // One page too many, so that an aligned run lies inside; the ends go back.
  char* raw = static_cast<char*>(
      mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (raw == MAP_FAILED) throw std::bad_alloc();
  const size_t head = round_up(reinterpret_cast<uintptr_t>(raw), kHugePage) - reinterpret_cast<uintptr_t>(raw);
  if (head) munmap(raw, head);
  if (kHugePage - head) munmap(raw + head + size, kHugePage - head);
  madvise(raw + head, size, MADV_HUGEPAGE);  // advice: without huge pages it only is slower
  return raw + head;
}

void release(void* p, size_t bytes) noexcept {
  if (!p) return;
  if (bytes < kHugeThreshold)
    std::free(p);
  else
    munmap(p, round_up(bytes, kHugePage));
}

void* Scratch::reserve(size_t bytes) {
  if (bytes <= size_) return data_;
  const size_t grown = size_ + size_ / 2;
  const size_t size = round_up(bytes > grown ? bytes : grown, 4096);
  release(data_, size_);
  data_ = nullptr;
  size_ = 0;
  data_ = allocate(size);
  size_ = size;
  return data_;
}

void Scratch::trim() noexcept {
  if (size_ <= kKeep) return;
  release(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace colibri
