/* opt.c - the option table and its parser: names, values, precedence, what wrong words are
 * answered. */
#include "core/opt.h"
#include "core/arena.h"
#include "test.h"

enum { MAX_WORDS = 32 };

/* Split a command line as a shell would as far as the tests need: spaces, '..' and "..". */
static int split(char *s, char **argv)
{
    int n = 0;
    while (*s && n < MAX_WORDS) {
        while (*s == ' ') s++;
        if (!*s) break;
        char q = *s == '\'' || *s == '"' ? *s++ : ' ';
        argv[n++] = s;
        while (*s && *s != q) s++;
        if (*s) *s++ = 0;
    }
    return n;
}

static int parse(ht_opts **o, enum ht_cmd cmd, const char *line, ht_err *e)
{
    static char text[512];
    char *argv[MAX_WORDS];
    snprintf(text, sizeof text, "%s", line);
    return ht_opts_parse(o, cmd, split(text, argv), argv, e);
}

T_CASE(opt, every_row_is_complete)
{
    char name[64], other[64];
    for (unsigned id = 0; id < HT_OPTS; id++) {
        const ht_opt_def *d = &ht_opt_table[id];
        T_CHECK(d->names && d->help && *d->help, "row %u", id);
        ht_opt_name(id, name, sizeof name);
        T_CHECK(strncmp(name, "--", 2) == 0, "row %u has no long name: %s", id, name);
        T_CHECK(d->cmds, "%s belongs to no command", name);
        T_CHECK((d->arg == NULL) == (d->type == HT_OPT_FLAG), "%s: a flag has no value, others do",
                name);
        T_CHECK((d->choices != NULL) == (d->type == HT_OPT_ENUM), "%s: choices", name);
        T_CHECK(d->help[strlen(d->help) - 1] != '.', "%s: help ends with a full stop", name);
        for (unsigned k = 0; k < id; k++) {
            if (!d->env || !ht_opt_table[k].env) continue;
            ht_opt_name(k, other, sizeof other);
            T_CHECK(strcmp(name, other) != 0, "two rows read the variable of %s", name);
        }
    }
}

T_CASE(opt, names_are_unique_within_a_command)
{
    char a[64], b[64];
    unsigned pairs = 0;
    for (unsigned c = 0; c < HT_CMDS; c++)
        for (unsigned x = 0; x < HT_OPTS; x++)
            for (unsigned y = x + 1; y < HT_OPTS; y++) {
                if (!(ht_opt_table[x].cmds >> c & 1) || !(ht_opt_table[y].cmds >> c & 1)) continue;
                pairs++;
                for (size_t i = 0; ht_opt_name_at(x, i, a, sizeof a); i++)
                    for (size_t j = 0; ht_opt_name_at(y, j, b, sizeof b); j++)
                        if (strcmp(a, b) == 0)
                            T_CHECK(0, "%s twice in %s", a, ht_cmd_table[c].name);
            }
    T_CHECK(pairs > 1000, "%u pairs", pairs);
}

T_CASE(opt, examples_of_every_command_parse)
{
    for (unsigned c = 0; c < HT_CMDS; c++) {
        unsigned n = 0;
        for (const char *const *x = ht_cmd_table[c].examples; *x; x++, n++) {
            ht_err e = {0};
            ht_opts *o = NULL;
            char want[32], words[200];
            const char *end = strstr(*x, " < "); /* the rest is the shell's */
            snprintf(words, sizeof words, "%.*s", end ? (int)(end - *x) : (int)strlen(*x), *x);
            snprintf(want, sizeof want, "hetero %s", ht_cmd_table[c].name);
            T_CHECK(strncmp(*x, want, strlen(want)) == 0, "%s", *x);
            T_CHECK(parse(&o, c, words + strlen(want), &e) == 0, "%s: %s", *x, e.msg);
            ht_opts_free(o);
        }
        T_CHECK(n > 0, "%s has no example", ht_cmd_table[c].name);
    }
}

