/* SPDX-License-Identifier: BSD-3-Clause
 *
 * sample.c: windows of a large problem against the reference; see sample.h. */
#include "bench/sample.h"

#include "check/trial.h"
#include "problem/element.h"
#include "problem/visible.h"

#include <stdio.h>
#include <string.h>

enum { WINDOW_ROWS = 4 };

typedef struct window {
    int64_t b, h, kv, i0, rows, keys; /* kv: the head that h reads */
} window;

/* A score function's text for the window: b, h, hkv, i and seq_q are those of the larger problem. False: it
 * becomes too long. */
static bool shift_names(char text[PROBLEM_EXPRESSION], const inputs *in, const window *w) {
    const int64_t all = in->sequences[w->b].rows;
    const struct {
        const char *name;
        int64_t more, instead; /* added to the name; the value that takes its place, or -1 */
    } names[] = {{"b", w->b, -1}, {"h", w->h, -1}, {"hkv", w->kv, -1}, {"i", all - w->rows, -1}, {"seq_q", 0, all}};
    char to[PROBLEM_EXPRESSION] = "";
    size_t length = 0;
    for (const char *from = text; *from && length < sizeof to;) {
        size_t letters = strspn(from, "abcdefghijklmnopqrstuvwxyz_0123456789"), name = 0;
        if (letters == 0) letters = 1;
        while (name < 5 && (strlen(names[name].name) != letters || strncmp(from, names[name].name, letters))) ++name;
        if (name == 5)
            length += (size_t)snprintf(to + length, sizeof to - length, "%.*s", (int)letters, from);
        else if (names[name].instead >= 0)
            length += (size_t)snprintf(to + length, sizeof to - length, "%lld", (long long)names[name].instead);
        else
            length += (size_t)snprintf(to + length, sizeof to - length, "(%s+%lld)", names[name].name,
                                       (long long)names[name].more);
        from += letters;
    }
    if (length >= sizeof to) return false;
    memcpy(text, to, length + 1);
    return true;
}

/* The window's problem. Its own sizes, no masks but one, and the features that act on single scores. */
static problem window_problem(const inputs *in, const window *w) {
    problem p = in->problem;
    p.batch = p.heads_q = p.heads_kv = 1;
    p.seq_q = w->rows;
    p.seq_k = w->keys;
    p.mask = STROBE_MASK_NONE;
    p.bool_mask = AXIS_ROW | AXIS_KEY;
    p.block_q = p.block_k = p.varlen = p.page_size = p.missing = p.append = p.v_in_k = p.leftpad = 0;
    p.layout = LAYOUT_BSHD;
    p.kernel[0] = 0;
    p.q_start += w->i0 + w->rows - in->sequences[w->b].rows;
    if (p.bias) p.bias = (p.bias & AXIS_ROW) | AXIS_KEY;
    if (problem_has_table(&p)) {
        p.table_heads = score_table_heads(&in->problem);
        p.table_width = score_table_width(&in->problem);
    }
    return p;
}

/* The part of a tensor of the larger problem that has the shape of the window's. */
static buffer part_of(const inputs *in, const window *w, tensor_id id, const buffer *whole, const buffer *shape) {
    buffer part = *whole;
    const tensor_side side = tensor_side_of(id);
    const size_t bytes = element_bytes(whole->dtype);
    part.bytes = NULL;
    memcpy(part.extent, shape->extent, sizeof part.extent);
    if (side == OVER_ROWS) part.data = inputs_row(in, id, whole, w->b, w->i0, w->h);
    if (side == OVER_KEYS) part.data = inputs_row(in, id, whole, w->b, 0, w->kv);
    if (side == OVER_SCORES) part.data = buffer_at(whole, w->b, w->i0, w->h, bytes);
    if (side == OVER_HEADS && id != T_TABLE && id != T_DTABLE) part.data = whole->data + (size_t)w->h * bytes;
    return part;
}

static void copy_from_pages(const inputs *sub, const inputs *in, const window *w, tensor_id id) {
    const buffer *own = &sub->tensor[id], *whole = &in->tensor[id];
    const size_t bytes = (size_t)own->extent[3] * element_bytes(own->dtype);
    for (int64_t j = 0; j < w->keys; ++j)
        memcpy(inputs_row(sub, id, own, 0, j, 0), inputs_row(in, id, whole, w->b, j, w->kv), bytes);
}

