// expert_units on floating-point weights: gather and pack rows, gate_up with silu in registers, down.
#include "units_run.h"

namespace colibri {
namespace {

// A gate_up panel up to this size is passed over whole; larger ones are cut into K blocks, sums spilled.
constexpr int64_t kWholePanelBytes = 512 << 10;

class PlainUnits final : public UnitsRun {
 public:
  PlainUnits(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
             const UnitPlan& plan, float* out)
      : UnitsRun(backend, x, experts, batch, plan, out),
        path_(gemm_path(backend.kernels, x.bf16, experts[0].gate_up.type)),
        packed_row_(experts[0].gate_up.pairs() * 2 * int64_t(row_element(path_.rows))),
        packed_hidden_(experts[0].down.pairs() * 2 * int64_t(row_element(path_.rows))) {
    wave_row_bytes_ = packed_row_ + packed_hidden_;
  }

 private:
  void reserve(int64_t rows) override;
  void compute(int64_t rows) override;
  Tiling tiling(int64_t rows) const override { return Tiling(rows, path_.kernels->max_rows); }
  void gate_up();
  void down();
  PanelJob panel_job(const Piece& piece, const Matrix& w, int64_t p, bool next_panel) const;

  const GemmPath path_;
  const int64_t packed_row_, packed_hidden_;  // bytes
  char *rows_ = nullptr, *h_ = nullptr;
  float* spill_ = nullptr;
  int64_t spill_rows_ = 0;
};

void PlainUnits::reserve(int64_t rows) {
  // Spill buffers, one per thread, only where a panel is cut into K blocks.
  const Matrix& gate_up = experts_[0].gate_up;
  spill_rows_ = gate_up.panel_bytes() > kWholePanelBytes && rows > path_.kernels->max_rows ? rows : 0;
  const int64_t spill_bytes = backend_.pool.threads() * spill_rows_ * kPanel * 4;
  rows_ = backend_.scratch_rows.get<char>(size_t(round_up(rows * packed_row_, 64) + spill_bytes));
  h_ = backend_.scratch_hidden.get<char>(size_t(rows * packed_hidden_));
  if (spill_rows_) spill_ = reinterpret_cast<float*>(rows_ + round_up(rows * packed_row_, 64));
}

void PlainUnits::compute(int64_t rows) {
  over_tiles(2 * rows * packed_row_, [this](const Segment& s, int64_t tile) {
    const int64_t first = s.tiling.first(tile);
    pack_rows(x_, s.entry + first, s.tiling.count(tile), path_.rows, rows_ + (s.row + first) * packed_row_);
  });
  gate_up();
  down();
}

PanelJob PlainUnits::panel_job(const Piece& piece, const Matrix& w, int64_t p, bool next_panel) const {
  PanelJob job{};
  job.path = &path_;
  job.tiling = piece.segment->tiling;
  job.first_tile = piece.first_tile;
  job.last_tile = piece.last_tile;
  job.next_panel = next_panel;
  job.pairs = w.pairs();
  job.w = w.panel(p);
  job.weight_element = w.element();
  return job;
}

void PlainUnits::gate_up() {
  const Matrix& shape = experts_[0].gate_up;
  over_panels(shape.panels(), shape.panel_bytes(), [this](const Piece& piece, int64_t p, bool next_panel, int thread) {
    const Segment& s = *piece.segment;
    PanelJob job = panel_job(piece, s.expert->gate_up, p, next_panel);
    job.a = rows_ + s.row * packed_row_;
    job.finish = kSilu;
    job.spill = spill_ ? spill_ + thread * spill_rows_ * kPanel : nullptr;
    job.h = h_ + s.row * packed_hidden_;
    job.h_pairs = s.expert->down.pairs();
    job.h_pair = p * (kPanel / 4);
    job.round_h = x_.bf16;
    run_panel(job);
  });
}

void PlainUnits::down() {
  const Matrix& shape = experts_[0].down;
  over_panels(shape.panels(), shape.panel_bytes(), [this](const Piece& piece, int64_t p, bool next_panel, int) {
    const Segment& s = *piece.segment;
    PanelJob job = panel_job(piece, s.expert->down, p, next_panel);
    const TileEnd end = weighted(s, p);
    job.a = h_ + s.row * packed_hidden_;
    job.finish = end.finish;
    job.y = end.y;
    job.column = end.column;
    job.columns = end.columns;
    job.scale = end.scale;
    run_panel(job);
  });
}

}  // namespace

void run_plain_units(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
                     const UnitPlan& plan, float* out) {
  PlainUnits(backend, x, experts, batch, plan, out).run();
}

}  // namespace colibri
