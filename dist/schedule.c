/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.c: the schedules of ring and all-gather. In a ring, block s is at participant s + t at step t, and of it what
 * that participant or a later one needs. In an all-gather step 0 has no calls, and step 1 all of them, over keys in the
 * order of their positions; or the shard's own block is apart, that of step 0. */
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

/* Keys of a call, which lie in one run. */
static struct run run_at(const struct runs *runs, int64_t row, int64_t count) {
    int64_t r = 0;
    while (row >= runs->at[r].row + runs->at[r].count) ++r;
    const struct run *run = &runs->at[r];
    return (struct run){.first = run->first + (row - run->row) * run->step, .step = run->step, .count = count, .row = row};
}

static int by_row(const void *a, const void *b) {
    const struct run *x = a, *y = b;
    return (x->row > y->row) - (x->row < y->row);
}

bool strobe__schedule_need(const struct shard *s, int32_t p, int32_t source, struct runs *need, double *pairs) {
    struct calls calls = {0};
    struct runs all = {0};
    const struct runs none = {0};
    bool ok = strobe__dist_pairs(s->w, &s->q[p], &s->k[source], &calls);
    *need = (struct runs){0};
    for (int64_t c = 0; ok && c < calls.count; ++c) {
        ok = strobe__runs_add(&all, run_at(&s->k[source], calls.at[c].k_row, calls.at[c].keys));
        if (pairs) *pairs += calls.at[c].pairs;
    }
    if (ok && all.count > 1) qsort(all.at, (size_t)all.count, sizeof *all.at, by_row);
    ok = ok && strobe__runs_unite(&all, &none);
    if (!ok) strobe__runs_free(&all);
    *need = all;
    strobe__calls_free(&calls);
    return ok;
}

/* The rows of runs that are part of `within`, given as rows of a tensor in which `within` lies as `packed` says. */
static void move_rows(struct runs *runs, const struct runs *within, const struct runs *packed) {
    int64_t w = 0;
    for (int64_t r = 0; r < runs->count; ++r) {
        while (runs->at[r].row >= within->at[w].row + within->at[w].count) ++w;
        runs->at[r].row += packed->at[w].row - within->at[w].row;
    }
}

/* What participants p, p + 1, ..., before the source itself, need of it. */
static bool held_from(const struct shard *s, int32_t p, int32_t source, struct runs *held) {
    *held = (struct runs){0};
    for (int32_t q = p % s->participants; q != source; q = (q + 1) % s->participants) {
        struct runs need;
        const bool ok = strobe__schedule_need(s, q, source, &need, NULL) && strobe__runs_unite(held, &need);
        strobe__runs_free(&need);
        if (!ok) return false;
    }
    return true;
}

/* The runs are the list's from then on, or freed. */
static bool add_transfer(struct transfer **list, int64_t *count, int32_t participant, struct runs runs) {
    if (runs.count == 0) {
        strobe__runs_free(&runs);
        return true;
    }
    struct transfer *more = realloc(*list, (size_t)(*count + 1) * sizeof **list);
    if (!more) {
        strobe__runs_free(&runs);
        return false;
    }
    more[*count] = (struct transfer){participant, runs};
    *list = more, ++*count;
    return true;
}

/* The block of `source`, which is not the shard's own: held from the participant before, as far as it or a later one needs
 * it. */
static bool ring_block(struct step *step, const struct shard *s, int32_t source, struct runs *next) {
    struct runs held = {0}, packed = {0}, need = {0};
    bool ok = strobe__schedule_need(s, s->index, source, &need, NULL) && strobe__runs_unite(&held, &need) &&
              strobe__runs_unite(&held, next) && strobe__runs_copy(&packed, &held);
    if (ok) {
        move_rows(&need, &held, &packed), move_rows(next, &held, &packed);
        for (int64_t r = 0; r < need.count; ++r) need.at[r].grad = step->grad_rows, step->grad_rows += need.at[r].count;
        step->rows = strobe__runs_rows(&packed);
        ok = strobe__dist_calls(s->w, &s->q[s->index], &need, &step->calls);
    }
    strobe__runs_free(&held), strobe__runs_free(&packed);
    if (ok) return add_transfer(&step->grad_sends, &step->grad_send_count, source, need);
    strobe__runs_free(&need);
    return false;
}

