/* reply.c - the parser of reply.h. What has come and is not decided yet lies in one buffer; every
 * state looks at its beginning, takes what it can and says whether it needs more. A call stays in
 * the buffer until its last bracket, so that it can come back as text whole. */
#include "reply/reply.h"
#include "reply/jscan.h"
#include <stdio.h>
#include <string.h>

enum state {
    IN_START, /* nothing but space yet: reasoning may begin */
    IN_REASON,
    IN_CONTENT, /* nothing but space since the start, the reasoning or a call */
    IN_TEXT,
    IN_CALL, /* the buffer begins with a call's first byte, its opening mark included */
    IN_LIST, /* after a call of an array: a comma or the end */
    IN_CLOSE /* after a call: the closing mark, if there is one */
};
enum { HEAD_MAX = 1024, ID_BYTES = 32 };

struct ht_reply {
    ht_reply_params p;
    ht_reply_fn fn;
    void *user;
    ht_err *e;
    int rc;
    enum state state;
    ht_buf in;
    size_t from;                                     /* bytes of in that are dealt with */
    bool end;                                        /* no more will come */
    bool any_text, any_reason, had_reason, any_call; /* had_reason: its marks were there */
    size_t broken;
    uint32_t n_calls, index; /* complete ones; the next one's index */
    /* the call at the buffer's beginning; offsets from `from` */
    jscan scan;
    size_t at, body;               /* scanned so far; its JSON begins */
    size_t args, sent, args_end;   /* 0: not known */
    bool begun, in_list, headless; /* CALL is out; inside [..]; the head was given up */
    char name[256];
};

/* ---- small things ---------------------------------------------------------------------------- */

static const char *rest(const ht_reply *r, size_t *n)
{
    *n = r->in.n - r->from;
    return r->in.p ? r->in.p + r->from : "";
}

static void emit(ht_reply *r, enum ht_reply_kind kind, const char *p, size_t n)
{
    if (r->rc || (n == 0 && kind <= HT_REPLY_REASONING)) return;
    const ht_reply_event ev = {.kind = kind, .index = r->index, .text = p, .n = n};
    if (r->fn(r->user, &ev))
        r->rc = HT_FAIL(r->e, HT_ECANCELLED, "the receiver of a reply stopped");
}

static void take(ht_reply *r, size_t n)
{
    r->from += n;
}

/* Text for the user: the first n bytes. */
static void text(ht_reply *r, size_t n)
{
    size_t left;
    const char *p = rest(r, &left);
    if (n) r->any_text = true;
    emit(r, HT_REPLY_TEXT, p, n);
    take(r, n);
}

static size_t spaces(const char *p, size_t n)
{
    size_t k = 0;
    while (k < n && strchr(" \t\r\n", p[k]) && p[k]) k++;
    return k;
}

enum match { NO, PART, YES };
/* Does p begin with word; PART: as far as it goes, and more may come. */
static enum match begins(const ht_reply *r, const char *p, size_t n, const char *word)
{
    const size_t w = strlen(word), k = n < w ? n : w;
    if (memcmp(p, word, k) != 0) return NO;
    return k == w ? YES : r->end ? NO : PART;
}

/* Bytes before the first place where word begins, or may begin at the end. */
static size_t before(const ht_reply *r, const char *p, size_t n, const char *word, bool *found)
{
    const size_t w = strlen(word);
    const char *at = n ? memmem(p, n, word, w) : NULL;
    *found = at != NULL;
    if (at) return (size_t)(at - p);
    for (size_t k = w - 1 < n ? w - 1 : n; k > 0 && !r->end; k--)
        if (memcmp(p + n - k, word, k) == 0) return n - k;
    return n;
}

static const char *opener(const ht_reply *r)
{
    switch (r->p.form) {
    case HT_FORM_HERMES: return "<tool_call>";
    case HT_FORM_MISTRAL:
    case HT_FORM_MISTRAL_ARGS: return "[TOOL_CALLS]";
    case HT_FORM_LLAMA3: return "<|python_tag|>";
    default: return NULL;
    }
}

