/* matcher.c - the public face: grammars, and walks through them by tokens and by text. */
#include "core/utf8.h"
#include "grammar/grammar.h"
#include "grammar/lexicon.h"
#include "grammar/walk.h"
#include <stdio.h>
#include <string.h>

struct ht_grammar {
    grammar__walk walk;
    const ht_lexicon *lexicon;
    ht_matcher *matchers; /* all that stand in it */
    uint32_t **states;    /* [cap] scratch of trim: where their states are */
    size_t n_matchers, cap;
};
struct ht_matcher {
    ht_grammar *g;
    ht_matcher *next, **prev;
    uint32_t state;
    bool ended; /* an end-of-generation token was taken */
};

int grammar__open(ht_grammar **out, const ht_lexicon *l, grammar__nfa *nfa, uint32_t root,
                  ht_err *e)
{
    *out = NULL;
    int rc = grammar__analyse(nfa, root, e);
    ht_grammar *g = rc ? NULL : ht_mem_alloc(sizeof *g);
    if (!rc && !g) rc = HT_FAIL(e, HT_ENOMEM, "no memory for a grammar");
    if (rc) {
        grammar__nfa_done(nfa);
        return rc;
    }
    g->lexicon = l;
    rc = grammar__walk_init(&g->walk, nfa, root, e);
    if (rc) ht_grammar_close(g);
    else *out = g;
    return rc;
}

/* Any JSON object. */
static uint32_t json_object(grammar__nfa *g)
{
    grammar__json j;
    grammar__json_init(&j, g);
    const uint32_t root = grammar__rule_new(g, "root");
    grammar__rule_set(g, root, grammar__call(g, grammar__json_rule(&j, GJ_OBJECT), false, 0));
    return root;
}

static int compile(grammar__nfa *g, int kind, const char *text, size_t len, uint32_t *root,
                   ht_err *e)
{
    if (kind == HT_GRAMMAR_GBNF) return grammar__gbnf(g, text, len, root);
    if (kind == HT_GRAMMAR_JSON) {
        *root = json_object(g);
        return g->rc;
    }
    ht_arena *arena = NULL;
    ht_json *schema = NULL;
    grammar__json j;
    HT_TRY(ht_arena_new(&arena, (size_t)256 << 20, e));
    grammar__json_init(&j, g);
    int rc = ht_json_parse(arena, text, len, 0, "the JSON schema", &schema, e);
    if (!rc) rc = grammar__schema(g, &j, schema, schema, "#", root);
    ht_arena_free(arena);
    return rc;
}

int ht_grammar_open(ht_grammar **out, const ht_lexicon *l, int kind, const char *text, size_t len,
                    ht_err *e)
{
    ht_err own = {0};
    if (!e) e = &own;
    if (!out || (!text && kind != HT_GRAMMAR_JSON))
        return HT_FAIL(e, HT_EARG, "ht_grammar_open: out and text must be given");
    *out = NULL;
    if (kind < HT_GRAMMAR_JSON || kind > HT_GRAMMAR_GBNF)
        return HT_FAIL(e, HT_EARG, "ht_grammar_open: kind %d is not one of ht_grammar_kind", kind);
    if (len > (size_t)1 << 20)
        return HT_FAIL(e, HT_EUNSUPPORTED, "a grammar or schema of %zu bytes: more than 1 MiB",
                       len);
    grammar__nfa g;
    uint32_t root = 0;
    HT_TRY(grammar__nfa_init(&g, e));
    const int rc = compile(&g, kind, text, len, &root, e);
    if (rc) {
        grammar__nfa_done(&g);
        return rc;
    }
    return grammar__open(out, l, &g, root, e);
}

void ht_grammar_close(ht_grammar *g)
{
    if (!g) return;
    grammar__walk_done(&g->walk);
    ht_mem_free(g->states);
    ht_mem_free(g);
}

/* A call begins: drop the cache when it is large, then let errors go to e. */
static int begin(ht_grammar *g, ht_err *e)
{
    size_t n = 0;
    for (ht_matcher *m = g->matchers; m; m = m->next) g->states[n++] = &m->state;
    HT_TRY(grammar__walk_trim(&g->walk, g->states, n, e));
    return grammar__walk_begin(&g->walk, e);
}