T_CASE(opt, values_and_defaults)
{
    ht_err e;
    ht_opts *o;
    T_OK(parse(&o, HT_CMD_RUN, "m.gguf -p 'a b' -n 7 --temp=0.25 -s 42 --stop x -r y --ignore-eos",
               &e),
         e);
    T_EQ_STR(ht_opts_arg(o, 0), "m.gguf");
    T_EQ_STR(ht_opt_str(o, HT_OPT_PROMPT), "a b");
    T_EQ_INT(ht_opt_int(o, HT_OPT_PREDICT), 7);
    T_NEAR(ht_opt_real(o, HT_OPT_TEMP), 0.25, 0);
    T_EQ_INT(ht_opt_int(o, HT_OPT_SEED), 42);
    T_TRUE(ht_opt_on(o, HT_OPT_IGNORE_EOS));
    T_TRUE(!ht_opt_on(o, HT_OPT_JSON));
    const char *const *stop;
    T_EQ_INT(ht_opt_list(o, HT_OPT_STOP, &stop), 2);
    T_EQ_STR(stop[0], "x");
    T_EQ_STR(stop[1], "y");
    T_EQ_INT(ht_opt_int(o, HT_OPT_TOP_K), 40);
    T_NEAR(ht_opt_real(o, HT_OPT_TOP_P), 0.95, 1e-12);
    T_EQ_STR(ht_opt_str(o, HT_OPT_CTK), "f16");
    T_TRUE(!ht_opt_given(o, HT_OPT_TOP_K) && ht_opt_given(o, HT_OPT_TEMP));
    T_CHECK(ht_opt_str(o, HT_OPT_ENGINE) == NULL, "an engine nobody named");
    ht_opts_free(o);
}

T_CASE(opt, aliases_negative_numbers_and_words)
{
    ht_err e;
    ht_opts *o;
    T_OK(parse(&o, HT_CMD_LOGITS, "--ctk f32 --cache-type-v f32 -m x --ids 1", &e), e);
    T_EQ_STR(ht_opt_str(o, HT_OPT_CTK), "f32");
    T_EQ_STR(ht_opt_str(o, HT_OPT_CTV), "f32");
    ht_opts_free(o);
    T_OK(parse(&o, HT_CMD_RUN, "-n -1 --seed -1 -- -odd-name", &e), e);
    T_EQ_INT(ht_opt_int(o, HT_OPT_PREDICT), -1);
    T_EQ_STR(ht_opts_arg(o, 0), "-odd-name");
    ht_opts_free(o);
    T_OK(parse(&o, HT_CMD_BENCH, "-p 16,32 -n 0 -d 0,8", &e), e);
    T_EQ_STR(ht_opt_str(o, HT_OPT_BENCH_P), "16,32");
    ht_opts_free(o);
}

T_CASE(opt, wrong_words_say_what_and_what_next)
{
    ht_err e;
    ht_opts *o;
    T_ERR(parse(&o, HT_CMD_RUN, "--tmep 1", &e), HT_EARG, e, "did you mean --temp?");
    T_CHECK(o == NULL, "options after a failure");
    T_ERR(parse(&o, HT_CMD_RUN, "--xyzzyplugh", &e), HT_EARG, e, "'hetero run --help' lists all");
    T_CHECK(!strstr(e.msg, "did you mean"), "a guess far off: %s", e.msg);
    T_ERR(parse(&o, HT_CMD_RUN, "--chunks 3", &e), HT_EARG, e, "belongs to 'hetero ppl'");
    T_ERR(parse(&o, HT_CMD_RUN, "-ngl 99", &e), HT_EARG, e, "engines are chosen by evidence");
    T_ERR(parse(&o, HT_CMD_RUN, "-n", &e), HT_EARG, e, "-n needs a value");
    T_ERR(parse(&o, HT_CMD_RUN, "-n 3x", &e), HT_EARG, e, "need a whole number");
    T_ERR(parse(&o, HT_CMD_RUN, "-n 99999999999999999999", &e), HT_EARG, e, "out of range");
    T_ERR(parse(&o, HT_CMD_RUN, "-s 18446744073709551615", &e), HT_EARG, e,
          "need -1 to 9007199254740991");
    T_ERR(parse(&o, HT_CMD_RUN, "-t 257", &e), HT_EARG, e, "need 1 to 256");
    T_ERR(parse(&o, HT_CMD_RUN, "--top-p 1.5", &e), HT_EARG, e, "out of range, need 0 to 1");
    T_ERR(parse(&o, HT_CMD_RUN, "--temp nan", &e), HT_EARG, e, "need a number");
    T_ERR(parse(&o, HT_CMD_RUN, "--act q9", &e), HT_EARG, e, "need one of f32|q8");
    T_ERR(parse(&o, HT_CMD_RUN, "--json=1", &e), HT_EARG, e, "takes no value");
    T_ERR(parse(&o, HT_CMD_RUN, "a b", &e), HT_EARG, e, "one word too many");
    T_ERR(parse(&o, HT_CMD_PACK, "-o x", &e), HT_EARG, e, "usage: hetero pack SRC");
}

