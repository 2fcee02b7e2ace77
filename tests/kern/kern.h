/* kern.h - what kernel tests share: guarded memory, levels, random weights. */
#ifndef HT_TEST_KERN_H
#define HT_TEST_KERN_H
#include "backend/cpu/kern.h"
#include "core/cpu.h"
#include "quant/r16.h"
#include "test.h"

/* n bytes that end at an unmapped page and begin at least `before` bytes behind another: a kernel
 * that reads or writes one byte past its arguments dies. Filled with 0xff (NaN as f32). */
typedef struct { uint8_t *p, *map; size_t n, map_n; } guarded;
guarded guard_new(size_t n);
void guard_free(guarded *);

typedef struct { const char *name; unsigned feat; } level;
enum { LEVELS = 4 };
extern const level levels[LEVELS];
/* The table of level i; false: this machine lacks it (or what it adds). */
bool level_kern(int i, cpu_kern *k);

/* A [rows,cols] matrix of a source type with random contents, its r16 form and its decoded rows. */
typedef struct {
    int src, type;
    uint32_t rows, cols, tiles;
    size_t tile_bytes;
    float *w;                        /* [16*tiles, cols], missing rows 0                          */
    guarded r16;
} matrix;
void matrix_new(matrix *, int src, uint32_t rows, uint32_t cols, uint64_t *seed);
void matrix_free(matrix *);
/* Chains of 256 over float weights, see src/backend/cpu/kern.h. */
float chain_dot(const float *w, const float *x, uint32_t k);
/* The definition of an output of any type. Block weights are multiplied as plain levels: their
 * place in a lane must not change a bit. */
float product_dot(const matrix *, uint32_t row, const float *x);
/* n rows x as the type's kernels read them, *ld apart, ending at a guard page. */
guarded spread_rows(const cpu_kern *, int type, const guarded *x, uint32_t n, uint32_t cols,
                    size_t ldx, size_t *ld);
#endif