static int check(ht_grammar *g, const char *text, size_t len, ht_err *e)
{
    grammar__walk *w = &g->walk;
    uint32_t at = w->start;
    for (size_t i = 0; i < len; i++) {
        at = grammar__walk_byte(w, at, (uint8_t)text[i]);
        if (w->rc) return w->rc;
        w->steps = WALK_STEPS; /* counted for a byte here, not for the text */
        if (at == WALK_DEAD) {
            const size_t shown = ht_utf8_valid(text + i, len - i < 20 ? len - i : 20);
            return HT_FAIL(e, HT_EFORMAT,
                           "the text does not follow the grammar at byte %zu of %zu: \"%.*s\"", i,
                           len, (int)shown, text + i);
        }
    }
    if (!w->state[at].accept)
        return HT_FAIL(e, HT_EFORMAT, "the text ends, after %zu bytes, where the grammar goes on",
                       len);
    return 0;
}

int ht_grammar_check(ht_grammar *g, const char *text, size_t len, ht_err *e)
{
    if (!g || (!text && len))
        return HT_FAIL(e, HT_EARG, "ht_grammar_check: grammar and text must be given");
    HT_TRY(begin(g, e));
    return check(g, text ? text : "", len, e);
}

/* ---- matchers -------------------------------------------------------------------------------- */

int ht_matcher_new(ht_matcher **out, ht_grammar *g, ht_err *e)
{
    if (!out || !g) return HT_FAIL(e, HT_EARG, "ht_matcher_new: out and grammar must be given");
    *out = NULL;
    HT_TRY(begin(g, e));
    if (g->n_matchers == g->cap) {
        uint32_t **p = ht_mem_resize(g->states, (g->cap * 2 + 4) * sizeof(uint32_t *));
        if (!p) return HT_FAIL(e, HT_ENOMEM, "no memory for a matcher");
        g->states = p;
        g->cap = g->cap * 2 + 4;
    }
    ht_matcher *m = ht_mem_alloc(sizeof *m);
    if (!m) return HT_FAIL(e, HT_ENOMEM, "no memory for a matcher");
    *m = (ht_matcher){.g = g, .next = g->matchers, .prev = &g->matchers, .state = g->walk.start};
    if (m->next) m->next->prev = &m->next;
    g->matchers = m;
    g->n_matchers++;
    *out = m;
    return 0;
}

void ht_matcher_free(ht_matcher *m)
{
    if (!m) return;
    *m->prev = m->next;
    if (m->next) m->next->prev = m->prev;
    m->g->n_matchers--;
    ht_mem_free(m);
}

void ht_matcher_reset(ht_matcher *m)
{
    m->state = m->g->walk.start;
    m->ended = false;
}

/* Walk from the matcher's state; its state changes only when all bytes were taken. */
static int take(ht_matcher *m, const char *p, size_t n, const char *what, ht_err *e)
{
    grammar__walk *w = &m->g->walk;
    uint32_t at = m->state;
    for (size_t i = 0; i < n; i++) {
        at = grammar__walk_byte(w, at, (uint8_t)p[i]);
        if (w->rc) return w->rc;
        w->steps = WALK_STEPS;
        if (at == WALK_DEAD)
            return HT_FAIL(e, HT_EFORMAT, "the grammar does not allow %s here (byte %zu of %zu)",
                           what, i, n);
    }
    m->state = at;
    return 0;
}

int ht_matcher_accept(ht_matcher *m, int32_t id, ht_err *e)
{
    const ht_lexicon *l = m ? m->g->lexicon : NULL;
    if (!l) return HT_FAIL(e, HT_EARG, "ht_matcher_accept: the grammar has no lexicon");
    if (m->ended)
        return HT_FAIL(e, HT_EFORMAT, "the grammar ended; token %d came after it", (int)id);
    HT_TRY(begin(m->g, e));
    char what[40];
    (void)snprintf(what, sizeof what, "token %d", (int)id);
    if (id >= 0 && (uint32_t)id < ht_tok_size(l->tok) && ht_tok_is_eog(l->tok, id)) {
        if (!m->g->walk.state[m->state].accept)
            return HT_FAIL(e, HT_EFORMAT, "the grammar does not allow the end here (%s)", what);
        m->ended = true;
        return 0;
    }
    const char *p = NULL;
    const size_t n = grammar__lexicon_bytes(l, id, &p);
    if (!n) return HT_FAIL(e, HT_EFORMAT, "%s stands for no text that a grammar can take", what);
    return take(m, p, n, what, e);
}

