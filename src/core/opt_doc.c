/* opt_doc.c - documents made from the table: --help, manual pages (man(7) roff), completion
 * scripts. Pure functions of the table: the committed files under docs/ are compared with them by a
 * test. */
#include "core/opt.h"
#include <string.h>

enum { HELP_COLUMN = 34, HELP_WIDTH = 100, NAME_CAP = 64 };

static bool takes(unsigned cmd, unsigned id)
{
    return ht_opt_table[id].cmds >> cmd & 1;
}

/* ---- --help ---- */

/* Text wrapped to HELP_WIDTH; continuation lines start at `column`. *at: where the cursor is. */
static void wrap(ht_buf *b, const char *s, size_t column, size_t *at)
{
    while (*s) {
        size_t k = strcspn(s, " ");
        if (*at > column && *at + 1 + k > HELP_WIDTH) {
            ht_buf_fmt(b, "\n%*s", (int)column, "");
            *at = column;
        } else if (*at > column) {
            ht_buf_char(b, ' ');
            ++*at;
        }
        ht_buf_add(b, s, k);
        *at += k;
        s += k + strspn(s + k, " ");
    }
}

/* "-n, --predict, --n-predict N" */
static void put_names(ht_buf *b, unsigned id)
{
    char name[NAME_CAP];
    for (size_t i = 0; ht_opt_name_at(id, i, name, sizeof name); i++)
        ht_buf_fmt(b, "%s%s", i ? ", " : "", name);
    if (ht_opt_table[id].arg) ht_buf_fmt(b, " %s", ht_opt_table[id].arg);
}

/* What follows an option's sentence: choices, default, variable. */
static void put_facts(ht_buf *b, unsigned id)
{
    const ht_opt_def *d = &ht_opt_table[id];
    char env[NAME_CAP];
    if (d->choices) ht_buf_fmt(b, "; one of %s", d->choices);
    if (d->def) ht_buf_fmt(b, " (default: %s)", d->def);
    if (ht_opt_env_name(id, env, sizeof env)) ht_buf_fmt(b, " [%s]", env);
}

static void help_option(ht_buf *b, unsigned id)
{
    ht_buf text;
    size_t start = b->n, at;
    ht_buf_init(&text, 0);
    ht_buf_str(&text, ht_opt_table[id].help);
    put_facts(&text, id);
    ht_buf_str(b, "  ");
    put_names(b, id);
    at = b->n - start;
    if (at + 2 > HELP_COLUMN) {
        ht_buf_char(b, '\n');
        at = 0;
    }
    ht_buf_fmt(b, "%*s", (int)(HELP_COLUMN - at), "");
    at = HELP_COLUMN;
    if (text.bad || !text.p) b->bad = true;
    else wrap(b, text.p, HELP_COLUMN, &at);
    ht_buf_char(b, '\n');
    ht_buf_done(&text);
}

void ht_opt_help(ht_buf *b, enum ht_cmd cmd)
{
    const ht_cmd_def *c = &ht_cmd_table[cmd];
    ht_buf_fmt(b, "hetero %s - %s\n\nusage: hetero %s %s%s[OPTIONS]\n", c->name, c->summary,
               c->name, c->args, *c->args ? " " : "");
    for (const char *s = c->detail; s && *s;) {
        const char *end = strstr(s, "\n\n");
        char para[1200];
        size_t n = end ? (size_t)(end - s) : strlen(s), at = 0;
        if (n >= sizeof para) n = sizeof para - 1;
        memcpy(para, s, n);
        para[n] = 0;
        ht_buf_char(b, '\n');
        wrap(b, para, 0, &at);
        ht_buf_char(b, '\n');
        s = end ? end + 2 : NULL;
    }
    for (unsigned g = 0; g < HT_GROUPS; g++) {
        bool any = false;
        for (unsigned id = 0; id < HT_OPTS; id++) {
            if (!takes(cmd, id) || ht_opt_table[id].group != g) continue;
            if (!any) ht_buf_fmt(b, "\n%s\n", ht_opt_group_names[g]);
            any = true;
            help_option(b, id);
        }
    }
    ht_buf_str(b, "\nExamples\n");
    for (const char *const *x = c->examples; *x; x++) ht_buf_fmt(b, "  %s\n", *x);
}

void ht_opt_usage(ht_buf *b)
{
    ht_buf_str(b, "hetero - run language models on this machine, and say what ran where and why\n\n"
                  "usage: hetero COMMAND [OPTIONS]\n\nCommands\n");
    for (unsigned c = 0; c < HT_CMDS; c++)
        ht_buf_fmt(b, "  %-10s %s\n", ht_cmd_table[c].name, ht_cmd_table[c].summary);
    ht_buf_str(b,
               "\n'hetero COMMAND --help' lists a command's options. Start with 'hetero run'.\n");
}

