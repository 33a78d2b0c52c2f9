#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <system_error>

#include "float_control.h"

namespace colibri {
namespace {

using Clock = std::chrono::steady_clock;

// Spin without giving the core away, about 1-2 us: a hot dispatch. Then yield until kYield is over, then sleep.
constexpr int kSpins = 32;
constexpr auto kYield = std::chrono::microseconds(100);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready()`; false when the time for not sleeping is over, or when `hopeless()`.
template <class Ready, class Hopeless>
bool spin_until(Ready&& ready, Hopeless&& hopeless) {
  for (int i = 0; i < kSpins; i++) {
    if (ready()) return true;
    relax();
  }
  const auto end = Clock::now() + kYield;
  do {
    if (ready()) return true;
    sched_yield();
  } while (!hopeless() && Clock::now() < end);
  return ready();
}

void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  const int error = pthread_setaffinity_np(thread, sizeof set, &set);
  if (error) throw std::system_error(error, std::generic_category(), "cpus: cannot pin a thread to CPU " + std::to_string(cpu));
}

// How many forks lie between this process and the one that loaded the module.
std::atomic<int> forks{0};

int count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  (void)registered;
  return forks.load();
}

}  // namespace

Pool::Pool(int threads, const std::vector<int>& cpus) : threads_(threads), forks_(count_forks()), ahead_(new Ahead[size_t(threads)]), sleep_(new Sleep) {
  try {
    for (int id = 1; id < threads; id++) {
      workers_.emplace_back([this, id] { work(id); });
      if (!cpus.empty()) pin(workers_.back().native_handle(), cpus[size_t(id) % cpus.size()]);
    }
  } catch (...) {
    close();
    throw;
  }
}

Pool::~Pool() { close(); }

bool Pool::forked() const { return forks.load(std::memory_order_relaxed) != forks_; }

void Pool::close() {
  if (forked()) {
    // Leaked: there is nobody to join, and a condition variable waits for its waiters before it ends.
    new std::vector<std::thread>(std::move(workers_));
    sleep_.release();
    workers_.clear();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(sleep_->mutex);
    stop_.store(true);
  }
  sleep_->job.notify_all();
  for (std::thread& t : workers_) t.join();
  workers_.clear();
}

// A thread joins by raising active_ and then looking whether the job is still open; the caller closes the job and then
// waits for active_ to reach zero. Both pairs are sequentially consistent, so one of the two sees the other.
void Pool::run(int64_t items, int64_t grain, int64_t bytes, Function fn, void* context) noexcept {
  if (items <= 0) return;
  if (grain < 1) grain = 1;
  if (workers_.empty() || items <= grain || bytes < kInlineBytes) {
    fn(context, {0, items, -1, 0});
    return;
  }
  fn_ = fn;
  context_ = context;
  items_ = items;
  grain_ = grain;
  caller_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  open_.store(true);
  generation_.fetch_add(1);
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> lock(sleep_->mutex);
    sleep_->job.notify_all();
  }
  drain(0);
  open_.store(false);
  if (spin_until([this] { return active_.load() == 0; }, [] { return false; })) return;
  std::unique_lock<std::mutex> lock(sleep_->mutex);
  caller_sleeps_.store(true);
  sleep_->done.wait(lock, [this] { return active_.load() == 0; });
  caller_sleeps_.store(false);
}

// Large chunks first (long streams through memory), then ever smaller ones (nobody waits long for the last).
bool Pool::claim(Chunk& chunk) {
  int64_t begin = next_.load(std::memory_order_relaxed);
  while (begin < items_) {
    const int64_t share = (items_ - begin) / (4 * threads_);
    const int64_t end = std::min(items_, begin + std::max(grain_, share));
    if (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
    chunk.begin = begin;
    chunk.end = end;
    return true;
  }
  return false;
}

bool Pool::take(int from, Chunk& chunk) {
  const uint64_t packed = ahead_[size_t(from)].chunk.exchange(0, std::memory_order_relaxed);
  chunk.begin = int64_t(packed >> 32);
  chunk.end = int64_t(packed & 0xffffffffu);
  return packed != 0;
}

bool Pool::next_chunk(int id, Chunk& chunk) {
  if (take(id, chunk) || claim(chunk)) return true;
  for (int other = 0; other < threads_; other++)
    if (take(other, chunk)) return true;
  return false;
}

// Each chunk is claimed while the one before it is computed, which can prefetch for it.
void Pool::drain(int id) {
  Chunk chunk{0, 0, -1, id}, following{0, 0, -1, id};
  while (next_chunk(id, chunk)) {
    const bool more = items_ <= UINT32_MAX && claim(following);
    chunk.next = more ? following.begin : -1;
    if (more) ahead_[size_t(id)].chunk.store(uint64_t(following.begin) << 32 | uint64_t(following.end), std::memory_order_relaxed);
    fn_(context_, chunk);
  }
}

bool Pool::wait_for_job(uint64_t seen) {
  auto ready = [this, seen] { return generation_.load() != seen || stop_.load(); };
  // A thread that yields on the caller's core never runs when it should, and the scheduler does not move a thread that
  // is always runnable. Asleep, it is placed on an idle core when it is woken.
  auto shares_core = [this] { return sched_getcpu() == caller_cpu_.load(std::memory_order_relaxed); };
  if (!spin_until(ready, shares_core)) {
    std::unique_lock<std::mutex> lock(sleep_->mutex);
    sleepers_.fetch_add(1);
    sleep_->job.wait(lock, ready);
    sleepers_.fetch_sub(1);
  }
  return !stop_.load();
}

void Pool::work(int id) {
  char name[16];
  std::snprintf(name, sizeof name, "colibri-k%d", id);
  pthread_setname_np(pthread_self(), name);
  write_float_control(kKernelFloatControl);
  uint64_t seen = 0;
  while (wait_for_job(seen)) {
    seen = generation_.load();
    active_.fetch_add(1);
    if (open_.load()) drain(id);
    if (active_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
      std::lock_guard<std::mutex> lock(sleep_->mutex);
      sleep_->done.notify_one();
    }
  }
}

}  // namespace colibri
