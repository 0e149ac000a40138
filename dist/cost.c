/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cost.c: the cost model. A step of a ring lasts as long as the slowest rank computes or the largest block travels,
 * whichever is more, and on GPUs without copy engines as long as both, since an attention kernel leaves no multiprocessors
 * to those that exchange (docs/kernels/processes.md); parts that merge, sums that are rounded and messages that are packed
 * take their bytes of memory; an all-gather and an all-to-all hide nothing. Pairs that see each other and rows that travel
 * are counted from the same lists as the schedule's. All ranks come to the same numbers, and so to the same choice. */
#include "cost.h"

#include <stdio.h>
#include <stdlib.h>

#include "schedule.h"

/* For each step of a ring the most of all participants, q_rows being those of its calls; for a gather sums by participant.
 */
struct tally {
    double *pairs, *q_rows, *kv_rows, *grad_rows, *sum_pairs, *sum_rows;
    int64_t own_calls; /* on a participant's own block */
};

/* Bytes of memory an element: a part is read, the sum read and written; a sum is read and its rounding written. On a GPU the
 * last part of a gradient is read by what rounds. */
enum { MERGED = 3 * sizeof(float), ROUNDED = sizeof(float) };
#define MERGED_LAST (1.0 / 3)

/* What a pair takes on a GPU in calls on one block after the other, over what it takes in one call. */
#define SMALLER_CALLS 1.02

static double larger(double a, double b) { return a > b ? a : b; }

/* Counts block `source`, from the participant that works on it last to the first: what it holds grows on the way back. */
static bool count_block(const struct shard *s, int32_t source, struct tally *y) {
    const int32_t n = s->participants;
    struct runs held = {0};
    bool ok = true;
    for (int32_t t = n - 1; ok && t >= 0; --t) {
        const int32_t p = (source + t) % n;
        struct runs need;
        double pairs = 0;
        ok = strobe__schedule_need(s, p, source, &need, &pairs);
        const double rows = (double)strobe__runs_rows(&need);
        struct calls calls = {0};
        ok = ok && strobe__dist_calls(s->w, &s->q[p], &need, &calls);
        double q_rows = 0;
        if (t == 0 && calls.count > y->own_calls) y->own_calls = calls.count;
        for (int64_t c = 0; c < calls.count; ++c) q_rows += (double)calls.at[c].rows;
        strobe__calls_free(&calls);
        y->q_rows[t] = larger(y->q_rows[t], q_rows);
        y->pairs[t] = larger(y->pairs[t], pairs), y->sum_pairs[p] += pairs;
        if (t > 0) {
            ok = ok && strobe__runs_unite(&held, &need);
            y->grad_rows[t] = larger(y->grad_rows[t], rows), y->sum_rows[p] += rows;
            y->kv_rows[t] = larger(y->kv_rows[t], (double)strobe__runs_rows(&held));
        }
        strobe__runs_free(&need);
    }
    strobe__runs_free(&held);
    return ok;
}

/* What one pair and one row cost in a shard's heads, in seconds. */
struct unit {
    double pair, call;
    double kv_row, grad_row; /* to travel */
    double latency;
    bool gpu;
    bool hides;              /* exchanges go beside computation */
    bool own_last;           /* the shard's own block is left for the time of the last exchange, */
    double early;            /* but for this share of it */
    double merge_q, merge_k; /* a part of out, or dQ, of a row; of dK and dV */
    double round;            /* dQ, dK and dV of all rows, where they are sums */
};

static struct unit unit_of(const struct shard *s) {
    const struct whole *w = s->w;
    const double entries = (double)w->entries, heads = (double)s->a.heads_q, dim = (double)s->a.dim,
                 dim_v = (double)s->a.dim_v;
    const double flops = w->backward ? 6 * dim + 4 * dim_v : 2 * dim + 2 * dim_v;
    const double elements = entries * (double)s->a.heads_kv * (dim + dim_v), size = (double)strobe__dist_bytes(s->a.k.dtype);
    const double row = entries * heads * (w->backward ? dim : dim_v);
    const double rows = (double)strobe__runs_rows(&s->q[0]), keys = (double)strobe__runs_rows(&s->k[0]);
    return (struct unit){.pair = entries * heads * flops / w->rates.flops,
                         .call = w->rates.call * (double)s->q[0].count,
                         .kv_row = elements * size / w->rates.bandwidth,
                         .grad_row = w->backward ? elements * sizeof(float) / w->rates.bandwidth : 0,
                         .latency = w->rates.latency,
                         .gpu = w->a.device == STROBE_CUDA,
                         .hides = w->a.device == STROBE_CPU || w->hides,
                         .own_last = w->hides && w->backward,
                         .early = (double)strobe__dist_early_heads(s->a.heads_kv, (int64_t)keys) /
                                  larger(1, (double)s->a.heads_kv),
                         .merge_q = row * MERGED / w->rates.memory,
                         .merge_k = w->backward ? elements * MERGED / w->rates.memory : 0,
                         .round = w->backward ? (row * rows + elements * keys) * (ROUNDED + size) / w->rates.memory : 0};
}

