#include "kv_view.h"

#include <algorithm>

namespace colibri {
namespace {

// Positions stay far enough from the end of int32 for the arithmetic of tiles.
constexpr int64_t kMaxPositions = int64_t(1) << 30;

void check_below(const char* name, const int32_t* values, int64_t count, int64_t limit, const char* of) {
  for (int64_t i = 0; i < count; i++)
    if (values[i] < 0 || values[i] >= limit)
      fail_value(element(name, i).c_str(), below(limit, of), std::to_string(values[i]));
}

}  // namespace

KvView::KvView(const KvArrays& arrays, int64_t rows, bool writable)
    : k_(arrays.k, "kv.k", kF32 | kBf16, {kAny, kAny, kAny, kAny}, writable),
      v_(arrays.v, "kv.v", k_.dtype(), {k_.shape(0), k_.shape(1), k_.shape(2), k_.shape(3)}, writable),
      table_view_(arrays.page_table, "kv.page_table", kI32, {kAny, kAny}),
      sequence_view_(arrays.row_sequence, "kv.row_sequence", kI32, {rows}),
      position_view_(arrays.positions, "kv.positions", kI32, {rows}),
      rows_(rows),
      pages_(k_.shape(0)),
      kv_heads_(k_.shape(1)),
      page_(k_.shape(2)),
      head_dim_(k_.shape(3)),
      sequences_(table_view_.shape(0)),
      max_pages_(table_view_.shape(1)),
      table_(table_view_.as<int32_t>()),
      sequence_(sequence_view_.as<int32_t>()),
      position_(position_view_.as<int32_t>()) {
  k_.require_alignment(dtype_size(k_.dtype()));
  v_.require_alignment(dtype_size(v_.dtype()));
  if (page_ != 8 && page_ != 16 && page_ != 32 && page_ != 64)
    fail_value("kv.k", "pages of 8, 16, 32 or 64 positions", std::to_string(page_));
  if (kv_heads_ < 1 || head_dim_ < 2 || head_dim_ % 2)
    fail_value("kv.k", "at least one head and an even head_dim of at least 2", k_.describe());
  if (max_pages_ * page_ > kMaxPositions)
    fail_value("kv.page_table", "at most 2^30 positions per sequence", std::to_string(max_pages_ * page_));
  while ((int64_t(1) << page_shift_) < page_) page_shift_++;
  check_below("kv.row_sequence", sequence_, rows, sequences_, "sequences");
  check_below("kv.positions", position_, rows, max_pages_ * page_, "max_pages * page");
}

void KvView::check_page(int64_t row, int64_t page) const {
  const int32_t id = pages_of(row)[page];
  if (id >= 0 && id < pages_) return;
  const std::string name = "kv.page_table[" + std::to_string(sequence_[row]) + ", " + std::to_string(page) + "]";
  fail_value(name.c_str(), below(pages_, "pages"), std::to_string(id));
}

void KvView::check_pages(const std::vector<int32_t>& first) const {
  // Rows of one sequence come in runs: what the run has shown to be right is not looked at again.
  int64_t begin = 0, end = 0;
  for (int64_t row = 0; row < rows_; row++) {
    const int64_t from = first[size_t(row)] >> page_shift_, to = (position_[row] >> page_shift_) + 1;
    if (row == 0 || sequence_[row] != sequence_[row - 1] || from > end || to < begin) begin = end = from;
    for (int64_t page = from; page < std::min(begin, to); page++) check_page(row, page);
    for (int64_t page = std::max(end, from); page < to; page++) check_page(row, page);
    begin = std::min(begin, from);
    end = std::max(end, to);
  }
}

void KvView::check_own_slots() const {
  for (int64_t row = 0; row < rows_; row++) check_page(row, position_[row] >> page_shift_);
  std::vector<int64_t> slots(static_cast<size_t>(rows_));
  for (int64_t row = 0; row < rows_; row++)
    slots[size_t(row)] = own_slot(row);
  std::sort(slots.begin(), slots.end());
  if (std::adjacent_find(slots.begin(), slots.end()) != slots.end())
    fail_value("kv.positions", "a cache slot of its own for each row", "two rows for one slot");
}

int64_t KvView::own_slot(int64_t row) const {
  const int64_t page = pages_of(row)[position_[row] >> page_shift_];
  return page * kv_heads_ * page_ * head_dim_ + (position_[row] & (page_ - 1)) * head_dim_;
}

}  // namespace colibri
