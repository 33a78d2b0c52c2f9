// Products with int8 weights: up to 8 and up to 32 rows of an expert, and 64 at once where one has more.
#include "tensor.cuh"

GROUPED(grouped_int8_rows8, 128, 3, Int8, 1, false)
GROUPED(grouped_int8_rows32, 128, 2, Int8, 4, false)
GROUPED(grouped_int8_wide, 256, 1, Int8, 4, true)