/* ---- man(7) ---- */

/* Plain text as roff: backslashes and hyphens escaped, a control character at a line's start
 * guarded. */
static void roff(ht_buf *b, const char *s)
{
    bool start = true;
    for (; *s; s++) {
        if (start && (*s == '.' || *s == '\'')) ht_buf_str(b, "\\&");
        if (*s == '\\') ht_buf_str(b, "\\e");
        else if (*s == '-') ht_buf_str(b, "\\-");
        else if (*s == '"') ht_buf_str(b, "\\(dq");
        else ht_buf_char(b, *s);
        start = *s == '\n';
    }
}

static void man_option(ht_buf *b, unsigned id)
{
    char text[1024];
    ht_buf names, facts;
    ht_buf_init(&names, 0);
    ht_buf_init(&facts, 0);
    put_names(&names, id);
    ht_buf_str(&facts, ht_opt_table[id].help);
    put_facts(&facts, id);
    if (names.bad || facts.bad || facts.n >= sizeof text) {
        b->bad = true;
    } else {
        memcpy(text, facts.p, facts.n + 1);
        if (text[0] >= 'a' && text[0] <= 'z') text[0] = (char)(text[0] - 'a' + 'A');
        ht_buf_str(b, ".TP\n\\fB");
        roff(b, names.p);
        ht_buf_str(b, "\\fR\n");
        roff(b, text);
        ht_buf_str(b, ".\n");
    }
    ht_buf_done(&names);
    ht_buf_done(&facts);
}

static void man_footer(ht_buf *b)
{
    ht_buf_str(
        b, ".SH EXIT STATUS\n"
           ".TP\n0\nSuccess.\n"
           ".TP\n1\nFailure at run time: a device, a busy object, output that cannot be written.\n"
           ".TP\n2\nUsage: an option, a value or a request that cannot be meant.\n"
           ".TP\n3\nA model or another file cannot be read or breaks its format.\n"
           ".TP\n4\nWell\\-formed, but this build or machine cannot do it.\n"
           ".TP\n5\nMemory, a budget or the context is exhausted.\n"
           ".TP\n6\nA check or a gate does not admit it.\n"
           ".TP\n130\nCancelled with Ctrl\\-C.\n");
}

static void man_command(ht_buf *b, unsigned cmd)
{
    const ht_cmd_def *c = &ht_cmd_table[cmd];
    bool first = true;
    ht_buf_fmt(b, ".TH HETERO\\-");
    for (const char *s = c->name; *s; s++) {
        if (*s >= 'a' && *s <= 'z') ht_buf_char(b, (char)(*s - 'a' + 'A'));
        else ht_buf_fmt(b, "\\%c", *s); /* the hyphen of bench-slot */
    }
    ht_buf_fmt(b, " 1 \"\" \"hetero\" \"Hetero manual\"\n.SH NAME\nhetero\\-%s \\- ", c->name);
    roff(b, c->summary);
    ht_buf_fmt(b, "\n.SH SYNOPSIS\n\\fBhetero %s\\fR ", c->name);
    roff(b, c->args);
    ht_buf_str(b, " [OPTIONS]\n.SH DESCRIPTION\n");
    if (!c->detail) {
        roff(b, c->summary);
        ht_buf_char(b, '\n');
    }
    for (const char *s = c->detail; s && *s;) {
        const char *end = strstr(s, "\n\n");
        char para[1200];
        size_t n = end ? (size_t)(end - s) : strlen(s);
        if (n >= sizeof para) n = sizeof para - 1;
        memcpy(para, s, n);
        para[n] = 0;
        roff(b, para);
        ht_buf_str(b, end ? "\n.PP\n" : "\n");
        s = end ? end + 2 : NULL;
    }
    for (unsigned g = 0; g < HT_GROUPS; g++) {
        bool any = false;
        for (unsigned id = 0; id < HT_OPTS; id++) {
            if (!takes(cmd, id) || ht_opt_table[id].group != g) continue;
            if (!any)
                ht_buf_fmt(b, "%s.SS %s\n", first ? ".SH OPTIONS\n" : "", ht_opt_group_names[g]);
            first = false;
            any = true;
            man_option(b, id);
        }
    }
    ht_buf_str(b, ".SH EXAMPLES\n.nf\n");
    for (const char *const *x = c->examples; *x; x++) {
        roff(b, *x);
        ht_buf_char(b, '\n');
    }
    ht_buf_str(b, ".fi\n");
    man_footer(b);
    ht_buf_str(b, ".SH SEE ALSO\n\\fBhetero\\fR(1)\n");
}

