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
TAKE(two, CUDA_IMAGE_TWO)

const void *cuda__image(int i)
{
    return i == 0 ? image_step : i == 1 ? image_one : image_two;
}
#else
const void *cuda__image(int i)
{
    (void)i;
    return NULL;
}
#endif
