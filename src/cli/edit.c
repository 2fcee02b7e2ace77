/* edit.c - line editing through libedit, or plain reads where standard input is no terminal or the
 * build has no libedit (HT_NO_LIBEDIT). */
#include "cli/edit.h"
#include "core/arena.h"
#include "core/path.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifndef HT_NO_LIBEDIT
#include <histedit.h>
#endif

enum { HISTORY_LINES = 1000 };

struct cli__edit {
    bool terminal;
    char history_path[CLI_PATH]; /* "" : none                                                  */
    char held[4096];             /* plain reading: bytes read and not yet used                 */
    size_t n_held, used;
    const char *prompt;
    bool interrupted;
#ifndef HT_NO_LIBEDIT
    EditLine *el;
    History *history;
#endif
};

#ifndef HT_NO_LIBEDIT
static void find_history(cli__edit *ed)
{
    const char *state = ht_env_get(HT_ENV_XDG_STATE_HOME), *home = ht_env_get(HT_ENV_HOME);
    int n = -1;
    if (state && *state == '/')
        n = snprintf(ed->history_path, CLI_PATH, "%s/hetero/history", state);
    else if (home && *home == '/')
        n = snprintf(ed->history_path, CLI_PATH, "%s/.local/state/hetero/history", home);
    if (n < 0 || n >= CLI_PATH || ht_path_make_parents(ed->history_path, 0700, NULL))
        ed->history_path[0] = 0;
}

static char *give_prompt(EditLine *el)
{
    cli__edit *ed;
    static char
        text[64]; /* libedit wants it writable and lasting                                    */
    el_get(el, EL_CLIENTDATA, &ed);
    snprintf(text, sizeof text, "%s", ed->prompt);
    return text;
}

static unsigned char on_ctrl_c(EditLine *el, int key)
{
    cli__edit *ed;
    (void)key;
    el_get(el, EL_CLIENTDATA, &ed);
    ed->interrupted = true;
    return CC_EOF;
}

static int open_libedit(cli__edit *ed, cli__ctx *c, ht_err *e)
{
    HistEvent ev;
    ed->el = el_init("hetero", stdin, stderr, stderr);
    ed->history = history_init();
    if (!ed->el || !ed->history) return HT_FAIL(e, HT_ENOMEM, "line editing: out of memory");
    el_set(ed->el, EL_CLIENTDATA, ed);
    el_set(ed->el, EL_PROMPT, give_prompt);
    el_set(ed->el, EL_EDITOR, "emacs");
    el_set(ed->el, EL_HIST, history, ed->history);
    /* Ctrl-C must be a key while a line is edited: it drops the line, not the program. */
    el_set(ed->el, EL_ADDFN, "hetero-drop-line", "drop the line", on_ctrl_c);
    el_set(ed->el, EL_BIND, "^C", "hetero-drop-line", NULL);
    el_set(ed->el, EL_SETTY, "-d", "-isig", NULL);
    history(ed->history, &ev, H_SETSIZE, HISTORY_LINES);
    history(ed->history, &ev, H_SETUNIQUE, 1);
    if (ed->history_path[0] && history(ed->history, &ev, H_LOAD, ed->history_path) < 0)
        cli__say(c, CLI_DEBUG, "no history yet at %s", ed->history_path);
    return 0;
}

static int libedit_line(cli__edit *ed, ht_buf *line)
{
    int n = 0;
    HistEvent ev;
    ed->interrupted = false;
    const char *s = el_gets(ed->el, &n);
    if (ed->interrupted) {
        (void)!write(STDERR_FILENO, "\n", 1);
        return CLI_LINE_INTERRUPTED;
    }
    if (!s || n <= 0) return CLI_LINE_EOF;
    if (n > 1) history(ed->history, &ev, H_ENTER, s);
    ht_buf_add(line, s, (size_t)n - (s[n - 1] == '\n'));
    return CLI_LINE_OK;
}
#endif

int cli__edit_open(cli__edit **out, cli__ctx *c, ht_err *e)
{
    cli__edit *ed = ht_mem_alloc(sizeof *ed);
    *out = ed;
    if (!ed) return HT_FAIL(e, HT_ENOMEM, "line editing: out of memory");
    ed->terminal = isatty(STDIN_FILENO);
    if (!ed->terminal) return 0;
#ifndef HT_NO_LIBEDIT
    find_history(ed);
    int rc = open_libedit(ed, c, e);
    if (rc) {
        cli__edit_close(ed);
        *out = NULL;
    }
    return rc;
#else
    (void)c;
    return 0;
#endif
}

void cli__edit_close(cli__edit *ed)
{
    if (!ed) return;
#ifndef HT_NO_LIBEDIT
    if (ed->history) {
        HistEvent ev;
        if (ed->history_path[0]) {
            mode_t old =
                umask(077); /* what was asked is nobody else's business                      */
            history(ed->history, &ev, H_SAVE, ed->history_path);
            umask(old);
        }
        history_end(ed->history);
    }
    if (ed->el) el_end(ed->el);
#endif
    ht_mem_free(ed);
}

bool cli__edit_is_terminal(const cli__edit *ed)
{
    return ed->terminal;
}

static int plain_line(cli__edit *ed, ht_buf *line)
{
    bool any = false;
    if (ed->terminal) (void)!write(STDERR_FILENO, ed->prompt, strlen(ed->prompt));
    for (;;) {
        if (ed->used == ed->n_held) {
            ssize_t n = read(STDIN_FILENO, ed->held, sizeof ed->held);
            if (n < 0 && errno == EINTR) return CLI_LINE_INTERRUPTED;
            if (n <= 0) return any ? CLI_LINE_OK : CLI_LINE_EOF;
            ed->n_held = (size_t)n;
            ed->used = 0;
        }
        const char *from = ed->held + ed->used;
        size_t left = ed->n_held - ed->used;
        const char *end = memchr(from, '\n', left);
        size_t take = end ? (size_t)(end - from) : left;
        ht_buf_add(line, from, take);
        ed->used += take + (end != NULL);
        any = true;
        if (end) return CLI_LINE_OK;
    }
}

int cli__edit_line(cli__edit *ed, const char *prompt, ht_buf *line)
{
    ht_buf_clear(line);
    ed->prompt = prompt;
#ifndef HT_NO_LIBEDIT
    if (ed->terminal) return libedit_line(ed, line);
#endif
    return plain_line(ed, line);
}