static bool create_window(inputs *sub, const inputs *in, const window *w, char *message, size_t capacity) {
    problem p = window_problem(in, w);
    if (!shift_names(p.score, in, w) || !shift_names(p.visible, in, w)) {
        snprintf(message, capacity,
                 "score or visible is too long to be checked on a part of the problem; about 150 characters "
                 "are accepted");
        return false;
    }
    if (!inputs_create(sub, &p, message, capacity)) return false;
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *own = &sub->tensor[id];
        if (!own->data || id == T_MASK) continue;
        if (tensor_side_of((tensor_id)id) == OVER_KEYS && in->pages) {
            copy_from_pages(sub, in, w, (tensor_id)id);
            continue;
        }
        const buffer part = part_of(in, w, (tensor_id)id, &in->tensor[id], own);
        inputs_copy(sub, (tensor_id)id, own, &part);
    }
    for (int64_t i = 0; i < w->rows; ++i)
        for (int64_t j = 0; j < w->keys; ++j)
            buffer_at(&sub->tensor[T_MASK], 0, i, 0, 1)[j] = visible(in, w->b, w->h, w->i0 + i, j);
    sub->dropout = in->dropout;
    if (!sub->dropout.heads) sub->dropout.heads = in->problem.heads_q;
    if (!sub->dropout.rows) sub->dropout.rows = in->problem.seq_q;
    if (!sub->dropout.keys) sub->dropout.keys = in->problem.seq_k;
    sub->dropout.batch_start += w->b;
    sub->dropout.head_start += w->h;
    sub->dropout.row_start += w->i0;
    return true;
}

static void fail(verification *v, tensor_id id, const window *w, const char *what) {
    if (v->verdict == VERDICT_FAILED) return;
    v->verdict = VERDICT_FAILED;
    snprintf(v->sentence, sizeof v->sentence, "%s of rows %lld to %lld of head %lld of batch entry %lld: %s",
             tensor_name(id), (long long)w->i0, (long long)(w->i0 + w->rows - 1), (long long)w->h, (long long)w->b, what);
}

static void compare_window(verification *v, const inputs *in, const outputs *out, const inputs *sub, oracle *o,
                           const window *w) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        if (!o->reference.tensor[id].data) continue;
        const buffer part = part_of(in, w, (tensor_id)id, &out->tensor[id], &o->reference.tensor[id]);
        difference d;
        if (verify_output(v, sub, o, (tensor_id)id, &part, &d) <= 1) continue;
        char what[128];
        snprintf(what, sizeof what, "wrong by %.3g where %.3g is allowed", d.error, o->allowance[id]);
        fail(v, (tensor_id)id, w, what);
    }
}

static bool is_zero(const unsigned char *row, int64_t dtype, int64_t columns) {
    for (int64_t c = 0; c < columns; ++c)
        if (element_load(row + (size_t)c * element_bytes(dtype), dtype) != 0) return false;
    return true;
}

/* dq of other rows and heads, dk and dv of other heads: nothing but the window had a gradient. */
static void check_zeros(verification *v, const inputs *in, const outputs *out, const window *w) {
    static const tensor_id gradients[] = {T_DQ, T_DK, T_DV};
    for (size_t n = 0; n < sizeof gradients / sizeof gradients[0]; ++n) {
        const tensor_id id = gradients[n];
        const buffer *b = &out->tensor[id];
        for (rows r = rows_of(in, id, b); rows_next(&r);) {
            const bool here = r.batch == w->b && r.head == (id == T_DQ ? w->h : w->kv) &&
                              (id != T_DQ || (r.row >= w->i0 && r.row < w->i0 + w->rows));
            if (!here && !is_zero(rows_at(&r, b), b->dtype, b->extent[3]))
                fail(v, id, w, "a gradient elsewhere is not zero");
        }
    }
}

static void verify_window(verification *v, inputs *in, const outputs *out, const char *kernel, const window *w) {
    inputs sub;
    oracle o = {0};
    strobe_status status = STROBE_OK;
    const bool backward = in->problem.operation == STROBE_BACKWARD;
    if (backward) {
        inputs_clear_gradient(in);
        inputs_fill_gradient(in, w->b, w->h, 1, w->i0, w->i0 + w->rows);
        status = trial_run(in, out, kernel, &trial_plain, v->sentence, sizeof v->sentence);
    }
    if (status || !create_window(&sub, in, w, v->sentence, sizeof v->sentence))
        v->verdict = status ? VERDICT_FAILED : VERDICT_REFUSED;
    else if (!oracle_create(&o, &sub, v->sentence, sizeof v->sentence))
        v->verdict = VERDICT_REFUSED;
    else {
        compare_window(v, in, out, &sub, &o, w);
        if (backward) check_zeros(v, in, out, w);
    }
    oracle_free(&o);
    if (!status) inputs_free(&sub);
}

verification sample_verify(inputs *in, const outputs *out, const char *kernel) {
    verification v = {.verdict = VERDICT_PASSED};
    const problem *p = &in->problem;
    if (p->operation == STROBE_FORWARD && trial_run(in, out, kernel, &trial_plain, v.sentence, sizeof v.sentence))
        v.verdict = VERDICT_FAILED;
    /* First rows of the first head, middle of the middle one, last rows of the last one: in thirds of each axis. */
    for (int64_t third = 0; third < 3 && v.verdict == VERDICT_PASSED && p->batch > 0; ++third) {
        window w = {.b = third * (p->batch - 1) / 2, .h = third * (p->heads_q - 1) / 2, .rows = WINDOW_ROWS};
        const sequence *s = &in->sequences[w.b];
        if (w.rows > s->rows) w.rows = s->rows;
        w.keys = s->keys;
        w.kv = w.h / (p->heads_q / p->heads_kv);
        w.i0 = third * (s->rows - w.rows) / 2;
        verify_window(&v, in, out, kernel, &w);
    }
    return v;
}
