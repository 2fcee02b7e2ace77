/* opts.c - the engine's settings. Whatever a key decides, one that nobody reads or a value that
 * means nothing is an error: a measurement under it would be of something else. */
#include "backend/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *key;
    int lo, hi;
    int value; /* -1: not given */
} setting;

static int read_number(setting *s, const char *text, size_t n, ht_err *e)
{
    char *end;
    const long v = strtol(text, &end, 10);
    if (n && text[0] >= '0' && text[0] <= '9' && end == text + n && v >= s->lo && v <= s->hi) {
        if (s->value >= 0)
            return HT_FAIL(e, HT_EARG, "cuda setting %s is given twice; give it once", s->key);
        s->value = (int)v;
        return 0;
    }
    if (!strcmp(s->key, "gpu") && memchr(text, '+', n))
        return HT_FAIL(
            e, HT_EUNSUPPORTED,
            "cuda setting gpu=%.*s: a group over several cards is not built yet; name one "
            "card, and ranks=N for a group of N ranks on it",
            (int)n, text);
    return HT_FAIL(e, HT_EARG, "cuda setting %s=%.*s: need a number from %d to %d", s->key, (int)n,
                   text, s->lo, s->hi);
}

int cuda__options(ht_dev *dev, const char *opts, ht_err *e)
{
    enum { GPU, LEVEL, RANKS, SYNC, OVERLAP, N };
    setting s[N] = {[GPU] = {"gpu", 0, 1023, -1},
                    [LEVEL] = {"level", 1, 2, -1},
                    [RANKS] = {"ranks", 1, CUDA_RANKS, -1},
                    [SYNC] = {"sync", 0, 1, -1},
                    [OVERLAP] = {"overlap", 0, 1, -1}};
    for (const char *p = opts ? opts : ""; *p;) {
        const size_t n = strcspn(p, ","), key = strcspn(p, "=,");
        bool known = !n || !strncmp(p, "threads=", 8) || !strncmp(p, "isa=", 4); /* the host's */
        for (int i = 0; i < N && !known; i++) {
            known = strlen(s[i].key) == key && !strncmp(p, s[i].key, key) && key < n;
            if (known) HT_TRY(read_number(&s[i], p + key + 1, n - key - 1, e));
        }
        if (!known)
            return HT_FAIL(e, HT_EARG,
                           "cuda setting \"%.*s\" is unknown; there are gpu=N, level=1|2, ranks=N, "
                           "sync=1, overlap=0",
                           (int)(n < 60 ? n : 60), p);
        p += n;
        p += *p == ',';
    }
    dev->size = s[RANKS].value > 1 ? (uint32_t)s[RANKS].value : 1;
    if (dev->size > 1 && s[LEVEL].value == 2)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "cuda: level=2 and ranks=%u: the persistent kernel runs on one rank; use "
                       "level=1, or leave ranks= away",
                       dev->size);
    dev->index = s[GPU].value > 0 ? s[GPU].value : 0;
    dev->sync = s[SYNC].value == 1;
    dev->overlap = s[OVERLAP].value != 0;
    dev->level1 = s[LEVEL].value == 1 || dev->size > 1;
    dev->level2 = s[LEVEL].value == 2;
    return 0;
}
