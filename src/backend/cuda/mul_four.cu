/* mul_four.cu - products for four rows of the batch at a time. */
#include "backend/cuda/mul.cuh"

MUL_TYPES(4)
