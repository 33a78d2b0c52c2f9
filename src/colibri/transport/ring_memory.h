// The memory two processes share: a sealed memfd with a header and two rings. It has no name, so nothing is left behind
// when both are gone, however they went.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "ring.h"

namespace colibri {

constexpr size_t kTokenBytes = 16;

class RingMemory {
 public:
  // `ring_bytes`: of each direction, a power of two from 4 KiB to 1 GiB. Throws std::runtime_error.
  static RingMemory create(uint64_t ring_bytes, const std::string& token);
  // `path`: where the creator's descriptor can be opened. Refuses (std::runtime_error) what is not such a memory, not
  // of a sealed size, or has another token.
  static RingMemory open(const std::string& path, const std::string& token);

  RingMemory(RingMemory&& other) noexcept;
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;
  ~RingMemory();

  // 0: from the opener to the creator; 1: back.
  Ring ring(int direction) const;
  int fd() const { return fd_; }
  uint64_t ring_bytes() const { return ring_bytes_; }

 private:
  RingMemory(int fd, void* base, uint64_t ring_bytes) : fd_(fd), base_(base), ring_bytes_(ring_bytes) {}

  int fd_;
  void* base_;
  uint64_t ring_bytes_;
};

}  // namespace colibri
