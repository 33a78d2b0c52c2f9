// expert_units: gather and pack rows, gate_up with silu in registers, down, weigh, fold: one call for a worker's batch.
#include <algorithm>
#include <vector>

#include "gemm.h"
#include "ops.h"
#include "unit_plan.h"

namespace colibri {
namespace {

// Rows and hidden values packed at a time; larger batches go in waves of at least this many rows.
constexpr int64_t kWaveBytes = int64_t(192) << 20;
constexpr int64_t kMinWaveRows = 256;
// A gate_up panel up to this size is passed over whole; larger ones are cut into K blocks, sums spilled.
constexpr int64_t kWholePanelBytes = 512 << 10;

// Consecutive entries of one group, packed from row `row` of the wave on.
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

class UnitsRun {
 public:
  UnitsRun(Backend& backend, const char* x, bool bf16, int64_t hidden, const std::vector<Expert>& experts,
           const UnitBatchView& batch, const UnitPlan& plan, float* out);
  void run();

 private:
  void run_wave();
  void gate_up();
  void down();
  void fold();
  template <class Body>
  void over_panels(int64_t panels, int64_t panel_bytes, Body&& body);

  Backend& backend_;
  const Rows x_;
  const int64_t hidden_;
  const std::vector<Expert>& experts_;
  const UnitBatchView& batch_;
  const UnitPlan& plan_;
  float* const out_;

