/* ov.c - see ov.h. */
#include "backend/graph/ov.h"
#include "core/opt.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The library carries its version in its name and comes without a plain link in Python packages. */
#define LIBRARY "libopenvino_c.so"

/* Versions whose numbers of types and properties this engine knows. Before 2025 the element types
 * were counted from another start; what comes after 2026 is not known yet. */
enum { FIRST_YEAR = 2025, LAST_YEAR = 2026 };

static bool is_folder(const char *path)
{
    char self[4096];
    int n = snprintf(self, sizeof self, "%s/.", path);
    return n > 0 && (size_t)n < sizeof self && access(self, F_OK) == 0;
}

/* The newest match of a pattern (names sort by version) into path. */
static bool match(const char *pattern, char *path, size_t cap)
{
    glob_t g;
    bool found = false;
    if (glob(pattern, 0, NULL, &g) != 0) return false;
    for (size_t i = g.gl_pathc; i-- > 0 && !found;)
        found = (size_t)snprintf(path, cap, "%s", g.gl_pathv[i]) < cap;
    globfree(&g);
    return found;
}

/* In a folder of libraries, or in that of a package. */
static bool find_below(const char *folder, char *path, size_t cap)
{
    static const char *const below[] = {"", "/libs", "/openvino/libs", "/runtime/lib/intel64"};
    char pattern[4096];
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        int n = snprintf(pattern, sizeof pattern, "%s%s/" LIBRARY "*", folder, below[i]);
        if (n > 0 && (size_t)n < sizeof pattern && match(pattern, path, cap)) return true;
    }
    return false;
}

static bool find_beside_program(char *path, size_t cap)
{
    static const char *const below[] = {"graph-runtime", "build/graph-runtime"};
    char self[3072], folder[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return false;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (!slash) return false;
    *slash = 0;
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        (void)snprintf(folder, sizeof folder, "%s/%s", self, below[i]);
        if (find_below(folder, path, cap)) return true;
    }
    return false;
}

static bool find_in_python(char *path, size_t cap)
{
    static const char *const roots[] = {"/usr/local/lib/python3*", "/usr/lib/python3*"};
    static const char *const packages[] = {"site-packages", "dist-packages"};
    const char *home = ht_env_get(HT_ENV_HOME), *venv = ht_env_get(HT_ENV_VIRTUAL_ENV);
    char root[3072], pattern[4096];
    for (size_t i = 0; i < 4; i++) {
        if (i == 0 && !venv) continue;
        if (i == 1 && !home) continue;
        (void)snprintf(root, sizeof root, "%s%s",
                       i == 0   ? venv
                       : i == 1 ? home
                                : roots[i - 2],
                       i == 0   ? "/lib/python3*"
                       : i == 1 ? "/.local/lib/python3*"
                                : "");
        for (size_t k = 0; k < 2; k++) {
            (void)snprintf(pattern, sizeof pattern, "%s/%s/openvino/libs/" LIBRARY "*", root,
                           packages[k]);
            if (match(pattern, path, cap)) return true;
        }
    }
    return false;
}

/* What to hand to dlopen. false: a place was named and has no library. */
static bool locate(const char *where, char *path, size_t cap)
{
    const char *named = where && *where ? where : ht_env_get(HT_ENV_OPENVINO);
    if (named && !strcmp(named, "none")) return false;
    if (named && is_folder(named)) return find_below(named, path, cap);
    if (named) return (size_t)snprintf(path, cap, "%s", named) < cap;
    if (find_beside_program(path, cap) || find_in_python(path, cap)) return true;
    (void)snprintf(path, cap, "%s", LIBRARY);
    return true;
}

