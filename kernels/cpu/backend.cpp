#include "backend.h"

#include <sched.h>

#include <stdexcept>

namespace colibri {
namespace {

constexpr int kMaxThreads = 1024;

int checked_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("threads: expected 1 to " + std::to_string(kMaxThreads) + ", got " + std::to_string(threads));
  return threads;
}

const std::vector<int>& checked_cpus(const std::vector<int>& cpus) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  for (int c : cpus)
    if (c < 0 || c >= CPU_SETSIZE || (known && !CPU_ISSET(c, &allowed)))
      throw std::invalid_argument("cpus: expected CPUs that this process may use, got " + std::to_string(c));
  return cpus;
}

}  // namespace

Backend::Backend(int threads, const std::string& isa, const std::vector<int>& cpus, bool distrust)
    : choice(choose_isa(isa, distrust)), kernels(*choice.table), pool(checked_threads(threads), checked_cpus(cpus)) {}

void Backend::close() {
  nanobind::gil_scoped_release gil;
  if (pool.forked()) return pool.close();
  std::lock_guard<std::mutex> turn(mutex_);
  closed_ = true;
  pool.close();
}

Call::Call(Backend& backend) : backend_(backend), turn_(backend.mutex_, std::defer_lock) {
  if (backend.pool.forked()) throw std::runtime_error("this backend was made before a fork: make one in each process");
  turn_.lock();
  if (backend.closed_) throw std::runtime_error("this backend is closed");
}

Call::~Call() {
  for (Scratch* s : {&backend_.scratch_rows, &backend_.scratch_hidden, &backend_.scratch_sums, &backend_.scratch_pointers,
                     &backend_.scratch_dense})
    s->trim();
}

}  // namespace colibri