  GemmPath path_;
  int64_t packed_row_, packed_hidden_;  // bytes
  char *rows_ = nullptr, *h_ = nullptr;
  float** y_ = nullptr;  // destination of each entry
  float* spill_ = nullptr;
  int64_t spill_rows_ = 0;
  std::vector<Segment> segments_;
  std::vector<Piece> tiles_, pieces_;
};

UnitsRun::UnitsRun(Backend& backend, const char* x, bool bf16, int64_t hidden, const std::vector<Expert>& experts,
                   const UnitBatchView& batch, const UnitPlan& plan, float* out)
    : backend_(backend), x_{x, bf16, hidden, batch.entry_row}, hidden_(hidden), experts_(experts), batch_(batch), plan_(plan),
      out_(out) {
  const Expert& e = experts[0];
  path_ = gemm_path(backend.kernels, bf16, e.gate_up.type);
  packed_row_ = e.gate_up.pairs() * 2 * int64_t(row_element(path_.rows));
  packed_hidden_ = e.down.pairs() * 2 * int64_t(row_element(path_.rows));

  // Slot 0 of a folded unit and lone slots are written in place; the other slots wait in scratch memory for the fold.
  y_ = backend.scratch_pointers.get<float*>(size_t(batch.entries));
  int64_t waiting = 0;
  for (int64_t u : plan.folded) waiting += batch.unit_slots[u] - 1;
  float* sums = waiting ? backend.scratch_sums.get<float>(size_t(waiting * hidden)) : nullptr;
  for (int64_t u = 0; u < batch.units; u++)
    for (int64_t i = plan.first[u]; i < plan.first[u + 1]; i++) {
      const bool in_place = i == plan.first[u];
      y_[plan.order[i]] = in_place ? out + u * hidden : sums;
      if (!in_place) sums += hidden;
    }
}

void UnitsRun::run() {
  const int64_t most = std::max(kMinWaveRows, kWaveBytes / (packed_row_ + packed_hidden_));
  const int64_t rows = std::min(most, batch_.entries);
  segments_.reserve(experts_.size());  // pieces point into it
  // Spill buffers, one per thread, only where a panel is cut into K blocks.
  const Matrix& gate_up = experts_[0].gate_up;
  spill_rows_ = gate_up.panel_bytes() > kWholePanelBytes && rows > path_.kernels->max_rows ? rows : 0;
  const int64_t spill_bytes = backend_.pool.threads() * spill_rows_ * kPanel * 4;
  rows_ = backend_.scratch_rows.get<char>(size_t(round_up(rows * packed_row_, 64) + spill_bytes));
  h_ = backend_.scratch_hidden.get<char>(size_t(rows * packed_hidden_));
  if (spill_rows_) spill_ = reinterpret_cast<float*>(rows_ + round_up(rows * packed_row_, 64));

  int64_t entry = 0, used = 0;
  for (int64_t g = 0; g < batch_.groups; g++) {
    for (int64_t left = batch_.group_count[g]; left > 0;) {
      const int64_t take = std::min(left, most - used);
      segments_.push_back({&experts_[size_t(g)], entry, used, Tiling(take, path_.kernels->max_rows)});
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
  // Enough pieces for the threads, even when there are few panels.
  const int64_t panels = std::min(experts_[0].gate_up.panels(), experts_[0].down.panels());
  const int64_t pieces = ceil_div(8 * backend_.pool.threads(), panels * int64_t(segments_.size()));
  int64_t rows = 0;
  tiles_.clear();
  pieces_.clear();
  for (const Segment& s : segments_) {
    const int64_t n = std::min(pieces, s.tiling.tiles);
    for (int64_t i = 0; i < n; i++) pieces_.push_back({&s, s.tiling.tiles * i / n, s.tiling.tiles * (i + 1) / n});
    for (int64_t i = 0; i < s.tiling.tiles; i++) tiles_.push_back({&s, i, i + 1});
    rows += s.tiling.rows;
  }
  backend_.pool.run(int64_t(tiles_.size()), 1, 2 * rows * packed_row_, [this](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; t++) {
      const Segment& s = *tiles_[size_t(t)].segment;
      const int64_t first = s.tiling.first(tiles_[size_t(t)].first_tile);
      pack_rows(x_, s.entry + first, s.tiling.count(tiles_[size_t(t)].first_tile), path_.rows,
                rows_ + (s.row + first) * packed_row_);
    }
  });
  gate_up();
  down();
  segments_.clear();
}

// body(job, panel, segment, thread): completes the job of one panel of one piece.
template <class Body>
void UnitsRun::over_panels(int64_t panels, int64_t panel_bytes, Body&& body) {
  const int64_t items = int64_t(pieces_.size()) * panels;
  const int64_t work = int64_t(tiles_.size()) * panels * panel_bytes;
  backend_.pool.run(items, 1, work, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; i++) {
      const Piece& piece = pieces_[size_t(i / panels)];
      const int64_t p = i % panels;
      PanelJob job{};
      job.path = &path_;
      job.tiling = piece.segment->tiling;
      job.first_tile = piece.first_tile;
      job.last_tile = piece.last_tile;
      job.next_panel = i + 1 < end && p + 1 < panels;
      body(job, p, *piece.segment, thread);
      run_panel(job);
    }
  });
}

void UnitsRun::gate_up() {
  const Matrix& shape = experts_[0].gate_up;
  over_panels(shape.panels(), shape.panel_bytes(), [this](PanelJob& job, int64_t p, const Segment& s, int thread) {
    const Matrix& w = s.expert->gate_up;
    job.a = rows_ + s.row * packed_row_;
    job.pairs = w.pairs();
    job.w = w.panel(p);
    job.weight_element = w.element();
    job.finish = kSilu;
    job.spill = spill_ ? spill_ + thread * spill_rows_ * kPanel : nullptr;
    job.h = h_ + s.row * packed_hidden_;
    job.h_pairs = s.expert->down.pairs();
    job.h_pair = p * (kPanel / 4);
    job.round_h = x_.bf16;
  });
}

void UnitsRun::down() {
  const Matrix& shape = experts_[0].down;
  over_panels(shape.panels(), shape.panel_bytes(), [this](PanelJob& job, int64_t p, const Segment& s, int) {
    const Matrix& w = s.expert->down;
    job.a = h_ + s.row * packed_hidden_;
    job.pairs = w.pairs();
    job.w = w.panel(p);
    job.weight_element = w.element();
    job.finish = kScale;
    job.y = y_ + s.entry;
    job.column = p * kPanel;
    job.columns = int(std::min<int64_t>(kPanel, w.n - job.column));
    job.scale = batch_.entry_weight + s.entry;
  });
}

void UnitsRun::fold() {
  const int64_t work = int64_t(plan_.folded.size()) * hidden_ * 24;
  backend_.pool.run(int64_t(plan_.folded.size()), 4, work, [this](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t u = plan_.folded[size_t(i)];
      for (int64_t j = plan_.first[u] + 1; j < plan_.first[u + 1]; j++)
        backend_.kernels.add_inplace(out_ + u * hidden_, y_[plan_.order[j]], hidden_);
    }
  });
}

