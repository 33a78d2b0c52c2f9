// One backend: an instruction path, a pool of threads, scratch memory. Several may live in one process.
#pragma once
#include <nanobind/nanobind.h>

#include <mutex>
#include <string>
#include <vector>

#include "dispatch.h"
#include "float_control.h"
#include "memory.h"
#include "pool.h"

namespace colibri {

class Backend {
 public:
  // Throws std::invalid_argument for bad arguments. `distrust`: as if the start-up self-test had failed.
  Backend(int threads, const std::string& isa, const std::vector<int>& cpus, bool distrust);

  const IsaChoice choice;
  const KernelTable& kernels;  // of choice
  Pool pool;

  // Reused from call to call, by whoever holds the turn.
  Scratch scratch_rows, scratch_hidden, scratch_sums, scratch_pointers, scratch_dense;

  // Ends the threads; calls raise afterwards.
  void close();

 private:
  friend class Call;
  std::mutex mutex_;
  bool closed_ = false;
};

// The length of one computation: releases the GIL, waits for its turn, sets DAZ + FTZ. Arguments are checked before it.
class Call {
 public:
  explicit Call(Backend& backend);
  ~Call();

 private:
  Backend& backend_;
  nanobind::gil_scoped_release gil_;
  std::unique_lock<std::mutex> turn_;
  FloatControlScope control_;
};

}  // namespace colibri
