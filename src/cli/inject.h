/* inject.h - hetero bench --inject P. */
#ifndef HT_CLI_INJECT_H
#define HT_CLI_INJECT_H
#include "cli/cli.h"

/* Time per token of a running answer alone, and with a prompt of --inject tokens that arrives in
 * its midst; prints the table or the document. */
HT_MUST_USE int cli__inject(cli__ctx *, ht_err *);
#endif
