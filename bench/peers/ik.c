/* ik.c - time ik_llama.cpp as its own llama-bench would, through the library of the package ik-
 * llama-cpp-python, which ships no llama-bench: same options, same JSON, as far as record.py
 * reads them. Needs that package's headers and libraries; built by hand, never by make:
 *   cc -O2 -I$IK/include bench/peers/ik.c -L$IK/lib64 -lllama -lggml \
 *      -Wl,-rpath,$IK/lib64 -o ik-bench */
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Decode n arbitrary tokens from position pos on; one: token by token. */
static void feed(struct llama_context *c, int n, int pos, int one)
{
    llama_token tok[8192];
    for (int i = 0; i < n; i++) tok[i] = 100 + i % 5000;
    for (int i = 0; i < n; i += one ? 1 : n) {
        if (llama_decode(c, llama_batch_get_one(tok + i, one ? 1 : n, pos + i, 0)) != 0) {
            fprintf(stderr, "llama_decode failed\n");
            exit(1);
        }
        llama_synchronize(c);
    }
}

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
}

int main(int argc, char **argv)
{
    const char *model = NULL;
    int prompt = 0, gen = 0, depth = 0, threads = 2, fa = 1, rtr = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *o = argv[i], *v = argv[i + 1];
        if (!strcmp(o, "-m")) model = v;
        if (!strcmp(o, "-p")) prompt = atoi(v);
        if (!strcmp(o, "-gp")) sscanf(v, "%d,%d", &depth, &gen);
        if (!strcmp(o, "-t")) threads = atoi(v);
        if (!strcmp(o, "-fa")) fa = atoi(v);
        if (!strcmp(o, "-rtr")) rtr = atoi(v);
    }
    if (!model || prompt + depth > 8192) return 2;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.repack_tensors = rtr != 0;
    mp.use_mmap = !rtr;
    struct llama_model *m = llama_model_load_from_file(model, mp);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (uint32_t)(prompt + depth + gen + 64);
    cp.n_batch = 2048;
    cp.n_ubatch = 512;
    cp.n_threads = cp.n_threads_batch = (uint32_t)threads;
    cp.flash_attn = fa != 0;
    struct llama_context *c = m ? llama_init_from_model(m, cp) : NULL;
    if (!c) return 1;
    feed(c, prompt ? prompt : 8, 0, 0); /* warm-up */
    llama_kv_cache_clear(c);
    if (depth) feed(c, depth, 0, 0);
    double t = now_s();
    feed(c, prompt ? prompt : gen, depth, !prompt);
    double ts = (prompt ? prompt : gen) / (now_s() - t);
    char info[512];
    snprintf(info, sizeof info, "%s", llama_print_system_info());
    info[strcspn(info, "\n")] = 0;
    printf("[{\"n_prompt\":%d,\"n_gen\":%d,\"avg_ts\":%.4f,\"cpu_info\":\"%s\","
           "\"build_commit\":\"ik-llama-cpp-python\"}]\n",
           prompt, gen, ts, info);
    return 0;
}