void ht_opt_man(ht_buf *b, int cmd)
{
    ht_buf_str(b, ".\\\" Made by 'hetero help --man' from the option table; do not edit.\n");
    if (cmd >= 0) {
        man_command(b, (unsigned)cmd);
        return;
    }
    ht_buf_str(b,
               ".TH HETERO 1 \"\" \"hetero\" \"Hetero manual\"\n.SH NAME\nhetero \\- run language "
               "models on this machine, and say what ran where and why\n.SH SYNOPSIS\n"
               "\\fBhetero\\fR COMMAND [OPTIONS]\n.SH DESCRIPTION\n"
               "Hetero runs a language model from a GGUF file, a Hugging Face folder or a pack of "
               "its own, and reports which engine ran each phase and for which reason. Standard "
               "output carries results only; progress, receipts and warnings go to standard "
               "error. Every command has \\-\\-json.\n.SH COMMANDS\n");
    for (unsigned c = 0; c < HT_CMDS; c++) {
        ht_buf_fmt(b, ".TP\n\\fBhetero %s\\fR ", ht_cmd_table[c].name);
        roff(b, ht_cmd_table[c].args);
        ht_buf_char(b, '\n');
        roff(b, ht_cmd_table[c].summary);
        ht_buf_char(b, '\n');
    }
    ht_buf_str(b,
               ".SH ENVIRONMENT\nThe command line wins over the environment, the environment over "
               "the defaults.\n");
    for (unsigned id = 0; id < HT_OPTS; id++) {
        char env[NAME_CAP], name[NAME_CAP];
        if (!ht_opt_env_name(id, env, sizeof env)) continue;
        ht_opt_name(id, name, sizeof name);
        ht_buf_fmt(b, ".TP\n\\fB%s\\fR\nAs ", env);
        roff(b, name);
        ht_buf_str(b, ".\n");
    }
    man_footer(b);
    ht_buf_str(b, ".SH SEE ALSO\n");
    for (unsigned c = 0; c < HT_CMDS; c++)
        ht_buf_fmt(b, "\\fBhetero\\-%s\\fR(1)%s\n", ht_cmd_table[c].name,
                   c + 1 < HT_CMDS ? "," : "");
}

/* ---- completions ---- */

/* "a|b" as the words "a b". */
static void put_words(ht_buf *b, const ht_opt_def *d)
{
    for (const char *s = d->choices; *s; s++) ht_buf_char(b, *s == '|' ? ' ' : *s);
}

static void bash(ht_buf *b)
{
    char name[NAME_CAP];
    ht_buf_str(
        b, "# bash completion for hetero; made by 'hetero help --completion bash'.\n"
           "_hetero()\n{\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}"
           " cmd=${COMP_WORDS[1]}\n    local opts='' files=1\n    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W '");
    for (unsigned c = 0; c < HT_CMDS; c++)
        ht_buf_fmt(b, "%s%s", c ? " " : "", ht_cmd_table[c].name);
    ht_buf_str(b, "' -- \"$cur\"))\n        return\n    fi\n    case \"$cmd $prev\" in\n");
    for (unsigned c = 0; c < HT_CMDS; c++)
        for (unsigned id = 0; id < HT_OPTS; id++) {
            if (!takes(c, id) || !ht_opt_table[id].choices) continue;
            ht_buf_str(b, "    ");
            for (size_t i = 0; ht_opt_name_at(id, i, name, sizeof name); i++)
                ht_buf_fmt(b, "%s'%s %s'", i ? "|" : "", ht_cmd_table[c].name, name);
            ht_buf_str(b, ") COMPREPLY=($(compgen -W '");
            put_words(b, &ht_opt_table[id]);
            ht_buf_str(b, "' -- \"$cur\")); return ;;\n");
        }
    ht_buf_str(b, "    esac\n    case \"$cmd\" in\n");
    for (unsigned c = 0; c < HT_CMDS; c++) {
        ht_buf_fmt(b, "    %s) opts='", ht_cmd_table[c].name);
        bool first = true;
        for (unsigned id = 0; id < HT_OPTS; id++)
            for (size_t i = 0; takes(c, id) && ht_opt_name_at(id, i, name, sizeof name); i++) {
                ht_buf_fmt(b, "%s%s", first ? "" : " ", name);
                first = false;
            }
        ht_buf_str(b, "' ;;\n");
    }
    ht_buf_str(b, "    *) files=0 ;;\n    esac\n    if [[ $cur == -* ]]; then\n"
                  "        COMPREPLY=($(compgen -W \"$opts\" -- \"$cur\"))\n"
                  "    elif [ \"$files\" -eq 1 ]; then\n"
                  "        COMPREPLY=($(compgen -f -- \"$cur\"))\n    fi\n}\n"
                  "complete -o filenames -F _hetero hetero\n");
}

