/* mul_one.cu - products whose warps take one row of the matrix at a time: those with short shares,
 * as the residual ones of a small model. */
#include "backend/cuda/mul.cuh"

MUL_TYPES(1, 1)
MUL_TYPES(1, 4)