static struct cost cost_of_ring(const struct tally *y, int32_t n, struct unit u, bool backward) {
    struct cost c = {0};
    const bool is_early = y->own_calls == 1 && n > 1 && 100 * y->kv_rows[1] * u.kv_row > y->pairs[0] * u.pair;
    if (!is_early || !u.own_last) u.early = u.own_last ? 0 : 1;
    if (n > 1) c.compute = c.seconds = u.round;
    if (n > 1 && u.gpu) u.pair *= SMALLER_CALLS;
    for (int32_t t = 0; t <= (backward ? n : n - 1); ++t) { /* a backward's last gradients travel when all is computed */
        const double last = u.gpu && backward ? MERGED_LAST : 1;
        const double merges = t > 0 && t < n ? y->q_rows[t] * u.merge_q * (t == n - 1 ? last : 1) : 0;
        const double added = t > 1 ? y->grad_rows[t - 1] * u.merge_k * (t == n ? last : 1) : 0;
        const double pairs = t % n ? y->pairs[t] : y->pairs[0] * (t > 0 ? 1 - u.early : u.early);
        const double compute = (pairs > 0 ? pairs * u.pair + u.call : 0) + merges + added;
        const double travel = (t + 1 < n ? y->kv_rows[t + 1] * u.kv_row : 0) +
                              (t > 1 ? y->grad_rows[t - 1] * u.grad_row : 0);
        const double moves = travel > 0 ? travel + u.latency : 0, step = u.hides ? larger(compute, moves) : compute + moves;
        c.compute += compute, c.seconds += step;
    }
    return c;
}

static struct cost cost_of_gather(const struct tally *y, int32_t n, struct unit u, bool backward) {
    struct cost c = {0};
    double pairs = 0, rows = 0;
    for (int32_t p = 0; p < n; ++p) pairs = larger(pairs, y->sum_pairs[p]), rows = larger(rows, y->sum_rows[p]);
    const double added = rows * u.merge_k * (n == 2 && u.gpu ? MERGED_LAST : 1);
    c.compute = pairs * u.pair + u.call + added + (n > 1 ? u.round : 0);
    c.seconds = c.compute + (rows > 0 ? u.latency + rows * u.kv_row : 0) + (backward ? u.latency + rows * u.grad_row : 0);
    return c;
}

/* Both ways of an all-to-all over heads: rows of this rank's share, of which it keeps one part. */
static double cost_of_heads(const struct shard *s) {
    const struct whole *w = s->w;
    const double entries = (double)w->entries, parts = s->group, size = w->t.size;
    const double q = entries * (double)w->total_q / size * (double)w->a.heads_q, dim = (double)s->a.dim,
                 dim_v = (double)s->a.dim_v;
    const double k = entries * (double)w->total_k / size * (double)s->a.heads_kv * parts;
    const double in = (double)strobe__dist_bytes(w->a.q.dtype), out = (double)strobe__dist_bytes(w->a.out.dtype);
    double bytes = (q * dim + k * (dim + dim_v)) * in + q * (dim_v * out + sizeof(float));
    const double gradient = w->a.heads_kv % s->group == 0 ? in : sizeof(float);
    if (w->backward) bytes += q * (dim_v * out + dim * in + sizeof(float)) + k * (dim + dim_v) * gradient;
    const double passes = w->hides ? 8 : 2; /* read and written, before or behind; also to and from slots, and in parts */
    const double packed = passes * bytes / w->rates.memory;
    const double travel = bytes / w->rates.bandwidth / strobe__dist_parts(w, s->group); /* of which nothing hides */
    return s->group == 1 ? 0 : (travel + packed) * (parts - 1) / parts + 2 * w->rates.latency;
}

bool strobe__dist_cost(const struct whole *w, int32_t scheme, struct cost *cost) {
    const struct scheme way = strobe__dist_scheme(w, scheme);
    struct shard s;
    double *numbers = NULL;
    bool ok = strobe__shard_make(&s, w, way.group, 1, 0);
    if (ok) numbers = calloc((size_t)s.participants * 6, sizeof *numbers);
    ok = ok && numbers;
    if (ok) {
        const int32_t n = s.participants;
        struct tally y = {numbers, numbers + n, numbers + 2 * n, numbers + 3 * n, numbers + 4 * n, numbers + 5 * n, 0};
        for (int32_t source = 0; ok && source < n; ++source) ok = count_block(&s, source, &y);
        const struct unit u = unit_of(&s);
        *cost = way.gathers ? cost_of_gather(&y, n, u, w->backward) : cost_of_ring(&y, n, u, w->backward);
        cost->seconds += cost_of_heads(&s);
        cost->exposed = cost->seconds - cost->compute;
    }
    free(numbers);
    strobe__shard_free(&s);
    return ok;
}

strobe_status strobe__dist_choose(const struct whole *w, int32_t *scheme) {
    if (w->d.scheme != STROBE_DIST_AUTOMATIC) {
        const char *why = strobe__dist_rejects(w, w->d.scheme);
        *scheme = w->d.scheme;
        if (!why) return STROBE_OK;
        return strobe__dist_fail(STROBE_UNSUPPORTED, "scheme %s does not take %s", strobe__dist_scheme_names[*scheme], why);
    }
    double least = 0;
    *scheme = STROBE_DIST_AUTOMATIC;
    for (int32_t each = STROBE_DIST_RING; each <= STROBE_DIST_TWO_LEVELS; ++each) {
        struct cost cost;
        if (strobe__dist_rejects(w, each)) continue;
        if (!strobe__dist_cost(w, each, &cost)) return strobe__dist_no_memory();
        if (*scheme == STROBE_DIST_AUTOMATIC || cost.seconds < least) *scheme = each, least = cost.seconds;
    }
    if (*scheme != STROBE_DIST_AUTOMATIC) return STROBE_OK;
    const char *why = strobe__dist_rejects(w, STROBE_DIST_RING);
    return strobe__dist_fail(STROBE_UNSUPPORTED, "no scheme takes the problem; ring does not take %s", why);
}
