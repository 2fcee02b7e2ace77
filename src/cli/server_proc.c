/* server_proc.c - see server_proc.h. Formats: filesystems/proc.rst and
 * networking/proc_net_tcp.rst of the
 * kernel's documentation. */
#include "cli/server_proc.h"
#include "core/map.h"
#include "evid/manifest.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TABLE_MAX = 16 << 20, ARGS_MAX = 1 << 20 };
/* What of the environment changes how a server computes. */
static const char *const shown_env[] = {"CUDA_VISIBLE_DEVICES",
                                        "GGML_",
                                        "GOMP_",
                                        "KMP_",
                                        "LLAMA_",
                                        "MKL_",
                                        "OLLAMA_",
                                        "OMP_",
                                        "OPENBLAS_"};

/* The socket that listens at the port, by its inode; 0: none. */
static uint64_t listener(const char *table, uint16_t port)
{
    char *text, want[8], *save = NULL;
    size_t n;
    uint64_t inode = 0;
    snprintf(want, sizeof want, ":%04X", port);
    if (ht_file_read(table, TABLE_MAX, &text, &n, NULL)) return 0;
    for (char *line = strtok_r(text, "\n", &save); line && !inode;
         line = strtok_r(NULL, "\n", &save)) {
        char local[64], remote[64], state[8];
        unsigned long long ino;
        /* sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode */
        if (sscanf(line, "%*d: %63s %63s %7s %*s %*s %*s %*s %*s %llu", local, remote, state,
                   &ino) == 4 &&
            strcmp(state, "0A") == 0 && strstr(local, want))
            inode = ino;
    }
    ht_mem_free(text);
    return inode;
}

static bool holds(const char *pid, uint64_t inode)
{
    char path[300], link[64], want[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    snprintf(want, sizeof want, "socket:[%llu]", (unsigned long long)inode);
    DIR *d = opendir(path);
    for (struct dirent *it; d && !found && (it = readdir(d));) {
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, it->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        if (n <= 0) continue;
        link[n] = 0;
        found = strcmp(link, want) == 0;
    }
    if (d) closedir(d);
    return found;
}

int cli__server_pid(uint16_t port)
{
    uint64_t inode = listener("/proc/net/tcp", port);
    if (!inode) inode = listener("/proc/net/tcp6", port);
    if (!inode) return 0;
    int pid = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *it; d && !pid && (it = readdir(d));)
        if (it->d_name[0] >= '1' && it->d_name[0] <= '9' && holds(it->d_name, inode))
            pid = (int)strtol(it->d_name, NULL, 10);
    if (d) closedir(d);
    return pid;
}

bool cli__server_usage(int pid, uint64_t *cpu_ns, uint64_t *peak_bytes)
{
    char path[64], *text;
    size_t n;
    unsigned long long user, system;
    long long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (pid <= 0 || ht_file_read(path, 1 << 16, &text, &n, NULL)) return false;
    /* After the last parenthesis of the name: state, then ten numbers, then utime and stime. */
    const char *p = strrchr(text, ')');
    bool good = p && sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user,
                            &system) == 2;
    ht_mem_free(text);
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (!good || ht_file_read(path, 1 << 16, &text, &n, NULL)) return false;
    p = strstr(text, "VmHWM:");
    if (p) kib = strtoll(p + 6, NULL, 10);
    ht_mem_free(text);
    *cpu_ns = (user + system) * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
    *peak_bytes = kib > 0 ? (uint64_t)kib * 1024 : 0;
    return true;
}

/* ---- the receipt ---- */

