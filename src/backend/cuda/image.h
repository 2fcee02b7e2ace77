/* image.h - the compiled kernels inside the binary: one fat binary per .cu file (sm_90a code and
 * PTX). A build without nvcc has none. */
#ifndef HT_BACKEND_CUDA_IMAGE_H
#define HT_BACKEND_CUDA_IMAGE_H
enum { CUDA_IMAGES = 7 };              /* step, mul_one, mul_four, mega, tensor, row, lone    */
/* Image i, or NULL. */
const void *cuda__image(int i);
#endif
