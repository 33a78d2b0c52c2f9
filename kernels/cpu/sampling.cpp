// sample: greedy, temperature, top-k, top-p, min-p; softmax_totals: what log-probabilities need (docs/numerics.md, sampling).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops.h"
#include "philox.h"

namespace colibri {
namespace {

// Unsigned order of these is the order of the floats; -0 = +0. No NaN.
uint32_t order_of(float z) {
  uint32_t u;
  std::memcpy(&u, &z, 4);
  if (!(u << 1)) u = 0;
  return u >> 31 ? ~u : u | 0x80000000u;
}

// The k-th largest of n values, 1 <= k <= n, and how many are larger: three passes over histograms of 11, 11 and 10 bits.
struct Kth {
  uint32_t key;
  int64_t larger;
};
Kth kth_largest(const float* z, int64_t n, int64_t k) {
  uint32_t prefix = 0, known = 0;
  int64_t larger = 0;
  for (const int shift : {21, 10, 0}) {
    const uint32_t buckets = shift ? 2048 : 1024;
    int64_t count[2048] = {};
    for (int64_t i = 0; i < n; i++) {
      const uint32_t key = order_of(z[i]);
      if ((key & known) == prefix) count[key >> shift & (buckets - 1)]++;
    }
    uint32_t b = buckets - 1;
    for (; larger + count[b] < k; b--) larger += count[b];
    prefix |= b << shift;
    known |= (buckets - 1) << shift;
  }
  return {prefix, larger};
}

// Ids that top-k keeps, ascending.
std::vector<uint32_t> keep_top_k(const float* z, int64_t n, int64_t k) {
  const Kth kth = kth_largest(z, n, k);
  int64_t equal = k - kth.larger;
  std::vector<uint32_t> kept;
  kept.reserve(size_t(k));
  for (int64_t i = 0; i < n; i++) {
    const uint32_t key = order_of(z[i]);
    if (key > kth.key || (key == kth.key && equal-- > 0)) kept.push_back(uint32_t(i));
  }
  return kept;
}

double total_of(const std::vector<uint32_t>& ids, const float* e) {
  double total = 0;
  for (const uint32_t id : ids) total += double(e[id]);
  return total;
}

// Of the ascending `ids` those of the shortest prefix, by (z descending, id ascending), whose sum reaches top_p * total.
// `top`: the largest z.
std::vector<uint32_t> keep_top_p(std::vector<uint32_t> ids, const float* z, const float* e, float top, double top_p) {
  const double total = total_of(ids, e), needed = top_p * total;
  // Ids far below 1 - top_p of the mean are hardly ever reached: they are ordered only when the others do not suffice.
  // Where the line lies changes no result, so that a logarithm of the C library may draw it.
  const double line = double(top) + std::log(0.5 * (1 - top_p) * total / double(ids.size()));
  std::vector<uint64_t> heap;
  std::vector<uint32_t> kept;
  double running = 0;
  for (const bool likely : {true, false}) {
    for (const uint32_t id : ids)
      if ((double(z[id]) > line) == likely && e[id] > 0) heap.push_back(uint64_t(order_of(z[id])) << 32 | uint32_t(~id));
    std::make_heap(heap.begin(), heap.end());
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      kept.push_back(~uint32_t(heap.back()));
      heap.pop_back();
      running += double(e[kept.back()]);
      if (running < needed) continue;
      std::sort(kept.begin(), kept.end());
      return kept;
    }
  }
  return ids;  // Rounding kept the sum below: everything stays. Ids with e = 0 are never drawn.
}

uint32_t draw(const std::vector<uint32_t>& ids, const float* e, double u) {
  const double target = u * total_of(ids, e);
  double running = 0;
  for (const uint32_t id : ids) {
    running += double(e[id]);
    if (running > target) return id;
  }
  return ids.back();  // Unreachable: u < 1 and the sums are the same.
}

// An int of 0 .. 2^bits - 1.
uint64_t unsigned_of(nb::handle value, const char* name, int bits) {
  const std::string expected = "an int of 0 .. 2^" + std::to_string(bits) + " - 1";
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    fail_type(std::string(name) + ": expected " + expected + ", got " + nb::repr(value).c_str());
  }
  const unsigned long long n = PyLong_AsUnsignedLongLong(number.ptr());
  const bool overflow = PyErr_Occurred();
  PyErr_Clear();
  if (overflow || (bits < 64 && n >> bits)) fail_value(name, expected, nb::repr(value).c_str());
  return n;
}