static bool known(const ht_reply *r, const char *name, size_t n)
{
    for (size_t i = 0; i < r->p.tools->n; i++) {
        const ht_json *f = ht_json_get(&r->p.tools->at[i], "function");
        const ht_json *x = ht_json_get(f ? f : &r->p.tools->at[i], "name");
        if (x && x->type == HT_JSTR && x->n == n && memcmp(x->s, name, n) == 0) return true;
    }
    return false;
}

/* SplitMix64 letters: "call_" and 24 of them, or nine for Mistral. */
static void make_id(const ht_reply *r, char out[ID_BYTES])
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const bool nine = r->p.form == HT_FORM_MISTRAL || r->p.form == HT_FORM_MISTRAL_ARGS;
    size_t n = 0;
    if (!nine) n = (size_t)snprintf(out, ID_BYTES, "call_");
    const size_t end = n + (nine ? 9 : 24);
    uint64_t x = r->p.id_seed + 0x632be59bd9b4e019u * (r->index + 1);
    while (n < end) {
        uint64_t z = x += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        out[n++] = letters[(z ^ z >> 31) % 62];
    }
    out[n] = 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void call_begin(ht_reply *r, size_t body, bool in_list)
{
    r->state = IN_CALL;
    r->scan = (jscan){0};
    r->at = r->body = body;
    r->args = r->sent = r->args_end = 0;
    r->begun = r->headless = false;
    r->in_list = in_list;
}

static void announce(ht_reply *r)
{
    char id[ID_BYTES];
    if (r->begun || r->rc) return;
    make_id(r, id);
    r->begun = true;
    const ht_reply_event ev = {
        .kind = HT_REPLY_CALL, .index = r->index, .id = id, .name = r->name, .text = "", .n = 0};
    if (r->fn(r->user, &ev))
        r->rc = HT_FAIL(r->e, HT_ECANCELLED, "the receiver of a reply stopped");
}

static void call_done(ht_reply *r, size_t n)
{
    announce(r);
    emit(r, HT_REPLY_CALL_END, "", 0);
    r->any_call = true;
    r->n_calls++;
    r->index++;
    take(r, n);
    r->state = r->in_list ? IN_LIST : IN_CLOSE;
}

/* The first n bytes are no call after all. What was announced cannot be taken back: its rest is
 * dropped; otherwise they are text. */
static void call_broken(ht_reply *r, size_t n)
{
    r->broken += n;
    r->state = IN_TEXT;
    if (!r->begun) {
        text(r, n);
        return;
    }
    take(r, n);
    r->index++;
}

/* Skip space in p[*i..n), then one of two words (b may be NULL); false: something else. */
static bool expect(const char *p, size_t n, size_t *i, const char *a, const char *b)
{
    *i += spaces(p + *i, n - *i);
    for (const char *w = a; w; w = w == a ? b : NULL) {
        const size_t k = strlen(w);
        if (n - *i < k || memcmp(p + *i, w, k) != 0) continue;
        *i += k;
        return true;
    }
    return false;
}

/* {"name":"x","arguments":{ is all of p: the name, and where the arguments begin. false: it is not
 * written like that. */
static bool head(ht_reply *r, const char *p, size_t n, size_t *args)
{
    size_t i = 0;
    if (!expect(p, n, &i, "{", NULL) || !expect(p, n, &i, "\"name\"", NULL) ||
        !expect(p, n, &i, ":", NULL) || !expect(p, n, &i, "\"", NULL))
        return false;
    const char *name = p + i, *end = memchr(name, '"', n - i);
    const size_t len = end ? (size_t)(end - name) : sizeof r->name;
    if (len >= sizeof r->name || !known(r, name, len)) return false;
    i += len + 1;
    if (!expect(p, n, &i, ",", NULL) || !expect(p, n, &i, "\"arguments\"", "\"parameters\"") ||
        !expect(p, n, &i, ":", NULL))
        return false;
    i += spaces(p + i, n - i);
    if (i + 1 != n) return false;
    memcpy(r->name, name, len);
    r->name[len] = 0;
    *args = i;
    return true;
}

