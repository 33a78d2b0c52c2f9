#include "races.h"

#include <atomic>
#include <mutex>
#include <thread>

namespace {

namespace nb = nanobind;

// Not static: the compiler must not reason its uses away.
int plain = 0;
std::atomic<int> counted{0};
std::mutex first, second;

template <class F>
int on_two_threads(F&& work) {
  std::thread a(work), b(work);
  a.join();
  b.join();
  return plain + counted.load();
}

int without_a_lock(int times) {
  return on_two_threads([times] {
    for (int i = 0; i < times; i++) plain++;
  });
}

int with_a_lock(int times) {
  return on_two_threads([times] {
    for (int i = 0; i < times; i++) {
      std::lock_guard<std::mutex> lock(first);
      plain++;
    }
  });
}

int with_atomics(int times) {
  return on_two_threads([times] {
    for (int i = 0; i < times; i++) counted.fetch_add(1, std::memory_order_relaxed);
  });
}

// The flag tells that the value is there; only a release and an acquire say so to the processor, too.
int published(std::memory_order store, std::memory_order load) {
  std::atomic<bool> ready{false};
  int value = 0, seen = 0;
  std::thread writer([&] {
    value = 7;
    ready.store(true, store);
  });
  std::thread reader([&] {
    while (!ready.load(load)) std::this_thread::yield();
    seen = value;
  });
  writer.join();
  reader.join();
  return seen;
}

// One after the other, so that nothing hangs: the order alone is the fault.
int locked_in_both_orders() {
  std::thread([] {
    std::lock_guard<std::mutex> a(first), b(second);
  }).join();
  std::thread([] {
    std::lock_guard<std::mutex> b(second), a(first);
  }).join();
  return 0;
}

}  // namespace

void add_races(nb::module_& m) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def("without_a_lock", &without_a_lock, released);
  m.def("with_a_lock", &with_a_lock, released);
  m.def("with_atomics", &with_atomics, released);
  m.def("published_relaxed", [] { return published(std::memory_order_relaxed, std::memory_order_relaxed); }, released);
  m.def("published_rightly", [] { return published(std::memory_order_release, std::memory_order_acquire); }, released);
  m.def("locked_in_both_orders", &locked_in_both_orders, released);
  // For threads of Python's: with the interpreter's lock, and without.
  m.def("add_held", [](int times) {
    for (int i = 0; i < times; i++) plain++;
    return plain;
  });
  m.def("add_released", [](int times) {
    for (int i = 0; i < times; i++) plain++;
    return plain;
  }, released);
}
