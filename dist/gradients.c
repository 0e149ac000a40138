/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gradients.c: on a GPU, gradients of the shard's own keys that have come from others: one kernel adds all that has arrived
 * for a row to what is there, in the order in which they would be added one by one, and rounds the row where nothing more
 * comes. */
#include "cuda_memory.h"
#include "engine.h"

/* dK, or dV, of a step. */
struct arrived {
    const struct step *step;
    strobe_tensor sum, block; /* the sums; the step's gradients, of which local rows are the first */
    const strobe_tensor *to;  /* NULL, or where rows that are complete go, rounded */
    int64_t dim;
    bool is_v; /* which lies behind K in a message */
};

enum { MOST_ROWS = 1 << 14 }; /* of a piece, so that its elements can be counted */

static bool is_row(const strobe_tensor *t, int64_t heads, int64_t dim) {
    return (heads == 1 || t->stride[2] == dim) && t->stride[1] == heads * dim;
}

bool strobe__engine_adds_at_once(const struct engine *e) {
    const strobe_attention *a = &e->s->a;
    const strobe_gradients *g = &e->s->g;
    return e->on->device == STROBE_CUDA && is_row(&g->dk, a->heads_kv, a->dim) && is_row(&g->dv, a->heads_kv, a->dim_v);
}

/* Finds the runs that have a row, and shortens `end` to where that changes. */
static bool has_row(int64_t first, int64_t count, int64_t row, int64_t *end) {
    const int64_t border = row < first ? first : first + count;
    if (row < border && border < *end) *end = border;
    return row >= first && row < first + count;
}

/* A sum under way: rows of one entry. */
struct summing {
    struct engine *e;
    struct summed_rows *all;
    float *sum; /* of the rows, in fp32 */
    uint32_t elements;
};

static struct summed_piece *open_piece(struct summing *s) {
    struct summed_piece *p = &s->all->piece[s->all->count];
    *p = (struct summed_piece){.elements = s->elements, .first_source = (uint16_t)s->all->source_count};
    return p;
}

/* Where a launch has no more room, what has been added so far goes into the sum, which is the first of the next launch. */
static void add_source(struct summing *s, const float *source) {
    struct summed_piece *p = &s->all->piece[s->all->count];
    if (s->all->source_count == SUMMED_SOURCES) {
        const bool has_some = p->sources > 1;
        const float *const first = s->all->source[p->first_source];
        p->to = s->sum, p->type = ROUNDED_FP32;
        s->all->count += has_some;
        strobe__sum_rows(s->e->on, s->all);
        p = open_piece(s);
        s->all->source[s->all->source_count++] = has_some ? s->sum : first, p->sources = 1;
    }
    s->all->source[s->all->source_count++] = source, ++p->sources;
}

static void close_piece(struct summing *s, void *to, int32_t dtype) {
    struct summed_piece *p = &s->all->piece[s->all->count];
    p->to = to, p->type = dtype == STROBE_BF16 ? ROUNDED_BF16 : dtype == STROBE_FP16 ? ROUNDED_FP16 : ROUNDED_FP32;
    ++s->all->count;
    if (s->all->count == SUMMED_PIECES || s->all->source_count == SUMMED_SOURCES) strobe__sum_rows(s->e->on, s->all);
}

static float *row_of(const strobe_tensor *t, int64_t entry, int64_t row) {
    return (float *)t->data + entry * t->stride[0] + row * t->stride[1];
}

/* Goes through what has a row: calls add_source for each, where s is given, and finds the last row of which the same is so.
 * Returns how many there are beside the sum. */
static int64_t each_source(struct summing *s, const struct arrived *g, int64_t entry, int64_t row, int64_t *end) {
    const struct engine *e = s->e;
    const struct runs *local = &g->step->grad_local.runs;
    const unsigned char *landed = e->grad_landing;
    const int64_t elements = e->s->a.heads_kv * g->dim;
    const float *first = s->sum;
    int64_t count = 0;
    for (int64_t r = 0; r < local->count; ++r)
        if (has_row(local->at[r].row, local->at[r].count, row, end))
            first = row_of(&g->block, entry, local->at[r].grad + row - local->at[r].row), ++count;
    if (s->all) add_source(s, first);
    for (int64_t n = 0; n < g->step->grad_receive_count; ++n)
        for (int64_t r = 0; r < g->step->grad_receives[n].runs.count; ++r) {
            const struct run *run = &g->step->grad_receives[n].runs.at[r];
            size_t bytes[2];
            strobe__engine_message_bytes(e, STROBE_FP32, run->count, bytes);
            const float *rows = (const float *)(const void *)(landed + (g->is_v ? bytes[0] : 0));
            landed += bytes[0] + bytes[1];
            if (!has_row(run->row, run->count, row, end)) continue;
            ++count;
            if (s->all) add_source(s, rows + (entry * run->count + row - run->row) * elements);
        }
    return count;
}

static void add_arrived(struct engine *e, const struct arrived *g, struct summed_rows *all) {
    const int64_t elements = e->s->a.heads_kv * g->dim;
    for (int64_t entry = 0; entry < e->s->w->entries; ++entry)
        for (int64_t row = 0, end; row < e->s->keys; row = end) {
            struct summing s = {.e = e, .sum = row_of(&g->sum, entry, row)};
            end = e->s->keys < row + MOST_ROWS ? e->s->keys : row + MOST_ROWS;
            if (each_source(&s, g, entry, row, &end) == 0 && !g->to) continue;
            s.all = all, s.elements = (uint32_t)((end - row) * elements);
            open_piece(&s);
            each_source(&s, g, entry, row, &end);
            const strobe_tensor to = g->to ? strobe__tensor_from(*g->to, row, 0) : g->sum;
            const int64_t bytes = (int64_t)strobe__dist_bytes(to.dtype);
            close_piece(&s, g->to ? (unsigned char *)to.data + entry * to.stride[0] * bytes : (void *)s.sum, to.dtype);
        }
}

void strobe__engine_add_at_once(struct engine *e, int64_t t, bool ends) {
    const struct step *step = &e->schedule->steps[t];
    const struct block gradients = strobe__engine_gradients(e, t);
    struct summed_rows all = {.count = 0};
    add_arrived(e, &(struct arrived){step, e->sum_dk, gradients.k, ends ? &e->s->g.dk : NULL, e->s->a.dim, false}, &all);
    add_arrived(e, &(struct arrived){step, e->sum_dv, gradients.v, ends ? &e->s->g.dv : NULL, e->s->a.dim_v, true}, &all);
    strobe__sum_rows(e->on, &all);
    e->keys_are_rounded |= ends;
}
