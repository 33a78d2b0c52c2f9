// Threads that share one job at a time, in chunks claimed dynamically, so that a slow core never holds up the rest.
//
// The caller works too (it is thread 0) and never waits for a thread that has not joined the job yet: a job is always
// finished by whoever is awake. A waiting thread spins shortly, then yields its core, then sleeps.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace colibri {

class Pool {
 public:
  // One chunk of a job: items [begin, end). `next`: where this thread's next chunk begins (unless an idle thread takes that
  // one over), -1 when there is none.
  struct Chunk {
    int64_t begin, end, next;
    int thread;
  };
  // Must not throw.
  using Function = void (*)(void* context, const Chunk& chunk);

  // Work below this many bytes touched (a few microseconds) is not worth waking anybody for.
  static constexpr int64_t kInlineBytes = 128 << 10;

  // `threads` >= 1, the caller included. `cpus`: thread i > 0 is pinned to cpus[i % size]; empty: no pinning. The
  // caller's own affinity is its own affair. Throws std::system_error when a thread cannot be started or pinned.
  Pool(int threads, const std::vector<int>& cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Ends the threads. Idempotent; jobs then run on the caller alone.
  void close();
  // In a child of fork(): the threads stayed with the parent, and locks may be held for ever. Not to be used.
  bool forked() const;
  int threads() const { return threads_; }

  // Runs `fn` over [0, items) in chunks of at least `grain` items; `bytes`: an estimate of what the whole job touches. Returns
  // when all is done. One caller at a time (Backend's mutex).
  void run(int64_t items, int64_t grain, int64_t bytes, Function fn, void* context) noexcept;

  // body(begin, end, thread), or body(chunk).
  template <class F>
  void run(int64_t items, int64_t grain, int64_t bytes, F&& body) noexcept {
    const Function fn = [](void* context, const Chunk& c) {
      if constexpr (std::is_invocable_v<F&, const Chunk&>)
        (*static_cast<F*>(context))(c);
      else
        (*static_cast<F*>(context))(c.begin, c.end, c.thread);
    };
    run(items, grain, bytes, fn, &body);
  }

 private:
  void work(int id);
  void drain(int id);
  bool claim(Chunk& chunk);
  bool take(int from, Chunk& chunk);
  bool next_chunk(int id, Chunk& chunk);
  bool wait_for_job(uint64_t seen);

  const int threads_;
  const int forks_;  // forks before this pool was made
  std::vector<std::thread> workers_;

  // The job; written only while it is closed and nobody is active.
  Function fn_ = nullptr;
  void* context_ = nullptr;
  int64_t items_ = 0, grain_ = 1;

  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> active_{0};
  alignas(64) std::atomic<bool> open_{false};
  std::atomic<int> caller_cpu_{-1};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};

  // The chunk that a thread has claimed beyond the one it works on: begin * 2^32 + end, 0: none.
  struct alignas(64) Ahead {
    std::atomic<uint64_t> chunk{0};
  };
  std::unique_ptr<Ahead[]> ahead_;

  struct Sleep {
    std::mutex mutex;
    std::condition_variable job, done;
  };
  std::unique_ptr<Sleep> sleep_;
};

}  // namespace colibri
