// attention: the work is cut into pieces of one sequence and one key/value head; a piece of few queries goes row by row
// (decode), one of many goes sixteen queries at a time (prefill). Both give the same bits, so the cut is free.
#include <nanobind/stl/optional.h>

#include <cmath>
#include <optional>
#include <vector>

#include "kv_view.h"
#include "ops.h"

namespace colibri {
namespace {

// From this number of queries on, lanes over queries are the faster form.
constexpr int64_t kBlockQueries = 10;

// Rows [row, row + rows) of one sequence; query (row, head of the group) = `first` / group, `first` % group, ...
struct Piece {
  int64_t row, kv_head, first, count;
};

// `run`: rows of one sequence that follow each other.
void cut(std::vector<Piece>& pieces, int64_t row, int64_t run, int64_t kv_heads, int64_t group) {
  const int64_t queries = run * group;
  const bool blocks = queries >= kBlockQueries && run > 1;
  const int64_t step = blocks ? kMaxQueries : group < kMaxQueries ? group : kMaxQueries;
  for (int64_t h = 0; h < kv_heads; h++)
    for (int64_t r = 0; r < (blocks ? 1 : run); r++) {
      const int64_t end = blocks ? queries : (r + 1) * group;
      for (int64_t q = r * group; q < end; q += step) pieces.push_back({row, h, q, end - q < step ? end - q : step});
    }
}

nb::object attention(Backend& backend, nb::handle q_array, nb::handle k, nb::handle v, nb::handle page_table,
               nb::handle row_sequence, nb::handle positions, std::optional<int64_t> window, bool to_bf16) {
  View q(q_array, "q", kF32, {kAny, kAny});
  const int64_t rows = q.shape(0), width = q.shape(1);
  if (window && *window < 1) fail_value("window", "None or at least 1 position", std::to_string(*window));
  KvView kv({k, v, page_table, row_sequence, positions}, rows, false);
  const int64_t d = kv.head_dim();
  if (width == 0 || width % (kv.kv_heads() * d))
    fail_value("q", "a multiple of kv_heads * head_dim (" + std::to_string(kv.kv_heads() * d) + ") columns", q.describe());
  const int64_t group = width / d / kv.kv_heads();
  std::vector<int32_t> first(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; r++) {
    const int64_t from = window ? kv.position(r) - (*window - 1) : 0;
    first[size_t(r)] = from > 0 ? int32_t(from) : 0;
  }
  kv.check_pages(first);
  const float* queries = q.as<float>();
  nb::object result = new_array(to_bf16 ? kBf16 : kF32, {rows, width});
  View out(result, "out", kF32 | kBf16, {rows, width}, true);
  char* outputs = to_bf16 ? reinterpret_cast<char*>(out.as<uint16_t>()) : reinterpret_cast<char*>(out.as<float>());

  std::vector<Piece> pieces;
  int64_t keys = 0;
  for (int64_t row = 0, run; row < rows; row += run) {
    for (run = 1; row + run < rows && kv.sequence(row + run) == kv.sequence(row); run++) {
    }
    cut(pieces, row, run, kv.kv_heads(), group);
    for (int64_t r = row; r < row + run; r++) keys += kv.position(r) - first[size_t(r)] + 1;
  }

  AttentionWork shared{};
  shared.k = kv.k();
  shared.v = kv.v();
  shared.kv_heads = kv.kv_heads();
  shared.head_dim = d;
  shared.page_shift = kv.page_shift();
  shared.bf16 = kv.bf16();
  shared.bf16_out = to_bf16;
  shared.scale = float(1.0 / std::sqrt(double(d)));
  const size_t scratch_size = size_t(attention_scratch(d));

  {
    Call call(backend);
    float* scratch = backend.scratch_dense.get<float>(scratch_size * size_t(backend.pool.threads()));
    const int64_t bytes = keys * kv.kv_heads() * d * 4;
    backend.pool.run(int64_t(pieces.size()), 1, bytes, [&](int64_t begin, int64_t end, int thread) {
      AttentionWork work = shared;
      for (int64_t i = begin; i < end; i++) {
        const Piece& piece = pieces[size_t(i)];
        work.pages = kv.pages_of(piece.row);
        work.kv_head = piece.kv_head;
        work.queries = int(piece.count);
        const int64_t last_row = piece.row + (piece.first + piece.count - 1) / group;
        for (int64_t n = 0; n < piece.count; n++) {
          const int64_t row = piece.row + (piece.first + n) / group;
          const int64_t at = row * width + (piece.kv_head * group + (piece.first + n) % group) * d;
          work.q[n] = queries + at;
          work.out[n] = outputs + at * (to_bf16 ? 2 : 4);
          work.first[n] = first[size_t(row)];
          work.last[n] = kv.position(row);
        }
        float* own = scratch + scratch_size * size_t(thread);
        const bool one_row = last_row == piece.row + piece.first / group;
        one_row ? backend.kernels.attend_row(work, own) : backend.kernels.attend_block(work, own);
      }
    });
  }
  return result;
}

}  // namespace

void bind_attention(BackendClass& c) {
  c.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("page_table"), nb::arg("row_sequence"),
        nb::arg("positions"), nb::arg("window").none(), nb::arg("to_bf16"),
        nb::sig("def attention(self, q: object, k: object, v: object, page_table: object, row_sequence: object, positions: "
                "object, window: int | None, to_bf16: bool) -> "
                "numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint16]"));
}

}  // namespace colibri
