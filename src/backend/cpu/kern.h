/* kern.h - the table of CPU kernels. Generic C fills every entry; an instruction set replaces what
 * it does better. Every entry computes the same bits at every level (the arithmetic is spelled out
 * here, never left to the compiler), so a level is a matter of speed alone.
 *
 * Matrix products under --act f32, everything in f32. Vectors run over the 16 rows of an r16 tile
 * and over tokens, never over k: gemv, rows and panels give equal bits. Output (row, token) is
 *   float weights: sum over blocks b of 256 columns, ascending, of chain(b); total = chain(0);
 *     total += chain(b). chain(b): a = 0; for k ascending in b: a = fma(w[row][k], x[token][k], a).
 *   block weights: a = 0; per group g of 32 columns (q6_k: 16) ascending, with s = 0 (q6_k: -32*X)
 *     and for k ascending in g: s = fma(level[row][k]*2^e, x[token][k]*2^-e, s):
 *     a = fma(d, s, a)                                 q8_0 (signed levels), q6_k (levels 0 to 63)
 *     a = fma(d, s, a); a = fma(m, X, a)               q4_0 (m = -8d), q4_1, q4_k
 *     d and m are the group's scale and offset, X is the sum of its activations, e the place of
 *     column k in its lane: bytes 8*(k%4); nibbles 8*(k%4) + 4*(k/4%2), and 0 for k%8 == 7. So a
 *     level needs no shift, and a weight no multiplication of its own.
 * Under --act q8, per group g of 32 columns ascending, s the exact integer dot product of the
 * group:
 *     a = fma(dw * dx, (float)s, a)                    q8_0, q4_0 (levels signed), q6_k (s has sc)
 *     a = fma(dw * dx, (float)s, a); a = fma(m, dx * (float)sum, a)            q4_1, q4_k (m =
 *     -min)
 */
#ifndef HT_BACKEND_CPU_KERN_H
#define HT_BACKEND_CPU_KERN_H
#include "quant/quant.h"
#include "step/kvpool.h"

enum { CPU_KC = 256,          /* columns of a chain                                               */
       CPU_LANES = 16,        /* rows of a tile                                                   */
       CPU_NT_ROWS = 6,       /* most tokens of `rows`                                            */
       CPU_NT_PANEL = 12,     /* most tokens of `panel` at any level; see nt_panel                */
       CPU_FEW = 4,           /* most pairs of few_scores and few_values                          */
       CPU_GROUPS = 16 };     /* most groups in CPU_KC columns                                    */

/* What a product reads of a token, by the type of its weights (cpu__form): the row itself, or the
 * row multiplied by 2^-e and followed, for nibbles, by the k/32 sums X, for q6_k (SIXES) by the
 * k/16 beginnings -32*X. */
enum cpu_form { CPU_FLOATS, CPU_BYTES, CPU_NIBBLES, CPU_SIXES, CPU_FORMS };
#define CPU_GROUP(form) ((form) == CPU_SIXES ? 16U : 32U)       /* columns that share a scale     */
typedef struct { float d[CPU_LANES], m[CPU_LANES]; } cpu_scale;  /* of a group of a tile; m: q4   */

/* One token. Tiles w, w + tile_bytes, ...: y[16*n_tiles] = W x, x: a row of the type's form. */
typedef void (*cpu_gemv_fn)(const uint8_t *w, size_t tile_bytes, uint32_t n_tiles, uint32_t k,
                            const float *x, float *y);
/* A few tokens, 1..CPU_NT_ROWS: one tile; c [nt][16] with row stride ldc; x rows ldx apart. */
typedef void (*cpu_rows_fn)(const uint8_t *w, uint32_t k, const float *x, size_t ldx, uint32_t nt,
                            float *c, size_t ldc);
/* Widen kn (<= 256) columns that start at w into panel [kn][16] (aligned to 64): weights, or
 * levels times 2^e and the scales of their groups. */
typedef void (*cpu_widen_fn)(const uint8_t *w, uint32_t kn, float *panel, cpu_scale *);
/* One chain: kn columns of a panel, nt tokens (1..nt_panel). add: c += chain, else c = chain. */
typedef void (*cpu_panel_fn)(const float *panel, uint32_t kn, const float *x, size_t ldx,
                             uint32_t nt, float *c, size_t ldc, int add);
/* The same for levels, group after group: c [nt][16] contiguous; x, and sum (X or -32*X) where the
 * form has them, rows ldx apart; without add c begins at 0. */
typedef void (*cpu_fold_fn)(const float *panel, const cpu_scale *, uint32_t kn, const float *x,
                            const float *sum, size_t ldx, uint32_t nt, float *c, int add);
/* Activations of --act q8 of n tokens, group by group: q [k/32][n][32], d and sum [k/32][n]. */
typedef struct { const int8_t *q; const float *d; const int32_t *sum; uint32_t n; } cpu_q8;
/* One tile, tokens [t0, t0+nt): c [nt][16], contiguous. */
typedef void (*cpu_q8_fn)(const uint8_t *w, uint32_t k, const cpu_q8 *x, uint32_t t0, uint32_t nt,
                          float *c);

