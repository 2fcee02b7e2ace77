/* edit.h - lines from a person or from a pipe. On a terminal with libedit: editing and history;
 * otherwise plain reading. The prompt goes to standard error, so that standard output stays
 * clean. */
#ifndef HT_CLI_EDIT_H
#define HT_CLI_EDIT_H
#include "cli/cli.h"

typedef struct cli__edit cli__edit;
enum { CLI_LINE_EOF, CLI_LINE_OK, CLI_LINE_INTERRUPTED };

/* The history file's folder is made when it is missing; without a home there is no history. */
HT_MUST_USE int cli__edit_open(cli__edit **, cli__ctx *, ht_err *);
void cli__edit_close(cli__edit *);   /* writes the history; NULL allowed                          */
bool cli__edit_is_terminal(const cli__edit *);
/* One line without its newline into `line` (cleared first). CLI_LINE_INTERRUPTED: Ctrl-C, the line
 * is dropped. */
int cli__edit_line(cli__edit *, const char *prompt, ht_buf *line);
#endif
