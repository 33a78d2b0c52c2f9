// expert_units on floating-point weights: gather and pack rows, gate_up with silu in registers, down.
#include <algorithm>

#include "units_run.h"

namespace colibri {
namespace {

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
  Tiling tiling(int64_t rows) const override { return gemm_tiling(path_, rows); }
  void gate_up();
  void down();
  PanelJob panel_job(const Item& item, const Matrix& w) const;

  const GemmPath path_;
  const int64_t packed_row_, packed_hidden_;  // bytes
  char *rows_ = nullptr, *h_ = nullptr;
  float* sums_ = nullptr;
  int64_t spill_ = 0;  // floats of each thread, for K blocks
};

void PlainUnits::reserve(int64_t rows) {
  const int64_t packed = round_up(rows * packed_row_, 64);
  spill_ = std::max(spill_floats(path_, experts_[0].gate_up, rows), spill_floats(path_, experts_[0].down, rows));
  rows_ = backend_.scratch_rows.get<char>(size_t(packed + backend_.pool.threads() * spill_ * 4));
  h_ = backend_.scratch_hidden.get<char>(size_t(rows * packed_hidden_));
  if (spill_) sums_ = reinterpret_cast<float*>(rows_ + packed);
}

void PlainUnits::compute(int64_t rows) {
  over_tiles(2 * rows * packed_row_, [this](const Segment& s, int64_t tile) {
    const int64_t first = s.tiling.first(tile);
    pack_rows(x_, s.entry + first, s.tiling.count(tile), path_.rows, rows_ + (s.row + first) * packed_row_);
  });
  gate_up();
  down();
}

PanelJob PlainUnits::panel_job(const Item& item, const Matrix& w) const {
  PanelJob job{};
  job.path = &path_;
  job.tiling = item.piece.segment->tiling;
  job.first_tile = item.piece.first_tile;
  job.last_tile = item.piece.last_tile;
  job.next = item.next;
  job.pairs = w.pairs();
  job.w = w.panel(item.panel);
  job.weight_element = w.element();
  job.sums = sums_ ? sums_ + item.thread * spill_ : nullptr;
  return job;
}

void PlainUnits::gate_up() {
  over_panels(&Expert::gate_up, packed_row_, [this](const Item& item) {
    const Segment& s = *item.piece.segment;
    PanelJob job = panel_job(item, s.expert->gate_up);
    job.a = rows_ + s.row * packed_row_;
    job.finish = kSilu;
    job.h = h_ + s.row * packed_hidden_;
    job.h_pairs = s.expert->down.pairs();
    job.h_pair = item.panel * (kPanel / 4);
    job.round_h = x_.bf16;
    run_panel(job);
  });
}

void PlainUnits::down() {
  over_panels(&Expert::down, packed_hidden_, [this](const Item& item) {
    const Segment& s = *item.piece.segment;
    PanelJob job = panel_job(item, s.expert->down);
    const TileEnd end = weighted(s, item.panel);
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
