/* kvpage.c - panels from packed KV pages: every type, level and head size against the scalar
 * definition bit for bit, up to guard pages. */
#include "kern.h"
#include "quant/quant.h"
#include "step/kvcodec.h"
#include "step/step.h"

static const uint32_t sizes[] = {16, 32, 48, 64, 80, 128, 256};
enum { MAX_HD = 256 };

static guarded random_head(int type, int is_v, uint32_t hd, uint64_t *seed)
{
    uint16_t rows[32 * MAX_HD];
    guarded g = guard_new(ht_kv_page_bytes(type, 1, hd));
    for (uint32_t i = 0; i < 32 * hd; i++) rows[i] = ht_f32_to_f16(3 * t_randf(seed));
    ht_kv_pack(type, is_v, hd, rows, g.p);
    return g;
}

static void check_keys(const cpu_kern *k, int type, uint32_t hd, uint64_t *seed)
{
    guarded head = random_head(type, 0, hd, seed);
    guarded panel = guard_new((size_t)hd * CPU_LANES * sizeof(float));
    float row[MAX_HD];
    const float *got = (const float *)(const void *)panel.p;
    for (uint32_t first = 0; first < 32; first += 16) {
        k->k_page[type](head.p, hd, first, (float *)(void *)panel.p);
        for (uint32_t i = 0; i < 16; i++) {
            ht_kv_unpack(type, 0, hd, head.p, first + i, row);
            for (uint32_t d = 0; d < hd; d++)
                T_CHECK(got[d * CPU_LANES + i] == row[d], "%s %s hd %u: key %u, element %u: %g, %g",
                        k->level, ht_kvtype_name(type), hd, first + i, d,
                        (double)got[d * CPU_LANES + i], (double)row[d]);
        }
    }
    guard_free(&head), guard_free(&panel);
}

static void check_values(const cpu_kern *k, int type, uint32_t hd, uint64_t *seed)
{
    static const struct {
        uint32_t first, n;
    } part[] = {{0, 32}, {16, 16}, {0, 5}, {31, 1}};
    guarded head = random_head(type, 1, hd, seed);
    float row[MAX_HD];
    for (size_t p = 0; p < sizeof part / sizeof *part; p++) {
        guarded panel = guard_new((size_t)part[p].n * CPU_LANES * sizeof(float));
        const float *got = (const float *)(const void *)panel.p;
        for (uint32_t d0 = 0; d0 < hd; d0 += 16) {
            k->v_page[type](head.p, hd, d0, part[p].first, part[p].n, (float *)(void *)panel.p);
            for (uint32_t j = 0; j < part[p].n; j++) {
                ht_kv_unpack(type, 1, hd, head.p, part[p].first + j, row);
                for (uint32_t d = d0; d < hd && d < d0 + 16; d++)
                    T_CHECK(got[j * CPU_LANES + d - d0] == row[d],
                            "%s %s hd %u: value %u, element %u", k->level, ht_kvtype_name(type), hd,
                            part[p].first + j, d);
            }
        }
        guard_free(&panel);
    }
    guard_free(&head);
}

/* Attention of a few pairs over a page: chains of fused multiply-adds over elements, which are one
 * product each, to the bit; with `add` a chain goes on. */
