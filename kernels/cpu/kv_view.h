// The arguments that describe a paged cache (KvView of kernels/api.py), checked.
#pragma once
#include <cstdint>
#include <vector>

#include "args.h"

namespace colibri {

struct KvArrays {
  nb::handle k, v, page_table, row_sequence, positions;
};

class KvView {
 public:
  // Shapes, dtypes, row_sequence and positions, for `rows` rows. ValueError or TypeError names the field.
  KvView(const KvArrays& arrays, int64_t rows, bool writable);

  // Throws unless every page that holds one of the keys first[r] .. position(r) exists.
  void check_pages(const std::vector<int32_t>& first) const;
  // Throws unless every row's own slot exists and no two rows share one.
  void check_own_slots() const;

  const int32_t* pages_of(int64_t row) const { return table_ + int64_t(sequence_[row]) * max_pages_; }
  int32_t position(int64_t row) const { return position_[row]; }
  int32_t sequence(int64_t row) const { return sequence_[row]; }
  // Element offset of a row's slot for key/value head 0.
  int64_t own_slot(int64_t row) const;
  int64_t head_stride() const { return page_ * head_dim_; }
  bool bf16() const { return k_.dtype() == kBf16; }
  void* k() const { return k_.data(); }
  void* v() const { return v_.data(); }
  int64_t kv_heads() const { return kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  int page_shift() const { return page_shift_; }

 private:
  void check_page(int64_t row, int64_t at) const;

  View k_, v_, table_view_, sequence_view_, position_view_;
  int64_t rows_, pages_, kv_heads_, page_, head_dim_, sequences_, max_pages_;
  int page_shift_ = 0;
  const int32_t *table_, *sequence_, *position_;
};

}  // namespace colibri
