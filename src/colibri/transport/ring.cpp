#include "ring.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace colibri {

namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Longest sleep in one piece: a peer that died in the middle of waking this side is noticed after it.
constexpr int64_t kSliceNs = 50'000'000;

uint64_t padded(uint64_t size) { return (size + 7) & ~uint64_t{7}; }

// Not FUTEX_PRIVATE: the word is shared between processes.
void futex_sleep(std::atomic<uint32_t>* word, uint32_t seen, int64_t ns) {
  timespec limit{ns / kSecond, ns % kSecond};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

void Ring::copy_in(uint64_t position, const void* from, size_t size) {
  const uint64_t at = position & (bytes_ - 1), first = std::min<uint64_t>(size, bytes_ - at);
  std::memcpy(data_ + at, from, first);
  std::memcpy(data_, static_cast<const uint8_t*>(from) + first, size - first);
}

void Ring::copy_out(uint64_t position, void* to, size_t size) const {
  const uint64_t at = position & (bytes_ - 1), first = std::min<uint64_t>(size, bytes_ - at);
  std::memcpy(to, data_ + at, first);
  std::memcpy(static_cast<uint8_t*>(to) + first, data_, size - first);
}

Outcome Ring::write(const Part* parts, size_t count, uint64_t size, int64_t deadline_ns) {
  const uint64_t need = kHeader + padded(size);
  const uint64_t tail = position_.load(std::memory_order_relaxed);
  for (;;) {
    if (closed()) return Outcome::kClosed;
    const uint32_t seen = control_->taken.load(std::memory_order_acquire);
    const uint64_t used = tail - control_->head.load(std::memory_order_acquire);
    if (used > bytes_) return Outcome::kCorrupt;
    if (bytes_ - used >= need) break;
    const int64_t left = deadline_ns - monotonic_ns();
    if (left <= 0) return Outcome::kTimeout;
    control_->producer_sleeps.store(1, std::memory_order_seq_cst);
    if (tail - control_->head.load(std::memory_order_seq_cst) == used && !closed())
      futex_sleep(&control_->taken, seen, std::min(left, kSliceNs));
    control_->producer_sleeps.store(0, std::memory_order_relaxed);
  }
  const uint64_t header = size;
  copy_in(tail, &header, sizeof header);
  uint64_t at = tail + kHeader;
  for (size_t i = 0; i < count; at += parts[i++].size) copy_in(at, parts[i].data, parts[i].size);
  // Published only now, so a producer that dies leaves no torn record.
  position_.store(tail + need, std::memory_order_relaxed);
  control_->tail.store(tail + need, std::memory_order_seq_cst);
  control_->written.fetch_add(1, std::memory_order_seq_cst);
  if (control_->consumer_sleeps.load(std::memory_order_seq_cst)) futex_wake(&control_->written);
  return Outcome::kDone;
}

std::optional<Outcome> Ring::peek(uint64_t* size) const {
  const uint64_t head = position_.load(std::memory_order_relaxed);
  const uint64_t ready = control_->tail.load(std::memory_order_seq_cst) - head;
  if (ready == 0) return std::nullopt;
  if (ready > bytes_ || ready < kHeader) return Outcome::kCorrupt;
  // One load that the compiler cannot repeat: the peer may change the word between check and use. Own positions are
  // multiples of 8, so a header never wraps.
  const auto* at = reinterpret_cast<const uint64_t*>(data_ + (head & (bytes_ - 1)));
  const uint64_t header = __atomic_load_n(at, __ATOMIC_RELAXED);
  // The upper half, which must be zero, makes too large a number of it.
  if (header > ready - kHeader || padded(header) > ready - kHeader) return Outcome::kCorrupt;
  *size = header;
  return Outcome::kDone;
}

Outcome Ring::wait(uint64_t* size, int64_t deadline_ns, int64_t spin_ns, const std::atomic<uint32_t>* interrupt) {
  const int64_t spin_until = monotonic_ns() + spin_ns;
  for (;;) {
    const uint32_t seen = control_->written.load(std::memory_order_acquire);
    // Asked before the records: what was written before the close is still delivered.
    const bool over = closed();
    if (const auto outcome = peek(size)) return *outcome;
    if (over) return Outcome::kClosed;
    if (interrupt->load(std::memory_order_acquire)) return Outcome::kInterrupted;
    const int64_t now = monotonic_ns();
    if (now >= deadline_ns) return Outcome::kTimeout;
    if (now < spin_until) {
      // Yielding, never just spinning: with fewer cores than processes the peer may need this very core.
      sched_yield();
      continue;
    }
    control_->consumer_sleeps.store(1, std::memory_order_seq_cst);
    if (!ready() && !closed() && !interrupt->load())
      futex_sleep(&control_->written, seen, std::min(deadline_ns - now, kSliceNs));
    control_->consumer_sleeps.store(0, std::memory_order_relaxed);
  }
}

void Ring::take(void* out, uint64_t size) {
  const uint64_t head = position_.load(std::memory_order_relaxed), next = head + kHeader + padded(size);
  copy_out(head + kHeader, out, size);
  position_.store(next, std::memory_order_seq_cst);
  control_->head.store(next, std::memory_order_seq_cst);
  control_->taken.fetch_add(1, std::memory_order_seq_cst);
  if (control_->producer_sleeps.load(std::memory_order_seq_cst)) futex_wake(&control_->taken);
}

void Ring::close() {
  shut_.store(true);
  control_->closed.store(1, std::memory_order_seq_cst);
  control_->taken.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&control_->taken);
  wake_consumer();
}

void Ring::wake_consumer() {
  control_->written.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&control_->written);
}

}  // namespace colibri
