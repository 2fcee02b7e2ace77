/* graph_nodes.c - where a compiled prompt spends its time: MODEL [ROWS] [RUNS] [GRAPH SETTINGS].
 * Wall and processor time of every run of one bucket from the first on, then the library's own
 * profile of the last run by type of node and kernel, and the longest nodes: what a cancel has to
 * wait for. Random token ids. */
#include "backend/graph/graph.h"
#include "core/clock.h"
#include "graph_world.h"
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_KINDS = 200, LONGEST = 8 };
typedef struct {
    char name[160];
    int64_t us;
    size_t n;
} kind;

/* Greatest resident memory so far, mapped files included, in MB. */
static double peak_mb(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (double)u.ru_maxrss / 1e3;
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_kind(const void *a, const void *b)
{
    const int64_t x = ((const kind *)a)->us, y = ((const kind *)b)->us;
    return x < y ? 1 : x > y ? -1 : 0;
}
static int by_node(const void *a, const void *b)
{
    const int64_t x = ((const ov_node *)a)->real_us, y = ((const ov_node *)b)->real_us;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void report(const ht_plan *p, const ov_nodes *nodes)
{
    static kind k[MAX_KINDS];
    size_t n = 0;
    int64_t all = 0;
    for (size_t i = 0; i < nodes->n; i++) {
        const ov_node *o = &nodes->node[i];
        char name[160];
        size_t at = 0;
        if (o->status != OV_NODE_RUN) continue;
        (void)snprintf(name, sizeof name, "%s %s", o->node_type, o->exec_type);
        while (at < n && strcmp(k[at].name, name) != 0) at++;
        if (at == MAX_KINDS) continue;
        if (at == n) (void)snprintf(k[n++].name, sizeof k[0].name, "%s", name);
        k[at].us += o->real_us;
        k[at].n++;
        all += o->real_us;
    }
    qsort(k, n, sizeof *k, by_kind);
    printf("nodes %zu, run %u, sum %.1f ms\n", nodes->n, p->facts.n_run, (double)all / 1e3);
    for (size_t i = 0; i < n; i++)
        printf("%9.2f ms %5.1f %% %5zu %s\n", (double)k[i].us / 1e3,
               100 * (double)k[i].us / (double)(all ? all : 1), k[i].n, k[i].name);
    qsort(nodes->node, nodes->n, sizeof *nodes->node, by_node);
    for (size_t i = 0; i < nodes->n && i < LONGEST; i++)
        printf("longest %9.2f ms %s %s %s\n", (double)nodes->node[i].real_us / 1e3,
               nodes->node[i].name, nodes->node[i].node_type, nodes->node[i].exec_type);
}

typedef struct {
    ht_plan *plan;
    uint64_t after_ns, asked_ns;
} canceller;

static void *cancel_later(void *arg)
{
    canceller *c = arg;
    const struct timespec t = {(time_t)(c->after_ns / 1000000000),
                               (long)(c->after_ns % 1000000000)};
    (void)nanosleep(&t, NULL);
    c->asked_ns = ht_now_ns();
    (void)graph__cancel(c->plan);
    return NULL;
}

/* From asking for a cancel to the end of the run, asked for at i/8 of a run's time. */
static void cancels(ht_plan *p, const ht_batch *b, uint64_t run_ns)
{
    uint64_t worst = 0;
    printf("cancelled after i/8 of a run:");
    for (uint64_t i = 1; i < 8; i++) {
        ht_err e = {0};
        const float *l;
        pthread_t t;
        canceller c = {p, run_ns * i / 8, 0};
        if (pthread_create(&t, NULL, cancel_later, &c)) must(-1, "thread", &e);
        must(graph__run(p, b, &e), "run", &e);
        const int rc = graph__wait(p, &l, &e);
        const uint64_t end = ht_now_ns();
        (void)pthread_join(t, NULL);
        if (rc != HT_ECANCELLED) must(rc, "wait", &e);
        const uint64_t took = rc && end > c.asked_ns ? end - c.asked_ns : 0;
        printf(rc ? " %.1f" : " (over)", (double)took / 1e6);
        if (took > worst) worst = took;
        if (!rc) (void)graph__run(p, b, &e), (void)graph__wait(p, &l, &e);
    }
    printf(" ms, worst %.1f ms\n", (double)worst / 1e6);
}

int main(int argc, char **argv)
{
    world w = {0};
    ht_dev *dev;
    ht_err e = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: graph_nodes MODEL [ROWS] [RUNS] [GRAPH SETTINGS]\n");
        return 2;
    }
    const uint32_t rows = argc > 2 ? (uint32_t)atoi(argv[2]) : 32;
    const int runs = argc > 3 ? atoi(argv[3]) : 4;
    world_open(&w, argv[1], rows);
    const ht_backend *be = world_engine(&w, "graph", argc > 4 ? argv[4] : "threads=2", &dev);
    const ht_bucket bucket = world_bucket(rows, rows, 0);
    ht_plan *plan = world_plan(&w, be, dev, 0, w.n_tape, &bucket);
    const graph_facts *f = &plan->facts;
    printf(
        "%s, %u rows: compiled in %.1f s, text %.1f MB, widened %.1f MB, peak %.1f MB resident\n",
        argv[1], rows, (double)f->compile_ns / 1e9, (double)f->xml_bytes / 1e6,
        (double)f->const_bytes / 1e6, peak_mb());
    world_rows r;
    const ht_batch b = world_batch(&w, 0, rows, &r);
    uint64_t last_ns = 0;
    for (int i = 0; i < runs; i++) {
        const float *l;
        const double c0 = cpu_s();
        const uint64_t t0 = ht_now_ns();
        must(graph__run(plan, &b, &e), "run", &e);
        must(graph__wait(plan, &l, &e), "wait", &e);
        last_ns = ht_now_ns() - t0;
        printf("run %d: wall %.1f ms, processor %.1f ms\n", i, (double)(ht_now_ns() - t0) / 1e6,
               1e3 * (cpu_s() - c0));
    }
    ov_nodes nodes = {0};
    must(dev->api.profile(plan->request, &nodes), "profile", &e);
    report(plan, &nodes);
    cancels(plan, &b, last_ns);
    return 0;
}
