// expert_units on int8 and int4 weights: gather and quantise rows, gate_up with silu, quantise the fp32 hidden rows, down.
#include <algorithm>

#include "quant_gemm.h"
#include "units_run.h"

namespace colibri {
namespace {

class QuantUnits final : public UnitsRun {
 public:
  QuantUnits(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
             const UnitPlan& plan, float* out)
      : UnitsRun(backend, x, experts, batch, plan, out),
        rows_(backend.kernels, experts[0].gate_up), numbers_(backend.kernels, experts[0].down) {
    wave_row_bytes_ = std::max(rows_.bytes(1), numbers_.bytes(1)) + experts[0].down.k * 4;
  }

 private:
  void reserve(int64_t rows) override;
  void compute(int64_t rows) override;
  Tiling tiling(int64_t rows) const override { return quant_tiling(backend_.kernels.quant, experts_[0].down.type, rows); }
  QuantPanelJob panel_job(const Item& item, const Matrix& w, const QuantRows& rows) const;

  QuantRows rows_, numbers_;  // of the matrices' inputs; one memory, since the first are done with before the second
  char* memory_ = nullptr;
  float* h_ = nullptr;        // tiles of [down.k / 16][rows][16]
};

void QuantUnits::reserve(int64_t rows) {
  memory_ = backend_.scratch_rows.get<char>(size_t(std::max(rows_.bytes(rows), numbers_.bytes(rows))));
  h_ = backend_.scratch_hidden.get<float>(size_t(rows * experts_[0].down.k));
}

QuantPanelJob QuantUnits::panel_job(const Item& item, const Matrix& w, const QuantRows& rows) const {
  QuantPanelJob job{};
  job.kernels = &backend_.kernels.quant;
  job.tiling = item.piece.segment->tiling;
  job.first_tile = item.piece.first_tile;
  job.last_tile = item.piece.last_tile;
  job.rows = &rows;
  job.matrix = &w;
  job.panel = item.panel;
  job.next = item.next;
  return job;
}

void QuantUnits::compute(int64_t rows) {
  const Expert& shape = experts_[0];
  const QuantRows in = rows_.in(memory_, rows), middle = numbers_.in(memory_, rows);
  over_tiles(rows * x_.k * 4, [&](const Segment& s, int64_t tile) {
    const int64_t first = s.tiling.first(tile);
    quantise_rows(backend_.kernels, x_, s.entry + first, s.tiling.count(tile), shape.gate_up, in.from(s.row + first));
  });
  over_panels(&Expert::gate_up, in.row_bytes, [&](const Item& item) {
    const Segment& s = *item.piece.segment;
    const QuantRows a = in.from(s.row);
    QuantPanelJob job = panel_job(item, s.expert->gate_up, a);
    job.end.finish = kSiluRows;
    job.end.h = h_ + s.row * shape.down.k;
    job.h_k = shape.down.k;
    run_quant_panel(job);
  });
  over_tiles(rows * shape.down.k * 4, [&](const Segment& s, int64_t tile) {
    const int64_t first = s.row + s.tiling.first(tile);
    quantise_blocks(backend_.kernels, h_ + first * shape.down.k, shape.down.k, s.tiling.count(tile), shape.down, middle.from(first));
  });
  over_panels(&Expert::down, middle.row_bytes, [&](const Item& item) {
    const Segment& s = *item.piece.segment;
    const QuantRows a = middle.from(s.row);
    QuantPanelJob job = panel_job(item, s.expert->down, a);
    job.end = weighted(s, item.panel);
    run_quant_panel(job);
  });
}

}  // namespace

void run_quant_units(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
                     const UnitPlan& plan, float* out) {
  QuantUnits(backend, x, experts, batch, plan, out).run();
}

}  // namespace colibri
