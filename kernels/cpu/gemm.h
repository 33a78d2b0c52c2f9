// The matrix-product drivers: packing rows into tiles, walking panels, K blocks and prefetch.
#pragma once
#include "backend.h"
#include "gemm_types.h"
#include "matrix.h"

namespace colibri {

// `rows` rows cut into tiles of at most `most` rows, as even as possible. Which tile a row is in changes no bit.
struct Tiling {
  int64_t rows = 0, tiles = 0;

  Tiling() = default;
  Tiling(int64_t row_count, int64_t most) : rows(row_count), tiles(ceil_div(row_count, most)) {}
  int64_t first(int64_t tile) const { return rows * tile / tiles; }
  int count(int64_t tile) const { return int(first(tile + 1) - first(tile)); }
};

// How rows meet weights on a path: the tile functions and how rows are packed for them.
struct GemmPath {
  const GemmKernels* kernels;
  RowType rows;
};
// bf16 rows on bf16 weights take vdpbf16ps where it exists; everything else two FMAs on fp32 values, with the same bits.
GemmPath gemm_path(const KernelTable& table, bool bf16_rows, WeightType weights);

// Rows in memory, of any alignment: row r starts at data + index[r] * k elements (index nullptr: r).
struct Rows {
  const char* data;
  bool bf16;
  int64_t k;
  const uint32_t* index;
};

Tiling gemm_tiling(const GemmPath& path, int64_t rows);

// Packs rows [first, first + count) into a tile [pairs][count][2] of `type`.
void pack_rows(const Rows& rows, int64_t first, int count, RowType type, void* out);

// One panel of a matrix times the row tiles [first_tile, last_tile) of a tiling; pointers to rows are those of row 0.
struct PanelJob {
  const GemmPath* path;
  Tiling tiling;
  int64_t first_tile, last_tile;
  const char* a;           // packed tiles, one behind the other
  int64_t pairs;           // of K, also of each packed row
  const char* w;           // this panel
  int64_t weight_element;  // bytes
  const char* next;        // the panel that this thread comes to next, or nullptr
  Finish finish;
  float* const* y;         // destination of each row (kStore, kScale) or nullptr
  float* sums;             // spill_floats() of this thread's own
  int64_t column;
  int columns;
  const float* scale;      // of each row
  char* h;                 // kSilu: packed tiles of the next matrix, [h_pairs][rows][2] each
  int64_t h_pairs, h_pair; // pairs of a row there; this panel's first
  bool round_h;
};
void run_panel(const PanelJob& job) noexcept;
// Memory that run_panel needs for up to `rows` rows on a path: 0 where no K blocks are cut.
int64_t spill_floats(const GemmPath& path, const Matrix& w, int64_t rows);

// y[r, :] = x[r] W^T for `count` rows: fp32 [count, n]. Between Call and its end.
void linear_rows(Backend& backend, const Rows& x, int64_t count, const Matrix& w, float* y);

}  // namespace colibri