static bool ring_step(struct step *step, const struct shard *s, int32_t t) {
    const int32_t n = s->participants, me = s->index, source = (me - t + n) % n;
    struct runs next, arrives = {0};
    step->own = t == 0;
    bool ok = held_from(s, me + 1, source, &next);
    if (ok && t == 0) {
        step->grad_rows = s->keys;
        ok = strobe__dist_calls(s->w, &s->q[me], &s->k[me], &step->calls);
    } else if (ok) {
        ok = ring_block(step, s, source, &next);
    }
    if (!ok) {
        strobe__runs_free(&next);
        return false;
    }
    if (!add_transfer(&step->sends, &step->send_count, (me + 1) % n, next)) return false;
    if (t > 0) { /* participant me + t works on this shard's block at the same step */
        struct runs need;
        ok = strobe__schedule_need(s, (me + t) % n, me, &need, NULL) &&
             add_transfer(&step->grad_receives, &step->grad_receive_count, (me + t) % n, need);
    }
    if (!ok || t == n - 1) return ok;
    struct runs held;
    ok = held_from(s, me, (me - t - 1 + n) % n, &held) && strobe__runs_copy(&arrives, &held);
    strobe__runs_free(&held);
    return ok && add_transfer(&step->receives, &step->receive_count, (me - 1 + n) % n, arrives);
}

