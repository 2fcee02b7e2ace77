/* doctor.c - hetero doctor: what this machine is, what each engine of this build can do here, and
 * for everything that holds it back one next step. Reads and reports, changes nothing. */
#include "cli/cli.h"
#include "core/arena.h"
#include "core/cpu.h"
#include "evid/policy.h"
#include "evid/telemetry.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    const ht_json *engines; /* array                                                      */
    ht_jw j;
    ht_gpus gpus;
    ht_json *fingerprint;
    unsigned n_findings;
    bool missing; /* a required engine cannot work here                         */
    char missing_what[120];
} work;

#define LITTLE_MEMORY ((uint64_t)1 << 30)

/* First line of a small kernel file; false when there is none. */
static bool first_line(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, out, cap - 1);
    close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
    return n > 0;
}

static void machine(work *w, const ht_cpu_threads *t)
{
    static const struct {
        unsigned bit;
        const char *name;
    } feature[] = {{HT_CPU_AVX2, "avx2+fma+f16c"},
                   {HT_CPU_AVX512, "avx512f+bw+dq+vl"},
                   {HT_CPU_VNNI, "avx512vnni"},
                   {HT_CPU_BF16, "avx512bf16"}};
    struct utsname u;
    char text[128];
    unsigned have = ht_cpu_features();
    ht_jw *j = &w->j;
    ht_jw_key(j, "machine");
    ht_jw_obj(j);
    ht_jw_kstr(j, "cpu", ht_cpu_name());
    ht_jw_key(j, "features");
    ht_jw_arr(j);
    for (size_t i = 0; i < sizeof feature / sizeof *feature; i++)
        if (have & feature[i].bit) ht_jw_str(j, feature[i].name);
    ht_jw_end(j, ']');
    ht_jw_kint(j, "threads", t->threads);
    ht_jw_kstr(j, "threadsWhy", t->why);
    ht_jw_kint(j, "cpusAllowed", t->affinity);
    ht_jw_kint(j, "physicalCores", t->physical);
    ht_jw_key(j, "cgroupCpuQuota");
    if (t->quota) ht_jw_int(j, t->quota);
    else ht_jw_null(j);
    ht_jw_kuint(j, "availableBytes", ht_mem_available());
    if (first_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text))
        ht_jw_kstr(j, "transparentHugePages", text);
    if (uname(&u) == 0) {
        snprintf(text, sizeof text, "%.40s %.60s %.20s", u.sysname, u.release, u.machine);
        ht_jw_kstr(j, "os", text);
    }
    ht_jw_end(j, '}');
}

static void finding(work *w, const char *what, const char *why, const char *next)
{
    ht_jw_obj(&w->j);
    ht_jw_kstr(&w->j, "what", what);
    ht_jw_kstr(&w->j, "why", why);
    ht_jw_kstr(&w->j, "next", next);
    ht_jw_end(&w->j, '}');
    w->n_findings++;
}

static void find_cpu(work *w, const ht_cpu_threads *t)
{
    char what[96], next[160];
#if defined(__x86_64__)
    if (!(ht_cpu_features() & HT_CPU_AVX2))
        finding(w, "no AVX2",
                "the processor or the hypervisor does not offer AVX2 with FMA and F16C",
                "in a virtual machine pass the host's CPU model through; otherwise the generic "
                "kernels run, "
                "several times slower");
#else
    finding(w, "no hand-written kernels for this processor", "they exist for x86-64 only so far",
            "nothing to fix: the generic kernels run");
#endif
    if (t->quota && t->quota < t->affinity) {
        snprintf(what, sizeof what, "the control group allows %d of %d CPUs", t->quota,
                 t->affinity);
        snprintf(next, sizeof next,
                 "raise cpu.max of the container (or its CPU limit) to use more; -t beyond "
                 "%d makes it slower, not faster",
                 t->quota);
        finding(w, what, "cpu.max / cpu.cfs_quota_us of this process's group or one above it",
                next);
    }
    if (t->physical && t->physical < t->affinity) {
        snprintf(what, sizeof what, "%d CPUs are %d physical cores", t->affinity, t->physical);
        finding(w, what, "two hardware threads share a core's units and caches",
                "nothing to fix: one thread per core is used; try -t to measure otherwise");
    }
}

