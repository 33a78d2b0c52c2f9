// Products with bf16 weights: up to 8 and up to 32 rows of an expert, and 128 at once where one has more.
#include "tensor.cuh"

GROUPED(grouped_bf16_rows8, 128, 3, Bf16, 1, false)
GROUPED(grouped_bf16_rows32, 128, 2, Bf16, 4, false)
GROUPED(grouped_bf16_wide, 256, 1, Bf16, 8, true)
