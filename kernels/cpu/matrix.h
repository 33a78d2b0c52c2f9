// Packed matrices: sizes and layout (docs/numerics.md, "Packed layout, version 1"), and the Python objects that hold them.
#pragma once
#include "args.h"
#include "gemm_types.h"
#include "quant_types.h"

namespace colibri {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

constexpr int64_t kMaxExtent = int64_t(1) << 31;

// One matrix [n, k] in panels of 32 columns of output.
struct Matrix {
  WeightType type = kWeightF32;
  int64_t n = 0, k = 0;
  const char* data = nullptr;
  int group = 0;  // of K, with a scale of its own; 0 without scales

  bool quantised() const { return is_quantised(type); }
  int64_t octets() const { return ceil_div(k, kOctet); }
  int64_t groups() const { return group ? ceil_div(k, group) : 0; }
  // Of weights without scales.
  int64_t element() const { return type == kWeightF32 ? 4 : 2; }
  int64_t panels() const { return ceil_div(n, kPanel); }
  int64_t pairs() const { return ceil_div(k, 2); }
  int64_t panel_bytes() const {
    return quantised() ? groups() * kScaleBytes + octets() * octet_bytes(type) : pairs() * 2 * kPanel * element();
  }
  int64_t bytes() const { return panels() * panel_bytes(); }
  const char* panel(int64_t p) const { return data + p * panel_bytes(); }
};

// An expert: gate_up is a [2 * padded ffn, hidden] matrix whose panels hold 16 gate and the same 16 up columns.
struct Expert {
  Matrix gate_up, down;

  Expert() = default;
  Expert(WeightType type, int64_t hidden, int64_t ffn, const char* data, int group = 0);
  int64_t bytes() const { return gate_up.bytes() + down.bytes(); }
};

WeightType weight_type(Dtype d);
const char* weight_type_name(WeightType t);
// Of 'int8' or 'int4', and its group; ValueError for anything else.
WeightType parse_quantised(const std::string& dtype, int64_t group);

// Weights to pack: their dtypes; ValueError for a matrix without elements; row `row` of a matrix, nullptr beyond its end.
constexpr unsigned kWeightDtypes = kBf16 | kFp16 | kF32;
void check_extents(const View& v);
const char* row_at(const View& v, int64_t row);

// Whether a matrix may be of integers with scales.
enum class Quantised { kRefused, kAllowed };

// A PackedLinear of colibri.kernels.api, checked. Holds its buffer: create and destroy with the GIL.
struct PackedMatrix {
  PackedMatrix(nb::handle object, const char* name, Quantised quantised = Quantised::kRefused);
  View data;
  Matrix matrix;
};

// A PackedExpert, checked.
struct PackedExpertBlock {
  explicit PackedExpertBlock(nb::handle object, const char* name);
  View data;
  int64_t hidden, ffn;
  Expert expert;
};

}  // namespace colibri
