#include "matrix.h"

namespace colibri {
namespace {

int64_t extent(nb::handle object, const char* attribute, const std::string& name) {
  nb::object value = nb::getattr(object, attribute);
  const int64_t n = PyLong_Check(value.ptr()) ? PyLong_AsLongLong(value.ptr()) : -1;
  if (PyErr_Occurred()) PyErr_Clear();
  if (n < 1 || n > kMaxExtent)
    fail_value((name + "." + attribute).c_str(), "an int from 1 to 2^31", nb::repr(value).c_str());
  return n;
}

nb::object attribute_of(nb::handle object, const char* attribute, const char* name) {
  PyObject* value = PyObject_GetAttrString(object.ptr(), attribute);
  if (!value) {
    PyErr_Clear();
    fail_type(std::string(name) + ": expected a packed weight with '" + attribute + "', got " +
              nb::str(nb::handle(object.type()).attr("__name__")).c_str());
  }
  return nb::steal(value);
}

WeightType type_of(nb::handle object, const char* name) {
  nb::object value = attribute_of(object, "dtype", name);
  return parse_weight_type(nb::str(value).c_str(), name);
}

// Far above any model, and low enough that no size overflows.
constexpr int64_t kMaxElements = int64_t(1) << 44;

void check_product(const char* name, int64_t rows, int64_t columns) {
  if (rows > kMaxElements / columns)
    fail_value(name, "at most 2^44 elements", std::to_string(rows) + " x " + std::to_string(columns));
}

void check_data(const View& data, const char* name, int64_t bytes) {
  if (data.size() != bytes)
    fail_value(name, std::to_string(bytes) + " bytes of packed data (layout version 1)", std::to_string(data.size()));
  data.require_alignment(64);
}

}  // namespace

Expert::Expert(WeightType type, int64_t hidden, int64_t ffn, const char* data) {
  const int64_t padded = round_up(ffn, kPanel / 2);
  gate_up = Matrix{type, 2 * padded, hidden, data};
  down = Matrix{type, hidden, padded, data ? data + gate_up.bytes() : nullptr};
}

WeightType weight_type(Dtype d) { return d == kBf16 ? kWeightBf16 : d == kFp16 ? kWeightFp16 : kWeightF32; }
Dtype dtype_of(WeightType t) { return t == kWeightBf16 ? kBf16 : t == kWeightFp16 ? kFp16 : kF32; }

const char* weight_type_name(WeightType t) { return t == kWeightBf16 ? "bf16" : t == kWeightFp16 ? "fp16" : "fp32"; }

WeightType parse_weight_type(const std::string& text, const char* name) {
  if (text == "bf16") return kWeightBf16;
  if (text == "fp16") return kWeightFp16;
  if (text == "fp32") return kWeightF32;
  fail_value((std::string(name) + ".dtype").c_str(), "'bf16', 'fp16' or 'fp32'", "'" + text + "'");
}

PackedMatrix::PackedMatrix(nb::handle object, const char* name)
    : data(attribute_of(object, "data", name), name, kU8, {kAny}) {
  matrix.type = type_of(object, name);
  matrix.n = extent(object, "n", name);
  matrix.k = extent(object, "k", name);
  check_product(name, matrix.n, matrix.k);
  matrix.data = static_cast<const char*>(data.data());
  check_data(data, name, matrix.bytes());
}

PackedExpertBlock::PackedExpertBlock(nb::handle object, const char* name)
    : data(attribute_of(object, "data", name), name, kU8, {kAny}) {
  const WeightType type = type_of(object, name);
  hidden = extent(object, "hidden", name);
  ffn = extent(object, "ffn", name);
  check_product(name, hidden, ffn);
  expert = Expert(type, hidden, ffn, static_cast<const char*>(data.data()));
  check_data(data, name, expert.bytes());
}

}  // namespace colibri