static void find_memory(work *w)
{
    char text[128], what[96];
    uint64_t free_bytes = ht_mem_available();
    if (free_bytes && free_bytes < LITTLE_MEMORY) {
        snprintf(what, sizeof what, "only %llu MiB of memory available",
                 (unsigned long long)(free_bytes >> 20));
        finding(w, what, "MemAvailable, or what memory.max of the control group leaves",
                "end other programs or raise the limit; 'hetero inspect MODEL --ctx N' tells what "
                "a model "
                "needs");
    }
    if (first_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) &&
        strstr(text, "[never]"))
        finding(w, "transparent huge pages are off",
                "/sys/kernel/mm/transparent_hugepage/enabled is never",
                "set it to madvise (as root): fewer page-table walks while weights are read");
}

/* The processor reports a hypervisor: the flag stands in /proc/cpuinfo on x86. */
static bool is_virtual(void)
{
    char text[8192];
    int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return strstr(text, " hypervisor") != NULL;
}

static void find_engines(work *w)
{
    for (size_t i = 0; i < w->engines->n; i++) {
        const ht_json *eng = &w->engines->at[i], *ok = ht_json_get(eng, "available");
        char what[96];
        if (ok && ok->b) continue;
        snprintf(what, sizeof what, "engine %.40s cannot work here", cli__str(eng, "name", "?"));
        finding(w, what, cli__str(eng, "why", "unknown"),
                "use another engine, or fix the reason given");
    }
    const char *const *want;
    size_t n = ht_opt_list(w->c->o, HT_OPT_REQUIRE_DEVICE, &want);
    for (size_t k = 0; k < n; k++) {
        bool found = false, usable = false;
        for (size_t i = 0; i < w->engines->n; i++) {
            const ht_json *eng = &w->engines->at[i], *ok = ht_json_get(eng, "available");
            if (strcmp(cli__str(eng, "name", ""), want[k]) != 0) continue;
            found = true;
            usable = ok && ok->b;
        }
        if (usable) continue;
        snprintf(w->missing_what, sizeof w->missing_what, "required engine %.40s: %s", want[k],
                 found ? "cannot work here, see the findings" : "this build has none of that name");
        if (!found)
            finding(w, w->missing_what, "--require-device names it", "install a build that has it");
        w->missing = true;
    }
}

/* ---- fingerprint: what evidence measured here is bound to ---- */

static void digest(work *w, const char *key, enum ht_machine_part part)
{
    char hex[HT_SHA256_HEX];
    ht_err why = {0};
    ht_jw_key(&w->j, key);
    if (ht_machine_sha256(w->fingerprint, part, hex, &why) == 0) ht_jw_str(&w->j, hex);
    else ht_jw_null(&w->j);
}

static void fingerprint(work *w)
{
    static const char *const means[HT_MP_PARTS] = {
        "another machine: no route measured on one is used on the other",
        "the same machine in another state: routes stop until a canary passes",
        "nothing: it is written down", "nothing: guards watch it while measuring"};
    ht_jw *j = &w->j;
    ht_jw_key(j, "fingerprint");
    ht_jw_obj(j);
    digest(w, "machineClassSha256", HT_MP_REJECT);
    digest(w, "machineStateSha256", HT_MP_STALE);
    for (int p = 0; p < HT_MP_PARTS; p++) {
        const ht_json *part = ht_json_get(w->fingerprint, ht_machine_part_names[p]);
        ht_jw_key(j, ht_machine_part_names[p]);
        ht_jw_obj(j);
        ht_jw_kstr(j, "aDifferenceMeans", means[p]);
        for (const ht_machine_field *f = ht_machine_fields; f->name; f++)
            if (f->part == p)
                ht_jw_kstr(j, f->name, ht_machine_leaf_text(w->arena, ht_json_get(part, f->name)));
        ht_jw_end(j, '}');
    }
    ht_jw_key(j, "gpus");
    ht_jw_arr(j);
    for (uint32_t i = 0; i < w->gpus.n; i++) {
        const ht_gpu *g = &w->gpus.gpu[i];
        ht_jw_obj(j);
        ht_jw_kstr(j, "name", g->name);
        ht_jw_kuint(j, "memoryBytes", g->memory_bytes);
        ht_jw_kstr(j, "driver", w->gpus.driver);
        ht_jw_kuint(j, "otherProcesses", g->processes);
        ht_jw_end(j, '}');
    }
    ht_jw_end(j, ']');
    ht_jw_end(j, '}');
}