/* Pass on what has come of the arguments: bytes [sent, upto). */
static void stream(ht_reply *r, size_t upto)
{
    size_t n;
    const char *p = rest(r, &n);
    if (r->p.hold_args || !r->args || upto <= r->sent) return;
    announce(r);
    emit(r, HT_REPLY_ARGS, p + r->sent, upto - r->sent);
    r->sent = upto;
}

/* The arguments of a parsed call that was not written in the usual order. NULL: none are there. */
static const ht_json *loose_call(ht_reply *r, const ht_json *call)
{
    const ht_json *f = ht_json_get(call, "function");
    if (f && f->type == HT_JOBJ) call = f;
    const ht_json *name = ht_json_get(call, "name"), *args = ht_json_get(call, "arguments");
    if (!args) args = ht_json_get(call, "parameters");
    if (!name || name->type != HT_JSTR || name->n >= sizeof r->name || !known(r, name->s, name->n))
        return NULL;
    memcpy(r->name, name->s, name->n + 1);
    return args ? args : call;
}

/* Arguments as JSON text of an object: they may be an object, null or a string that holds one. */
static bool write_args(ht_arena *a, const ht_json *call, const ht_json *args, ht_buf *out)
{
    ht_json *parsed = NULL;
    if (args->type == HT_JSTR) {
        if (ht_json_parse(a, args->s, args->n, 0, "arguments", &parsed, NULL)) return false;
        args = parsed;
    }
    if (args->type == HT_JNULL || args == call) {
        ht_buf_str(out, "{}");
        return true;
    }
    return args->type == HT_JOBJ && ht_json_write(args, 0, out, NULL) == 0;
}

/* The JSON [body, at) is complete. */
static void call_complete(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    ht_arena *a = NULL;
    ht_json *call = NULL;
    ht_buf out;
    ht_buf_init(&out, 0);
    r->rc = ht_arena_new(&a, 0, r->e);
    if (r->rc) return;
    bool ok = ht_json_parse(a, p + r->body, r->at - r->body, 0, "a call", &call, NULL) == 0;
    if (ok && r->args) {
        stream(r, r->args_end);
        if (r->p.hold_args) {
            announce(r);
            emit(r, HT_REPLY_ARGS, p + r->args, r->args_end - r->args);
        }
    } else if (ok) {
        const ht_json *args = loose_call(r, call);
        ok = args && write_args(a, call, args, &out);
        if (ok) {
            announce(r);
            emit(r, HT_REPLY_ARGS, out.p, out.n);
        }
    }
    if (ok) call_done(r, r->at);
    else call_broken(r, r->at);
    ht_buf_done(&out);
    ht_arena_free(a);
}

/* name[ARGS]{ behind the mark: set where the JSON begins. false: more is needed, or broken. */
static bool named_args(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    size_t i = r->body + spaces(p + r->body, n - r->body);
    const size_t start = i;
    while (i < n && p[i] != '[' && p[i] != '{' && p[i] != ' ' && p[i] != '\n') i++;
    const char *brace = memchr(p + i, '{', n - i);
    if (!brace && !r->end && n - start < HEAD_MAX) return false;
    if (!brace || !known(r, p + start, i - start) || i - start >= sizeof r->name) {
        call_broken(r, brace ? (size_t)(brace - p) : n);
        return false;
    }
    memcpy(r->name, p + start, i - start);
    r->name[i - start] = 0;
    r->at = r->body = r->args = r->sent = (size_t)(brace - p);
    if (!r->p.hold_args) announce(r);
    return true;
}

