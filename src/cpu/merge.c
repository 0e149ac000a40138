/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.c (cpu): strobe_merge: partial results over disjoint keys become one, by the identity of math/lse.h. For each row,
 * first the lse of the whole is computed from those of the parts, in the order of their index, and then the sum of the
 * parts' out, rescaled. A piece of a row is read from all parts before it is written, so that the result may be stored over
 * the first part. */
#include "cpu/merge.h"

#include "core/element.h"
#include "core/parallel.h"
#include "math/lse.h"

/* The elements of a row that are summed at a time. */
enum { CHUNK = 64 };

static float load(const strobe_tensor *t, int64_t index) { return (float)element_load(t->data, t->dtype, index); }

static int64_t offset(const strobe_tensor *t, int64_t b, int64_t i, int64_t h) {
    return b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
}

static void merge_row(const struct merge *m, int64_t b, int64_t i, int64_t h) {
    const strobe_partials *p = &m->p;
    float whole = -INFINITY;
    for (int64_t n = 0; n < p->count; ++n) {
        const strobe_partial part = strobe__merge_part(m, n);
        whole = log_add_exp(whole, load(&part.lse, offset(&part.lse, b, i, h)));
    }
    for (int64_t x0 = 0; x0 < p->dim_v; x0 += CHUNK) {
        const int64_t width = p->dim_v - x0 < CHUNK ? p->dim_v - x0 : CHUNK;
        float sum[CHUNK] = {0};
        for (int64_t n = 0; n < p->count; ++n) {
            const strobe_partial part = strobe__merge_part(m, n);
            const float lse = load(&part.lse, offset(&part.lse, b, i, h));
            if (lse == -INFINITY) continue; /* an empty part may hold anything */
            const float rescale = lse_rescale(lse, whole);
            for (int64_t x = 0; x < width; ++x) sum[x] += rescale * load(&part.out, offset(&part.out, b, i, h) + x0 + x);
        }
        for (int64_t x = 0; x < width; ++x)
            element_store(p->out.data, p->out.dtype, offset(&p->out, b, i, h) + x0 + x, sum[x]);
    }
    if (p->lse.data) element_store(p->lse.data, p->lse.dtype, offset(&p->lse, b, i, h), whole);
}

static void merge_task(void *context, int64_t index, int32_t worker) {
    const struct merge *m = context;
    (void)worker;
    for (int64_t i = 0; i < m->p.seq_q; ++i) merge_row(m, index / m->p.heads_q, i, index % m->p.heads_q);
}

strobe_status strobe__cpu_merge(const struct merge *m, void *stream) {
    (void)stream;
    struct merge own = *m;
    strobe__parallel_for(m->p.parallel, m->p.batch * m->p.heads_q, merge_task, &own);
    return STROBE_OK;
}
