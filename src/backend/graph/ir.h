/* ir.h - the text of a model in the compiler's own form (IR version 11, XML), built operator by
 * operator. Values are what operators give; shapes are the caller's business and are checked by the
 * compiler when it reads the text.
 *
 * Constants are views: the "weights file" of the text is this process's whole address space, and a
 * constant's offset is its address, so weights stay where the model has them. */
#ifndef HT_BACKEND_GRAPH_IR_H
#define HT_BACKEND_GRAPH_IR_H
#include "core/arena.h"
#include "core/buf.h"
#include <stdint.h>

enum ir_type { IR_F32, IR_F16, IR_BF16, IR_I64, IR_I8, IR_U8, IR_U4, IR_BOOL, IR_TYPES };
enum { IR_RANK = 4,
       IR_BASE = 4096 };          /* first byte of the "weights file": the page at 0 is nobody's  */
typedef struct {
    uint32_t node, port;
    uint8_t type, rank;
    uint32_t d[IR_RANK];
} ir_val;
typedef struct {
    ht_buf layers, edges;
    ht_arena *arena;              /* of small constants: must last as long as the compiled model  */
    uint32_t n;                   /* nodes so far                                                 */
    bool digest;                  /* addresses are left out: equal models give equal text         */
    bool failed;                  /* out of memory for a small constant                           */
} ir_doc;

void graph__ir_init(ir_doc *, ht_arena *, bool digest);
void graph__ir_done(ir_doc *);
/* A shape; rank is the number of arguments behind the type (1 to 4). */
ir_val graph__ir_shape(int type, int rank, uint32_t a, uint32_t b, uint32_t c, uint32_t d);
/* An operator: XML type and set ("opset1"), attributes ("" or `axis="1"`), inputs; the first output
 * has the shape of `like`. */
ir_val graph__ir_op(ir_doc *, const char *op, const char *set, const char *attrs, const ir_val *in,
                    int n_in, ir_val like);
/* Two outputs: VariadicSplit. */
void graph__ir_op2(ir_doc *, const char *op, const char *set, const ir_val *in, int n_in,
                   ir_val out[2]);
ir_val graph__ir_param(ir_doc *, ir_val like);
void graph__ir_result(ir_doc *, ir_val);
/* A constant of this shape at p, which must stay as long as the compiled model. name says what it
 * is: equal names mean equal contents in one model. */
ir_val graph__ir_const(ir_doc *, ir_val like, const void *p, uint64_t bytes, const char *name);
/* Small ones, copied: a list of integers, a number (rank 0 when n is 0: a scalar). */
ir_val graph__ir_ints(ir_doc *, int n, const int64_t *v);
ir_val graph__ir_real(ir_doc *, float v);
ir_val graph__ir_byte(ir_doc *, uint8_t v);
/* Close the text: XML into *out, which the caller frees with ht_buf_done. */
HT_MUST_USE int graph__ir_text(ir_doc *, ht_buf *out, ht_err *);
#endif
