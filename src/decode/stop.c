/* stop.c - stop strings as an Aho-Corasick automaton (CACM 18(6), 1975) over bytes. The depth of
 * the current state is the length of the longest tail of the text that begins some stop string:
 * exactly that much is held back. The first stop string to be completed wins; of several that end
 * at the same byte the longest. */
#include "decode/stop.h"
#include "core/arena.h"
#include <string.h>

enum { MAX_STOP_BYTES = 1 << 16 }; /* of all stop strings together */

typedef struct {
    int32_t child, sibling; /* first child; next child of the parent; -1: none            */
    int32_t fail;           /* state of the longest proper tail                            */
    uint32_t depth, hit;    /* hit: length of the longest stop string that ends here, or 0 */
    uint32_t which;         /* hit: its index, the first of equal ones                     */
    uint8_t c;
} node;

struct ht_stopper {
    node *at; /* at[0] is the root                                           */
    size_t n;
    int32_t state;
    char *held; /* the last `depth of state` bytes                             */
    size_t n_held;
    bool done;
    int which; /* of the stop strings was completed; -1: none                */
};

static int32_t child_of(const ht_stopper *s, int32_t parent, uint8_t c)
{
    int32_t i = s->at[parent].child;
    while (i >= 0 && s->at[i].c != c) i = s->at[i].sibling;
    return i;
}

static int32_t step(const ht_stopper *s, int32_t state, uint8_t c)
{
    for (;;) {
        int32_t next = child_of(s, state, c);
        if (next >= 0) return next;
        if (state == 0) return 0;
        state = s->at[state].fail;
    }
}

static void insert(ht_stopper *s, const char *text, uint32_t which)
{
    int32_t at = 0;
    for (const char *c = text; *c; c++) {
        int32_t next = child_of(s, at, (uint8_t)*c);
        if (next < 0) {
            next = (int32_t)s->n++;
            s->at[next] = (node){.child = -1,
                                 .sibling = s->at[at].child,
                                 .depth = s->at[at].depth + 1,
                                 .c = (uint8_t)*c};
            s->at[at].child = next;
        }
        at = next;
    }
    if (s->at[at].hit) return;
    s->at[at].hit = s->at[at].depth;
    s->at[at].which = which;
}

/* Failure links, breadth first; queue has room for every node. */
static void link_failures(ht_stopper *s, int32_t *queue)
{
    size_t head = 0, tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        int32_t parent = queue[head++];
        for (int32_t i = s->at[parent].child; i >= 0; i = s->at[i].sibling) {
            s->at[i].fail = parent == 0 ? 0 : step(s, s->at[parent].fail, s->at[i].c);
            if (!s->at[i].hit) {
                s->at[i].hit = s->at[s->at[i].fail].hit;
                s->at[i].which = s->at[s->at[i].fail].which;
            }
            queue[tail++] = i;
        }
    }
}

static int build(ht_stopper *s, const char *const *stop, size_t n, size_t total, size_t longest,
                 ht_err *e)
{
    int32_t *queue = ht_mem_array(total + 1, sizeof *queue);
    s->at = ht_mem_array(total + 1, sizeof *s->at);
    s->held = ht_mem_alloc(longest + 1);
    if (!queue || !s->at || !s->held) {
        ht_mem_free(queue);
        return HT_FAIL(e, HT_ENOMEM, "stop strings: no memory for %zu bytes", total);
    }
    s->at[0] = (node){.child = -1, .sibling = -1};
    s->n = 1;
    for (size_t i = 0; i < n; i++) insert(s, stop[i], (uint32_t)i);
    s->which = -1;
    link_failures(s, queue);
    ht_mem_free(queue);
    return 0;
}

int ht_stopper_new(ht_stopper **out, const char *const *stop, size_t n, ht_err *e)
{
    size_t total = 0, longest = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len = stop[i] ? strlen(stop[i]) : 0;
        if (!len)
            return HT_FAIL(e, HT_EARG, "stop string %zu is empty: it would stop at once", i + 1);
        if (len > MAX_STOP_BYTES - total)
            return HT_FAIL(e, HT_EARG, "the stop strings exceed %d bytes together", MAX_STOP_BYTES);
        total += len;
        if (len > longest) longest = len;
    }
    ht_stopper *s = ht_mem_alloc(sizeof *s);
    if (!s) return HT_FAIL(e, HT_ENOMEM, "stop strings: no memory");
    int rc = build(s, stop, n, total, longest, e);
    if (rc) {
        ht_stopper_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void ht_stopper_free(ht_stopper *s)
{
    if (!s) return;
    ht_mem_free(s->at);
    ht_mem_free(s->held);
    ht_mem_free(s);
}

/* The first `show` bytes of held text followed by p[0..n) go out; the rest is held. */
static void release(ht_stopper *s, const char *p, size_t n, size_t show, ht_buf *out)
{
    size_t old = show < s->n_held ? show : s->n_held;
    ht_buf_add(out, s->held, old);
    ht_buf_add(out, p, show - old);
    s->n_held -= old;
    memmove(s->held, s->held + old, s->n_held);
    memcpy(s->held + s->n_held, p + (show - old), n - (show - old));
    s->n_held += n - (show - old);
}

int ht_stopper_push(ht_stopper *s, const char *p, size_t n, ht_buf *out, bool *hit, ht_err *e)
{
    *hit = s->done;
    if (s->done || !n) return 0;
    for (size_t i = 0; i < n; i++) {
        s->state = step(s, s->state, (uint8_t)p[i]);
        uint32_t len = s->at[s->state].hit;
        if (!len) continue;
        s->done = *hit = true;
        s->which = (int)s->at[s->state].which;
        size_t show = s->n_held + i + 1 - len;
        size_t old = show < s->n_held ? show : s->n_held;
        ht_buf_add(out, s->held, old);
        ht_buf_add(out, p, show - old);
        s->n_held = 0;
        return ht_buf_ok(out, "text before a stop string", e);
    }
    release(s, p, n, s->n_held + n - s->at[s->state].depth, out);
    return ht_buf_ok(out, "text outside stop strings", e);
}

int ht_stopper_which(const ht_stopper *s)
{
    return s->which;
}

int ht_stopper_flush(ht_stopper *s, ht_buf *out, ht_err *e)
{
    if (!s->done) ht_buf_add(out, s->held, s->n_held);
    s->n_held = 0;
    s->done = true;
    return ht_buf_ok(out, "the text held back for stop strings", e);
}
