// One call of expert_units: where each entry's result goes, rows in waves, pieces of work for the threads, the fold. What
// is computed in a wave depends on the weights: PlainUnits and QuantUnits.
#pragma once
#include <vector>

#include "gemm.h"
#include "unit_plan.h"

namespace colibri {

class UnitsRun {
 public:
  UnitsRun(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
           const UnitPlan& plan, float* out);
  virtual ~UnitsRun() = default;
  void run();

 protected:
  // Consecutive entries of one group, held from row `row` of the wave on.
  struct Segment {
    const Expert* expert;
    int64_t entry, row;
    Tiling tiling;
  };
  // Some row tiles of a segment.
  struct Piece {
    const Segment* segment;
    int64_t first_tile, last_tile;
  };

  // Memory for waves of at most `rows` rows.
  virtual void reserve(int64_t rows) = 0;
  // How `rows` rows of one expert are cut.
  virtual Tiling tiling(int64_t rows) const = 0;
  // gate_up and down of the wave, from the gathered rows to y_.
  virtual void compute(int64_t rows) = 0;

  // One panel of a matrix for one piece, and the panel that this thread comes to next (nullptr: none).
  struct Item {
    const Piece& piece;
    int64_t panel;
    const char* next;
    int thread;
  };
  // body(item) for every panel of a matrix, gate_up or down, of every piece; `row_bytes`: of a row as the matrix takes it.
  template <class Body>
  void over_panels(Matrix Expert::*matrix, int64_t row_bytes, Body&& body) {
    const Matrix& shape = experts_[0].*matrix;
    cut_pieces(shape.panels(), row_bytes);
    const int64_t panels = shape.panels(), items = int64_t(pieces_.size()) * panels;
    const int64_t work = int64_t(tiles_.size()) * shape.bytes();
    backend_.pool.run(items, 1, work, [&](const Pool::Chunk& chunk) {
      for (int64_t i = chunk.begin; i < chunk.end; i++) {
        const int64_t next = i + 1 < chunk.end ? i + 1 : chunk.next;
        const char* w = next < 0 ? nullptr : (pieces_[size_t(next / panels)].segment->expert->*matrix).panel(next % panels);
        body(Item{pieces_[size_t(i / panels)], i % panels, w, chunk.thread});
      }
    });
  }
  // body(segment, tile) for every row tile of the wave; `bytes`: an estimate of what all touch.
  template <class Body>
  void over_tiles(int64_t bytes, Body&& body) {
    backend_.pool.run(int64_t(tiles_.size()), 1, bytes, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; t++) body(*tiles_[size_t(t)].segment, tiles_[size_t(t)].first_tile);
    });
  }
  // The columns of panel p of the result, weighted.
  TileEnd weighted(const Segment& s, int64_t p) const;

  Backend& backend_;
  const Rows x_;
  const std::vector<Expert>& experts_;
  const UnitBatchView& batch_;
  // Of each row of a wave, bytes of everything reserve() asks for.
  int64_t wave_row_bytes_ = 0;

 private:
  void run_wave();
  void cut_pieces(int64_t panels, int64_t row_bytes);
  void fold();

  const UnitPlan& plan_;
  float* const out_;
  float** y_ = nullptr;  // destination of each entry
  std::vector<Segment> segments_;
  std::vector<Piece> tiles_, pieces_;
};

// Weights as floating-point numbers; and as integers with scales.
void run_plain_units(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
                     const UnitPlan& plan, float* out);
void run_quant_units(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
                     const UnitPlan& plan, float* out);

}  // namespace colibri