static int bind_calls(ov_api *api, const char *path, ht_err *e)
{
    static const struct {
        const char *symbol;
        size_t at;
    } call[] = {
#define X(field, symbol, args) {symbol, offsetof(ov_api, field)},
        OV_CALLS(X)
#undef X
#define X(field, symbol, type, args) {symbol, offsetof(ov_api, field)},
            OV_FREES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
        /* POSIX lets a data pointer hold a function; C does not, hence the copy. */
        void *p = dlsym(api->lib, call[i].symbol);
        if (!p)
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "graph: %.120s has no %s: not an OpenVINO of %d or later; install the "
                           "Python package openvino (make graph-runtime)",
                           path, call[i].symbol, FIRST_YEAR);
        memcpy((char *)api + call[i].at, &p, sizeof p);
    }
    return 0;
}

int graph__ov_load(ov_api *api, const char *where, char *path, size_t cap, ht_err *e)
{
    memset(api, 0, sizeof *api);
    path[0] = 0;
    const bool located = locate(where, path, cap);
    /* Its worker threads outlive a close, so the library stays mapped once it was loaded. */
    if (located) api->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!api->lib) {
        const char *why = located ? dlerror() : NULL;
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "no OpenVINO on this machine (%.110s); run make graph-runtime, or name its "
                       "folder in HETERO_OPENVINO",
                       why ? why : "no " LIBRARY " at the place that is named");
    }
    int rc = bind_calls(api, path, e);
    if (rc) graph__ov_unload(api);
    return rc;
}

void graph__ov_unload(ov_api *api)
{
    if (api->lib) dlclose(api->lib);
    memset(api, 0, sizeof *api);
}

int graph__ov_check(const ov_api *api, int status, int code, const char *what, ht_err *e)
{
    if (status == OV_OK) return 0;
    const char *text = api->last_error(), *line = text ? text : "";
    char words[150];
    size_t n = 0;
    /* The library prefixes lines with source files; the last ones say what was wrong. */
    const size_t len = strlen(line), from = len > 120 ? len - 120 : 0;
    for (const char *p = line + from; *p && n + 1 < sizeof words; p++)
        words[n++] = *p == '\n' || *p == '\r' ? ' ' : *p;
    while (n && words[n - 1] == ' ') n--;
    words[n] = 0;
    if (text && *text) api->text_free(text);
    if (strstr(words, "bad_alloc") || strstr(words, "not enough memory")) code = HT_ENOMEM;
    return HT_FAIL(e, code, "graph: %s: OpenVINO status %d, %s", what, status,
                   words[0] ? words : "no reason given");
}

/* The numbers of element types that this file shares with the library, asked from itself. */
static int check_types(const ov_api *api, ht_err *e)
{
    static const struct {
        int type;
        size_t bytes;
    } of[] = {{OV_F16, 6}, {OV_F32, 12}, {OV_I8, 3}, {OV_I32, 12}, {OV_I64, 24}};
    int64_t three = 3, room[3] = {0};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ov_tensor *t = NULL;
        size_t bytes = 0;
        int status = api->wrap(of[i].type, (ov_shape){1, &three}, room, &t);
        if (!status) status = api->tensor_bytes(t, &bytes);
        if (t) api->tensor_free(t);
        if (status || bytes != of[i].bytes)
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "graph: this OpenVINO numbers its element types otherwise (type %d of "
                           "three has %zu bytes, not %zu); use version %d to %d",
                           of[i].type, bytes, of[i].bytes, FIRST_YEAR, LAST_YEAR);
    }
    return 0;
}

int graph__ov_version(const ov_api *api, char *build, size_t cap, ht_err *e)
{
    ov_version v = {0};
    int year = 0;
    HT_TRY(graph__ov_check(api, api->version(&v), HT_EUNSUPPORTED, "asking for its version", e));
    if (v.build) {
        (void)snprintf(build, cap, "%s", v.build);
        year = (int)strtol(v.build, NULL, 10);
    }
    api->version_free(&v);
    if (year < FIRST_YEAR || year > LAST_YEAR)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "graph: OpenVINO %.60s is none of %d to %d, which this engine was made for; "
                       "install another version (make graph-runtime)",
                       build, FIRST_YEAR, LAST_YEAR);
    return check_types(api, e);
}
