// Arguments from Python: views of NumPy arrays through the buffer protocol, checked, with errors that name the argument.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace colibri {

namespace nb = nanobind;

// Element types, as a set.
enum Dtype : unsigned {
  kU8 = 1,
  kBf16 = 2,  // uint16 bit patterns
  kFp16 = 4,
  kF32 = 8,
  kU32 = 16,
  kI32 = 32,
  kBool = 64,
};

constexpr int64_t kAny = -1;

[[noreturn]] void fail_value(const std::string& what);
[[noreturn]] void fail_type(const std::string& what);
// "NAME: expected EXPECTED, got GOT"
[[noreturn]] void fail_value(const char* name, const std::string& expected, const std::string& got);

// "NAME[i]" and "0 .. n-1 (of)", for the errors of elements.
std::string element(const char* name, int64_t i);
std::string below(int64_t n, const std::string& of);

// A C-contiguous array. Holds the buffer: create and destroy it with the GIL.
class View {
 public:
  // `dtypes`: the allowed ones; `shape`: expected extents, kAny for any. TypeError for a wrong type, ValueError for a
  // wrong shape, layout or a read-only array where `writable`.
  View(nb::handle array, const char* name, unsigned dtypes, std::initializer_list<int64_t> shape, bool writable = false);
  ~View();
  View(View&& other) noexcept;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  View& operator=(View&&) = delete;

  const char* name() const { return name_; }
  Dtype dtype() const { return dtype_; }
  int64_t shape(int i) const { return buffer_.shape[i]; }
  int64_t size() const { return buffer_.itemsize ? int64_t(buffer_.len / buffer_.itemsize) : 0; }
  // Not necessarily aligned to the element.
  void* data() const { return buffer_.buf; }
  // As T; ValueError when not aligned for it.
  template <class T>
  T* as() const {
    require_alignment(alignof(T));
    return static_cast<T*>(buffer_.buf);
  }
  void require_alignment(size_t alignment) const;
  // "float32 [3, 5]"
  std::string describe() const;

 private:
  const char* name_;
  Dtype dtype_;
  Py_buffer buffer_;
  bool held_ = false;
};

// numpy.empty(shape, dtype)
nb::object new_array(Dtype dtype, std::initializer_list<int64_t> shape);
// A NumPy uint8 array over allocate(bytes) (memory.h), freed with it.
nb::object new_bytes(size_t bytes);

const char* dtype_name(Dtype d);
size_t dtype_size(Dtype d);

}  // namespace colibri