int ht_matcher_accept_text(ht_matcher *m, const char *text, size_t len, ht_err *e)
{
    if (!m || (!text && len))
        return HT_FAIL(e, HT_EARG, "ht_matcher_accept_text: matcher and text must be given");
    if (m->ended && len) return HT_FAIL(e, HT_EFORMAT, "the grammar ended; text came after it");
    HT_TRY(begin(m->g, e));
    return take(m, text, len, "this text", e);
}

/* Bits of all tokens that can follow `state`: one pass over the trie. at[d]: the state after the
 * bytes above depth d. */
static bool fill(grammar__walk *w, const ht_lexicon *l, uint32_t state, uint32_t *bits)
{
    uint32_t at[LEXICON_TOKEN + 1];
    const grammar__lexicon_node *node = l->node;
    bool any = false;
    at[0] = state;
    for (uint32_t i = 0; i < l->n_nodes;) {
        const grammar__lexicon_node *x = &node[i];
        const uint32_t to = grammar__walk_byte(w, at[x->depth], x->byte);
        if (to == WALK_DEAD) {
            if (w->rc) return false;
            i = x->skip;
            continue;
        }
        at[x->depth + 1] = to;
        for (uint32_t k = x->first; k < node[i + 1].first; k++) {
            const uint32_t id = (uint32_t)l->token[k];
            bits[id / 32] |= (uint32_t)1 << id % 32;
            any = true;
        }
        i++;
    }
    if (w->state[state].accept)
        for (uint32_t k = 0; k < l->n_words; k++) {
            bits[k] |= l->eog[k];
            any = any || l->eog[k];
        }
    return any;
}

int ht_matcher_mask(ht_matcher *m, const uint32_t **out, ht_err *e)
{
    const ht_lexicon *l = m ? m->g->lexicon : NULL;
    if (!l || !out) return HT_FAIL(e, HT_EARG, "ht_matcher_mask: matcher and bits must be given");
    grammar__walk *w = &m->g->walk;
    if (m->ended) {
        *out = l->eog;
        return 0;
    }
    HT_TRY(begin(m->g, e));
    uint32_t *bits = w->state[m->state].bits;
    if (!bits) {
        bits = ht_mem_array(l->n_words, sizeof *bits);
        if (!bits) return HT_FAIL(e, HT_ENOMEM, "no memory for a mask of %u tokens", l->n_logits);
        const bool any = fill(w, l, m->state, bits);
        if (w->rc || !any) {
            ht_mem_free(bits);
            return w->rc
                       ? w->rc
                       : HT_FAIL(e, HT_EFORMAT,
                                 "no token of the vocabulary continues what the grammar asks for");
        }
        w->state[m->state].bits = bits;
        w->bytes += (size_t)l->n_words * sizeof *bits;
    }
    *out = bits;
    return 0;
}

int ht_matcher_is_complete(const ht_matcher *m)
{
    return m->ended || m->g->walk.state[m->state].accept;
}

int ht_matcher_must_end(ht_matcher *m)
{
    if (!ht_matcher_is_complete(m)) return 0;
    return m->ended || m->g->walk.state[m->state].n == 0;
}

static int allowed(void *user, const uint32_t **bits, ht_err *e)
{
    return ht_matcher_mask(user, bits, e);
}

static int accept(void *user, int32_t id, ht_err *e)
{
    return ht_matcher_accept(user, id, e);
}

void ht_matcher_constraint(ht_matcher *m, ht_constraint *out)
{
    *out = (ht_constraint){.allowed = allowed, .accept = accept, .user = m};
}
