// Python's view of a shared-memory link: one object per process, which writes one ring and reads the other.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cmath>
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

int64_t deadline_of(double timeout_s) {
  if (!(timeout_s >= 0)) throw nb::value_error("timeout_s: expected a number >= 0");
  return monotonic_ns() + static_cast<int64_t>(std::fmin(timeout_s, 1e6) * 1e9);
}

// Contiguous buffers of the parts of a record, held while they are copied.
class Buffers {
 public:
  explicit Buffers(nb::handle parts) {
    for (nb::handle part : parts) {
      views_.emplace_back();
      if (PyObject_GetBuffer(part.ptr(), &views_.back(), PyBUF_SIMPLE)) {
        views_.pop_back();
        release();
        throw nb::python_error();
      }
      parts_.push_back({views_.back().buf, static_cast<size_t>(views_.back().len)});
      size_ += parts_.back().size;
    }
  }
  ~Buffers() { release(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  const std::vector<Part>& parts() const { return parts_; }
  uint64_t size() const { return size_; }

 private:
  void release() {
    for (auto& view : views_) PyBuffer_Release(&view);
    views_.clear();
  }
  std::vector<Py_buffer> views_;
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
    Outcome outcome;
    {
      nb::gil_scoped_release released;
      std::lock_guard<std::mutex> one_at_a_time(writing_);
      outcome = out_.write(buffers.parts().data(), buffers.parts().size(), buffers.size(), deadline);
    }
    return check(outcome);
  }

  // bytes, or None when nothing came in time or `wake` was called.
  nb::object read(double timeout_s, double spin_s) {
    const int64_t deadline = deadline_of(timeout_s), spin = static_cast<int64_t>(std::fmin(spin_s, 1.0) * 1e9);
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
        interrupt_.store(0);
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
  std::mutex writing_;
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
