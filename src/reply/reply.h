/* reply.h - take a model's reply apart while it comes: reasoning, text for the user, tool calls
 * with streamed arguments. The form of a call follows from the chat template. What begins like a
 * call and turns out not to be one comes back as text: nothing a model writes is an error.
 *
 * For replies with tools a grammar can hold the model to the form: ht_tools_grammar. */
#ifndef HT_REPLY_REPLY_H
#define HT_REPLY_REPLY_H
#include "core/json.h"

/* How a family of templates writes a call. */
enum ht_reply_form {
    HT_FORM_JSON,    /* {"name":..,"arguments"|"parameters":{..}}, one or an array: plain JSON   */
    HT_FORM_HERMES,  /* <tool_call>{"name":..,"arguments":{..}}</tool_call> (Qwen, SmolLM3)      */
    HT_FORM_LLAMA3,  /* [<|python_tag|>]{"name":..,"parameters":{..}}[; {..}]                    */
    HT_FORM_MISTRAL, /* [TOOL_CALLS][{"name":..,"arguments":{..}},..]                            */
    HT_FORM_MISTRAL_ARGS, /* [TOOL_CALLS]name[ARGS]{..}, again for each call                     */
    HT_FORMS
};
/* From the template's text; template NULL: HT_FORM_JSON. */
enum ht_reply_form ht_reply_form_of(const char *source, size_t n);
const char *ht_reply_form_name(enum ht_reply_form); /* "hermes"; static */
/* The template itself writes tools and calls; when it does not, serve puts the tools into a system
 * message (ht_tools_prompt) and the form is HT_FORM_JSON. */
bool ht_reply_knows_tools(const char *source, size_t n);
/* Reasoning: how this template marks it; false when it does not. *open, *close static texts. */
bool ht_reply_reasoning_of(const char *source, size_t n, const char **open, const char **close);

enum ht_reply_kind {
    HT_REPLY_TEXT,      /* text [n]: for the user                                                */
    HT_REPLY_REASONING, /* text [n]                                                               */
    HT_REPLY_CALL,      /* a call begins: index, id, name                                         */
    HT_REPLY_ARGS,      /* text [n]: a piece of that call's arguments, a JSON object in all       */
    HT_REPLY_CALL_END   /* the arguments are complete and valid JSON                              */
};
typedef struct {
    enum ht_reply_kind kind;
    uint32_t index;             /* of the call, from 0                                            */
    const char *id, *name;      /* HT_REPLY_CALL: NUL-terminated, borrowed during the call        */
    const char *text; size_t n; /* borrowed during the call                                       */
} ht_reply_event;
typedef int (*ht_reply_fn)(void *user, const ht_reply_event *); /* non-zero: HT_ECANCELLED        */

typedef struct {
    enum ht_reply_form form;
    const ht_json *tools;   /* the request's array in OpenAI's form; NULL: no calls are looked for,
                               and the reply is text. Borrowed for the life of the parser         */
    bool reasoning;         /* split reasoning off; else it stays in the text                     */
    const char *open, *close; /* its marks; NULL: <think> </think>                                */
    bool in_reasoning;      /* the prompt ended inside the mark (template opened it)              */
    bool hold_args;         /* one HT_REPLY_ARGS with all arguments, so that a broken call can come
                               back as text even when its head was right: for answers that are not
                               streamed, and for streams without a grammar                        */
    uint64_t id_seed;       /* ids are "call_" and 24 letters made from this and the index; nine
                               letters for Mistral, whose templates insist on that                */
} ht_reply_params;
typedef struct ht_reply ht_reply;
HT_MUST_USE int ht_reply_new(ht_reply **, const ht_reply_params *, ht_reply_fn, void *user,
                             ht_err *);
void ht_reply_free(ht_reply *);
/* Feed text as it comes, special tokens shown as their text (ht_gen_params.special) when tools are
 * given: [TOOL_CALLS] and <|python_tag|> are special in some vocabularies. */
HT_MUST_USE int ht_reply_push(ht_reply *, const char *p, size_t n, ht_err *);
/* The end: what was held back comes out. *broken (may be NULL): bytes of an unfinished or
 * malformed call that came back as text, or had to be cut after its head was out; 0: none. */
HT_MUST_USE int ht_reply_finish(ht_reply *, size_t *broken, ht_err *);

/* ---- before the reply ---- */
enum ht_tool_choice { HT_CHOICE_AUTO, HT_CHOICE_NONE, HT_CHOICE_REQUIRED, HT_CHOICE_NAMED };
typedef struct {
    enum ht_reply_form form;
    enum ht_tool_choice choice;
    const char *name;       /* HT_CHOICE_NAMED */
    bool parallel;          /* more than one call may come */
    const char *open, *close; /* reasoning that may come before the reply; NULL: none             */
    bool in_reasoning;
} ht_tools_params;
/* Check tools (an array in OpenAI's form) and choice: HT_EARG names the JSON pointer. */
HT_MUST_USE int ht_tools_check(const ht_json *tools, const ht_tools_params *, ht_err *);
/* A grammar under which every call that begins is complete and its arguments follow their schema;
 * AUTO: free text before a call. A tool with "strict": true and a schema that is not understood is
 * HT_EUNSUPPORTED; without strict its arguments are any JSON object and its name is appended to
 * *loose (may be NULL), separated by commas. HT_CHOICE_NONE: HT_EARG, nothing to constrain. */
HT_MUST_USE int ht_tools_grammar(ht_grammar **, const ht_lexicon *, const ht_json *tools,
                                 const ht_tools_params *, ht_buf *loose, ht_err *);
/* The system text that tells a model of tools when its template cannot. */
HT_MUST_USE int ht_tools_prompt(const ht_json *tools, const ht_tools_params *, ht_buf *out,
                                ht_err *);
#endif
