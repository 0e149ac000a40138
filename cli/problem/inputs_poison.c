/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs_poison.c: NaN, infinities or the largest numbers where nobody may look; see inputs.h. */
#include "problem/element.h"
#include "problem/inputs.h"
#include "problem/visible.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct sight {
    const inputs *in;
    bool *row, *key; /* of one batch entry: [rows][heads_q], [keys][heads_kv]: somebody sees, is seen */
} sight;

/* Looks until everybody has seen and been seen. */
static void look(const sight *s, int64_t b) {
    const problem *p = &s->in->problem;
    const sequence *q = &s->in->sequences[b];
    const int64_t group = p->heads_q / p->heads_kv;
    for (int64_t h = 0; h < p->heads_q; ++h)
        for (int64_t i = 0; i < q->rows; ++i)
            for (int64_t j = 0; j < q->keys; ++j) {
                bool *row = &s->row[i * p->heads_q + h], *key = &s->key[j * p->heads_kv + h / group];
                if ((*row && *key) || !visible(s->in, b, h, i, j)) continue;
                *row = *key = true;
            }
}

static void poison_row(const inputs *in, unsigned char *row, int64_t dtype, int64_t columns) {
    const size_t bytes = element_bytes(dtype);
    static const double largest[] = {[STROBE_FP32] = 0x1.fffffep127, [STROBE_FP16] = 65504,    [STROBE_BF16] = 0x1.fep127,
                                     [STROBE_FP64] = 0x1p1000,       [STROBE_FP8_E4M3] = -448, [STROBE_INT8] = -127};
    const int64_t kind = in->problem.hidden;
    for (int64_t c = 0; c < columns; ++c)
        if (kind == HIDDEN_NAN)
            memset(row + (size_t)c * bytes, 0xFF, bytes);
        else if (kind == HIDDEN_LARGEST || problem_is_quantised(dtype))
            element_store(row + (size_t)c * bytes, dtype, largest[dtype]);
        else
            element_store(row + (size_t)c * bytes, dtype, c % 2 ? -INFINITY : INFINITY);
}

static void poison_tensor(const inputs *in, tensor_id id, int64_t b, const bool *seen) {
    const buffer *t = &in->tensor[id];
    if (!t->data) return;
    for (int64_t i = 0; i < inputs_length(in, id, b); ++i)
        for (int64_t h = 0; h < t->extent[2]; ++h)
            if (!seen[i * t->extent[2] + h]) poison_row(in, inputs_row(in, id, t, b, i, h), t->dtype, t->extent[3]);
}

/* A bias that has all axes of its own: each element that is hidden by something else. */
static void poison_bias(const inputs *in, int64_t b) {
    const problem *p = &in->problem;
    const buffer *t = &in->tensor[T_BIAS];
    if (p->bias != (AXIS_BATCH | AXIS_HEAD | AXIS_ROW | AXIS_KEY)) return;
    const size_t bytes = element_bytes(t->dtype);
    for (int64_t i = 0; i < in->sequences[b].rows; ++i)
        for (int64_t h = 0; h < p->heads_q; ++h)
            for (int64_t j = 0; j < in->sequences[b].keys; ++j)
                if (!visible_but_for_bias(in, b, h, i, j))
                    poison_row(in, buffer_at(t, b, i, h, bytes) + (size_t)j * bytes, t->dtype, 1);
}

void inputs_poison(inputs *in) {
    const problem *p = &in->problem;
    const bool overlapping = p->layout == LAYOUT_OVERLAPPING; /* what nobody looks at here may be another row's */
    const bool shared = overlapping || p->layout == LAYOUT_SHARED;
    const bool own_scale = !p->scales || p->scales == SCALES_TOKEN;
    for (int64_t b = 0; b < p->batch; ++b) {
        const sequence *q = &in->sequences[b];
        const size_t of_q = (size_t)(q->rows * p->heads_q), of_k = (size_t)(q->keys * p->heads_kv);
        const sight s = {in, calloc(of_q + 1, sizeof(bool)), calloc(of_k + 1, sizeof(bool))};
        if (s.row && s.key) {
            look(&s, b);
            /* of the kernels of int8 some hand a call with a q that is not finite to another: it would not be checked */
            if (p->kv_dtype != STROBE_INT8 && !overlapping) poison_tensor(in, T_Q, b, s.row);
            /* a sink's gradient takes dO * O of every row, and 0 * NaN is NaN */
            if (p->operation == STROBE_BACKWARD && !p->dsinks && !shared) poison_tensor(in, T_DOUT, b, s.row);
            if (!shared) poison_tensor(in, T_K, b, s.key), poison_tensor(in, T_V, b, s.key);
            if (own_scale) poison_tensor(in, T_K_SCALE, b, s.key), poison_tensor(in, T_V_SCALE, b, s.key);
            if (own_scale && p->kv_dtype != STROBE_INT8) poison_tensor(in, T_Q_SCALE, b, s.row);
            if (!overlapping) poison_bias(in, b);
        }
        free(s.row);
        free(s.key);
    }
}
