// The drivers of the product with int8 and int4 weights: quantising rows into tiles, walking panels, prefetch.
#pragma once
#include "gemm.h"

namespace colibri {

// Rows as integers, tile by tile; pointers are those of the first row.
struct QuantRows {
  char* numbers;
  float* scale;
  int32_t* start;
  int64_t row_bytes, groups;  // of one row

  // How a matrix's rows are held, without memory yet.
  QuantRows(const KernelTable& kernels, const Matrix& w);
  // Bytes for `rows` of them, and the same with that memory (64-byte aligned).
  int64_t bytes(int64_t rows) const;
  QuantRows in(char* memory, int64_t rows) const;
  QuantRows from(int64_t row) const;
};

Tiling quant_tiling(const QuantKernels& kernels, WeightType type, int64_t rows);

// Quantises rows [first, first + count) of x into a tile at `out`. k may be less than the matrix's: zeros follow.
void quantise_rows(const KernelTable& kernels, const Rows& x, int64_t first, int count, const Matrix& w, const QuantRows& out);

// The same of fp32 rows in blocks, [k / 16][count][16]: as kSiluRows leaves them, panel by panel.
void quantise_blocks(const KernelTable& kernels, const float* x, int64_t k, int count, const Matrix& w, const QuantRows& out);

// One panel times the row tiles [first_tile, last_tile) of a tiling.
struct QuantPanelJob {
  const QuantKernels* kernels;
  Tiling tiling;
  int64_t first_tile, last_tile;
  const QuantRows* rows;
  const Matrix* matrix;
  int64_t panel;
  const char* next;      // the panel that this thread comes to next, or nullptr
  TileEnd end;           // y, scale and h: those of row 0
  int64_t h_k;           // kSiluRows: tiles of [h_k / 16][rows][16] from h on
};
void run_quant_panel(const QuantPanelJob& job) noexcept;

// linear_rows for quantised weights.
void quant_linear_rows(Backend& backend, const Rows& x, int64_t count, const Matrix& w, float* y);

}  // namespace colibri
