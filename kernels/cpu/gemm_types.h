// Plain data between the matrix-product drivers and the kernels. Layouts: docs/numerics.md, "Packed layout".
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace colibri {

constexpr int kPanel = 32;
constexpr int kMaxTile = 15;

// Element type of stored weights; the last two are integers with a scale for each group of K (quant_types.h).
enum WeightType : int { kWeightBf16 = 0, kWeightFp16 = 1, kWeightF32 = 2, kWeightInt8 = 3, kWeightInt4 = 4 };
constexpr int kWeightTypes = 3;  // those without scales
constexpr bool is_quantised(WeightType t) { return t >= kWeightTypes; }

// How rows are packed for a tile, [K/2][rows][2]: as fp32 (two FMAs per pair) or as bf16 (vdpbf16ps, bf16 weights only).
enum RowType : int { kRowF32 = 0, kRowBf16 = 1 };
constexpr size_t row_element(RowType t) { return t == kRowBf16 ? 2 : 4; }

// What happens to a tile's sums.
enum Finish : int {
  kStore,  // y = acc
  kScale,  // y = scale[row] * acc
  kSilu,   // columns 0..15 are gate, 16..31 up: silu(g) * u, packed as rows of the next matrix
  kSiluRows,  // the same, as fp32 [rows][16]
};

// What happens at the end of a tile, and where the results go.
struct TileEnd {
  Finish finish;
  float* const* y;   // one destination row per row of the tile (kStore, kScale)
  int64_t column;    // first column of the panel in y
  int columns;       // of 32; more are never written
  const float* scale;
  void* h;           // kSilu: packed rows of the next matrix, at this panel's first pair; kSiluRows: 64-byte aligned
  bool round_h;      // kSilu: round to bf16 (rows packed as bf16 always are)
};

// What a tile asks for while it computes: its own weights, `ahead` bytes before it needs them (into the L1 cache; 0: no), or
// what is read after this panel, `lines` cache lines from `next` on in every few steps of K (into L2; nullptr: no).
constexpr int kPrefetchPairs = 8;
constexpr int kStreamOnlyRows = 4;  // tiles of fewer rows keep their weights out of the outer caches (ask_for_stream)
struct Prefetch {
  int64_t ahead;
  const char* next;
  int lines;
};

// One row tile times (a K block of) one panel.
struct GemmTile : TileEnd {
  const void* a;     // packed rows [k2][rows][2]
  const void* w;     // [k2][32][2]; fp32: [2 * k2][32]
  int64_t k2;        // pairs of K
  float* sums;       // [rows][32], between K blocks: exact, being fp32 as the accumulators are
  bool resume;       // continue from there instead of +0
  bool spill;        // leave them there: the end comes with a later block
  Prefetch prefetch;
};

using GemmTileFunction = void (*)(const GemmTile&);

// One tile function per number of rows, 1 .. max_rows.
struct GemmKernels {
  int max_rows;   // 0: this combination does not exist on this path
  int many_rows;  // at most, where one tile is not enough
  GemmTileFunction tile[kMaxTile + 1];
};

// 32 rows of a matrix -> one panel.
struct PackPanel {
  const void* row[kPanel];  // nullptr: zeros. Any alignment
  WeightType from, to;      // equal, or to == bf16
  int64_t k;                // elements of a row
  int64_t k2;               // pairs to write, >= (k + 1) / 2
  void* out;
};

}  // namespace colibri
