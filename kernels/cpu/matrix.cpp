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

bool valid_group(int64_t group) { return group == 32 || group == 64 || group == 128; }

struct Format {
  WeightType type;
  int group;
};

Format format_of(nb::handle object, const char* name, Quantised quantised) {
  const std::string text = nb::str(attribute_of(object, "dtype", name)).c_str();
  nb::object value = attribute_of(object, "group", name);
  const int64_t group = PyLong_Check(value.ptr()) ? PyLong_AsLongLong(value.ptr()) : -1;
  if (PyErr_Occurred()) PyErr_Clear();
  const bool allowed = quantised == Quantised::kAllowed;
  for (WeightType t : {kWeightBf16, kWeightFp16, kWeightF32, kWeightInt8, kWeightInt4}) {
    if (text != weight_type_name(t) || (is_quantised(t) && !allowed)) continue;
    if (is_quantised(t) ? !valid_group(group) : group != 0)
      fail_value((std::string(name) + ".group").c_str(), is_quantised(t) ? "32, 64 or 128" : "0 with " + text,
                 nb::repr(value).c_str());
    return {t, int(group)};
  }
  fail_value((std::string(name) + ".dtype").c_str(), allowed ? "'bf16', 'fp16', 'fp32', 'int8' or 'int4'" :
             "'bf16', 'fp16' or 'fp32'", "'" + text + "'");
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

Expert::Expert(WeightType type, int64_t hidden, int64_t ffn, const char* data, int group) {
  const int64_t padded = round_up(ffn, kPanel / 2);
  gate_up = Matrix{type, 2 * padded, hidden, data, group};
  down = Matrix{type, hidden, padded, data ? data + gate_up.bytes() : nullptr, group};
}

WeightType weight_type(Dtype d) { return d == kBf16 ? kWeightBf16 : d == kFp16 ? kWeightFp16 : kWeightF32; }

const char* weight_type_name(WeightType t) {
  constexpr const char* kNames[] = {"bf16", "fp16", "fp32", "int8", "int4"};
  return kNames[t];
}

WeightType parse_quantised(const std::string& dtype, int64_t group) {
  if (dtype != "int8" && dtype != "int4") fail_value("dtype", "'int8' or 'int4'", "'" + dtype + "'");
  if (!valid_group(group)) fail_value("group", "32, 64 or 128", std::to_string(group));
  return dtype == "int8" ? kWeightInt8 : kWeightInt4;
}

void check_extents(const View& v) {
  for (int i = 0; i < 2; i++)
    if (v.shape(i) < 1 || v.shape(i) > kMaxExtent) fail_value(v.name(), "extents from 1 to 2^31", v.describe());
}

const char* row_at(const View& v, int64_t row) {
  return row < v.shape(0) ? static_cast<const char*>(v.data()) + row * v.shape(1) * int64_t(dtype_size(v.dtype())) : nullptr;
}

PackedMatrix::PackedMatrix(nb::handle object, const char* name, Quantised quantised)
    : data(attribute_of(object, "data", name), name, kU8, {kAny}) {
  const Format format = format_of(object, name, quantised);
  matrix.type = format.type;
  matrix.group = format.group;
  matrix.n = extent(object, "n", name);
  matrix.k = extent(object, "k", name);
  check_product(name, matrix.n, matrix.k);
  matrix.data = static_cast<const char*>(data.data());
  check_data(data, name, matrix.bytes());
}

PackedExpertBlock::PackedExpertBlock(nb::handle object, const char* name)
    : data(attribute_of(object, "data", name), name, kU8, {kAny}) {
  const Format format = format_of(object, name, Quantised::kAllowed);
  hidden = extent(object, "hidden", name);
  ffn = extent(object, "ffn", name);
  check_product(name, hidden, ffn);
  expert = Expert(format.type, hidden, ffn, static_cast<const char*>(data.data()), format.group);
  check_data(data, name, expert.bytes());
}

}  // namespace colibri
