/* mul_two.cu - products whose warps take two rows at a time: QKV, gate and up, the head. */
#include "backend/cuda/mul.cuh"

MUL_TYPES(2, 1)
MUL_TYPES(2, 4)
