#include "units_run.h"

#include <algorithm>

namespace colibri {
namespace {

// Rows and hidden values held at a time; larger batches go in waves of at least this many rows.
constexpr int64_t kWaveBytes = int64_t(192) << 20;
constexpr int64_t kMinWaveRows = 256;
// Rows that all panels of a matrix pass over while they stay in a shared cache, which the weights stream through. Measured on
// Zen 5: 14 MB of fp32 rows in two pieces are 2 % quicker; pieces of 4 MB are not.
constexpr int64_t kPieceBytes = int64_t(8) << 20;

}  // namespace

UnitsRun::UnitsRun(Backend& backend, const Rows& x, const std::vector<Expert>& experts, const UnitBatchView& batch,
                   const UnitPlan& plan, float* out)
    : backend_(backend), x_(x), experts_(experts), batch_(batch), plan_(plan), out_(out) {
  // Slot 0 of a folded unit and lone slots are written in place; the other slots wait in scratch memory for the fold.
  y_ = backend.scratch_pointers.get<float*>(size_t(batch.entries));
  int64_t waiting = 0;
  for (int64_t u : plan.folded) waiting += batch.unit_slots[u] - 1;
  float* sums = waiting ? backend.scratch_sums.get<float>(size_t(waiting * x.k)) : nullptr;
  for (int64_t u = 0; u < batch.units; u++)
    for (int64_t i = plan.first[u]; i < plan.first[u + 1]; i++) {
      const bool in_place = i == plan.first[u];
      y_[plan.order[i]] = in_place ? out + u * x.k : sums;
      if (!in_place) sums += x.k;
    }
}

void UnitsRun::run() {
  const int64_t most = std::max(kMinWaveRows, kWaveBytes / wave_row_bytes_);
  segments_.reserve(experts_.size());  // pieces point into it
  reserve(std::min(most, batch_.entries));

  int64_t entry = 0, used = 0;
  for (int64_t g = 0; g < batch_.groups; g++) {
    for (int64_t left = batch_.group_count[g]; left > 0;) {
      const int64_t take = std::min(left, most - used);
      segments_.push_back({&experts_[size_t(g)], entry, used, tiling(take)});
      entry += take;
      used += take;
      left -= take;
      if (used == most) {
        run_wave();
        used = 0;
      }
    }
  }
  if (used) run_wave();
  fold();
}

void UnitsRun::run_wave() {
  int64_t rows = 0;
  tiles_.clear();
  for (const Segment& s : segments_) {
    for (int64_t i = 0; i < s.tiling.tiles; i++) tiles_.push_back({&s, i, i + 1});
    rows += s.tiling.rows;
  }
  compute(rows);
  segments_.clear();
}

void UnitsRun::cut_pieces(int64_t panels, int64_t row_bytes) {
  // Enough for the threads, even when there are few panels.
  const int64_t wanted = ceil_div(8 * backend_.pool.threads(), panels * int64_t(segments_.size()));
  pieces_.clear();
  for (const Segment& s : segments_) {
    const int64_t n = std::min(std::max(wanted, ceil_div(s.tiling.rows * row_bytes, kPieceBytes)), s.tiling.tiles);
    for (int64_t i = 0; i < n; i++) pieces_.push_back({&s, s.tiling.tiles * i / n, s.tiling.tiles * (i + 1) / n});
  }
}

TileEnd UnitsRun::weighted(const Segment& s, int64_t p) const {
  TileEnd end{};
  end.finish = kScale;
  end.y = y_ + s.entry;
  end.column = p * kPanel;
  end.columns = int(std::min<int64_t>(kPanel, x_.k - end.column));
  end.scale = batch_.entry_weight + s.entry;
  return end;
}

void UnitsRun::fold() {
  const int64_t hidden = x_.k, work = int64_t(plan_.folded.size()) * hidden * 24;
  backend_.pool.run(int64_t(plan_.folded.size()), 4, work, [this, hidden](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t u = plan_.folded[size_t(i)];
      for (int64_t j = plan_.first[u] + 1; j < plan_.first[u + 1]; j++)
        backend_.kernels.add_inplace(out_ + u * hidden, y_[plan_.order[j]], hidden);
    }
  });
}

}  // namespace colibri
