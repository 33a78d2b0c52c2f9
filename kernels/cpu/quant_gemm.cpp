#include "quant_gemm.h"

#include <algorithm>
#include <cstring>

namespace colibri {
namespace {

constexpr int64_t kSharing = 8;

// Measured on Zen 5: one tile asks for its own stream a page ahead; int4's, whose computing takes longer than its reading,
// further ahead the more rows there are. Several tiles: as for other weights (gemm.cpp).
QuantPrefetch plan_prefetch(const QuantPanelJob& job, int64_t tile, int rows) {
  const Matrix& m = *job.matrix;
  const char* const w = m.panel(job.panel);
  const int64_t n = job.last_tile - job.first_tile;
  if (n == 1) return {m.type == kWeightInt8 || rows < 4 ? 4096 : int64_t(rows + 4) << 10, w, 0};
  const int64_t sharing = std::min(n, kSharing), share = tile - (job.last_tile - sharing);
  if (!job.next || share < 0) return {0, w, 0};
  const int64_t step = ceil_div(m.panel_bytes(), m.octets() * sharing);
  return {0, job.next + share * step * m.octets(), step};
}

QuantRowTile row_tile(int64_t k, int rows, const Matrix& w, const QuantRows& out) {
  QuantRowTile t{};
  t.k = k;
  t.group = w.group;
  t.zero = zero_point(w.type);
  t.rows = rows;
  t.q = out.numbers;
  t.scale = out.scale;
  t.start = out.start;
  return t;
}

}  // namespace

QuantRows::QuantRows(const KernelTable& kernels, const Matrix& w)
    : numbers(nullptr), scale(nullptr), start(nullptr), row_bytes(w.octets() * kOctet * kernels.quant.row_element),
      groups(w.groups()) {}

int64_t QuantRows::bytes(int64_t rows) const { return round_up(rows * row_bytes, 64) + round_up(rows * groups * 8, 64); }

QuantRows QuantRows::in(char* memory, int64_t rows) const {
  QuantRows r = *this;
  r.numbers = memory;
  r.scale = reinterpret_cast<float*>(memory + round_up(rows * row_bytes, 64));
  r.start = reinterpret_cast<int32_t*>(r.scale + rows * groups);
  return r;
}

QuantRows QuantRows::from(int64_t row) const {
  QuantRows r = *this;
  r.numbers += row * row_bytes;
  r.scale += row * groups;
  r.start += row * groups;
  return r;
}

Tiling quant_tiling(const QuantKernels& kernels, WeightType type, int64_t rows) {
  const int alone = kernels.max_rows[type - kWeightTypes], paired = kernels.pair_rows[type - kWeightTypes];
  return Tiling(rows, rows <= alone ? alone : rows <= 2 * paired ? paired : kernels.many_rows);
}

void quantise_rows(const KernelTable& kernels, const Rows& x, int64_t first, int count, const Matrix& w, const QuantRows& out) {
  const int64_t element = x.bf16 ? 2 : 4;
  QuantRowTile tile = row_tile(x.k, count, w, out);
  tile.bf16 = x.bf16;
  tile.block = 16 * element;
  for (int r = 0; r < count; r++) tile.x[r] = x.data + int64_t(x.index ? x.index[first + r] : first + r) * x.k * element;
  kernels.quant.rows(tile);
}

void quantise_blocks(const KernelTable& kernels, const float* x, int64_t k, int count, const Matrix& w, const QuantRows& out) {
  QuantRowTile tile = row_tile(k, count, w, out);
  tile.block = 64 * count;
  for (int r = 0; r < count; r++) tile.x[r] = x + 16 * r;
  kernels.quant.rows(tile);
}

void run_quant_panel(const QuantPanelJob& job) noexcept {
  const Matrix& m = *job.matrix;
  for (int64_t i = job.first_tile; i < job.last_tile; i++) {
    const int64_t first = job.tiling.first(i);
    const int rows = job.tiling.count(i);
    const QuantRows a = job.rows->from(first);
    QuantTile t{};
    static_cast<TileEnd&>(t) = job.end;
    if (t.finish == kSiluRows)
      t.h = static_cast<float*>(job.end.h) + first * job.h_k + job.panel * (kPanel / 2) * rows;
    else
      t.y = job.end.y + first;
    t.scale = job.end.scale ? job.end.scale + first : nullptr;
    t.a = a.numbers;
    t.a_scale = a.scale;
    t.a_start = a.start;
    t.w = m.panel(job.panel);
    t.octets = m.octets();
    t.group = m.group;
    t.prefetch = plan_prefetch(job, i, rows);
    job.kernels->tile[m.type - kWeightTypes][rows](t);
  }
}

void quant_linear_rows(Backend& backend, const Rows& x, int64_t count, const Matrix& w, float* y) {
  if (count == 0) return;
  const QuantKernels& kernels = backend.kernels.quant;
  const Tiling tiling = quant_tiling(kernels, w.type, count);
  const QuantRows shape(backend.kernels, w);
  const QuantRows a = shape.in(backend.scratch_rows.get<char>(size_t(shape.bytes(count))), count);
  float** rows = backend.scratch_pointers.get<float*>(size_t(count));
  for (int64_t r = 0; r < count; r++) rows[r] = y + r * w.n;

  backend.pool.run(tiling.tiles, 1, count * w.k * 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++)
      quantise_rows(backend.kernels, x, tiling.first(i), tiling.count(i), w, a.from(tiling.first(i)));
  });

  // Items: panels, and where these are too few for the threads, blocks of row tiles as well.
  const int64_t panels = w.panels(), wanted = 8 * backend.pool.threads();
  const int64_t blocks = panels >= wanted ? 1 : std::min(tiling.tiles, ceil_div(wanted, panels));
  backend.pool.run(panels * blocks, 1, w.bytes() * tiling.tiles, [&](const Pool::Chunk& chunk) {
    for (int64_t item = chunk.begin; item < chunk.end; item++) {
      const int64_t p = item % panels, b = item / panels;
      const int64_t next = item + 1 < chunk.end ? item + 1 : chunk.next;
      QuantPanelJob job{};
      job.kernels = &kernels;
      job.tiling = tiling;
      job.first_tile = tiling.tiles * b / blocks;
      job.last_tile = tiling.tiles * (b + 1) / blocks;
      job.rows = &a;
      job.matrix = &w;
      job.panel = p;
      job.next = next < 0 ? nullptr : w.panel(next % panels);
      job.end.finish = kStore;
      job.end.y = rows;
      job.end.column = p * kPanel;
      job.end.columns = int(std::min<int64_t>(kPanel, w.n - p * kPanel));
      run_quant_panel(job);
    }
  });
}

}  // namespace colibri
