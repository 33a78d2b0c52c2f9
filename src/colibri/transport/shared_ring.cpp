// Python's view of a shared-memory link: one object per process, which writes one ring and reads the other.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "ring.h"
#include "ring_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace colibri {

class Closed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Python's signals are looked at this often while a wait lasts.
constexpr int64_t kLookNs = 200'000'000;
// Longer than the copy of a record takes.
constexpr int64_t kCopyNs = 10'000'000;

int64_t deadline_of(double timeout_s) {
  if (!(timeout_s >= 0)) throw nb::value_error("timeout_s: expected a number >= 0");
  return monotonic_ns() + static_cast<int64_t>(std::fmin(timeout_s, 1e6) * 1e9);
}

// A contiguous view of one part of a record.
class View {
 public:
  explicit View(nb::handle part) {
    if (PyObject_GetBuffer(part.ptr(), &buffer_, PyBUF_SIMPLE)) throw nb::python_error();
  }
  ~View() { PyBuffer_Release(&buffer_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  Part part() const { return {buffer_.buf, static_cast<size_t>(buffer_.len)}; }

 private:
  Py_buffer buffer_;
};

// The parts of a record, held while they are copied.
class Buffers {
 public:
  explicit Buffers(nb::handle parts) {
    for (nb::handle part : parts) {
      parts_.push_back(views_.emplace_back(part).part());
      size_ += parts_.back().size;
    }
  }

  const std::vector<Part>& parts() const { return parts_; }
  uint64_t size() const { return size_; }

 private:
  std::deque<View> views_;  // a view must stay where it was made
  std::vector<Part> parts_;
  uint64_t size_ = 0;
};

class SharedRing {
 public:
  SharedRing(RingMemory memory, bool creator)
      : memory_(std::move(memory)), out_(memory_.ring(creator ? 1 : 0)), in_(memory_.ring(creator ? 0 : 1)) {}

  ~SharedRing() { close(); }

  int fd() const { return memory_.fd(); }
  uint64_t max_record() const { return out_.max_record(); }
  bool ready() const { return in_.ready(); }
  bool closed() const { return out_.closed() || in_.closed(); }

  bool write(nb::handle parts, double timeout_s) {
    Buffers buffers(parts);
    if (buffers.size() > max_record())
      throw nb::value_error(("parts: expected at most " + std::to_string(max_record()) + " bytes, got " +
                             std::to_string(buffers.size())).c_str());
    const int64_t deadline = deadline_of(timeout_s);
    for (;;) {
      const int64_t now = monotonic_ns(), until = std::min(deadline, now + kLookNs);
      Outcome outcome = Outcome::kTimeout;
      {
        nb::gil_scoped_release released;
        // Another writer may wait for room, so there is a bound; one that merely copies is always waited for.
        const auto for_turn = std::chrono::nanoseconds(std::max(until - now, kCopyNs));
        std::unique_lock<std::timed_mutex> turn(writing_, for_turn);
        if (turn) outcome = out_.write(buffers.parts().data(), buffers.parts().size(), buffers.size(), until);
      }
      if (outcome != Outcome::kTimeout || monotonic_ns() >= deadline) return check(outcome);
      if (PyErr_CheckSignals()) throw nb::python_error();
    }
  }

  // bytes, or None when nothing came in time or `wake` was called.
  nb::object read(double timeout_s, double spin_s) {
    if (!(spin_s >= 0)) throw nb::value_error("spin_s: expected a number >= 0");
    const int64_t deadline = deadline_of(timeout_s), spin = static_cast<int64_t>(std::fmin(spin_s, 1.0) * 1e9);
    // A second reader would take a record by the size of another.
    std::unique_lock<std::mutex> only(reading_, std::try_to_lock);
    if (!only) throw std::runtime_error("shared memory: another thread is reading");
    uint64_t size = 0;
    for (;;) {
      const int64_t now = monotonic_ns();
      Outcome outcome;
      {
        nb::gil_scoped_release released;
        outcome = in_.wait(&size, std::min(deadline, now + kLookNs), spin, &interrupt_);
      }
      if (outcome == Outcome::kTimeout && monotonic_ns() < deadline) {
        if (PyErr_CheckSignals()) throw nb::python_error();
        continue;
      }
      if (outcome == Outcome::kInterrupted) {
        interrupt_.exchange(0);  // a read, too: what came before the call of wake is seen from here on
        return nb::none();
      }
      if (!check(outcome)) return nb::none();
      nb::object record = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
      if (!record.is_valid()) throw nb::python_error();
      in_.take(PyBytes_AS_STRING(record.ptr()), size);
      return record;
    }
  }

  void wake() {
    interrupt_.store(1);
    in_.wake_consumer();
  }

  void close() {
    out_.close();
    in_.close();
  }

 private:
  static bool check(Outcome outcome) {
    if (outcome == Outcome::kClosed) throw Closed("shared memory: closed");
    if (outcome == Outcome::kCorrupt) throw std::runtime_error("shared memory: the peer wrote an impossible ring");
    return outcome == Outcome::kDone;
  }

  RingMemory memory_;
  Ring out_, in_;
  std::timed_mutex writing_;
  std::mutex reading_;
  std::atomic<uint32_t> interrupt_{0};
};

}  // namespace colibri

NB_MODULE(_shared_ring, m) {
  using colibri::RingMemory;
  using colibri::SharedRing;
  // A link may well live until the interpreter ends: that is no leak.
  nb::set_leak_warnings(false);
  m.doc() = "Two rings of records in memory that two processes of one host share (colibri.transport.shared_memory).";
  nb::exception<colibri::Closed>(m, "Closed", PyExc_ConnectionError);
  nb::class_<SharedRing>(m, "SharedRing")
      .def_static("create",
                  [](uint64_t ring_bytes, nb::bytes token) {
                    return std::make_unique<SharedRing>(
                        RingMemory::create(ring_bytes, std::string(token.c_str(), token.size())), true);
                  },
                  "ring_bytes"_a, "token"_a)
      .def_static("open",
                  [](const std::string& path, nb::bytes token) {
                    return std::make_unique<SharedRing>(
                        RingMemory::open(path, std::string(token.c_str(), token.size())), false);
                  },
                  "path"_a, "token"_a)
      .def("write", &SharedRing::write, "parts"_a, "timeout_s"_a,
           "False when there was no room in time. Raises ConnectionError when closed.")
      .def("read", &SharedRing::read, "timeout_s"_a, "spin_s"_a,
           "The next record; None after timeout_s, or when woken. Raises ConnectionError when closed.")
      .def("wake", &SharedRing::wake, "Ends a read of this process with None, the one that waits or the next one.")
      .def("close", &SharedRing::close, "Ends both rings for both processes. What was written is still read.")
      .def_prop_ro("fd", &SharedRing::fd)
      .def_prop_ro("ready", &SharedRing::ready, "Whether a record waits to be read.")
      .def_prop_ro("closed", &SharedRing::closed)
      .def_prop_ro("max_record", &SharedRing::max_record);
}