/* Text inside single quotes of a shell, with the characters in `also` backslashed. */
static void quoted(ht_buf *b, const char *s, const char *also)
{
    for (; *s; s++) {
        if (*s == '\'') {
            ht_buf_str(b, "'\\''");
            continue;
        }
        if (strchr(also, *s)) ht_buf_char(b, '\\');
        ht_buf_char(b, *s);
    }
}

static void zsh_option(ht_buf *b, unsigned id)
{
    const ht_opt_def *d = &ht_opt_table[id];
    char name[NAME_CAP];
    for (size_t i = 0; ht_opt_name_at(id, i, name, sizeof name); i++) {
        ht_buf_fmt(b, "        '%s%s[", d->type == HT_OPT_LIST ? "*" : "", name);
        quoted(b, d->help, "[]:\\");
        ht_buf_char(b, ']');
        if (d->arg) {
            ht_buf_char(b, ':');
            quoted(b, d->arg, "[]:\\");
            ht_buf_char(b, ':');
            if (d->choices) {
                ht_buf_char(b, '(');
                put_words(b, d);
                ht_buf_char(b, ')');
            } else if (strcmp(d->arg, "FILE") == 0) {
                ht_buf_str(b, "_files");
            }
        }
        ht_buf_str(b, "' \\\n");
    }
}

static void zsh(ht_buf *b)
{
    ht_buf_str(b, "#compdef hetero\n# zsh completion for hetero; made by 'hetero help --completion "
                  "zsh'.\n_hetero() {\n    local -a commands\n    commands=(\n");
    for (unsigned c = 0; c < HT_CMDS; c++) {
        ht_buf_fmt(b, "        '%s:", ht_cmd_table[c].name);
        quoted(b, ht_cmd_table[c].summary, ":\\");
        ht_buf_str(b, "'\n");
    }
    ht_buf_str(b, "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n"
                  "        return\n    fi\n    local cmd=$words[2]\n    shift words\n"
                  "    (( CURRENT-- ))\n    case $cmd in\n");
    for (unsigned c = 0; c < HT_CMDS; c++) {
        ht_buf_fmt(b, "    %s) _arguments \\\n", ht_cmd_table[c].name);
        for (unsigned id = 0; id < HT_OPTS; id++)
            if (takes(c, id)) zsh_option(b, id);
        ht_buf_str(b, "        '*:file:_files' ;;\n");
    }
    ht_buf_str(b, "    esac\n}\n_hetero \"$@\"\n");
}

/* fish escapes a quote with a backslash inside single quotes. */
static void fish_quoted(ht_buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\') ht_buf_char(b, '\\');
        ht_buf_char(b, *s);
    }
}

static void fish_option(ht_buf *b, unsigned cmd, unsigned id)
{
    const ht_opt_def *d = &ht_opt_table[id];
    char name[NAME_CAP];
    ht_buf_fmt(b, "complete -c hetero -n '__fish_seen_subcommand_from %s'", ht_cmd_table[cmd].name);
    for (size_t i = 0; ht_opt_name_at(id, i, name, sizeof name); i++) {
        if (name[1] == '-') ht_buf_fmt(b, " -l %s", name + 2);
        else ht_buf_fmt(b, " -%c %s", name[2] ? 'o' : 's', name + 1);
    }
    if (d->arg) ht_buf_str(b, strcmp(d->arg, "FILE") == 0 ? " -r" : " -x");
    if (d->choices) {
        ht_buf_str(b, " -a '");
        put_words(b, d);
        ht_buf_char(b, '\'');
    }
    ht_buf_str(b, " -d '");
    fish_quoted(b, d->help);
    ht_buf_str(b, "'\n");
}

static void fish(ht_buf *b)
{
    ht_buf_str(b, "# fish completion for hetero; made by 'hetero help --completion fish'.\n");
    for (unsigned c = 0; c < HT_CMDS; c++) {
        ht_buf_fmt(b, "complete -c hetero -f -n __fish_use_subcommand -a %s -d '",
                   ht_cmd_table[c].name);
        fish_quoted(b, ht_cmd_table[c].summary);
        ht_buf_str(b, "'\n");
    }
    for (unsigned c = 0; c < HT_CMDS; c++)
        for (unsigned id = 0; id < HT_OPTS; id++)
            if (takes(c, id)) fish_option(b, c, id);
}

void ht_opt_completion(ht_buf *b, enum ht_shell shell)
{
    switch (shell) {
    case HT_SHELL_BASH: bash(b); break;
    case HT_SHELL_ZSH: zsh(b); break;
    case HT_SHELL_FISH: fish(b); break;
    }
}