/* A second --cuda took the place of the first without a word. */
T_CASE(opt, one_value_is_given_once)
{
    ht_err e;
    ht_opts *o;
    T_ERR(parse(&o, HT_CMD_RUN, "-n 1 --predict 2", &e), HT_EARG, e,
          "--predict 2: was given before, with 1; give it once");
    T_ERR(parse(&o, HT_CMD_RUN, "-n 128 -n 128", &e), HT_EARG, e, "give it once");
    T_ERR(parse(&o, HT_CMD_RUN, "--cuda gpu=1 --cuda=level=1", &e), HT_EARG, e,
          "--cuda level=1: was given before, with gpu=1; give it once, with commas");
    T_ERR(parse(&o, HT_CMD_RUN, "--graph strict=1 --graph strict=1", &e), HT_EARG, e,
          "give it once, with commas");
    T_ERR(parse(&o, HT_CMD_QUALIFY, "p32 --candidate act=q8 --candidate threads=1", &e), HT_EARG, e,
          "--candidate threads=1: was given before, with act=q8");
    T_ERR(parse(&o, HT_CMD_RUN, "--act f32 --act q8", &e), HT_EARG, e, "with f32");
    T_ERR(parse(&o, HT_CMD_RUN, "--temp 0 --temp 1", &e), HT_EARG, e, "with 0");
    T_OK(parse(&o, HT_CMD_RUN, "--json --json --stop a --stop b", &e), e);
    const char *const *stop;
    T_EQ_INT(ht_opt_list(o, HT_OPT_STOP, &stop), 2);
    ht_opts_free(o);
    setenv("HETERO_CUDA", "gpu=1", 1); /* the line's one value stands before the environment's */
    T_OK(parse(&o, HT_CMD_RUN, "--cuda level=1", &e), e);
    T_EQ_STR(ht_opt_str(o, HT_OPT_CUDA), "level=1");
    ht_opts_free(o);
    unsetenv("HETERO_CUDA");
}

/* Every option whose items are separated by commas refuses an empty one in the same words. */
T_CASE(opt, no_item_of_a_list_is_empty)
{
    static const struct {
        enum ht_cmd cmd;
        const char *option;
    } list[] = {{HT_CMD_RUN, "--ids"},          {HT_CMD_LOGITS, "--at"},
                {HT_CMD_BENCH, "-p"},           {HT_CMD_BENCH, "-n"},
                {HT_CMD_BENCH, "-d"},           {HT_CMD_QUALIFY, "--candidate"},
                {HT_CMD_COMPARE, "--contexts"}, {HT_CMD_RUN, "--graph"},
                {HT_CMD_RUN, "--cuda"},         {HT_CMD_KV_PROBE, "--depths"},
                {HT_CMD_RUN, "--cache-type-k"}, {HT_CMD_RUN, "-ctv"}};
    static const struct {
        const char *text;
        int item;
    } wrong[] = {{"1,,2", 2}, {"1,2,", 3}, {",1", 1}, {",", 1}, {"''", 1}};
    unsigned seen = 0;
    for (unsigned id = 0; id < HT_OPTS; id++) seen += ht_opt_table[id].type == HT_OPT_COMMAS;
    T_EQ_INT(seen, sizeof list / sizeof *list);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            char line[80], want[120];
            ht_err e;
            ht_opts *o;
            (void)snprintf(line, sizeof line, "%s %s", list[i].option, wrong[k].text);
            (void)snprintf(want, sizeof want, "%s: item %d is empty; separate items by one comma",
                           list[i].option, wrong[k].item);
            T_ERR(parse(&o, list[i].cmd, line, &e), HT_EARG, e, want);
        }
    ht_err e;
    ht_opts *o;
    setenv("HETERO_GRAPH", "strict=1,", 1);
    T_ERR(parse(&o, HT_CMD_RUN, "", &e), HT_EARG, e, "HETERO_GRAPH: item 2 is empty");
    unsetenv("HETERO_GRAPH");
}

