/* driver.h - the part of the CUDA driver's interface that this engine calls, loaded at run time: a
 * binary built here runs where there is no driver and says so. Types and numbers are the driver's
 * ABI. */
#ifndef HT_BACKEND_CUDA_DRIVER_H
#define HT_BACKEND_CUDA_DRIVER_H
#include "core/err.h"
#include <stdint.h>

typedef uint64_t cuda_ptr;               /* device memory                                         */
typedef struct cuda_ctx_ *cuda_ctx;
typedef struct cuda_module_ *cuda_module;
typedef struct cuda_fn_ *cuda_fn;
typedef struct cuda_stream_ *cuda_stream;
typedef struct cuda_event_ *cuda_event;
typedef struct cuda_graph_ *cuda_graph;
typedef struct cuda_exec_ *cuda_exec;
typedef struct { uint32_t id, pad; int32_t value; uint32_t rest[15]; } cuda_launch_attr;
enum { CUDA_HOST = 1, CUDA_DEVICE = 2 }; /* kinds of memory                                      */
typedef struct {                         /* rows of bytes, `pitch` apart                          */
    size_t x, y;
    int kind;
    const void *host;
    cuda_ptr dev;
    void *array;
    size_t pitch;
} cuda_rows;
typedef struct { cuda_rows from, to; size_t width, rows; } cuda_copy2d;
typedef struct {
    uint32_t grid[3], block[3], shared;
    cuda_stream stream;
    cuda_launch_attr *attrs;
    uint32_t n_attrs;
} cuda_launch;

enum {
    CUDA_OK = 0, CUDA_NOT_READY = 600,
    CUDA_ATTR_SMS = 16, CUDA_ATTR_L2 = 38, CUDA_ATTR_MAJOR = 75, CUDA_ATTR_MINOR = 76,
    CUDA_ATTR_MEMORY_KHZ = 36, CUDA_ATTR_MEMORY_BITS = 37, CUDA_ATTR_CLOCK_KHZ = 13,
    CUDA_ATTR_SHARED_OPTIN = 97,
    CUDA_FN_BINARY = 6, CUDA_FN_SHARED_MAX = 8, CUDA_FN_CARVEOUT = 9,
    CUDA_STREAM_OWN = 1, CUDA_CAPTURE_RELAXED = 2, CUDA_HOST_MAPPED = 2,
    CUDA_LAUNCH_COOPERATIVE = 2, CUDA_LAUNCH_PROGRAMMATIC = 6
};

/* X(field, symbol, arguments); every call returns the driver's result code. */
#define CUDA_CALLS(X)                                                                              \
    X(init, "cuInit", (unsigned))                                                                  \
    X(version, "cuDriverGetVersion", (int *))                                                      \
    X(error_text, "cuGetErrorString", (int, const char **))                                        \
    X(count, "cuDeviceGetCount", (int *))                                                          \
    X(device, "cuDeviceGet", (int *, int))                                                         \
    X(name, "cuDeviceGetName", (char *, int, int))                                                 \
    X(attr, "cuDeviceGetAttribute", (int *, int, int))                                             \
    X(retain, "cuDevicePrimaryCtxRetain", (cuda_ctx *, int))                                       \
    X(release, "cuDevicePrimaryCtxRelease_v2", (int))                                              \
    X(current, "cuCtxSetCurrent", (cuda_ctx))                                                      \
    X(mem_info, "cuMemGetInfo_v2", (size_t *, size_t *))                                           \
    X(module, "cuModuleLoadData", (cuda_module *, const void *))                                   \
    X(module_unload, "cuModuleUnload", (cuda_module))                                              \
    X(function, "cuModuleGetFunction", (cuda_fn *, cuda_module, const char *))                     \
    X(fn_attr, "cuFuncGetAttribute", (int *, int, cuda_fn))                                        \
    X(fn_set, "cuFuncSetAttribute", (cuda_fn, int, int))                                           \
    X(alloc, "cuMemAlloc_v2", (cuda_ptr *, size_t))                                                \
    X(free_mem, "cuMemFree_v2", (cuda_ptr))                                                        \
    X(host_alloc, "cuMemHostAlloc", (void **, size_t, unsigned))                                   \
    X(host_free, "cuMemFreeHost", (void *))                                                        \
    X(host_lock, "cuMemHostRegister_v2", (void *, size_t, unsigned))                               \
    X(host_unlock, "cuMemHostUnregister", (void *))                                                \
    X(host_ptr, "cuMemHostGetDevicePointer_v2", (cuda_ptr *, void *, unsigned))                    \
    X(set32, "cuMemsetD32Async", (cuda_ptr, unsigned, size_t, cuda_stream))                        \
    X(to_device, "cuMemcpyHtoDAsync_v2", (cuda_ptr, const void *, size_t, cuda_stream))            \
    X(to_host, "cuMemcpyDtoHAsync_v2", (void *, cuda_ptr, size_t, cuda_stream))                    \
    X(within, "cuMemcpyDtoDAsync_v2", (cuda_ptr, cuda_ptr, size_t, cuda_stream))                   \
    X(copy2d, "cuMemcpy2DAsync_v2", (const cuda_copy2d *, cuda_stream))                            \
    X(stream_new, "cuStreamCreate", (cuda_stream *, unsigned))                                     \
    X(stream_free, "cuStreamDestroy_v2", (cuda_stream))                                            \
    X(stream_sync, "cuStreamSynchronize", (cuda_stream))                                           \
    X(capture_begin, "cuStreamBeginCapture_v2", (cuda_stream, int))                                \
    X(capture_end, "cuStreamEndCapture", (cuda_stream, cuda_graph *))                              \
    X(graph_make, "cuGraphInstantiateWithFlags", (cuda_exec *, cuda_graph, uint64_t))              \
    X(graph_free, "cuGraphDestroy", (cuda_graph))                                                  \
    X(exec_free, "cuGraphExecDestroy", (cuda_exec))                                                \
    X(graph_run, "cuGraphLaunch", (cuda_exec, cuda_stream))                                        \
    X(event_new, "cuEventCreate", (cuda_event *, unsigned))                                        \
    X(event_free, "cuEventDestroy_v2", (cuda_event))                                               \
    X(event_set, "cuEventRecord", (cuda_event, cuda_stream))                                       \
    X(event_query, "cuEventQuery", (cuda_event))                                                   \
    X(event_ms, "cuEventElapsedTime", (float *, cuda_event, cuda_event))                           \
    X(launch, "cuLaunchKernelEx", (const cuda_launch *, cuda_fn, void **, void **))

typedef struct {
#define X(field, symbol, args) int (*field) args;
    CUDA_CALLS(X)
#undef X
    void *lib;                           /* NULL: not from a library                              */
} cuda_api;

/* Load the driver. HT_EUNSUPPORTED with the reason where there is none. */
int cuda__api_load(cuda_api *, ht_err *);
void cuda__api_unload(cuda_api *);
#endif
