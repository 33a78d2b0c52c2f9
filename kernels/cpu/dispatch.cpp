#include "dispatch.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

#include "float_control.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace colibri {
namespace {

struct CpuFeatures {
  bool avx2 = false, avx512 = false, avx512bf16 = false;
};

#if defined(__x86_64__)
uint64_t read_xcr0() {
  uint32_t lo, hi;
  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return uint64_t(hi) << 32 | lo;
}

// Intel SDM vol. 1, 14.3 and 15.2: the feature bits, and that the system saves the registers (XCR0).
CpuFeatures detect() {
  CpuFeatures f;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  const bool osxsave = c >> 27 & 1, avx = c >> 28 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
  if (!osxsave || !avx) return f;
  const uint64_t xcr0 = read_xcr0();
  const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6;
  if (!ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  const uint32_t max_subleaf = a;
  f.avx2 = fma && f16c && (b >> 5 & 1);
  const bool foundation = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1;
  const bool vnni = c >> 11 & 1;
  f.avx512 = f.avx2 && zmm && foundation && dq && bw && vl;
  if (f.avx512 && max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx512bf16 = vnni && (a >> 5 & 1);
  return f;
}
#else
CpuFeatures detect() { return {}; }
#endif

struct Path {
  const char* name;
  const KernelTable* table;
  bool supported;
};

// Best first.
std::vector<Path> paths() {
  static const CpuFeatures f = detect();
  return {{"avx512bf16", table_avx512bf16(), f.avx512bf16},
          {"avx512", table_avx512(), f.avx512},
          {"avx2", table_avx2(), f.avx2},
          {"portable", table_portable(), true}};
}

// Once per path and process.
bool self_test(const KernelTable* table) {
  static std::mutex mutex;
  static std::map<const KernelTable*, bool> results;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = results.find(table);
  if (found == results.end()) {
    FloatControlScope control;
    found = results.emplace(table, table->self_test()).first;
  }
  return found->second;
}

}  // namespace

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Path& p : paths())
    if (p.table && p.supported) names.emplace_back(p.name);
  return names;
}

IsaChoice choose_isa(const std::string& requested, bool distrust) {
  std::string name = requested, source = "isa";
  if (name.empty()) {
    const char* env = std::getenv("COLIBRI_ISA");
    if (env) name = env;
    source = "COLIBRI_ISA";
  }
  std::string usable;
  for (const std::string& s : supported_isas()) usable += (usable.empty() ? "" : ", ") + s;
  std::string fallback;
  for (const Path& p : paths()) {
    if (!name.empty() && name != p.name && fallback.empty()) continue;
    if (p.table && p.supported) {
      if (!p.table->self_test || (!distrust && self_test(p.table))) return {p.table, fallback};
      fallback += std::string(p.name) + ": the start-up self-test found other bits than two FMAs give";
      continue;
    }
    if (!name.empty())
      throw std::invalid_argument(source + ": expected an instruction path that this machine runs (" + usable + "), got '" +
                                  name + "'");
  }
  throw std::invalid_argument(source + ": expected one of avx512bf16, avx512, avx2, portable, got '" + name + "'");
}

}  // namespace colibri
