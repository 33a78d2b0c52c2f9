// Every kernel of the portable path over fixed data: one line per kernel with a hash of the bits that it gives.
//
// test_aarch64.py compares the lines of this program on x86-64 with those on aarch64.
#include <cstdio>
#include <cstring>
#include <vector>

#include "float_control.h"
#include "kernel_table.h"

using namespace colibri;

namespace {

struct Random {
  uint64_t state = 0x9e3779b97f4a7c15ull;
  uint32_t next() {  // xorshift64* (Vigna, 2016)
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return uint32_t(state * 2685821657736338717ull >> 32);
  }
  // Sign, any mantissa, biased exponent in [lo, hi].
  float number(uint32_t lo, uint32_t hi) {
    const uint32_t bits = (next() & 0x807fffffu) | (lo + next() % (hi - lo + 1)) << 23;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  }
};

struct Range {
  const char* name;
  uint32_t lo, hi;
};
// tiny: products below 2^-126 and subnormal inputs, all flushed.
constexpr Range kRanges[] = {{"ordinary", 120, 130}, {"wide", 100, 150}, {"tiny", 0, 70}};

struct Digest {
  uint64_t value = 14695981039346656037ull;  // FNV-1a, 64 bits
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) value = (value ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
  }
  template <class T>
  void add(const std::vector<T>& v) {
    add(v.data(), v.size() * sizeof(T));
  }
  void print(const char* kernel, const Range& range) const { printf("%s %s %016llx\n", kernel, range.name, static_cast<unsigned long long>(value)); }
};

uint16_t upper(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return uint16_t(bits >> 16);
}

std::vector<float> numbers(Random& random, size_t n, const Range& range) {
  std::vector<float> x(n);
  for (float& v : x) v = random.number(range.lo, range.hi);
  return x;
}

std::vector<uint16_t> halves(Random& random, size_t n, const Range& range) {
  std::vector<uint16_t> x(n);
  for (uint16_t& v : x) v = upper(random.number(range.lo, range.hi));
  return x;
}

// 32 rows of `k` elements in the three stored types, and the pointers that a panel is made of.
struct Rows {
  std::vector<float> f32;
  std::vector<uint16_t> b16;
  PackPanel panel(WeightType type, int64_t k) const {
    PackPanel p{};
    p.from = p.to = type;
    p.k = k;
    p.k2 = (k + 1) / 2;
    for (int i = 0; i < kPanel; i++)
      p.row[i] = type == kWeightF32 ? static_cast<const void*>(f32.data() + i * k) : b16.data() + i * k;
    return p;
  }
};

void products(const KernelTable& t, Random& random, const Range& range) {
  constexpr int64_t k = 61, k2 = (k + 1) / 2;
  Rows rows{numbers(random, kPanel * k, range), halves(random, kPanel * k, range)};
  for (int type = 0; type < kWeightTypes; type++) {
    Digest digest;
    // fp16 takes the patterns as they come, but for its infinities and NaNs.
    Rows use = rows;
    if (type == kWeightFp16)
      for (uint16_t& v : use.b16) v = uint16_t((v & 0x83ffu) | (random.next() % 31) << 10);
    std::vector<unsigned char> w(size_t(2 * k2 * kPanel * 4));
    PackPanel p = use.panel(WeightType(type), k);
    p.out = w.data();
    t.pack_panel(p);
    digest.add(w);
    for (int n = 1; n <= t.gemm_f32[type].max_rows; n++) {
      for (Finish finish : {kStore, kScale, kSilu, kSiluRows}) {
        std::vector<float> a = numbers(random, size_t(k2 * n * 2), range), y(size_t(n * kPanel)), h(size_t(8 * n * 2)), sums(size_t(n * kPanel)), scale = numbers(random, size_t(n), range);
        std::vector<float*> at;
        for (int r = 0; r < n; r++) at.push_back(y.data() + r * kPanel);
        GemmTile tile{};
        tile.finish = finish;
        tile.y = at.data();
        tile.columns = 29;
        tile.scale = scale.data();
        tile.h = h.data();
        tile.round_h = n % 2 == 0;
        tile.a = a.data();
        tile.w = w.data();
        tile.k2 = k2;
        tile.sums = sums.data();
        t.gemm_f32[type].tile[n](tile);
        digest.add(y);
        digest.add(h);
      }
    }
    std::vector<float> wide(k);
    t.embed_row(w.data(), WeightType(type), k, wide.data());
    digest.add(wide);
    digest.print(type == kWeightBf16 ? "product-bf16" : type == kWeightFp16 ? "product-fp16" : "product-fp32", range);
  }
}

