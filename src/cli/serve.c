/* serve.c - hetero serve: options into the server's parameters, its log onto standard error. */
#include "serve/serve.h"
#include "cli/cli.h"
#include "cli/sched.h"
#include "core/arena.h"
#include "core/clock.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A line of the server's log: "12:00:01 text". */
static void log_line(void *user, int level, const char *line)
{
    static const int as[] = {
        [HT_SERVE_ERROR] = CLI_ERROR,
        [HT_SERVE_WARN] = CLI_WARN,
        [HT_SERVE_INFO] = CLI_INFO,
        [HT_SERVE_DEBUG] = CLI_DEBUG,
    };
    const time_t now = (time_t)ht_now_unix();
    struct tm t;
    char at[16] = "";
    if (gmtime_r(&now, &t)) (void)strftime(at, sizeof at, "%H:%M:%S", &t);
    cli__say(user, as[level], "%s %s", at, line);
}

/* exit(3) would run handlers under the thread that loads. */
static void leave(void *user)
{
    (void)user;
    _exit(CLI_OK);
}

static void network(const ht_opts *o, ht_serve_params *p)
{
    p->host = ht_opt_str(o, HT_OPT_HOST);
    p->port = (uint16_t)ht_opt_int(o, HT_OPT_PORT);
    p->open = ht_opt_on(o, HT_OPT_ALLOW_OPEN);
    p->n_keys = ht_opt_list(o, HT_OPT_API_KEY, &p->keys);
    p->key_file = ht_opt_str(o, HT_OPT_API_KEY_FILE);
    p->n_cors = ht_opt_list(o, HT_OPT_CORS, &p->cors);
    p->n_aliases = ht_opt_list(o, HT_OPT_ALIAS, &p->aliases);
    p->max_body_mib = (uint32_t)ht_opt_int(o, HT_OPT_MAX_BODY);
    p->max_conns = (uint32_t)ht_opt_int(o, HT_OPT_MAX_CONNECTIONS);
    p->idle_s = (uint32_t)ht_opt_int(o, HT_OPT_IDLE_TIMEOUT);
    p->slots_route = !ht_opt_on(o, HT_OPT_NO_SLOTS);
    p->metrics_route = !ht_opt_on(o, HT_OPT_NO_METRICS);
    p->receipts = ht_opt_str(o, HT_OPT_RECEIPTS);
    p->receipts_key = ht_opt_str(o, HT_OPT_RECEIPTS_KEY);
}

static void schedule(const ht_opts *o, ht_serve_params *p)
{
    p->slots = (uint32_t)ht_opt_int(o, HT_OPT_PARALLEL);
    p->queue = (uint32_t)ht_opt_int(o, HT_OPT_QUEUE);
    p->queue_s = (uint32_t)ht_opt_int(o, HT_OPT_QUEUE_TIMEOUT);
    p->deadline_s = (uint32_t)ht_opt_int(o, HT_OPT_DEADLINE);
    p->drain_s = (uint32_t)ht_opt_int(o, HT_OPT_DRAIN);
    p->tpot_ms = (uint32_t)ht_opt_int(o, HT_OPT_TPOT);
    p->overlap = ht_opt_on(o, HT_OPT_OVERLAP);
    p->schedule = cli__schedule;
    p->record_trace = ht_opt_str(o, HT_OPT_RECORD_TRACE);
    p->lookup = ht_opt_on(o, HT_OPT_LOOKUP) && !ht_opt_on(o, HT_OPT_NO_LOOKUP);
    p->draft_model = ht_opt_str(o, HT_OPT_MODEL_DRAFT);
    const int64_t n = ht_opt_int(o, HT_OPT_PREDICT);
    p->max_new = n > 0 ? (uint32_t)n : 0;
}

/* The sampler of requests that say nothing. What a client of a protocol expects is temperature 1
 * and nothing else; options given here win over that, a request's own fields over both. */
static int sampling(cli__ctx *c, ht_serve_params *p, cli__sampler *sm, ht_err *e)
{
    const ht_opts *o = c->o;
    HT_TRY(cli__sampler_open(c, INT32_MAX, sm, e));
    p->sampling = sm->s;
    p->seed_given = !sm->seed_is_random;
    if (!ht_opt_given(o, HT_OPT_TEMP)) p->sampling.temp = 1;
    if (!ht_opt_given(o, HT_OPT_TOP_K)) p->sampling.top_k = 0;
    if (!ht_opt_given(o, HT_OPT_TOP_P)) p->sampling.top_p = 1;
    if (!ht_opt_given(o, HT_OPT_MIN_P)) p->sampling.min_p = 0;
    return 0;
}

static int serve(cli__ctx *c, ht_serve_params *p, ht_err *e)
{
    const char *file = ht_opt_str(c->o, HT_OPT_TEMPLATE);
    char *text = NULL;
    size_t n = 0;
    cli__sampler sm = {0};
    int rc = sampling(c, p, &sm, e);
    if (!rc && file) rc = cli__read_file(file, CLI_JSON_MAX, &text, &n, e);
    p->chat_template = text;
    p->chat_template_n = n;
    if (!rc) rc = ht_serve_run(p, e);
    ht_mem_free(text);
    cli__sampler_done(&sm);
    return rc;
}

int cli__serve(cli__ctx *c, ht_err *e)
{
    ht_serve_params p;
    ht_serve_params_init(&p);
    HT_TRY(cli__model(c, true, e));
    if (c->is_default_model) cli__say(c, CLI_INFO, "model: %s (the default)", c->model);
    cli__engine_params(c, 0, &p.engine);
    p.engine.prefix_bytes = (uint64_t)ht_opt_int(c->o, HT_OPT_CACHE_RAM) << 20;
    p.engine.kv_positions = (uint64_t)ht_opt_int(c->o, HT_OPT_KV_POSITIONS);
    p.kwargs = ht_opt_str(c->o, HT_OPT_KWARGS);
    p.log = log_line;
    p.abandon = leave;
    p.user = c;
    network(c->o, &p);
    schedule(c->o, &p);
    if (ht_opt_str(c->o, HT_OPT_PRINT_CONFIG)) {
        ht_engine *engine = NULL;
        HT_TRY(cli__engine_open(c, 0, &engine, e));
        const int rc = cli__print_config(c, engine, &p.sampling, e);
        ht_engine_close(engine);
        return rc;
    }
    return serve(c, &p, e);
}
