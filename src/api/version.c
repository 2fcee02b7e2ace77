/* version.c - the smallest functions of hetero.h: what this library is, names of codes, giving back
 * what the library handed out. */
#include "version.h" /* made by the build: HT_VERSION, HT_COMMIT in a git checkout */
#include "api/api.h"

#ifdef HT_COMMIT
#define COMMIT_TEXT " (commit " HT_COMMIT ")"
#else
#define COMMIT_TEXT ""
#endif

const char *ht_version(void)
{
    return HT_VERSION COMMIT_TEXT;
}

const char *ht_code_name(int code)
{
    switch (code) {
    case HT_OK: return "OK";
    case HT_EARG: return "EARG";
    case HT_ENOMEM: return "ENOMEM";
    case HT_EIO: return "EIO";
    case HT_EFORMAT: return "EFORMAT";
    case HT_EUNSUPPORTED: return "EUNSUPPORTED";
    case HT_EDEVICE: return "EDEVICE";
    case HT_EFULL: return "EFULL";
    case HT_EBUSY: return "EBUSY";
    case HT_ECANCELLED: return "ECANCELLED";
    case HT_EGATE: return "EGATE";
    default: return "?";
    }
}

void ht_free(void *p)
{
    ht_mem_free(p);
}
