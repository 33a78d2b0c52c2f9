// Plain data between the gate's driver and its kernels.
#pragma once
#include <stdint.h>

namespace colibri {

constexpr int kMaxChosen = 16;

// Rows of logits, and what is chosen of each: slot s holds the s-th largest.
struct GateRows {
  const float* logits;  // [rows][experts]
  int64_t rows, experts;
  int k;                // 1 .. 16, at most `experts`
  bool int16;           // ordered as 16-bit integers, scaled to the row's largest magnitude
  uint16_t* ids;        // [rows][k]
  float* weights;       // [rows][k]: softmax over the chosen logits
  bool* ok;             // [rows]: false where a logit is NaN or Inf; ids and weights are zero then
};

}  // namespace colibri