nb::object expert_units(Backend& backend, nb::handle x_array, nb::handle expert_list, nb::handle group_expert,
                        nb::handle group_count, nb::handle entry_row, nb::handle entry_slot, nb::handle entry_unit,
                        nb::handle entry_weight, nb::handle unit_slots) {
  View x(x_array, "x", kF32 | kBf16, {kAny, kAny});
  const int64_t hidden = x.shape(1);
  const bool bf16 = x.dtype() == kBf16;
  View groups(group_expert, "batch.group_expert", kU32, {kAny});
  View counts(group_count, "batch.group_count", kU32, {groups.shape(0)});
  View rows(entry_row, "batch.entry_row", kU32, {kAny});
  View slots(entry_slot, "batch.entry_slot", kU32, {rows.shape(0)});
  View units(entry_unit, "batch.entry_unit", kU32, {rows.shape(0)});
  View weights(entry_weight, "batch.entry_weight", kF32, {rows.shape(0)});
  View sizes(unit_slots, "batch.unit_slots", kU32, {kAny});
  const UnitBatchView batch{groups.as<uint32_t>(), counts.as<uint32_t>(), rows.as<uint32_t>(), slots.as<uint32_t>(),
                            units.as<uint32_t>(), weights.as<float>(), sizes.as<uint32_t>(),
                            groups.shape(0), rows.shape(0), sizes.shape(0)};

  if (!PySequence_Check(expert_list.ptr()))
    fail_type(std::string("experts: expected a sequence of PackedExpert, got ") +
              nb::str(nb::handle(expert_list.type()).attr("__name__")).c_str());
  const int64_t count = int64_t(nb::len(expert_list));
  if (count != batch.groups)
    fail_value("experts", std::to_string(batch.groups) + " experts, one for each group", std::to_string(count));
  std::vector<PackedExpertBlock> blocks;
  std::vector<Expert> experts;
  blocks.reserve(size_t(count));
  experts.reserve(size_t(count));
  for (int64_t g = 0; g < count; g++) {
    const std::string name = "experts[" + std::to_string(g) + "]";
    blocks.emplace_back(expert_list[size_t(g)], "experts");
    const PackedExpertBlock& b = blocks.back();
    if (b.hidden != hidden)
      fail_value(name.c_str(), "hidden " + std::to_string(hidden) + " as in x", std::to_string(b.hidden));
    if (bf16 && b.expert.gate_up.type != kWeightBf16)
      fail_value(name.c_str(), "bf16 weights for bf16 rows", dtype_name(dtype_of(b.expert.gate_up.type)));
    if (b.ffn != blocks[0].ffn || b.expert.gate_up.type != blocks[0].expert.gate_up.type)
      fail_value(name.c_str(), "the ffn and dtype of experts[0]", "ffn " + std::to_string(b.ffn) + ", " +
                 dtype_name(dtype_of(b.expert.gate_up.type)));
    experts.push_back(b.expert);
  }

  UnitPlan plan;
  plan_units(batch, x.shape(0), plan);
  nb::object result = new_array(kF32, {batch.units, hidden});
  View out(result, "out", kF32, {batch.units, hidden}, true);
  if (batch.entries) {
    Call call(backend);
    UnitsRun(backend, static_cast<const char*>(x.data()), bf16, hidden, experts, batch, plan, out.as<float>()).run();
  }
  return result;
}

}  // namespace

void bind_expert_units(BackendClass& c) {
  c.def("expert_units", &expert_units, nb::arg("x"), nb::arg("experts"), nb::arg("group_expert"), nb::arg("group_count"),
        nb::arg("entry_row"), nb::arg("entry_slot"), nb::arg("entry_unit"), nb::arg("entry_weight"), nb::arg("unit_slots"),
        nb::sig("def expert_units(self, x: object, experts: collections.abc.Sequence[object], group_expert: object, "
                "group_count: object, entry_row: object, entry_slot: object, entry_unit: object, entry_weight: object, "
                "unit_slots: object) -> numpy.typing.NDArray[numpy.float32]"));
}

}  // namespace colibri