static void find_fingerprint(work *w)
{
    char what[120];
    for (int p = 0; p < HT_MP_LIVE; p++) {
        const ht_json *part = ht_json_get(w->fingerprint, ht_machine_part_names[p]);
        for (size_t i = 0; i < part->n; i++) {
            const ht_json *why = ht_json_get(&part->at[i], "unreadable");
            if (!why) continue;
            snprintf(what, sizeof what, "%.40s cannot be read (%.30s)", part->at[i].key, why->s);
            finding(w, what, "an unreadable field matches nothing, not even itself",
                    "let this process read it; until then nothing measured here admits a route");
        }
    }
}

/* Guards that the default policy requires and that this host does not show. */
static void find_guards(work *w)
{
    static const char *const next[HT_GUARDS] = {
        [HT_G_AC] = "let this process read /sys/class/power_supply",
        [HT_G_CLOCKS] = "measure on a host that shows cpufreq; virtual machines seldom do",
        [HT_G_FOREIGN] = "let this process read /proc/stat",
        [HT_G_CGROUP] = "let this process read cpu.stat of its control group",
        [HT_G_STEAL] = "let this process read /proc/stat",
        [HT_G_SWAP] = "let this process read /proc/vmstat",
        [HT_G_THROTTLE] = "measure on a host that counts thermal throttling, or with a policy that "
                          "does not require it"};
    ht_telemetry t[2];
    ht_policy p;
    ht_guard_state state;
    char what[96];
    ht_telemetry_take("", &w->gpus, &t[0]);
    t[1] = t[0];
    t[1].mono_ns += 1000000; /* a stretch of time, for shares of it */
    t[1].cpu_total += 1;
    const ht_json *guards = ht_telemetry_guards(w->arena, t, t);
    if (ht_policy_parse(w->arena, ht_policy_default, strlen(ht_policy_default), &p, NULL) ||
        ht_guards_read(guards, &p, 1, &state, NULL))
        return;
    for (unsigned g = 0; g < HT_GUARDS; g++) {
        if (!(state.unknown & p.required & 1u << g)) continue;
        const ht_json *why = ht_json_get(ht_json_get(guards, ht_guard_names[g]), "reason");
        snprintf(what, sizeof what, "guard %s is not known here (%s)", ht_guard_names[g],
                 why ? why->s : "?");
        finding(
            w, what,
            "without it performance evidence is not admissible (NOT_ADMISSIBLE_ENV); evidence of "
            "quality still is",
            next[g] ? next[g] : "measure on a host that shows it");
    }
}

static int write_doc(work *w, ht_err *e)
{
    ht_cpu_threads t;
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_jw_init(&w->j, &b, 0);
    ht_cpu_threads_get(&t);
    ht_jw_obj(&w->j);
    ht_jw_kstr(&w->j, "version", ht_version());
    machine(w, &t);
    ht_jw_key(&w->j, "engines");
    ht_jw_json(&w->j, w->engines);
    fingerprint(w);
    ht_jw_key(&w->j, "findings");
    ht_jw_arr(&w->j);
    find_cpu(w, &t);
    find_memory(w);
    find_engines(w);
    find_fingerprint(w);
    find_guards(w);
    if (is_virtual())
        finding(w, "this is a virtual machine",
                "its clocks and neighbours are not under our control",
                "correctness is not touched; take speed figures as this hour's, and measure on "
                "bare metal to "
                "publish");
    ht_jw_end(&w->j, ']');
    ht_jw_kbool(&w->j, "ok", !w->missing);
    ht_jw_end(&w->j, '}');
    int rc = ht_buf_ok(&b, "report", e);
    if (!rc) rc = cli__out_doc(w->c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

int cli__doctor(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    ht_json *doc;
    char *json = NULL;
    HT_TRY(ht_arena_new(&w.arena, 0, e));
    int rc = ht_engines_describe(&json, e);
    if (!rc) rc = ht_json_parse(w.arena, json, strlen(json), 0, "engines", &doc, e);
    if (!rc) {
        w.engines = ht_json_get(doc, "engines");
        if (!w.engines || w.engines->type != HT_JARR)
            rc = HT_FAIL(e, HT_EFORMAT, "the library's list of engines has no \"engines\"");
    }
    ht_gpus_read(&w.gpus);
    const ht_machine_source here = {.root = "", .gpus = &w.gpus};
    if (!rc) rc = ht_machine_read(w.arena, &here, &w.fingerprint, e);
    if (!rc) rc = write_doc(&w, e);
    if (!rc && w.missing) {
        cli__say(c, CLI_ERROR, "hetero doctor: error: %s", w.missing_what);
        rc = CLI_UNSUPPORTED;
    }
    ht_free(json);
    ht_arena_free(w.arena);
    return rc;
}
