#include "gemm.h"

#include <algorithm>
#include <cstring>

namespace colibri {
namespace {

// A K block of one panel stays in the L2 cache beside the rows while several tiles pass over it.
constexpr int64_t kBlockBytes = 128 << 10;
// With one tile of many rows the panel is asked for this far ahead.
constexpr int64_t kPrefetchDistance = 64 << 10;

// Rules measured on Zen 4: one tile of up to 6 rows is best left to the hardware; one of 7-12 wants its own stream
// 64 KiB ahead; 2 to 8 tiles fetch the next block meanwhile, a share each; more tiles have time to spare.
void set_prefetch(GemmTile& t, const PanelJob& job, int64_t tile, int rows, int64_t block_bytes, bool next) {
  const int64_t lines_per_8_pairs = 8 * 2 * kPanel * job.weight_element / 64;
  const int64_t n = job.last_tile - job.first_tile;
  const char* w = static_cast<const char*>(t.w);
  if (n == 1) {
    if (rows < 7) return;
    t.prefetch = w + kPrefetchDistance;
    t.prefetch_lines = int(lines_per_8_pairs);
  } else if (n <= 8 && next) {
    const int64_t share = ceil_div(lines_per_8_pairs, n);
    t.prefetch = w + block_bytes + (tile - job.first_tile) * (t.k2 / 8) * share * 64;
    t.prefetch_lines = int(share);
  }
}

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

void run_panel(const PanelJob& job) noexcept {
  const int64_t pair_bytes = 2 * kPanel * job.weight_element;
  const int64_t row_pair = 2 * int64_t(row_element(job.path->rows));
  const bool blocked = job.last_tile - job.first_tile > 1 && (job.finish != kSilu || job.spill);
  const int64_t block = blocked ? kBlockBytes / pair_bytes : job.pairs;
  float* spill_rows[kMaxTile];
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
      t.resume = k > 0;
      t.finish = last ? job.finish : kStore;
      if (job.finish == kSilu) {
        for (int r = 0; r < rows; r++) spill_rows[r] = job.spill ? job.spill + (first + r) * kPanel : nullptr;
        t.y = spill_rows;
        t.columns = kPanel;
        t.h = job.h + (first * job.h_pairs + job.h_pair * rows) * row_pair;
        t.round_h = job.round_h;
      } else {
        t.y = job.y + first;
        t.column = job.column;
        t.columns = job.columns;
        t.scale = job.scale ? job.scale + first : nullptr;
      }
      set_prefetch(t, job, i, rows, pairs * pair_bytes, !last || job.next_panel);
      job.path->kernels->tile[rows](t);
    }
  }
}

void linear_rows(Backend& backend, const Rows& x, int64_t count, const Matrix& w, float* y) {
  if (count == 0) return;
  const GemmPath path = gemm_path(backend.kernels, x.bf16, w.type);
  const Tiling tiling(count, path.kernels->max_rows);
  const int64_t pairs = w.pairs(), packed_row = pairs * 2 * int64_t(row_element(path.rows));
  char* a = backend.scratch_rows.get<char>(size_t(count * packed_row));
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
  backend.pool.run(panels * blocks, 1, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; item++) {
      const int64_t p = item % panels, b = item / panels;
      PanelJob job{};
      job.path = &path;
      job.tiling = tiling;
      job.first_tile = tiling.tiles * b / blocks;
      job.last_tile = tiling.tiles * (b + 1) / blocks;
      job.a = a;
      job.pairs = pairs;
      job.w = w.panel(p);
      job.weight_element = w.element();
      job.next_panel = item + 1 < end && p + 1 < panels;
      job.finish = kStore;
      job.y = rows;
      job.column = p * kPanel;
      job.columns = int(std::min<int64_t>(kPanel, w.n - job.column));
      run_panel(job);
    }
  });
}

}  // namespace colibri
