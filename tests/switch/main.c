/* main.c - the verifier with numbered checks (instrument.py), one request a line:
 *
 *     OFF <tab> NOW <tab> TRUST.json <tab> BUNDLE [<tab> AMENDMENT]
 *
 * verifies BUNDLE, and its amendment where one is named, with check OFF doing nothing (-1: all
 * on), in a child, because a verifier without one of its checks may crash. Answer, one line: "ok"
 * or "refused" or "crashed", the checks that fired (their refusals, or the ways in which a gate
 * did not pass), the message or the classes and gates, separated by tabs. */
#include "core/map.h"
#include "evid/amend.h"
#include "evid/compare.h"
#include "evid/sched.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHECKS_MAX = 4096 };
int ht_check(int index, int fires);
static int off = -1;
static unsigned char fired[CHECKS_MAX];

int ht_check(int index, int fires)
{
    if (fires && index != off) fired[index] = 1;
    return fires && index != off;
}

typedef struct {
    const char *trust, *dir, *paper; /* paper: NULL without an amendment */
    int64_t now;
} request;

static int comparison(ht_arena *a, const request *r, const ht_trust *t, ht_buf *says, ht_err *e)
{
    ht_compared x;
    HT_TRY(ht_comparison_verify(a, r->dir, t, r->now, &x, e));
    ht_buf_str(says, ht_json_get(x.analysis, "verdict")->s);
    return 0;
}

static int schedule(ht_arena *a, const request *r, const ht_trust *t, ht_buf *says, ht_err *e)
{
    ht_scheduled x;
    HT_TRY(ht_schedule_verify(a, r->dir, t, r->now, &x, e));
    ht_buf_str(says, ht_json_get(x.analysis, "class")->s);
    const ht_json *gates = ht_json_get(x.analysis, "gates");
    for (size_t g = 0; g < gates->n; g++)
        ht_buf_fmt(says, " %s=%s:%s", ht_json_get(&gates->at[g], "gate")->s,
                   ht_json_get(&gates->at[g], "result")->s, ht_json_get(&gates->at[g], "why")->s);
    return 0;
}

static int amendment(ht_arena *a, const request *r, const ht_trust *t, const ht_verified *v,
                     ht_buf *says, ht_err *e)
{
    ht_amendment x;
    char *text;
    size_t n;
    HT_TRY(ht_file_read(r->paper, 1 << 22, &text, &n, e));
    int rc = ht_amendment_verify(a, text, n, t, r->now, v, &x, e);
    ht_mem_free(text);
    if (rc == 0) ht_buf_str(says, ht_canary_names[x.result]);
    return rc;
}

static int bundle(ht_arena *a, const request *r, const ht_trust *t, ht_buf *says, ht_err *e)
{
    ht_verified v;
    HT_TRY(ht_bundle_verify(a, r->dir, t, r->now, &v, e));
    if (r->paper) return amendment(a, r, t, &v, says, e);
    ht_buf_str(says, ht_class_names[v.analysis.cls]);
    for (size_t c = 0; c < v.evidence.design.n_cells; c++)
        for (unsigned g = 0; g < HT_GATES; g++)
            ht_buf_fmt(says, " %s=%s:%s", ht_gate_names[g],
                       ht_gate_result_names[v.analysis.cell[c].gate[g]], v.analysis.cell[c].why[g]);
    return 0;
}

static int verify(const request *r, ht_buf *says, ht_err *e)
{
    ht_arena *a;
    ht_trust t;
    char *text = NULL;
    size_t n;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = ht_file_read(r->trust, 1 << 20, &text, &n, e);
    if (!rc) rc = ht_trust_parse(a, text, n, &t, e);
    if (!rc)
        rc = (ht_is_comparison(r->dir) ? comparison
              : ht_is_schedule(r->dir) ? schedule
                                       : bundle)(a, r, &t, says, e);
    ht_mem_free(text);
    ht_arena_free(a);
    return rc;
}

static int child(const request *r)
{
    ht_buf says;
    ht_err e = {0};
    ht_buf_init(&says, 0);
    int rc = verify(r, &says, &e);
    printf("%s\t", rc ? "refused" : "ok");
    for (int i = 0; i < CHECKS_MAX; i++)
        if (fired[i]) printf("%d,", i);
    for (char *p = e.msg; *p; p++)
        if (*p == '\n' || *p == '\t') *p = ' ';
    printf("\t%s\n", rc ? e.msg : says.p);
    ht_buf_done(&says);
    return fflush(stdout) != 0;
}

int main(void)
{
    char line[8192];
    while (fgets(line, sizeof line, stdin)) {
        char *part[5] = {0}, *save = NULL;
        int n = 0, status = 0;
        for (char *p = strtok_r(line, "\t\n", &save); p && n < 5; p = strtok_r(NULL, "\t\n", &save))
            part[n++] = p;
        if (n < 4) return 2;
        off = (int)strtol(part[0], NULL, 10);
        pid_t pid = fork();
        if (pid < 0) return 2;
        if (pid == 0) {
            (void)setrlimit(RLIMIT_CPU, &(struct rlimit){10, 10});
            _exit(child(&(request){part[2], part[3], part[4], strtoll(part[1], NULL, 10)}));
        }
        while (waitpid(pid, &status, 0) < 0) continue;
        if (!WIFEXITED(status) || WEXITSTATUS(status)) printf("crashed\t\tstatus %d\n", status);
        fflush(stdout);
    }
    return 0;
}
