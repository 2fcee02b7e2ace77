/* driver.c - see driver.h. */
#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

int cuda__api_load(cuda_api *api, ht_err *e)
{
    static const struct {
        const char *symbol;
        size_t at;
    } call[] = {
#define X(field, symbol, args) {symbol, offsetof(cuda_api, field)},
        CUDA_CALLS(X)
#undef X
    };
    memset(api, 0, sizeof *api);
    api->lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!api->lib)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "no CUDA driver on this machine (libcuda.so.1 cannot be loaded); install "
                       "NVIDIA's driver or use another engine");
    for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
        /* POSIX lets a data pointer hold a function; C does not, hence the copy. */
        void *p = dlsym(api->lib, call[i].symbol);
        if (!p) {
            cuda__api_unload(api);
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "the CUDA driver is too old: it has no %s; install one for CUDA 12 or "
                           "later",
                           call[i].symbol);
        }
        memcpy((char *)api + call[i].at, &p, sizeof p);
    }
    return 0;
}

void cuda__api_unload(cuda_api *api)
{
    if (api->lib) dlclose(api->lib);
    memset(api, 0, sizeof *api);
}
