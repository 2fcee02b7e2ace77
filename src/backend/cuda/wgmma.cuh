/* wgmma.cuh - the tensor cores' products of a warpgroup, 64 rows by N columns by 16: the
 * instruction names every register. Included by tensor.cu.
 *
 * ss: both factors in shared memory, K along the 128-byte rows. rs: the first in registers; the
 * second with N along its rows (trans). add 0: d is overwritten. */
#ifndef HT_BACKEND_CUDA_WGMMA_CUH
#define HT_BACKEND_CUDA_WGMMA_CUH
#include "backend/cuda/device.cuh"

/* The accumulator's registers: their names in the instruction, and the operands. */
#define SUM_NAMES_32                                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "       \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUM_NAMES_64                                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "       \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "       \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "       \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_32                                                                                   \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),           \
    "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),                    \
    "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),                 \
    "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),                 \
    "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),                 \
    "+f"(d[31])
#define SUMS_64                                                                                   \
    SUMS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),                     \
    "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),                 \
    "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),                 \
    "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),                 \
    "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),                 \
    "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

__device__ inline void wgmma_ss(float (&d)[32], uint64_t a, uint64_t b, int add)
{
#if CUDA_SM90
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUM_NAMES_32
                 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
                 : SUMS_32
                 : "l"(a), "l"(b), "r"(add));
#endif
}

__device__ inline void wgmma_ss(float (&d)[64], uint64_t a, uint64_t b, int add)
{
#if CUDA_SM90
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUM_NAMES_64
                 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
                 : SUMS_64
                 : "l"(a), "l"(b), "r"(add));
#endif
}

__device__ inline void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
#if CUDA_SM90
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SUM_NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 : SUMS_32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
}

__device__ inline void wgmma_rs(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add)
{
#if CUDA_SM90
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUM_NAMES_64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                 : SUMS_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
}

#undef SUM_NAMES_32
#undef SUM_NAMES_64
#undef SUMS_32
#undef SUMS_64
#endif
