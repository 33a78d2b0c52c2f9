// Frames of the data plane, written and scanned without protobuf objects. The format, and who judges what is not
// canonical: frame.py and header.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace colibri {

constexpr uint8_t kHeaderTag = 1 << 3 | 2, kTensorTag = 15 << 3 | 2;

// Wire types (https://protobuf.dev/programming-guides/encoding/).
constexpr int kVarint = 0, kLengthDelimited = 2, kFixed32Bits = 5;

// How a field of the header is written. `limit`: the largest varint that is taken as it is; protobuf's parser
// truncates more.
struct Field {
  char kind;  // e enum, u uint32, U uint64, b bool; I and f packed lists of fixed32 and float; x fixed32; B bytes; s string
  int wire;
  uint64_t limit;
  std::string tag;
  nb::object name, absent;

  bool list() const { return kind == 'I' || kind == 'f'; }
};

// Reads at a position; false beyond the end and for what protobuf refuses or truncates.
struct Reader {
  const uint8_t* at;
  const uint8_t* end;

  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at < end; shift += 7) {
      const uint64_t byte = *at++;
      if (shift == 63 && byte > 1) return false;
      value |= (byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool bytes(uint64_t size, const uint8_t*& begin) {
    if (size > static_cast<uint64_t>(end - at)) return false;
    begin = at;
    at += size;
    return true;
  }
};

void put_varint(std::string& out, uint64_t value) {
  while (value > 127) {
    out.push_back(static_cast<char>((value & 127) | 128));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

std::string described(nb::handle name, const char* expected, nb::handle got) {
  return "header." + nb::cast<std::string>(name) + ": expected " + expected + ", got " + nb::cast<std::string>(nb::repr(got));
}

class Buffer {
 public:
  Buffer(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view, flags)) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Py_buffer view;
};

nb::object call(nb::handle function, nb::handle a, nb::handle b) {
  PyObject* arguments[] = {a.ptr(), b.ptr()};
  PyObject* result = PyObject_Vectorcall(function.ptr(), arguments, 2, nullptr);
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

class Codec {
 public:
  // header: makes one from the values of all fields; fields: (name, kind, value when absent) of field 1, 2, ...;
  // extend, extend_tensor: (crc, bytes) -> crc; frombuffer: (bytes, dtype) -> array; u32, f32: dtypes of the lists.
  Codec(nb::object header, nb::sequence fields, nb::object extend, nb::object extend_tensor, nb::object frombuffer,
        nb::object u32, nb::object f32)
      : header_(header), extend_(extend), extend_tensor_(extend_tensor), frombuffer_(frombuffer), u32_(u32), f32_(f32) {
    for (nb::handle item : fields) {
      nb::object name = item[0], absent = item[2];
      Field field{nb::cast<std::string>(item[1]).at(0), kVarint, 0, {}, name, absent};
      switch (field.kind) {
        case 'e': field.limit = 0x7fffffff; break;
        case 'u': field.limit = 0xffffffff; break;
        case 'U': field.limit = ~uint64_t{0}; break;
        case 'b': field.limit = 1; break;
        case 'x': field.limit = 0xffffffff; field.wire = kFixed32Bits; break;
        case 'I': case 'f': case 'B': case 's': field.wire = kLengthDelimited; break;
        default: throw nb::value_error("fields: expected kinds of euUbIfxBs");
      }
      put_varint(field.tag, (fields_.size() + 1) << 3 | field.wire);
      fields_.push_back(std::move(field));
    }
  }

  nb::object scan(nb::bytes frame) const {
    const auto* data = static_cast<const uint8_t*>(frame.data());
    Reader reader{data, data + frame.size()};
    uint64_t size;
    const uint8_t* begin;
    if (reader.at == reader.end || *reader.at++ != kHeaderTag || !reader.varint(size) || !reader.bytes(size, begin))
      return nb::none();
    nb::object crc = nb::int_(0);
    nb::object header = scan_header({begin, begin + size}, crc);
    if (!header.is_valid()) return nb::none();
    if (reader.at != reader.end &&
        (*reader.at++ != kTensorTag || !reader.varint(size) || size != static_cast<uint64_t>(reader.end - reader.at)))
      return nb::none();
    return nb::make_tuple(header, reader.at - data, crc);
  }

  nb::bytes prefix(nb::object header, nb::object tensor) const {
    std::string body;
    body.reserve(256);
    encode(header, tensor, body);
    std::string out;
    out.reserve(body.size() + 16);
    out.push_back(kHeaderTag);
    put_varint(out, body.size());
    out += body;
    const Py_ssize_t size = PyObject_Size(tensor.ptr());
    if (size < 0) throw nb::python_error();
    if (size) {
      out.push_back(kTensorTag);
      put_varint(out, static_cast<uint64_t>(size));
    }
    return nb::bytes(out.data(), out.size());
  }

 private:
  // Null for anything but the canonical shape.
  nb::object scan_header(Reader reader, nb::object& crc) const {
    std::vector<nb::object> found(fields_.size());
    uint64_t last = 0;
    while (reader.at < reader.end) {
      uint64_t tag, value;
      if (!reader.varint(tag)) return {};
      const uint64_t number = tag >> 3;
      if (number <= last || number > fields_.size()) return {};
      last = number;
      const Field& field = fields_[number - 1];
      if (static_cast<int>(tag & 7) != field.wire) return {};
      const uint8_t* begin;
      nb::object& result = found[number - 1];
      if (field.wire == kFixed32Bits) {
        if (!reader.bytes(4, begin)) return {};
        result = nb::int_(begin[0] | begin[1] << 8 | begin[2] << 16 | static_cast<uint32_t>(begin[3]) << 24);
        continue;
      }
      if (!reader.varint(value)) return {};
      if (field.wire == kVarint) {
        if (value > field.limit) return {};
        if (field.kind == 'b')
          result = nb::bool_(value != 0);
        else
          result = nb::int_(value);
        continue;
      }
      if (!value || !reader.bytes(value, begin)) return {};
      if (field.kind == 's') {
        const char* text = reinterpret_cast<const char*>(begin);
        result = nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(value), "strict"));
        if (!result.is_valid()) {
          PyErr_Clear();
          return {};
        }
        continue;
      }
      // A copy, not a view: the arrays made of it are aligned, which views into the frame would not be.
      result = nb::bytes(begin, value);
      if (!field.list()) continue;
      if (value & 3) return {};
      crc = call(extend_, crc, result);
      result = call(frombuffer_, result, field.kind == 'f' ? f32_ : u32_);
    }
    std::vector<PyObject*> values;
    values.reserve(fields_.size());
    for (size_t i = 0; i < fields_.size(); ++i) values.push_back((found[i].is_valid() ? found[i] : fields_[i].absent).ptr());
    PyObject* header = PyObject_Vectorcall(header_.ptr(), values.data(), values.size(), nullptr);
    if (!header) throw nb::python_error();
    return nb::steal(header);
  }

  void encode(nb::handle header, nb::handle tensor, std::string& out) const {
    nb::object crc = nb::int_(0);
    for (const Field& field : fields_) {
      nb::object value;
      if (field.kind == 'x') {
        value = call(extend_tensor_, crc, tensor);
        if (PyObject_SetAttr(header.ptr(), field.name.ptr(), value.ptr())) throw nb::python_error();
      } else {
        value = nb::steal(PyObject_GetAttr(header.ptr(), field.name.ptr()));
        if (!value.is_valid()) throw nb::python_error();
      }
      if (field.list()) {
        if (put_list(field, value, out)) crc = call(extend_, crc, value);
      } else if (field.wire == kLengthDelimited) {
        put_bytes(field, value, out);
      } else if (const uint64_t number = integer(field, value)) {
        out += field.tag;
        if (field.wire == kVarint)
          put_varint(out, number);
        else
          for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(number >> shift));
      }
    }
  }

  static bool put_list(const Field& field, nb::handle value, std::string& out) {
    const char* expected = field.kind == 'f' ? "float32 [n], contiguous" : "uint32 [n], contiguous";
    if (!PyObject_CheckBuffer(value.ptr())) throw nb::type_error(described(field.name, expected, value).c_str());
    Buffer list(value, PyBUF_FORMAT | PyBUF_STRIDES);
    const Py_buffer& view = list.view;
    const bool right = view.ndim == 1 && view.itemsize == 4 && view.format && view.format[0] == field.kind &&
                       !view.format[1] && PyBuffer_IsContiguous(&view, 'C');
    if (!right) throw nb::type_error(described(field.name, expected, value).c_str());
    if (!view.len) return false;
    out += field.tag;
    put_varint(out, static_cast<uint64_t>(view.len));
    out.append(static_cast<const char*>(view.buf), static_cast<size_t>(view.len));
    return true;
  }

  static void put_bytes(const Field& field, nb::handle value, std::string& out) {
    const char* data = nullptr;
    char* raw = nullptr;
    Py_ssize_t size = 0;
    if (field.kind == 's')
      data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    else if (!PyBytes_AsStringAndSize(value.ptr(), &raw, &size))
      data = raw;
    if (!data) throw nb::python_error();
    if (!size) return;
    out += field.tag;
    put_varint(out, static_cast<uint64_t>(size));
    out.append(data, static_cast<size_t>(size));
  }

  static uint64_t integer(const Field& field, nb::handle value) {
    nb::object whole = nb::steal(PyNumber_Index(value.ptr()));
    if (!whole.is_valid()) throw nb::python_error();
    const uint64_t number = PyLong_AsUnsignedLongLong(whole.ptr());
    const bool outside = number == ~uint64_t{0} && PyErr_Occurred();
    if (outside) PyErr_Clear();
    if (outside || number > field.limit)
      throw nb::value_error(described(field.name, ("0 to " + std::to_string(field.limit)).c_str(), value).c_str());
    return number;
  }

  nb::object header_, extend_, extend_tensor_, frombuffer_, u32_, f32_;
  std::vector<Field> fields_;
};

}  // namespace colibri

NB_MODULE(_codec, m) {
  nb::class_<colibri::Codec>(m, "Codec")
      .def(nb::init<nb::object, nb::sequence, nb::object, nb::object, nb::object, nb::object, nb::object>())
      .def("scan", &colibri::Codec::scan)
      .def("prefix", &colibri::Codec::prefix);
}