/* true: more input is needed. */
static bool in_call(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    if (r->p.form == HT_FORM_MISTRAL_ARGS && !r->args && !named_args(r)) return r->state == IN_CALL;
    p = rest(r, &n);
    while (r->at < n && !r->rc) {
        const enum jscan_result s = reply__jscan_byte(&r->scan, p[r->at]);
        if (s == JSCAN_BAD) {
            stream(r, r->args_end ? r->args_end : r->at);
            call_broken(r, r->at + 1);
            return false;
        }
        r->at++;
        /* The arguments end where their bracket closes: one level inside the call. */
        const uint8_t level = r->p.form == HT_FORM_MISTRAL_ARGS ? 0 : 1;
        if (r->args && !r->args_end && r->at > r->args + 1 && r->scan.depth == level)
            r->args_end = r->at;
        if (s == JSCAN_DONE) {
            call_complete(r);
            return false;
        }
        if (!r->args && !r->headless && r->at - r->body <= HEAD_MAX && p[r->at - 1] == '{' &&
            r->scan.depth == 2) {
            size_t args;
            r->headless = !head(r, p + r->body, r->at - r->body, &args);
            if (!r->headless) r->args = r->sent = r->body + args;
            /* At once, so that what comes out does not depend on how the input is cut. */
            if (!r->headless && !r->p.hold_args) announce(r);
        }
    }
    stream(r, r->args_end ? r->args_end : r->at);
    if (!r->end) return true;
    call_broken(r, n);
    return false;
}

/* ---- the states around calls ----------------------------------------------------------------- */

static bool in_start(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    const size_t k = spaces(p, n);
    const enum match m = r->p.reasoning ? begins(r, p + k, n - k, r->p.open) : NO;
    if (m == PART) return true;
    r->state = IN_CONTENT;
    if (m == YES) {
        take(r, k + strlen(r->p.open));
        r->state = IN_REASON;
    }
    return false;
}

static bool in_reason(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    bool found;
    size_t k = before(r, p, n, r->p.close, &found);
    /* Space at either end is layout. */
    const size_t skip = r->any_reason ? 0 : spaces(p, k);
    size_t show = k;
    while (show > skip && strchr(" \t\r\n", p[show - 1]) && p[show - 1]) show--;
    if (show > skip) {
        r->any_reason = true;
        emit(r, HT_REPLY_REASONING, p + skip, show - skip);
        take(r, show);
        k -= show;
    } else if (!found && !r->end) {
        take(r, skip);
        return true;
    }
    if (!found && !r->end) return true;
    take(r, k);
    if (found) take(r, strlen(r->p.close));
    r->had_reason = true;
    r->state = IN_CONTENT;
    return false;
}

/* Space has come, and what follows decides: a call, or text. */
static bool in_content(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    const size_t k = spaces(p, n);
    const char *mark = r->p.tools ? opener(r) : NULL;
    const bool bare = r->p.tools && (r->p.form == HT_FORM_JSON || r->p.form == HT_FORM_LLAMA3);
    if (k == n && !r->end) return true;
    if (k == n) { /* nothing but space at the end: layout, after something */
        if (r->any_call || r->had_reason) take(r, n);
        else text(r, n);
        return true;
    }
    if (mark) {
        const enum match m = begins(r, p + k, n - k, mark);
        if (m == PART) return true;
        if (m == YES) {
            take(r, k);
            r->state = IN_TEXT; /* finds the mark again, at once */
            return false;
        }
    }
    if (bare && (p[k] == '{' || (p[k] == '[' && r->p.form == HT_FORM_JSON))) {
        take(r, k);
        call_begin(r, p[k] == '[', p[k] == '[');
        return false;
    }
    if (!r->any_text && r->had_reason) take(r, k);
    r->state = IN_TEXT;
    return false;
}

static bool in_text(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    const char *mark = r->p.tools ? opener(r) : NULL;
    bool found = false;
    const size_t k = mark ? before(r, p, n, mark, &found) : n;
    text(r, k);
    if (!found) return true;
    p = rest(r, &n);
    size_t body = strlen(mark);
    const size_t gap = spaces(p + body, n - body);
    if (r->p.form == HT_FORM_MISTRAL) {
        /* The list's bracket belongs to what comes back as text. */
        if (body + gap == n && !r->end) return true;
        const bool list = body + gap < n && p[body + gap] == '[';
        body += list ? gap + 1 : 0;
        call_begin(r, body, list);
        return false;
    }
    call_begin(r, body, false);
    return false;
}