int64_t sample(Backend& backend, nb::handle logits_array, double temperature, nb::handle top_k_object, double top_p,
               double min_p, nb::handle seed_object, nb::handle choice_object, nb::handle index_object) {
  View logits(logits_array, "logits", kF32, {kAny});
  const int64_t n = logits.shape(0);
  if (n < 1 || n > INT32_MAX) fail_value("logits", "1 to 2^31 - 1 values", std::to_string(n));
  const float t = float(temperature);
  if (!(temperature == 0 || (std::isnormal(t) && t > 0)))
    fail_value("params.temperature", "0, or a finite number that is a normal fp32", std::to_string(temperature));
  if (!(top_p > 0 && top_p <= 1)) fail_value("params.top_p", "above 0, at most 1", std::to_string(top_p));
  if (!(min_p >= 0 && min_p <= 1)) fail_value("params.min_p", "0 to 1", std::to_string(min_p));
  const uint64_t top_k = unsigned_of(top_k_object, "params.top_k", 32);
  const uint64_t seed = unsigned_of(seed_object, "params.seed", 64);
  const uint64_t choice = unsigned_of(choice_object, "params.choice", 32);
  const uint64_t output_index = unsigned_of(index_object, "output_index", 64);
  const float* x = logits.as<float>();

  enum { kFine, kBad, kNothing, kOverflow } fault = kFine;
  int64_t id = 0;
  {
    Call call(backend);
    const KernelTable& kernels = backend.kernels;
    float largest;
    if (!kernels.largest_logit(x, n, &largest)) fault = kBad;
    else if (std::isinf(largest)) fault = kNothing;
    else if (temperature == 0) id = kernels.first_equal(x, n, largest);
    else {
      float* z = backend.scratch_dense.get<float>(size_t(2 * n));
      float* e = z + n;
      const float top = kernels.temper(x, n, largest, t, z, e);
      if (std::isinf(top)) {
        fault = kOverflow;
      } else {
        std::vector<uint32_t> ids;
        if (top_k && int64_t(top_k) < n) {
          ids = keep_top_k(z, n, int64_t(top_k));
        } else {
          ids.resize(size_t(n));
          for (int64_t i = 0; i < n; i++) ids[size_t(i)] = uint32_t(i);
        }
        if (top_p < 1) ids = keep_top_p(std::move(ids), z, e, top, top_p);
        if (min_p > 0)  // The likeliest has e = 1.
          ids.erase(std::remove_if(ids.begin(), ids.end(), [&](uint32_t i) { return double(e[i]) < min_p; }), ids.end());
        id = draw(ids, e, philox_uniform(seed, uint32_t(choice), output_index));
      }
    }
  }
  if (fault == kBad) {
    int64_t at = 0;
    while (at < n - 1 && !(std::isnan(x[at]) || x[at] == INFINITY)) at++;
    fail_value(element("logits", at).c_str(), "no NaN and no +Inf", std::isnan(x[at]) ? "nan" : "inf");
  }
  if (fault == kNothing) fail_value("logits", "at least one finite value", "none");
  if (fault == kOverflow) fail_value("params.temperature", "finite logit / temperature", std::to_string(temperature));
  return id;
}

// [(largest logit, float64 sum of exp32(logit - largest) over ids ascending)], one pair per row.
nb::typed<nb::list, nb::typed<nb::tuple, double, double>> softmax_totals(Backend& backend, nb::handle logits_array) {
  View logits(logits_array, "logits", kF32, {kAny, kAny});
  const int64_t rows = logits.shape(0), n = logits.shape(1);
  if (n < 1 || n > INT32_MAX) fail_value("logits", "rows of 1 to 2^31 - 1 values", std::to_string(n));
  const float* x = logits.as<float>();
  std::vector<float> largest(size_t(rows), NAN);
  std::vector<double> total(size_t(rows), 0.0);
  {
    Call call(backend);
    backend.pool.run(rows, 1, rows * n * 8, [&](int64_t begin, int64_t end, int) {
      constexpr int64_t kBlock = 256;
      alignas(64) float z[kBlock], e[kBlock];
      for (int64_t r = begin; r < end; r++) {
        const float* row = x + r * n;
        float top;
        if (!backend.kernels.largest_logit(row, n, &top) || std::isinf(top)) continue;
        largest[size_t(r)] = top;
        double running = 0;
        for (int64_t at = 0; at < n; at += kBlock) {
          const int64_t count = std::min(kBlock, n - at);
          backend.kernels.temper(row + at, count, top, 1.0f, z, e);
          for (int64_t i = 0; i < count; i++) running += double(e[i]);
        }
        total[size_t(r)] = running;
      }
    });
  }
  nb::list result;
  for (int64_t r = 0; r < rows; r++) {
    if (!std::isnan(largest[size_t(r)])) {
      result.append(nb::make_tuple(double(largest[size_t(r)]), total[size_t(r)]));
      continue;
    }
    for (int64_t i = 0; i < n; i++) {
      const float v = x[r * n + i];
      if (std::isnan(v) || v == INFINITY)
        fail_value(("logits[" + std::to_string(r) + ", " + std::to_string(i) + "]").c_str(), "no NaN and no +Inf",
                   std::isnan(v) ? "nan" : "inf");
    }
    fail_value(element("logits", r).c_str(), "at least one finite value", "none");
  }
  return result;
}

}  // namespace

void bind_sampling(BackendClass& c) {
  c.def("sample", &sample, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
        nb::arg("seed"), nb::arg("choice"), nb::arg("output_index"));
  c.def("softmax_totals", &softmax_totals, nb::arg("logits"));
}

}  // namespace colibri