T_CASE(opt, command_line_wins_over_environment_over_default)
{
    ht_err e;
    ht_opts *o;
    setenv("HETERO_TOP_K", "11", 1);
    T_OK(parse(&o, HT_CMD_RUN, "", &e), e);
    T_EQ_INT(ht_opt_int(o, HT_OPT_TOP_K), 11);
    T_EQ_INT(ht_opt_source(o, HT_OPT_TOP_K), HT_FROM_ENV);
    ht_opts_free(o);
    T_OK(parse(&o, HT_CMD_RUN, "--top-k 5", &e), e);
    T_EQ_INT(ht_opt_int(o, HT_OPT_TOP_K), 5);
    T_EQ_INT(ht_opt_source(o, HT_OPT_TOP_K), HT_FROM_CLI);
    ht_opts_free(o);
    setenv("HETERO_TOP_K", "many", 1);
    T_ERR(parse(&o, HT_CMD_RUN, "", &e), HT_EARG, e, "HETERO_TOP_K many: need a whole number");
    T_OK(parse(&o, HT_CMD_RUN, "--help", &e), e);
    T_TRUE(ht_opt_on(o, HT_OPT_HELP));
    ht_opts_free(o);
    T_OK(parse(&o, HT_CMD_DOCTOR, "", &e),
         e); /* does not take it, so does not mind                */
    ht_opts_free(o);
    unsetenv("HETERO_TOP_K");
    setenv("HETERO_NO_PROGRESS", "true", 1);
    setenv("HETERO_TOPK", "3", 1);
    T_OK(parse(&o, HT_CMD_RUN, "", &e), e);
    T_TRUE(ht_opt_on(o, HT_OPT_NO_PROGRESS));
    T_CHECK(ht_opts_unknown_env(o, 0) && strcmp(ht_opts_unknown_env(o, 0), "HETERO_TOPK=3") == 0,
            "unknown variables: %s",
            ht_opts_unknown_env(o, 0) ? ht_opts_unknown_env(o, 0) : "none");
    ht_opts_free(o);
}

T_CASE(opt, commands_are_found_or_guessed)
{
    ht_err e;
    enum ht_cmd c = HT_CMDS;
    T_OK(ht_cmd_find("bench", &c, &e), e);
    T_EQ_INT(c, HT_CMD_BENCH);
    T_ERR(ht_cmd_find("tokenise", &c, &e), HT_EARG, e, "did you mean 'tokenize'?");
    T_ERR(ht_cmd_find("qqqqqqqqqqqqqqqqqqqqqq", &c, &e), HT_EARG, e, "'hetero help' lists all");
}

T_CASE(opt, edit_distance)
{
    T_EQ_INT(ht_edit_distance("", ""), 0);
    T_EQ_INT(ht_edit_distance("abc", ""), 3);
    T_EQ_INT(ht_edit_distance("kitten", "sitting"), 3);
    T_EQ_INT(ht_edit_distance("temp", "tmep"),
             1); /* a transposition is one edit                   */
    T_EQ_INT(ht_edit_distance("ca", "abc"),
             3); /* optimal string alignment: no edit inside a swap */
    T_EQ_INT(ht_edit_distance("--top-k", "--top-p"), 1);
}

T_CASE(opt, integer_lists)
{
    ht_err e;
    int64_t *v;
    size_t n;
    T_OK(ht_parse_ints("5,17,3", "--ids", 0, 100, &v, &n, &e), e);
    T_EQ_INT(n, 3);
    T_EQ_INT(v[1], 17);
    ht_mem_free(v);
    T_ERR(ht_parse_ints("5,,3", "--ids", 0, 100, &v, &n, &e), HT_EARG, e, "--ids: item 2");
    T_ERR(ht_parse_ints("", "--ids", 0, 100, &v, &n, &e), HT_EARG, e, "item 1");
    T_ERR(ht_parse_ints("5,101", "--ids", 0, 100, &v, &n, &e), HT_EARG, e, "from 0 to 100");
    T_ERR(ht_parse_ints("5,-1", "--ids", 0, 100, &v, &n, &e), HT_EARG, e, "item 2");
    T_ERR(ht_parse_ints("99999999999999999999", "--ids", 0, INT64_MAX, &v, &n, &e), HT_EARG, e,
          "item 1");
    T_ERR(ht_parse_ints("5 6", "--ids", 0, 100, &v, &n, &e), HT_EARG, e, "separated by commas");
}

T_CASE(opt, help_names_every_option_and_stays_narrow)
{
    for (unsigned c = 0; c < HT_CMDS; c++) {
        ht_buf b;
        char name[64];
        ht_err e;
        ht_buf_init(&b, 0);
        ht_opt_help(&b, c);
        T_OK(ht_buf_ok(&b, "help", &e), e);
        for (unsigned id = 0; id < HT_OPTS; id++)
            for (size_t i = 0;
                 (ht_opt_table[id].cmds >> c & 1) && ht_opt_name_at(id, i, name, sizeof name); i++)
                T_CHECK(strstr(b.p, name), "help of %s lacks %s", ht_cmd_table[c].name, name);
        for (char *s = b.p; *s;) {
            size_t n = strcspn(s, "\n");
            T_CHECK(n <= 100 || !strchr(s, ' '), "%s: a line of %zu: %.*s", ht_cmd_table[c].name, n,
                    (int)n, s);
            s += n + (s[n] == '\n');
        }
        ht_buf_done(&b);
    }
}
