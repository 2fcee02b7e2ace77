/* image.c - see image.h. mk/cuda.mk defines CUDA_IMAGE_* as the paths of the fat binaries where it
 * has found nvcc; the assembler takes them in. */
#include "backend/cuda/image.h"

#include <stddef.h>

#ifdef CUDA_IMAGE_STEP
#define TAKE(name, path)                                                                           \
    __asm__(".pushsection .rodata\n.balign 64\ncuda__image_" #name ":\n.incbin \"" path            \
            "\"\n.popsection\n");                                                                  \
    extern const char image_##name[] __asm__("cuda__image_" #name)                                 \
        __attribute__((visibility("hidden")));
TAKE(step, CUDA_IMAGE_STEP)
TAKE(one, CUDA_IMAGE_ONE)
TAKE(four, CUDA_IMAGE_FOUR)
TAKE(mega, CUDA_IMAGE_MEGA)
TAKE(tensor, CUDA_IMAGE_TENSOR)
TAKE(row, CUDA_IMAGE_ROW)
TAKE(lone, CUDA_IMAGE_LONE)

const void *cuda__image(int i)
{
    static const char *const image[CUDA_IMAGES] = {image_step,   image_one, image_four, image_mega,
                                                   image_tensor, image_row, image_lone};
    return image[i];
}
#else
const void *cuda__image(int i)
{
    (void)i;
    return NULL;
}
#endif
