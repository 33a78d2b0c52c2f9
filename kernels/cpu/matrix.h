// Packed matrices: sizes and layout (docs/numerics.md, "Packed layout, version 1"), and the Python objects that hold them.
#pragma once
#include "args.h"
#include "gemm_types.h"

namespace colibri {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

constexpr int64_t kMaxExtent = int64_t(1) << 31;

// One matrix [n, k] in panels of 32 columns of output.
struct Matrix {
  WeightType type = kWeightF32;
  int64_t n = 0, k = 0;
  const char* data = nullptr;

  int64_t element() const { return type == kWeightF32 ? 4 : 2; }
  int64_t panels() const { return ceil_div(n, kPanel); }
  int64_t pairs() const { return ceil_div(k, 2); }
  int64_t panel_bytes() const { return pairs() * 2 * kPanel * element(); }
  int64_t bytes() const { return panels() * panel_bytes(); }
  const char* panel(int64_t p) const { return data + p * panel_bytes(); }
};

// An expert: gate_up is a [2 * padded ffn, hidden] matrix whose panels hold 16 gate and the same 16 up columns.
struct Expert {
  Matrix gate_up, down;

  Expert() = default;
  Expert(WeightType type, int64_t hidden, int64_t ffn, const char* data);
  int64_t bytes() const { return gate_up.bytes() + down.bytes(); }
};

WeightType weight_type(Dtype d);
Dtype dtype_of(WeightType t);
const char* weight_type_name(WeightType t);
// 'bf16', 'fp16', 'fp32'; ValueError naming `name` for anything else.
WeightType parse_weight_type(const std::string& text, const char* name);

// A PackedLinear of colibri.kernels.api, checked. Holds its buffer: create and destroy with the GIL.
struct PackedMatrix {
  explicit PackedMatrix(nb::handle object, const char* name);
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