void quantised(const KernelTable& t, Random& random, const Range& range) {
  constexpr int64_t k = 157, octets = (k + kOctet - 1) / kOctet;
  Rows rows{numbers(random, kPanel * k, range), halves(random, kPanel * k, range)};
  for (WeightType to : {kWeightInt8, kWeightInt4}) {
    Digest digest;
    for (int group : {32, 64, 128}) {
      const int64_t groups = (k + group - 1) / group;
      std::vector<unsigned char> w(size_t(groups * kScaleBytes + octets * octet_bytes(to)));
      std::vector<float> importance = numbers(random, size_t(k), {"", 118, 126});
      for (float& v : importance) v = v < 0 ? -v : v;
      const PackPanel from = rows.panel(group == 64 ? kWeightBf16 : kWeightF32, k);
      QuantPanel p{};
      memcpy(p.row, from.row, sizeof p.row);
      p.from = from.from;
      p.to = to;
      p.k = k;
      p.octets = octets;
      p.group = group;
      p.importance = to == kWeightInt4 && group == 128 ? importance.data() : nullptr;
      p.out = w.data();
      t.quantise_panel(p);
      digest.add(w);
      for (int n = 1; n <= t.quant.max_rows[to - kWeightTypes]; n++) {
        std::vector<float> x = numbers(random, size_t(n * k), range), scale(size_t(groups * n)), y(size_t(n * kPanel));
        std::vector<unsigned char> q(size_t(octets * kOctet * n * t.quant.row_element));
        std::vector<int32_t> start(size_t(groups * n));
        std::vector<float*> at;
        QuantRowTile rows_of_x{};
        rows_of_x.block = 16 * 4;
        rows_of_x.k = k;
        rows_of_x.group = group;
        rows_of_x.zero = zero_point(to);
        rows_of_x.rows = n;
        rows_of_x.q = q.data();
        rows_of_x.scale = scale.data();
        rows_of_x.start = start.data();
        for (int r = 0; r < n; r++) {
          rows_of_x.x[r] = x.data() + r * k;
          at.push_back(y.data() + r * kPanel);
        }
        t.quant.rows(rows_of_x);
        QuantTile tile{};
        tile.finish = kStore;
        tile.y = at.data();
        tile.columns = kPanel;
        tile.a = q.data();
        tile.a_scale = scale.data();
        tile.a_start = start.data();
        tile.w = w.data();
        tile.octets = octets;
        tile.group = group;
        t.quant.tile[to - kWeightTypes][n](tile);
        digest.add(scale);
        digest.add(start);
        digest.add(y);
      }
      std::vector<float> wide(k);
      t.embed_quant_row(w.data(), 7, to, k, group, wide.data());
      digest.add(wide);
    }
    digest.print(to == kWeightInt8 ? "product-int8" : "product-int4", range);
  }
}

