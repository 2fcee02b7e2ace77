/* dag.c - a random graph of 144 tasks scheduled on two devices, in whole nanoseconds.
 *
 * List scheduling after HEFT (Topcuoglu, Hariri, Wu, IEEE TPDS 2002, without insertion): tasks in
 * order of their upward rank (mean cost on the way to the end, links included), each on the device
 * where it ends first. Beside it: the better single device, and a bound that no schedule can beat,
 * the greater of the longest path at each task's cheaper cost without links, and the fractional
 * load that two machines of different speed must share (tasks sorted by their ratio of costs). */
#include "evid/sim/priv.h"
#include <stdlib.h>
#include <string.h>

enum { NODES = 144, MAX_PARENTS = 8, MAX_LAYERS = NODES };

static const ht_sim_input inputs[] = {
    {"affinityPpm", 500000, 0, 900000, "a task's cost on a device varies by this much, uniform"},
    {"costNsA", 1000000, 1, 1000000000, "mean cost of a task on device A"},
    {"costNsB", 1500000, 1, 1000000000, "mean cost of a task on device B"},
    {"draws", 500, 1, 100000, "draws"},
    {"layers", 24, 1, MAX_LAYERS, "layers; a task needs tasks of the layer before"},
    {"parents", 2, 1, MAX_PARENTS, "tasks of the layer before that a task needs, at most"},
    {"transferNs", 200000, 0, 1000000000, "an edge between the devices"},
    {NULL, 0, 0, 0, NULL},
};

typedef struct {
    int64_t cost[NODES][2], rank[NODES], ends[NODES];
    uint32_t parent[NODES][MAX_PARENTS], n_parents[NODES];
    uint8_t device[NODES];
    int64_t transfer;
} graph;

/* Nodes are numbered in topological order: layer by layer, sizes as equal as they can be. */
static void make_graph(sim__rng *g, const sim__run *r, graph *x)
{
    uint32_t layers = (uint32_t)sim__in(r, "layers"), parents = (uint32_t)sim__in(r, "parents");
    int64_t affinity = sim__in(r, "affinityPpm");
    const double mean[2] = {(double)sim__in(r, "costNsA"), (double)sim__in(r, "costNsB")};
    x->transfer = sim__in(r, "transferNs");
    for (uint32_t l = 0, before = 0; l < layers; l++) {
        uint32_t first = NODES * l / layers, end = NODES * (l + 1) / layers;
        for (uint32_t i = first; i < end; i++) {
            for (int d = 0; d < 2; d++) {
                int64_t c = (int64_t)sim__jitter(g, mean[d], affinity);
                x->cost[i][d] = c > 0 ? c : 1;
            }
            uint32_t width = first - before, want = 1 + sim__below(g, parents), n = 0;
            if (want > width) want = width;
            for (uint32_t j = before; j < first && n < want; j++)
                if (sim__below(g, first - j) < want - n)
                    x->parent[i][n++] = j; /* without repeats */
            x->n_parents[i] = n;
        }
        before = first;
    }
}

static int by_rank(const void *a, const void *b)
{
    const int64_t *x = a, *y = b; /* {rank, node} */
    if (x[0] != y[0]) return x[0] < y[0] ? 1 : -1;
    return (x[1] > y[1]) - (x[1] < y[1]);
}

/* Makespan of the list schedule; *crossed: edges between the devices. */
static int64_t schedule(graph *x, uint32_t *crossed)
{
    int64_t order[NODES][2], idle[2] = {0, 0}, makespan = 0;
    memset(x->rank, 0, sizeof x->rank);
    for (uint32_t i = NODES; i-- > 0;) { /* children have greater numbers: rank[i] is complete */
        x->rank[i] += (x->cost[i][0] + x->cost[i][1]) / 2;
        for (uint32_t k = 0; k < x->n_parents[i]; k++) {
            int64_t through = x->rank[i] + x->transfer / 2; /* half of the links will be local */
            if (through > x->rank[x->parent[i][k]]) x->rank[x->parent[i][k]] = through;
        }
        order[i][0] = x->rank[i];
        order[i][1] = i;
    }
    qsort(order, NODES, sizeof order[0], by_rank);
    for (uint32_t at = 0; at < NODES; at++) {
        uint32_t i = (uint32_t)order[at][1];
        int64_t end[2];
        for (unsigned d = 0; d < 2; d++) {
            int64_t start = idle[d];
            for (uint32_t k = 0; k < x->n_parents[i]; k++) {
                uint32_t p = x->parent[i][k];
                int64_t ready = x->ends[p] + (x->device[p] != d ? x->transfer : 0);
                if (ready > start) start = ready;
            }
            end[d] = start + x->cost[i][d];
        }
        x->device[i] = end[1] < end[0];
        x->ends[i] = idle[x->device[i]] = end[x->device[i]];
        if (x->ends[i] > makespan) makespan = x->ends[i];
    }
    *crossed = 0;
    for (uint32_t i = 0; i < NODES; i++)
        for (uint32_t k = 0; k < x->n_parents[i]; k++)
            *crossed += x->device[x->parent[i][k]] != x->device[i];
    return makespan;
}