typedef struct cpu_kern {
    cpu_gemv_fn gemv[HT_TYPES];
    cpu_rows_fn rows[HT_TYPES];
    cpu_widen_fn widen[HT_TYPES];
    cpu_q8_fn q8[HT_TYPES];          /* quantised types only                                      */
    cpu_panel_fn panel;
    cpu_fold_fn fold[CPU_FORMS];     /* not of floats                                             */
    uint32_t nt_panel;               /* tokens that panel and fold take at once at this level     */
    /* x [k] as a row of the form (not floats); k a multiple of 32. X: lane j of 8 adds columns
     * (j + j+8) + (j+16 + j+24), lanes are added as a tree (i with i+4, i+2, i+1); of 16 columns
     * lane j of 4 adds (j + j+4) + (j+8 + j+12), likewise. */
    void (*spread[CPU_FORMS])(const float *x, uint32_t k, float *row);
    /* y = (x * r) * w, r = 1/sqrt(mean(x^2) + eps); the squares in 16 chains k mod 16, added as a
     * tree (i with i+8, i+4, i+2, i+1). y may be x. w NULL: ones. */
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    /* y = act(g) * u: silu g/(1+exp(-g)), or gelu with tanh. y may be g. */
    void (*silu_mul)(const float *g, const float *u, uint32_t n, float *y);
    void (*gelu_mul)(const float *g, const float *u, uint32_t n, float *y);
    /* Rotate pairs (i, i+half) in place by the angles of cos and sin [half]. */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t half);
    /* Walsh-Hadamard transform in place times scale (kvpool.h); n a power of two, >= 16. */
    void (*hadamard)(float *x, uint32_t n, float scale);
    void (*add)(const float *a, uint32_t n, float *y);                   /* y += a                */
    void (*scale_add)(const float *a, float s, uint32_t n, float *y);    /* y = fma(a, s, y)      */
    /* s [n] scores, n a multiple of 16: v = s*scale, capped to cap*tanh(v/cap) unless cap is 0;
     * keys outside [lo, hi) are masked: p = exp(v - max), 0 where masked; *sum in 16 chains as
     * rmsnorm. Returns max, -INFINITY when all is masked (p and *sum are then 0). In place. */
    float (*softmax)(float *s, uint32_t n, uint32_t lo, uint32_t hi, float scale, float cap,
                     float *sum);
    /* o = o*a + p*b, rounded as fma(o, a, p*b). */
    void (*merge)(float *o, float a, const float *p, float b, uint32_t n);
    /* Panels of attention from a page's rows [position][hd] of a KV type (index: enum ht_kvtype):
     * k_panel: n <= 16 keys to [hd][16], missing keys 0; v_panel: n keys, 16 (w <= 16) columns from
     * row start, to [n][16], missing columns 0. */
    void (*k_panel[2])(const void *rows, uint32_t hd, uint32_t n, float *panel);
    void (*v_panel[2])(const void *rows, uint32_t hd, uint32_t n, uint32_t w, float *panel);
    /* The same from a packed head of a page (step/kvcodec.h): positions [first, first+16) of K,
     * first 0 or 16; positions [first, first+n) of V, columns from d0, a multiple of 16. NULL: not
     * packed. */
    void (*k_page[HT_KVTYPES])(const uint8_t *head, uint32_t hd, uint32_t first, float *panel);
    void (*v_page[HT_KVTYPES])(const uint8_t *head, uint32_t hd, uint32_t d0, uint32_t first,
                               uint32_t n, float *panel);
    /* The same products for nq <= CPU_FEW pairs straight from n <= HT_PAGE rows of halves; NULL: by
     * panels. hd a multiple of 32, at most CPU_KC. Scores: chains over hd, written up to the next
     * multiple of 16 keys. Values: o = chains over keys, with add continued from o. next, unless
     * NULL: what the caller will read afterwards; as many bytes of it are asked for as are read. */
    void (*few_scores)(const uint16_t *rows, uint32_t hd, uint32_t n, const float *q, size_t ldq,
                       uint32_t nq, float *s, size_t lds, const void *next);
    void (*few_values)(const uint16_t *rows, uint32_t hd, uint32_t n, const float *p, size_t ldp,
                       uint32_t nq, float *o, size_t ldo, int add, const void *next);
    /* The same from a packed head of a page and all HT_PAGE positions of it; NULL: by panels. */
    void (*few_k_page[HT_KVTYPES])(const uint8_t *head, uint32_t hd, const float *q, size_t ldq,
                                   uint32_t nq, float *s, size_t lds, const void *next);
    void (*few_v_page[HT_KVTYPES])(const uint8_t *head, uint32_t hd, const float *p, size_t ldp,
                                   uint32_t nq, float *o, size_t ldo, int add, const void *next);
    void (*kv_put[2])(const float *x, uint32_t n, void *out);            /* f32 -> stored type    */
    /* ht_act_q8 of one token into a cpu_q8 of n tokens (k a multiple of 32). */
    void (*act_q8)(const float *x, uint32_t k, uint32_t n, uint32_t t, int8_t *q, float *d,
                   int32_t *sum);
    float (*exp)(float);                                               /* the same exp, one value */
    const char *level;               /* "generic", "avx2", "avx512", "avx512+vnni"                */
} cpu_kern;

enum cpu_form cpu__form(int type);   /* of a type that kernels read                               */
/* feat: enum HT_CPU_* already masked. */
void cpu__kern_init(cpu_kern *, unsigned feat);
void cpu__kern_generic(cpu_kern *);
void cpu__kv_generic(cpu_kern *);    /* the packed KV entries of each level                       */
void cpu__kv_avx2(cpu_kern *);
void cpu__kv_avx512(cpu_kern *);
void cpu__kern_avx2(cpu_kern *);
void cpu__kern_avx512(cpu_kern *, unsigned feat);
#endif