static void check_few(const cpu_kern *k, int type, uint32_t hd, uint64_t *seed)
{
    const size_t ldq = hd + 3, ldp = HT_PAGE + 5;
    guarded key = random_head(type, 0, hd, seed), value = random_head(type, 1, hd, seed);
    guarded q = guard_new(ldq * CPU_FEW * 4), p = guard_new(ldp * CPU_FEW * 4);
    guarded s = guard_new(ldp * CPU_FEW * 4), o = guard_new(ldq * CPU_FEW * 4);
    float *fq = (float *)(void *)q.p, *fp = (float *)(void *)p.p;
    float *fs = (float *)(void *)s.p, *fo = (float *)(void *)o.p, row[MAX_HD];
    for (size_t i = 0; i < ldq * CPU_FEW; i++) fq[i] = t_randf(seed);
    for (size_t i = 0; i < ldp * CPU_FEW; i++) fp[i] = t_randf(seed);
    for (uint32_t nq = 1; nq <= CPU_FEW; nq++) {
        float sum[CPU_FEW][MAX_HD] = {{0}};
        k->few_k_page[type](key.p, hd, fq, ldq, nq, fs, ldp, nq % 2 ? key.p : NULL);
        k->few_v_page[type](value.p, hd, fp, ldp, nq, fo, ldq, 0, nq % 2 ? key.p : NULL);
        k->few_v_page[type](value.p, hd, fp, ldp, nq, fo, ldq, 1, NULL);
        for (uint32_t j = 0; j < HT_PAGE; j++) {
            ht_kv_unpack(type, 0, hd, key.p, j, row);
            for (uint32_t t = 0; t < nq; t++) {
                float want = 0;
                for (uint32_t d = 0; d < hd; d++) want = fmaf(row[d], fq[t * ldq + d], want);
                T_CHECK(fs[t * ldp + j] == want, "%s %s hd %u: score %u of pair %u of %u", k->level,
                        ht_kvtype_name(type), hd, j, t, nq);
            }
        }
        for (uint32_t j = 0; j < 2 * HT_PAGE; j++) {
            ht_kv_unpack(type, 1, hd, value.p, j % HT_PAGE, row);
            for (uint32_t t = 0; t < nq; t++)
                for (uint32_t d = 0; d < hd; d++)
                    sum[t][d] = fmaf(row[d], fp[t * ldp + j % HT_PAGE], sum[t][d]);
        }
        for (uint32_t t = 0; t < nq; t++)
            for (uint32_t d = 0; d < hd; d++)
                T_CHECK(fo[t * ldq + d] == sum[t][d], "%s %s hd %u: column %u of pair %u of %u",
                        k->level, ht_kvtype_name(type), hd, d, t, nq);
    }
    guard_free(&key), guard_free(&value), guard_free(&q), guard_free(&p);
    guard_free(&s), guard_free(&o);
}

T_CASE(kern, kv_pages)
{
    uint64_t seed = 99;
    for (int i = 0; i < LEVELS; i++) {
        cpu_kern k;
        if (!level_kern(i, &k)) {
            printf("  %s: not on this machine\n", levels[i].name);
            continue;
        }
        for (int type = 0; type < HT_KVTYPES; type++) {
            T_CHECK((k.k_page[type] != NULL) == ht_kv_packs(type), "%s has %s", k.level,
                    ht_kvtype_name(type));
            T_TRUE((k.v_page[type] != NULL) == ht_kv_packs(type));
            T_TRUE((k.few_k_page[type] != NULL) == (ht_kv_packs(type) && type != HT_KV_QJL3));
            T_TRUE((k.few_v_page[type] != NULL) == (k.few_k_page[type] != NULL));
            for (size_t s = 0; ht_kv_packs(type) && s < sizeof sizes / sizeof *sizes; s++) {
                if (!ht_kvtype_fits(type, sizes[s])) continue;
                check_keys(&k, type, sizes[s], &seed);
                check_values(&k, type, sizes[s], &seed);
                if (k.few_k_page[type] && sizes[s] % 32 == 0) check_few(&k, type, sizes[s], &seed);
            }
        }
    }
}

/* Rotation with signs is orthogonal: scores are those of the unrotated, and turning back gives the
 * vector again. */
T_CASE(kern, kv_rotation)
{
    uint64_t seed = 7;
    for (uint32_t hd = 16; hd <= MAX_HD; hd *= 2) {
        cpu_kern k;
        float q[MAX_HD], x[MAX_HD], rq[MAX_HD], rx[MAX_HD], scale[2];
        double a = 0, b = 0, size = 0;
        T_TRUE(level_kern(0, &k));
        ht_kv_rotation(hd, &scale[0], &scale[1]);
        for (uint32_t i = 0; i < hd; i++) {
            q[i] = 2 * t_randf(&seed), x[i] = 2 * t_randf(&seed);
            rq[i] = q[i] * ht_kv_sign(i), rx[i] = x[i] * ht_kv_sign(i);
        }
        k.hadamard(rx, hd, scale[0]);
        k.hadamard(rq, hd, scale[1]);
        for (uint32_t i = 0; i < hd; i++) {
            a += (double)q[i] * (double)x[i], b += (double)rq[i] * (double)rx[i];
            size += fabs((double)q[i] * (double)x[i]);
        }
        T_NEAR(a, b, 1e-5 * size);
        k.hadamard(rx, hd, scale[1]);
        for (uint32_t i = 0; i < hd; i++) T_NEAR(rx[i] * ht_kv_sign(i), x[i], 2e-6);
    }
}