static const char *base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void file_digest(ht_jw *w, const char *key, const char *path)
{
    ht_map m;
    uint8_t digest[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    if (!path || ht_map_open(&m, path, NULL)) {
        ht_jw_unknown(w, key, path ? "UNREADABLE" : "NOT_NAMED");
        return;
    }
    bool good = !ht_sha256_of(m.p, m.n, digest, NULL);
    ht_map_close(&m);
    ht_hex(digest, sizeof digest, hex);
    if (good) ht_jw_kstr(w, key, hex);
    else ht_jw_unknown(w, key, "UNREADABLE");
}

/* Zero-terminated texts of /proc/PID/NAME, one after the other; NULL: not readable. */
static char *texts(ht_arena *a, int pid, const char *name, size_t *n)
{
    char path[64], *text;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    if (pid <= 0 || ht_file_read(path, ARGS_MAX, &text, n, NULL)) return NULL;
    char *copy = ht_arena_strndup(a, text, *n);
    ht_mem_free(text);
    return copy;
}

/* The path behind -m or --model; relative to where the server was started. */
static const char *model_path(ht_arena *a, int pid, const char *args, size_t n)
{
    for (const char *p = args; p && p < args + n; p += strlen(p) + 1) {
        if (strcmp(p, "-m") != 0 && strcmp(p, "--model") != 0) continue;
        const char *file = p + strlen(p) + 1;
        if (file >= args + n) return NULL;
        return *file == '/' ? file : ht_arena_printf(a, "/proc/%d/cwd/%s", pid, file);
    }
    return NULL;
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

static void write_env(ht_jw *w, const char *env, size_t n)
{
    enum { MOST = 256 };
    const char *list[MOST];
    size_t k = 0;
    for (const char *p = env; p && p < env + n && k < MOST; p += strlen(p) + 1)
        for (size_t i = 0; i < sizeof shown_env / sizeof *shown_env; i++)
            if (strncmp(p, shown_env[i], strlen(shown_env[i])) == 0 && k < MOST) list[k++] = p;
    qsort(list, k, sizeof *list, by_text);
    ht_jw_key(w, "env");
    ht_jw_arr(w);
    for (size_t i = 0; i < k; i++) ht_jw_str(w, list[i]);
    ht_jw_end(w, ']');
}

int cli__server_receipt(ht_arena *a, const cli__server *s, int pid, const char *binary,
                        const char *props, ht_buf *out, ht_err *e)
{
    char exe[64];
    size_t n_args = 0, n_env = 0;
    const char *args = texts(a, pid, "cmdline", &n_args), *env = texts(a, pid, "environ", &n_env);
    const char *model = model_path(a, pid, args, n_args);
    ht_json *doc = NULL;
    ht_jw w;
    snprintf(exe, sizeof exe, "/proc/%d/exe", pid);
    if (props && ht_json_parse(a, props, strlen(props), 0, "props", &doc, NULL)) doc = NULL;
    const char *shown = cli__str(doc, "model_path", "");
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "argv");
    ht_jw_arr(&w);
    for (const char *p = args; p && p < args + n_args; p += strlen(p) + 1)
        ht_jw_str(&w, *p == '/' ? base(p) : p);
    ht_jw_end(&w, ']');
    file_digest(&w, "binarySha256", pid > 0 ? exe : binary);
    ht_jw_kstr(&w, "build", cli__str(doc, "build_info", ""));
    write_env(&w, env, n_env);
    /* Two witnesses: the command line of the process and the server's own word. */
    ht_jw_kstr(&w, "executed",
               model && *shown && strcmp(base(model), base(shown)) == 0 ? "agreed" : "unproven");
    ht_jw_kstr(&w, "model", model ? base(model) : s->model ? s->model : "");
    file_digest(&w, "modelSha256", model);
    if (props) {
        uint8_t digest[HT_SHA256_BYTES];
        char hex[HT_SHA256_HEX];
        HT_TRY(ht_sha256_of(props, strlen(props), digest, e));
        ht_hex(digest, sizeof digest, hex);
        ht_jw_kstr(&w, "propsSha256", hex);
    } else {
        ht_jw_unknown(&w, "propsSha256", "NONE_SHOWN");
    }
    ht_jw_kstr(&w, "schema", "hetero/foreignreceipt/1");
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "receipt of the server", e);
}