static int by_position(const void *a, const void *b) {
    const struct run *x = *(struct run *const *)a, *y = *(struct run *const *)b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Numbers the rows of all runs that come together, by position, and makes the runs of the block, where neighbours are one.
 */
static bool put_in_order(struct transfer *parts, int32_t n, struct runs *block) {
    int64_t count = 0, row = 0;
    for (int32_t p = 0; p < n; ++p) count += parts[p].runs.count;
    struct run **order = malloc((size_t)(count + 1) * sizeof *order);
    if (!order) return false;
    count = 0;
    for (int32_t p = 0; p < n; ++p)
        for (int64_t r = 0; r < parts[p].runs.count; ++r) order[count++] = &parts[p].runs.at[r];
    qsort(order, (size_t)count, sizeof *order, by_position);
    bool ok = true;
    for (int64_t r = 0; ok && r < count; ++r) {
        struct run *last = block->count ? &block->at[block->count - 1] : NULL;
        order[r]->grad = row;
        if (last && last->step == 1 && order[r]->step == 1 && last->first + last->count == order[r]->first)
            last->count += order[r]->count;
        else
            ok = strobe__runs_add(block, (struct run){order[r]->first, order[r]->step, order[r]->count, row, row});
        row += order[r]->count;
    }
    free(order);
    return ok;
}

/* Both steps of an all-gather; apart: the first has calls, those on the shard's own block. The runs of a transfer have the
 * rows of the owner's tensor, grad being that of the block. */
static bool gather_steps(struct step steps[2], const struct shard *s, bool apart) {
    const int32_t n = s->participants, me = s->index;
    struct transfer *parts = calloc((size_t)n, sizeof *parts);
    struct runs block = {0};
    bool ok = parts;
    steps[0].own = true;
    for (int32_t p = 0; ok && p < n; ++p)
        if (p != me || !apart) ok = strobe__schedule_need(s, me, p, &parts[p].runs, NULL);
    if (apart) {
        steps[0].grad_rows = s->keys;
        ok = ok && strobe__dist_calls(s->w, &s->q[me], &s->k[me], &steps[0].calls);
    }
    ok = ok && put_in_order(parts, n, &block) && strobe__dist_calls(s->w, &s->q[me], &block, &steps[1].calls);
    steps[1].rows = steps[1].grad_rows = strobe__runs_rows(&block);
    for (int32_t p = 0; ok && p < n; ++p) {
        struct runs need, copy = {0};
        ok = strobe__runs_copy(&copy, &parts[p].runs);
        if (!ok) break;
        for (int64_t r = 0; r < copy.count; ++r)
            copy.at[r].row = parts[p].runs.at[r].row, copy.at[r].grad = parts[p].runs.at[r].grad;
        if (p == me) {
            steps[0].local.runs = copy, steps[1].grad_local.runs = parts[p].runs;
            parts[p].runs = (struct runs){0};
            continue;
        }
        ok = add_transfer(&steps[0].receives, &steps[0].receive_count, p, copy);
        if (!ok) break;
        ok = add_transfer(&steps[1].grad_sends, &steps[1].grad_send_count, p, parts[p].runs);
        parts[p].runs = (struct runs){0};
        ok = ok && strobe__schedule_need(s, p, me, &need, NULL) &&
             add_transfer(&steps[0].sends, &steps[0].send_count, p, need) && strobe__schedule_need(s, p, me, &need, NULL) &&
             add_transfer(&steps[1].grad_receives, &steps[1].grad_receive_count, p, need);
    }
    for (int32_t p = 0; parts && p < n; ++p) strobe__runs_free(&parts[p].runs);
    free(parts);
    strobe__runs_free(&block);
    return ok;
}

const struct transfer *strobe__schedule_last(const struct schedule *schedule, int64_t *step) {
    for (*step = schedule->count - 1; *step >= 0; --*step) {
        const struct step *last = &schedule->steps[*step];
        if (last->grad_receive_count == 0) continue;
        return schedule->late && *step + 2 < schedule->count ? NULL : &last->grad_receives[last->grad_receive_count - 1];
    }
    return NULL;
}

const struct call *strobe__schedule_early(const struct schedule *schedule) {
    return schedule->early_heads > 0 ? &schedule->steps[schedule->count - 1].calls.at[0] : NULL;
}

/* Whether the first K and V travel for so long, beside the time of a call, that some of its heads are to go before: another
 * launch costs about a hundredth. */
static bool is_worth_hiding(const struct shard *s, const struct step *first, const struct call *c) {
    const struct whole *w = s->w;
    const double dim = (double)s->a.dim, dim_v = (double)s->a.dim_v, bytes = (double)strobe__dist_bytes(s->a.k.dtype);
    double rows = 0;
    for (int64_t n = 0; n < first->receive_count; ++n) rows += (double)strobe__runs_rows(&first->receives[n].runs);
    const double travels = rows * (double)s->a.heads_kv * (dim + dim_v) * bytes / w->rates.bandwidth;
    const double lasts = c->pairs * (double)s->a.heads_q * (6 * dim + 4 * dim_v) / w->rates.flops;
    return 100 * travels > lasts;
}

/* Gradients of a backward's last block travel when it has been computed on. Where messages go beside kernels, the shard's
 * own block is left for that time, as a step at the end; then its K and V, half as many bytes, are what nothing hides,
 * unless some of its heads are computed on before. */
static void leave_own(struct schedule *schedule, const struct shard *s) {
    struct step *own = &schedule->steps[0], *late = &schedule->steps[schedule->count];
    if (late[-1].grad_send_count == 0 || own->calls.count == 0) return;
    late->own = true, late->grad_rows = own->grad_rows;
    late->calls = own->calls, own->calls = (struct calls){0};
    schedule->late = true, ++schedule->count;
    const bool sums_heads = s->w->g.dbias && s->w->dbias.stride[1] == 0; /* a call sums dbias over its heads */
    if (late->calls.count == 1 && !sums_heads && is_worth_hiding(s, own, &late->calls.at[0]))
        schedule->early_heads = strobe__dist_early_heads(s->a.heads_kv, late->calls.at[0].keys);
}

bool strobe__schedule_make(struct schedule *schedule, const struct shard *s, bool gathers, bool apart) {
    const bool gather = gathers && s->participants > 1;
    *schedule = (struct schedule){.count = gather ? 2 : s->participants};
    schedule->steps = calloc((size_t)schedule->count + 1, sizeof *schedule->steps);
    bool ok = schedule->steps;
    if (ok && gather) ok = gather_steps(schedule->steps, s, apart);
    for (int32_t t = 0; ok && !gather && t < s->participants; ++t) ok = ring_step(&schedule->steps[t], s, t);
    if (ok && (!gather || apart) && s->participants > 1 && s->w->backward && s->w->hides) leave_own(schedule, s);
    return ok && strobe__schedule_mark(schedule, s);
}

static int64_t messages_of(const struct transfer *list, int64_t count) {
    int64_t messages = 0;
    for (int64_t n = 0; n < count; ++n) messages += 2 * list[n].runs.count;
    return messages;
}

int64_t strobe__schedule_messages(const struct schedule *schedule) {
    int64_t messages = 0;
    for (int64_t t = 0; t < schedule->count; ++t) {
        const struct step *step = &schedule->steps[t];
        messages += messages_of(step->sends, step->send_count) + messages_of(step->receives, step->receive_count) +
                    messages_of(step->grad_sends, step->grad_send_count) +
                    messages_of(step->grad_receives, step->grad_receive_count);
    }
    return messages;
}

static void free_transfers(struct transfer *list, int64_t count) {
    for (int64_t n = 0; n < count; ++n) strobe__runs_free(&list[n].runs);
    free(list);
}

void strobe__schedule_free(struct schedule *schedule) {
    for (int64_t t = 0; schedule->steps && t < schedule->count; ++t) {
        struct step *step = &schedule->steps[t];
        strobe__calls_free(&step->calls);
        strobe__runs_free(&step->unwritten);
        free_transfers(step->sends, step->send_count), free_transfers(step->receives, step->receive_count);
        free_transfers(step->grad_sends, step->grad_send_count);
        free_transfers(step->grad_receives, step->grad_receive_count);
        strobe__runs_free(&step->local.runs), strobe__runs_free(&step->grad_local.runs);
    }
    free(schedule->steps);
    strobe__runs_free(&schedule->rest);
    strobe__runs_free(&schedule->keys_rest);
    *schedule = (struct schedule){0};
}
