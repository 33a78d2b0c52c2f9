// One direction of a shared-memory link: a ring of bytes with one producer and one consumer, each a process of its own.
//
// A record is a uint32 length, a uint32 zero and the bytes, padded to 8. Positions count bytes for ever; the ring's size is
// a power of two. The other side is not trusted, and it can write to all of this at any time: each side keeps its own
// position to itself, loads each of the other's words once, and checks it before use. What the other side can do is to
// spoil the records, to be silent, and to end the link.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace colibri {

// Lives in shared memory. Each side's words have a cache line of their own.
struct RingControl {
  alignas(64) std::atomic<uint64_t> tail;       // producer: bytes written
  std::atomic<uint32_t> written;                // producer: bumped with every record; the consumer sleeps on it
  alignas(64) std::atomic<uint64_t> head;       // consumer: bytes taken
  std::atomic<uint32_t> taken;                  // consumer: bumped with every record; the producer sleeps on it
  alignas(64) std::atomic<uint32_t> consumer_sleeps;
  std::atomic<uint32_t> producer_sleeps;
  alignas(64) std::atomic<uint32_t> closed;     // either side, for good
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "processes can share only lock-free atomics");
static_assert(sizeof(RingControl) == 256, "part of the segment's layout");

struct Part {
  const void* data;
  size_t size;
};

enum class Outcome { kDone, kTimeout, kClosed, kCorrupt, kInterrupted };

class Ring {
 public:
  Ring(RingControl* control, uint8_t* data, uint64_t bytes) : control_(control), data_(data), bytes_(bytes) {}

  // Largest record that fits.
  uint64_t max_record() const { return bytes_ - kHeader; }

  // Producer, one thread at a time. Waits for room until `deadline_ns` (CLOCK_MONOTONIC). `size`: of all parts, at most
  // max_record().
  Outcome write(const Part* parts, size_t count, uint64_t size, int64_t deadline_ns);

  // Consumer, one thread at a time. The next record's size, at most max_record(), waiting for it until the deadline: first
  // yielding for `spin_ns`, then asleep. `interrupt` (of this process) ends the wait with kInterrupted. take() copies the
  // record out, by the size that wait() gave, and frees its room.
  Outcome wait(uint64_t* size, int64_t deadline_ns, int64_t spin_ns, const std::atomic<uint32_t>* interrupt);
  void take(void* out, uint64_t size);

  // Whether a record waits. For any thread.
  bool ready() const { return control_->tail.load() != position_.load(); }
  void close();
  void wake_consumer();
  bool closed() const { return shut_.load() || control_->closed.load(std::memory_order_acquire) != 0; }

 private:
  static constexpr uint64_t kHeader = 8;

  void copy_in(uint64_t position, const void* from, size_t size);
  void copy_out(uint64_t position, void* to, size_t size) const;
  std::optional<Outcome> peek(uint64_t* size) const;

  RingControl* control_;
  uint8_t* data_;
  uint64_t bytes_;
  // This side's tail or head: what it told the other side, without reading it back.
  std::atomic<uint64_t> position_{0};
  // Closed by this side, whatever the other makes of the shared word.
  std::atomic<bool> shut_{false};
};

int64_t monotonic_ns();

}  // namespace colibri
