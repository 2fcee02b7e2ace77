/* main.c - the verifier with numbered checks (instrument.py), one request a line:
 *
 *     OFF <tab> NOW <tab> TRUST.json <tab> BUNDLE
 *
 * verifies BUNDLE with check OFF doing nothing (-1: all on), in a child, because a verifier without
 * one of its checks may crash. Answer, one line: "ok" or "refused" or "crashed", the checks that
 * fired (their refusals, or the ways in which a gate did not pass), the message or the classes and
 * gates, separated by tabs. */
#include "core/map.h"
#include "evid/compare.h"
#include "evid/verify.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static int verify(const char *trust, const char *dir, int64_t now, ht_buf *says, ht_err *e)
{
    ht_arena *a;
    ht_trust t;
    ht_verified v;
    ht_compared x;
    const bool pairs = ht_is_comparison(dir);
    char *text = NULL;
    size_t n;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = ht_file_read(trust, 1 << 20, &text, &n, e);
    if (!rc) rc = ht_trust_parse(a, text, n, &t, e);
    if (!rc)
        rc = pairs ? ht_comparison_verify(a, dir, &t, now, &x, e)
                   : ht_bundle_verify(a, dir, &t, now, &v, e);
    if (!rc && pairs) {
        ht_buf_str(says, ht_json_get(x.analysis, "verdict")->s);
    } else if (!rc) {
        ht_buf_str(says, ht_class_names[v.analysis.cls]);
        for (size_t c = 0; c < v.evidence.design.n_cells; c++)
            for (unsigned g = 0; g < HT_GATES; g++)
                ht_buf_fmt(says, " %s=%s:%s", ht_gate_names[g],
                           ht_gate_result_names[v.analysis.cell[c].gate[g]],
                           v.analysis.cell[c].why[g]);
    }
    ht_mem_free(text);
    ht_arena_free(a);
    return rc;
}

static int child(const char *trust, const char *dir, int64_t now)
{
    ht_buf says;
    ht_err e = {0};
    ht_buf_init(&says, 0);
    int rc = verify(trust, dir, now, &says, &e);
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
        char *part[4], *save = NULL;
        int n = 0, status = 0;
        for (char *p = strtok_r(line, "\t\n", &save); p && n < 4; p = strtok_r(NULL, "\t\n", &save))
            part[n++] = p;
        if (n != 4) return 2;
        off = (int)strtol(part[0], NULL, 10);
        pid_t pid = fork();
        if (pid < 0) return 2;
        if (pid == 0) {
            alarm(10);
            _exit(child(part[2], part[3], strtoll(part[1], NULL, 10)));
        }
        while (waitpid(pid, &status, 0) < 0) continue;
        if (!WIFEXITED(status) || WEXITSTATUS(status)) printf("crashed\t\tstatus %d\n", status);
        fflush(stdout);
    }
    return 0;
}
