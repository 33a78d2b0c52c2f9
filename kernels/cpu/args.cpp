#include "args.h"

#include <nanobind/ndarray.h>

#include <cstring>

#include "memory.h"

namespace colibri {
namespace {

constexpr Dtype kAllDtypes[] = {kU8, kBf16, kFp16, kF32, kU32, kI32, kBool};

// The buffer protocol's format (struct module), byte order aside; 0 when it is none of ours.
unsigned parse_format(const Py_buffer& b) {
  const char* f = b.format ? b.format : "B";
  if (*f == '@' || *f == '=' || *f == '<' || *f == '^') f++;
  if (!*f || f[1]) return 0;
  const bool is_unsigned = std::strchr("BHILQ", *f), is_signed = std::strchr("bhilq", *f);
  if (*f == '?') return kBool;
  if (*f == 'e') return kFp16;
  if (*f == 'f') return kF32;
  if (is_unsigned && b.itemsize == 1) return kU8;
  if (is_unsigned && b.itemsize == 2) return kBf16;
  if (is_unsigned && b.itemsize == 4) return kU32;
  if (is_signed && b.itemsize == 4) return kI32;
  return 0;
}

std::string shape_text(int n, const Py_ssize_t* shape) {
  std::string s = "[";
  for (int i = 0; i < n; i++) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

std::string type_text(nb::handle h) { return nb::str(nb::handle(h.type()).attr("__name__")).c_str(); }

}  // namespace

void fail_value(const std::string& what) { throw nb::value_error(what.c_str()); }
void fail_type(const std::string& what) { throw nb::type_error(what.c_str()); }
void fail_value(const char* name, const std::string& expected, const std::string& got) {
  fail_value(std::string(name) + ": expected " + expected + ", got " + got);
}

const char* dtype_name(Dtype d) {
  switch (d) {
    case kU8: return "uint8";
    case kBf16: return "uint16 (bf16)";
    case kFp16: return "float16";
    case kF32: return "float32";
    case kU32: return "uint32";
    case kI32: return "int32";
    case kBool: return "bool";
  }
  return "?";
}

size_t dtype_size(Dtype d) { return d & (kU8 | kBool) ? 1 : d & (kBf16 | kFp16) ? 2 : 4; }

std::string element(const char* name, int64_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }
std::string below(int64_t n, const std::string& of) { return "0 .. " + std::to_string(n - 1) + " (" + of + ")"; }

View::View(nb::handle array, const char* name, unsigned dtypes, std::initializer_list<int64_t> shape, bool writable)
    : name_(name) {
  std::string wanted;
  auto expected = [&]() -> const std::string& {
    for (Dtype d : kAllDtypes)
      if (dtypes & d) wanted += (wanted.empty() ? "" : " or ") + std::string(dtype_name(d));
    wanted += " [";
    bool first = true;
    for (int64_t n : shape) {
      wanted += (first ? "" : ", ") + (n == kAny ? std::string("n") : std::to_string(n));
      first = false;
    }
    return wanted += "]";
  };
  auto wrong = [&](bool type, const std::string& got) {
    const std::string text = std::string(name) + ": expected " + expected() + ", got " + got;
    type ? fail_type(text) : fail_value(text);
  };
  if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
    PyErr_Clear();
    wrong(true, type_text(array));
  }
  held_ = true;
  try {
    const unsigned d = parse_format(buffer_);
    dtype_ = Dtype(d);
    if (!(d & dtypes))
      wrong(true, (d ? std::string(dtype_name(dtype_)) : "format '" + std::string(buffer_.format ? buffer_.format : "B") + "'") +
                      " " + shape_text(buffer_.ndim, buffer_.shape));
    bool same = buffer_.ndim == int(shape.size());
    int i = 0;
    for (int64_t n : shape) {
      if (same && n != kAny && buffer_.shape[i] != n) same = false;
      i++;
    }
    if (!same) wrong(false, describe());
    if (!PyBuffer_IsContiguous(&buffer_, 'C')) wrong(false, describe() + ", not C-contiguous");
    if (writable && buffer_.readonly) wrong(false, describe() + ", read-only");
  } catch (...) {
    PyBuffer_Release(&buffer_);
    throw;
  }
}

View::View(View&& other) noexcept
    : name_(other.name_), dtype_(other.dtype_), buffer_(other.buffer_), held_(other.held_) {
  other.held_ = false;
}

View::~View() {
  if (held_) PyBuffer_Release(&buffer_);
}

void View::require_alignment(size_t alignment) const {
  if (reinterpret_cast<uintptr_t>(buffer_.buf) % alignment)
    fail_value(name_, "data aligned to " + std::to_string(alignment) + " bytes", describe() + ", not aligned");
}

nb::object new_array(Dtype dtype, std::initializer_list<int64_t> shape) {
  // Kept for the life of the process; the GIL guards the first call.
  static PyObject* const empty = nb::module_::import_("numpy").attr("empty").inc_ref().ptr();
  static PyObject* const types[] = {
      nb::module_::import_("numpy").attr("dtype")("float32").inc_ref().ptr(),
      nb::module_::import_("numpy").attr("dtype")("uint16").inc_ref().ptr(),
      nb::module_::import_("numpy").attr("dtype")("uint32").inc_ref().ptr(),
      nb::module_::import_("numpy").attr("dtype")("bool").inc_ref().ptr(),
  };
  const int type = dtype == kF32 ? 0 : dtype == kBf16 ? 1 : dtype == kU32 ? 2 : dtype == kBool ? 3 : -1;
  if (type < 0) fail_type("new_array: expected float32, uint16, uint32 or bool");
  nb::object extents = nb::steal(PyTuple_New(Py_ssize_t(shape.size())));
  Py_ssize_t i = 0;
  for (int64_t n : shape) PyTuple_SET_ITEM(extents.ptr(), i++, PyLong_FromLongLong(n));
  PyObject* made = PyObject_CallFunctionObjArgs(empty, extents.ptr(), types[type], nullptr);
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

nb::object new_bytes(size_t bytes) {
  struct Block {
    void* data;
    size_t bytes;
  };
  Block* block = new Block{allocate(bytes), bytes};
  nb::capsule owner(block, [](void* p) noexcept {
    Block* b = static_cast<Block*>(p);
    release(b->data, b->bytes);
    delete b;
  });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(block->data, {bytes}, owner));
}

std::string View::describe() const { return std::string(dtype_name(dtype_)) + " " + shape_text(buffer_.ndim, buffer_.shape); }

}  // namespace colibri