void attention(const KernelTable& t, Random& random, const Range& range) {
  constexpr int64_t heads = 4, kv_heads = 2, dim = 24, positions = 150, page = 16, pages = (positions + page - 1) / page;
  for (bool bf16 : {false, true}) {
    Digest digest;
    const size_t cache = size_t(pages * kv_heads * page * dim);
    std::vector<float> k32(cache), v32(cache), q(size_t(positions * heads * dim));
    std::vector<uint16_t> k16(cache), v16(cache);
    std::vector<int32_t> table(static_cast<size_t>(pages));
    for (int64_t i = 0; i < pages; i++) table[size_t(i)] = int32_t(pages - 1 - i);
    void* k = bf16 ? static_cast<void*>(k16.data()) : k32.data();
    void* v = bf16 ? static_cast<void*>(v16.data()) : v32.data();
    const size_t element = bf16 ? 2 : 4;
    for (int64_t at = 0; at < positions; at++) {
      std::vector<float> qkv = numbers(random, size_t((heads + 2 * kv_heads) * dim), range);
      const std::vector<float> cos = numbers(random, dim / 2, {"", 122, 126}), sin = numbers(random, dim / 2, {"", 122, 126});
      const size_t slot = size_t((table[size_t(at / page)] * kv_heads * page + at % page) * dim) * element;
      RopeRow row{};
      row.qkv = qkv.data();
      row.cos = cos.data();
      row.sin = sin.data();
      row.q = q.data() + at * heads * dim;
      row.k = static_cast<char*>(k) + slot;
      row.v = static_cast<char*>(v) + slot;
      row.head_stride = page * dim;
      row.heads = heads;
      row.kv_heads = kv_heads;
      row.head_dim = dim;
      row.bf16 = bf16;
      t.rope_and_store_row(row);
    }
    digest.add(k, cache * element);
    digest.add(v, cache * element);
    digest.add(q);
    digest.print(bf16 ? "rope-bf16" : "rope-fp32", range);
    Digest attended;
    std::vector<float> space(size_t(attention_scratch(dim)) + 16), out(size_t(kMaxQueries * dim));
    float* scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(space.data()) + 63) / 64 * 64);
    for (bool block : {false, true}) {
      AttentionWork work{};
      work.k = k;
      work.v = v;
      work.pages = table.data();
      work.kv_heads = kv_heads;
      work.kv_head = 1;
      work.head_dim = dim;
      work.page_shift = 4;
      work.bf16 = bf16;
      work.bf16_out = block;
      work.scale = 0.25f;
      work.queries = block ? 20 : 2;
      for (int i = 0; i < work.queries; i++) {
        const int64_t at = block ? positions - 10 + i / 2 : positions - 1;
        work.q[i] = q.data() + (at * heads + 2 + i % 2) * dim;
        work.out[i] = out.data() + i * dim;
        work.first[i] = block ? int32_t(i) : 0;
        work.last[i] = int32_t(at);
      }
      (block ? t.attend_block : t.attend_row)(work, scratch);
      attended.add(out);
    }
    attended.print(bf16 ? "attend-bf16" : "attend-fp32", range);
  }
}

void rows(const KernelTable& t, Random& random, const Range& range) {
  constexpr int64_t n = 333;
  Digest digest;
  std::vector<float> x = numbers(random, n, range), y = numbers(random, n, range), z(n), e(n);
  std::vector<uint16_t> rounded(n);
  t.add_inplace(x.data(), y.data(), n);
  digest.add(x);
  t.rms_norm_row(x.data(), y.data(), n, 1e-5f, z.data(), nullptr);
  t.rms_norm_row(x.data(), y.data(), n, 1e-5f, z.data(), rounded.data());
  digest.add(z);
  digest.add(rounded);
  const float* terms[3] = {x.data(), y.data(), z.data()};
  for (int64_t count = 0; count <= 3; count++) {
    t.merge_row(terms, count, n, e.data());
    digest.add(e);
  }
  digest.print("norm-add-merge", range);

  Digest chosen;
  for (int64_t experts : {8, 64, 300})
    for (int k : {1, 2, 5})
      for (bool int16 : {false, true}) {
        constexpr int64_t count = 9;
        const std::vector<float> logits = numbers(random, size_t(count * experts), range);
        std::vector<uint16_t> ids(size_t(count * k));
        std::vector<float> weights(size_t(count * k));
        bool ok[count] = {};
        t.gate_rows({logits.data(), count, experts, k, int16, ids.data(), weights.data(), ok});
        chosen.add(ids);
        chosen.add(weights);
        chosen.add(ok, sizeof ok);
      }
  chosen.print("gate", range);

  Digest sampled;
  float largest = 0;
  const bool fine = t.largest_logit(x.data(), n, &largest);
  const int64_t first = t.first_equal(x.data(), n, largest);
  const float sum = t.temper(x.data(), n, largest, 0.7f, z.data(), e.data());
  sampled.add(&fine, 1);
  sampled.add(&largest, 4);
  sampled.add(&first, 8);
  sampled.add(&sum, 4);
  sampled.add(z);
  sampled.add(e);
  sampled.print("sampling", range);
}

}  // namespace

int main() {
  const KernelTable& t = *table_portable();
  FloatControlScope control;
  Random random;
  for (const Range& range : kRanges) {
    products(t, random, range);
    quantised(t, random, range);
    attention(t, random, range);
    rows(t, random, range);
  }
}
