/* mul_one.cu - products for one row of the batch: decode. */
#include "backend/cuda/mul.cuh"

MUL_TYPES(1)
