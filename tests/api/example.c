/* example.c - examples/generate.c is compiled here as it stands and run: it must answer and exit 0,
 * and say what is wrong when it cannot. */
#define main example_main
int example_main(int argc, char **argv);
#include "../../examples/generate.c"
#undef main
#include "test.h"
#include <unistd.h>

/* Run it with stdout and stderr in a file; its exit code. */
static int run(const char *log, const char *model, const char *prompt)
{
    char *argv[] = {"generate", (char *)model, (char *)prompt, NULL};
    fflush(stdout);
    fflush(stderr);
    const int out = dup(1), errs = dup(2);
    T_TRUE(freopen(log, "w", stdout) && dup2(1, 2) == 2);
    const int code = example_main(prompt ? 3 : 2, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(out, 1);
    dup2(errs, 2);
    return code;
}

T_CASE_SECONDS(example, generate, 120)
{
    char log[300];
    size_t n = 0;
    snprintf(log, sizeof log, "%s/log", t_tmp());
    T_EQ_INT(run(log, "models/tale-9m-f16.gguf", "Tell me about a \"fox\".\n"), 0);
    char *text = t_slurp(log, &n);
    T_CHECK(n > 1000, "only %zu bytes", n);
    T_CHECK(strstr(text, "\"schema\":\"hetero/receipt/1\""), "no receipt: %s", text);
    free(text);
    T_EQ_INT(run(log, "no/such/model.gguf", "x"), 1);
    text = t_slurp(log, &n);
    T_CHECK(strstr(text, "no/such/model.gguf"), "no reason: %s", text);
    free(text);
    T_EQ_INT(run(log, "models/tale-9m-f16.gguf", NULL), 2);
}
