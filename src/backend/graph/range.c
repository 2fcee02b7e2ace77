/* range.c - ranges of activations for static 8-bit arithmetic. The tape is compiled in f32 with the
 * greatest magnitude of every product's input as an output, and run over windows of a text: what
 * the arithmetic then clips is what this text did not show. */
#include "backend/graph/graph.h"

#include <math.h>

enum { ROWS = 128, WINDOWS = 32 };

/* One window, positions from 0 on; ranges grow by what it shows. */
static int look(ht_plan *p, const int32_t *ids, ht_err *e)
{
    ht_dev *dev = p->dev;
    const float *none;
    int32_t pos[ROWS];
    const uint16_t seq[ROWS] = {0};
    const uint32_t want = ROWS - 1;
    for (int32_t i = 0; i < ROWS; i++) pos[i] = i;
    const ht_batch b = {
        .rows = ROWS, .seqs = 1, .n_want = 1, .token = ids, .pos = pos, .seq = seq, .want = &want};
    HT_TRY(graph__run(p, &b, e));
    HT_TRY(graph__wait(p, &none, e));
    for (size_t i = 0; i < (size_t)p->m->spec.n_layers * GRAPH_INPUTS; i++) {
        if (!isfinite(p->range[i]))
            return HT_FAIL(e, HT_EFORMAT,
                           "graph: what goes into the products of layer %zu is not finite: the "
                           "weights may be damaged",
                           i / GRAPH_INPUTS);
        dev->range[i] = fmaxf(dev->range[i], p->range[i]);
    }
    return 0;
}

static int observe(ht_dev *dev, const ht_stage *tape, size_t n_tape, const int32_t *ids, size_t n,
                   ht_err *e)
{
    ht_plan *p;
    const ht_bucket b = {.rows = ROWS,
                         .seqs = 1,
                         .want = 1,
                         .steps = 1,
                         .ctx = ROWS,
                         .kv_fmt = HT_KV_F32 | HT_KV_F32 << 8};
    if (graph__spans[0]->covers(dev, dev->model, tape, n_tape, &b) != n_tape)
        return HT_FAIL(e, HT_EUNSUPPORTED, "graph: a model with stages that no graph has");
    /* HEAD is the last one: its product stays as it is. */
    HT_TRY(graph__plan_observe(&p, dev, tape, n_tape - 1, &b, e));
    int rc = 0;
    for (size_t k = 0; k < n / ROWS && k < WINDOWS && !rc; k++) rc = look(p, ids + k * ROWS, e);
    graph__plan_free(p);
    return rc;
}

/* The least range is no zero: it is divided by. */
int graph__calibrate(ht_dev *dev, const int32_t *ids, size_t n, ht_err *e)
{
    const size_t n_tape = ht_tape(dev->model, NULL, 0);
    const size_t n_range = (size_t)dev->model->spec.n_layers * GRAPH_INPUTS;
    if (n < ROWS)
        return HT_FAIL(e, HT_EARG,
                       "graph: a calibration needs a text of at least %d tokens, this one has %zu",
                       (int)ROWS, n);
    ht_stage *tape = ht_mem_array(n_tape, sizeof *tape);
    if (!dev->range) dev->range = ht_mem_array(n_range, sizeof *dev->range);
    int rc = tape && dev->range ? 0 : HT_FAIL(e, HT_ENOMEM, "graph: ranges: out of memory");
    for (size_t i = 0; i < n_range && !rc; i++) dev->range[i] = 1e-9f;
    if (!rc) (void)ht_tape(dev->model, tape, n_tape);
    if (!rc) rc = observe(dev, tape, n_tape, ids, n, e);
    ht_mem_free(tape);
    if (!rc) return 0;
    ht_mem_free(dev->range);
    dev->range = NULL;
    return rc;
}