static bool in_list(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    const size_t k = spaces(p, n);
    if (k == n) {
        if (r->end) take(r, n);
        return true;
    }
    take(r, k);
    if (p[k] == ',') {
        call_begin(r, 1, true);
        return false;
    }
    if (p[k] == ']') take(r, 1);
    r->state = IN_CLOSE;
    return false;
}

static bool in_close(ht_reply *r)
{
    size_t n;
    const char *p = rest(r, &n);
    size_t k = spaces(p, n);
    r->state = IN_CONTENT;
    if (r->p.form == HT_FORM_HERMES) {
        const enum match m = begins(r, p + k, n - k, "</tool_call>");
        if (m == YES) take(r, k + strlen("</tool_call>"));
        if (m == PART) r->state = IN_CLOSE;
        return m == PART;
    }
    if (r->p.form == HT_FORM_LLAMA3) {
        if (k == n && !r->end) {
            r->state = IN_CLOSE;
            return true;
        }
        if (k < n && (p[k] == ';' || p[k] == ',')) take(r, k + 1);
    }
    return false;
}

static void advance(ht_reply *r)
{
    bool need = false;
    while (!need && !r->rc && (r->from < r->in.n || r->state == IN_CALL)) {
        switch (r->state) {
        case IN_START: need = in_start(r); break;
        case IN_REASON: need = in_reason(r); break;
        case IN_CONTENT: need = in_content(r); break;
        case IN_TEXT: need = in_text(r); break;
        case IN_CALL: need = in_call(r); break;
        case IN_LIST: need = in_list(r); break;
        case IN_CLOSE: need = in_close(r); break;
        }
    }
    /* What is dealt with goes when it is more than half. */
    if (r->from * 2 > r->in.n) {
        memmove(r->in.p, r->in.p + r->from, r->in.n - r->from);
        r->in.n -= r->from;
        r->from = 0;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

int ht_reply_new(ht_reply **out, const ht_reply_params *p, ht_reply_fn fn, void *user, ht_err *e)
{
    if (!out || !p || !fn) return HT_FAIL(e, HT_EARG, "ht_reply_new: params and fn must be given");
    *out = NULL;
    ht_reply *r = ht_mem_alloc(sizeof *r);
    if (!r) return HT_FAIL(e, HT_ENOMEM, "no memory for the parser of a reply");
    r->p = *p;
    if (!r->p.open || !*r->p.open) r->p.open = "<think>";
    if (!r->p.close || !*r->p.close) r->p.close = "</think>";
    if (r->p.tools && (r->p.tools->type != HT_JARR || r->p.tools->n == 0)) r->p.tools = NULL;
    r->fn = fn;
    r->user = user;
    r->state = p->reasoning ? p->in_reasoning ? IN_REASON : IN_START
               : r->p.tools ? IN_CONTENT
                            : IN_TEXT;
    ht_buf_init(&r->in, 0);
    *out = r;
    return 0;
}

void ht_reply_free(ht_reply *r)
{
    if (!r) return;
    ht_buf_done(&r->in);
    ht_mem_free(r);
}

int ht_reply_push(ht_reply *r, const char *p, size_t n, ht_err *e)
{
    if (r->rc) return HT_FAIL(e, r->rc, "the parser of this reply has failed before");
    r->e = e;
    ht_buf_add(&r->in, p, n);
    r->rc = ht_buf_ok(&r->in, "a reply", e);
    if (!r->rc) advance(r);
    r->e = NULL;
    return r->rc;
}

int ht_reply_finish(ht_reply *r, size_t *broken, ht_err *e)
{
    if (broken) *broken = 0;
    if (r->rc) return HT_FAIL(e, r->rc, "the parser of this reply has failed before");
    r->e = e;
    r->end = true;
    advance(r);
    r->e = NULL;
    if (broken) *broken = r->broken;
    return r->rc;
}
