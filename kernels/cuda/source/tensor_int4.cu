// Products with int4 weights: up to 8 and up to 32 rows of an expert, and 64 at once where one has more.
#include "tensor.cuh"

GROUPED(grouped_int4_rows8, 128, 3, Int4, 1, false)
GROUPED(grouped_int4_rows32, 128, 2, Int4, 4, false)
GROUPED(grouped_int4_wide, 256, 1, Int4, 4, true)
