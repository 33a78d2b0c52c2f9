#include "gemm.h"

#include <algorithm>
#include <cstring>

namespace colibri {
namespace {

// K blocks of a panel stay in the L2 cache, with the rows, while several tiles pass over them.
constexpr int64_t kBlockBytes = 128 << 10;
// How many tiles at most share the prefetch of the next block.
constexpr int64_t kSharing = 8;

// Measured on Zen 5: one tile asks for its own stream shortly ahead (later for many rows, which take longer); several tiles
// fetch what comes next meanwhile, a share each, the last ones of many.
Prefetch plan_prefetch(const PanelJob& job, int64_t tile, int rows, int64_t pairs, const char* next) {
  const int64_t n = job.last_tile - job.first_tile;
  if (n == 1) return {int64_t(std::max(rows, kStreamOnlyRows)) << 10, nullptr, 0};
  const int64_t sharing = std::min(n, kSharing), share = tile - (job.last_tile - sharing);
  if (!next || share < 0) return {};
  const int64_t lines = ceil_div(kPrefetchPairs * 2 * kPanel * job.weight_element / 64, sharing);
  return {0, next + share * (pairs / kPrefetchPairs) * lines * 64, int(lines)};
}

int64_t block_count(int64_t panel_bytes) { return ceil_div(panel_bytes, kBlockBytes); }

template <class Pair, class Read>
void interleave(const Rows& rows, int64_t first, int count, Pair* out, int64_t element, Read read) {
  const int64_t pairs = rows.k / 2;
  const char* src[kMaxTile];
  for (int r = 0; r < count; r++)
    src[r] = rows.data + int64_t(rows.index ? rows.index[first + r] : first + r) * rows.k * element;
  for (int64_t j = 0; j < pairs; j++)
    for (int r = 0; r < count; r++) out[j * count + r] = read(src[r] + j * 2 * element);
  if (rows.k % 2)
    for (int r = 0; r < count; r++) {
      char last[8] = {};
      std::memcpy(last, src[r] + pairs * 2 * element, size_t(element));
      out[pairs * count + r] = read(last);
    }
}

}  // namespace

GemmPath gemm_path(const KernelTable& table, bool bf16_rows, WeightType weights) {
  if (bf16_rows && weights == kWeightBf16 && table.gemm_bf16.max_rows) return {&table.gemm_bf16, kRowBf16};
  return {&table.gemm_f32[weights], kRowF32};
}

Tiling gemm_tiling(const GemmPath& path, int64_t rows) {
  return Tiling(rows, rows <= path.kernels->max_rows ? path.kernels->max_rows : path.kernels->many_rows);
}

void pack_rows(const Rows& rows, int64_t first, int count, RowType type, void* out) {
  if (!rows.bf16) {
    interleave(rows, first, count, static_cast<uint64_t*>(out), 4, [](const char* p) {
      uint64_t pair;
      std::memcpy(&pair, p, 8);
      return pair;
    });
  } else if (type == kRowBf16) {
    interleave(rows, first, count, static_cast<uint32_t*>(out), 2, [](const char* p) {
      uint32_t pair;
      std::memcpy(&pair, p, 4);
      return pair;
    });
  } else {  // widened: the pair's two patterns become the high halves of two fp32
    interleave(rows, first, count, static_cast<uint64_t*>(out), 2, [](const char* p) {
      uint16_t pair[2];
      std::memcpy(pair, p, 4);
      return uint64_t(pair[0]) << 16 | uint64_t(pair[1]) << 48;
    });
  }
}

int64_t spill_floats(const GemmPath& path, const Matrix& w, int64_t rows) {
  return rows > path.kernels->max_rows && block_count(w.panel_bytes()) > 1 ? rows * kPanel : 0;
}

void run_panel(const PanelJob& job) noexcept {
  const int64_t pair_bytes = 2 * kPanel * job.weight_element;
  const int64_t row_pair = 2 * int64_t(row_element(job.path->rows));
  const int64_t blocks = job.sums ? block_count(job.pairs * pair_bytes) : 1;
  const int64_t block = round_up(ceil_div(job.pairs, blocks), kPrefetchPairs);
  for (int64_t k = 0; k < job.pairs; k += block) {
    const int64_t pairs = std::min(block, job.pairs - k);
    const bool last = k + pairs == job.pairs;
    for (int64_t i = job.first_tile; i < job.last_tile; i++) {
      const int64_t first = job.tiling.first(i);
      const int rows = job.tiling.count(i);
      GemmTile t{};
      t.a = job.a + (first * job.pairs + k * rows) * row_pair;
      t.w = job.w + k * pair_bytes;
      t.k2 = pairs;
      t.sums = job.sums ? job.sums + first * kPanel : nullptr;
      t.resume = k > 0;
      t.spill = !last;
      t.finish = job.finish;
      if (job.finish == kSilu) {
        t.h = job.h + (first * job.h_pairs + job.h_pair * rows) * row_pair;
        t.round_h = job.round_h;
      } else {
        t.y = job.y + first;
        t.column = job.column;
        t.columns = job.columns;
        t.scale = job.scale ? job.scale + first : nullptr;
      }
      const char* next = last ? job.next : job.w + (k + pairs) * pair_bytes;
      t.prefetch = plan_prefetch(job, i, rows, pairs, next);
      job.path->kernels->tile[rows](t);
    }
  }
}

void linear_rows(Backend& backend, const Rows& x, int64_t count, const Matrix& w, float* y) {
  if (count == 0) return;
  const GemmPath path = gemm_path(backend.kernels, x.bf16, w.type);
  const Tiling tiling = gemm_tiling(path, count);
  const int64_t pairs = w.pairs(), packed_row = pairs * 2 * int64_t(row_element(path.rows));
  const int64_t packed = round_up(count * packed_row, 64), spill = spill_floats(path, w, count);
  char* a = backend.scratch_rows.get<char>(size_t(packed + backend.pool.threads() * spill * 4));
  float** rows = backend.scratch_pointers.get<float*>(size_t(count));
  for (int64_t r = 0; r < count; r++) rows[r] = y + r * w.n;

  backend.pool.run(tiling.tiles, 1, count * packed_row, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++)
      pack_rows(x, tiling.first(i), tiling.count(i), path.rows, a + tiling.first(i) * packed_row);
  });

  // Items: panels, and where these are too few for the threads, blocks of row tiles as well.
  const int64_t panels = w.panels(), wanted = 8 * backend.pool.threads();
  const int64_t blocks = panels >= wanted ? 1 : std::min(tiling.tiles, ceil_div(wanted, panels));
  const int64_t work = w.bytes() * tiling.tiles;
  backend.pool.run(panels * blocks, 1, work, [&](const Pool::Chunk& chunk) {
    for (int64_t item = chunk.begin; item < chunk.end; item++) {
      const int64_t p = item % panels, b = item / panels;
      const int64_t next = item + 1 < chunk.end ? item + 1 : chunk.next;
      PanelJob job{};
      job.path = &path;
      job.tiling = tiling;
      job.first_tile = tiling.tiles * b / blocks;
      job.last_tile = tiling.tiles * (b + 1) / blocks;
      job.a = a;
      job.pairs = pairs;
      job.w = w.panel(p);
      job.weight_element = w.element();
      job.next = next < 0 ? nullptr : w.panel(next % panels);
      job.finish = kStore;
      job.y = rows;
      job.sums = spill ? reinterpret_cast<float*>(a + packed) + chunk.thread * spill : nullptr;
      job.column = p * kPanel;
      job.columns = int(std::min<int64_t>(kPanel, w.n - job.column));
      run_panel(job);
    }
  });
}

}  // namespace colibri