static int64_t longest_path(const graph *x)
{
    int64_t end[NODES], longest = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        end[i] = 0;
        for (uint32_t k = 0; k < x->n_parents[i]; k++)
            if (end[x->parent[i][k]] > end[i]) end[i] = end[x->parent[i][k]];
        end[i] += x->cost[i][0] < x->cost[i][1] ? x->cost[i][0] : x->cost[i][1];
        if (end[i] > longest) longest = end[i];
    }
    return longest;
}

static int by_ratio(const void *a, const void *b)
{
    const int64_t *x = a, *y = b; /* {cost on A, cost on B}: the one A is best at first */
    int64_t l = x[0] * y[1], r = y[0] * x[1];
    return (l > r) - (l < r);
}

/* min over splits, fractions allowed, of the greater load: fill A in order of cost ratio until both
 * loads are equal. Rounded down, so it stays a bound. */
static int64_t shared_load(const graph *x)
{
    int64_t c[NODES][2], a = 0, b = 0;
    memcpy(c, x->cost, sizeof c);
    qsort(c, NODES, sizeof c[0], by_ratio);
    for (uint32_t i = 0; i < NODES; i++) b += c[i][1];
    for (uint32_t i = 0; i < NODES; i++) {
        if (a + c[i][0] > b - c[i][1]) { /* part f of this task on A: a + f cA = b - f cB */
            double part = (double)(b - a) / (double)(c[i][0] + c[i][1]);
            return a + (int64_t)(part * (double)c[i][0]);
        }
        a += c[i][0];
        b -= c[i][1];
    }
    return a;
}

static int run(sim__run *r, ht_err *e)
{
    uint32_t draws = (uint32_t)sim__in(r, "draws");
    graph *x = ht_arena_alloc(r->a, sizeof *x);
    int64_t *cross = sim__series_new(r, "crossEdgePpm", draws);
    int64_t *bound = sim__series_new(r, "lowerBoundNs", draws);
    int64_t *span = sim__series_new(r, "makespanNs", draws);
    int64_t *over = sim__series_new(r, "makespanPpmOfBound", draws);
    int64_t *speed = sim__series_new(r, "speedupPpmOverOneDevice", draws);
    if (!x || !cross || !bound || !span || !over || !speed)
        return HT_FAIL(e, HT_ENOMEM, "sim: no memory for %u draws", draws);
    for (uint32_t i = 0; i < draws; i++) {
        sim__rng g = sim__draw(r, i);
        uint32_t edges = 0, crossed;
        int64_t alone[2] = {0, 0};
        make_graph(&g, r, x);
        span[i] = schedule(x, &crossed);
        for (uint32_t k = 0; k < NODES; k++) {
            edges += x->n_parents[k];
            for (int d = 0; d < 2; d++) alone[d] += x->cost[k][d];
        }
        int64_t path = longest_path(x), load = shared_load(x);
        int64_t best = alone[0] < alone[1] ? alone[0] : alone[1];
        bound[i] = path > load ? path : load;
        over[i] = (int64_t)(1e6 * ((double)span[i] / (double)bound[i]));
        speed[i] = (int64_t)(1e6 * ((double)best / (double)span[i]));
        cross[i] = edges ? (int64_t)(1e6 * crossed / edges) : 0;
    }
    sim__fact(r, "nodes", NODES);
    return 0;
}

const sim__kind sim__dag = {"dag",
                            "A random graph of 144 nodes with assumed costs and links, scheduled "
                            "on paper; no kernel of any "
                            "model ran on any device.",
                            inputs, run};
