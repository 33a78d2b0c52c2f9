// Plain data between the drivers of int8 and int4 weights and their kernels. Layouts: docs/numerics.md, "Packed layout".
#pragma once
#include "gemm_types.h"

namespace colibri {

constexpr int kMaxGroup = 128;
// K of a quantised matrix is padded to whole octets; the last group may be shorter than the others.
constexpr int kOctet = 8;
constexpr int64_t kScaleBytes = kPanel * 2;  // the bf16 scales at the start of each group of a panel
constexpr int64_t kPairBytes = kPanel * 4;   // of bf16: two neighbouring elements of K of all columns of a panel
constexpr int64_t octet_bytes(WeightType t) { return t == kWeightInt8 ? kPanel * kOctet : kPanel * kOctet / 2; }
// Stored numbers are the weight plus this.
constexpr int zero_point(WeightType t) { return t == kWeightInt8 ? 128 : 8; }

// The rows of a tile as numbers of 1 or 2 bytes (QuantKernels), with a scale and the start of the sums for each group.
struct QuantRowTile {
  const void* x[kMaxTile];  // fp32 or bf16, any alignment
  bool bf16;
  int64_t block;     // bytes from 16 elements of a row to the next 16
  int64_t k;
  int group;
  int zero;          // the weights' zero point
  int rows;
  void* q;           // [K / 4][rows][4]
  float* scale;      // [groups][rows]
  int32_t* start;    // [groups][rows]: -zero * sum of the group's numbers
};

// As Prefetch of other weights, but always the one or the other: own weights `ahead` bytes before they are needed, or, where
// that is 0, two cache lines from `next` on for each octet, then `step` bytes further.
struct QuantPrefetch {
  int64_t ahead;
  const char* next;
  int64_t step;
};

// One row tile times one panel.
struct QuantTile : TileEnd {
  const void* a;
  const float* a_scale;
  const int32_t* a_start;
  const void* w;
  int64_t octets;       // of K
  int group;
  QuantPrefetch prefetch;
};

using QuantTileFunction = void (*)(const QuantTile&);

// By weight type (less kWeightTypes) and number of rows, 1 .. max_rows.
struct QuantKernels {
  int max_rows[2];   // by weight type, too
  int pair_rows[2];  // at most, where two such tiles are enough
  int many_rows;     // at most, where they are not
  int row_element;   // bytes of a row's number
  void (*rows)(const QuantRowTile&);
  QuantTileFunction tile[2][kMaxTile + 1];
};

// 32 rows of a matrix -> one panel of integers and scales.
struct QuantPanel {
  const void* row[kPanel];  // nullptr: zeros. Any alignment
  WeightType from, to;
  int64_t k;                // elements of a row
  int64_t octets;           // to write, >= ceil(k / 8)
  int group;
  const float* importance;  // [k] in [0, 1], or nullptr: by the weights themselves (int4 only)
  void* out;
};

// Pairs [begin, end) of K of one panel of int4, as one of bf16 has them.
struct DequantPairs {
  const char* panel;   // any alignment
  int group;
  int64_t live;        // elements of K from here on are zeros
  int64_t begin, end;
  bool stream;         // past the caches, where `out` lies on a 64-byte boundary
  char* out;
};

}  // namespace colibri
