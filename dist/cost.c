/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cost.c: the cost model. A step of a ring lasts as long as a rank computes or what comes to it travels, whichever is more,
 * and on GPUs without copy engines as long as both, since an attention kernel leaves no multiprocessors to those that
 * exchange (docs/kernels/processes.md), but never less than the host takes to put it on its streams; a rank begins a step
 * when it is done with the one before and has what it needs from others. Parts that merge, sums that are rounded and
 * messages that are packed take their bytes of memory; an all-to-all hides nothing, nor does an all-gather whose own block
 * is not apart. Pairs that see each other and rows that travel are counted from the same lists as the schedule's. All ranks
 * come to the same numbers, and so to the same choice. */
#include "cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

/* [participants][participants]: at step t what participant p has, number t * n + p. q_rows: of its calls. */
struct tally {
    int32_t n;
    double *pairs, *q_rows, *need_rows, *kv_rows; /* need_rows: keys it works on; kv_rows: and passes on */
    int64_t own_calls;                            /* on a participant's own block */
};

/* Bytes of memory an element: a part is read, the sum read and written; a sum is read and its rounding written. On a GPU the
 * last part of a gradient is read by what rounds. */
enum { MERGED = 3 * sizeof(float), ROUNDED = sizeof(float) };
#define MERGED_LAST (1.0 / 3)

/* What a pair takes on a GPU in calls on one block after the other, over what it takes in one call. */
#define SMALLER_CALLS 1.02

/* What a triangle of keys takes that has not a block for every multiprocessor, over its pairs: its longest block decides. */
#define UNFILLED 1.8

/* What all keys take in one call on a GPU: of its last turn of blocks multiprocessors have a part. */
#define BLOCKS_LOST 28.0

/* What the host puts on streams, counted in launches: a kernel, an event or values are one, and a copy to another GPU is
 * two. Before the first of a call, which is reading, planning and, from Python, what comes before; for a call of attention;
 * for an exchange beside it, and for each rank to which it goes; for one that nothing goes beside; for copies of heads. */
enum {
    BEGINNING = 15,
    ATTENTION = 3,
    ATTENTION_BACKWARD = 5,
    BESIDE = 8,
    BESIDE_A_PEER = 12,
    ALONE = 2,
    BY_NCCL = 8,
    PACKING = 2
};
#define PASSES 5.0

/* What a step of a ring on GPUs takes more when the one before had an exchange, too: its ranks are not in step any more. */
#define OUT_OF_STEP 70e-6

static double larger(double a, double b) { return a > b ? a : b; }

/* Counts block `source`, from the participant that works on it last to the first: what it holds grows on the way back. */
static bool count_block(const struct shard *s, int32_t source, struct tally *y) {
    const int32_t n = s->participants;
    struct runs held = {0};
    bool ok = true;
    for (int32_t t = n - 1; ok && t >= 0; --t) {
        const int32_t p = (source + t) % n;
        const size_t at = (size_t)t * (size_t)n + (size_t)p;
        struct runs need;
        ok = strobe__schedule_need(s, p, source, &need, &y->pairs[at]);
        y->need_rows[at] = (double)strobe__runs_rows(&need);
        struct calls calls = {0};
        ok = ok && strobe__dist_calls(s->w, &s->q[p], &need, &calls);
        if (t == 0 && calls.count > y->own_calls) y->own_calls = calls.count;
        for (int64_t c = 0; c < calls.count; ++c) y->q_rows[at] += (double)calls.at[c].rows;
        strobe__calls_free(&calls);
        if (t > 0) {
            ok = ok && strobe__runs_unite(&held, &need);
            y->kv_rows[at] = (double)strobe__runs_rows(&held);
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
    double landed;              /* a row of keys and its gradient, out of slots, which nothing hides */
    double keys, lost;          /* of the shard; keys of which one call loses as much */
    double own_longer;          /* calls on the shard's own block alone: how many times as long as others they take */
    bool backward, gpu, rounds; /* rounds: a call that has all keys of its rows writes dQ, and no sum of it */
    bool hides;                 /* exchanges go beside computation */
    bool own_last;              /* the shard's own block is left for the time of the last exchange, */
    double early;               /* but for this share of it */
    double merge_q, merge_k;    /* a part of out, or dQ, of a row; of dK and dV */
    double round, round_q;      /* dK and dV of all keys, where they are sums; dQ of all rows */
    double launch;              /* of the host; 0 on a CPU */
    int launches;               /* of a call of attention and what is done with its results */
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
                         .landed = 2 * elements * (size + (w->backward ? sizeof(float) : 0)) / w->rates.memory,
                         .keys = larger(1, keys),
                         .lost = w->a.device == STROBE_CUDA ? BLOCKS_LOST * 128 / larger(1, (double)s->a.heads_kv) : 0,
                         .own_longer = strobe__dist_is_filled(s->a.heads_kv, (int64_t)keys) ? 1 : UNFILLED,
                         .backward = w->backward,
                         .gpu = w->a.device == STROBE_CUDA,
                         .rounds = w->a.device == STROBE_CUDA && size < sizeof(float),
                         .hides = w->a.device == STROBE_CPU || w->hides,
                         .own_last = w->hides && w->backward,
                         .early = (double)strobe__dist_early_heads(s->a.heads_kv, (int64_t)keys) /
                                  larger(1, (double)s->a.heads_kv),
                         .merge_q = row * MERGED / w->rates.memory,
                         .merge_k = w->backward ? elements * MERGED / w->rates.memory : 0,
                         .round = w->backward ? elements * keys * (ROUNDED + size) / w->rates.memory : 0,
                         .round_q = w->backward ? row * rows * (ROUNDED + size) / w->rates.memory : 0,
                         .launch = w->a.device == STROBE_CUDA ? w->rates.launch : 0,
                         .launches = w->backward ? ATTENTION_BACKWARD : ATTENTION};
}

/* An exchange of a ring with so many others: K and V go on, and gradients go home. */
static int launches_of_exchange(const struct unit *u, int peers) {
    return peers == 0 ? 0 : u->hides ? BESIDE + BESIDE_A_PEER * peers : BY_NCCL;
}

/* A ring under way. [n]: when a participant begins the step, and is done with it. */
struct ring {
    const struct tally *y;
    const struct unit *u;
    double *begin, *end, *compute;
    double host;
};

/* Step t of participant p, from the moment when it and those that send to it have begun it. */
static void take_step(struct ring *r, int32_t t, int32_t p) {
    const struct tally *y = r->y;
    const struct unit *u = r->u;
    const int32_t n = y->n;
    const size_t at = (size_t)t * (size_t)n + (size_t)p, own = (size_t)p;
    const size_t before = t > 1 ? at - (size_t)n : 0, next = t + 1 < n ? at + (size_t)n : 0;
    const double last = u->gpu && u->backward ? MERGED_LAST : 1;
    const double merges = t > 0 && t < n ? y->q_rows[at] * u->merge_q * (t == n - 1 ? last : 1) : 0;
    /* gradients of the participant's own keys, from the one that worked on them a step before */
    const int32_t from = (p + t - 1) % n;
    const double came = t > 1 ? y->need_rows[(size_t)(t - 1) * (size_t)n + (size_t)from] : 0;
    const double added = came * u->merge_k * (t == n ? last : 1);
    const double pairs = t % n ? y->pairs[at] : y->pairs[own] * (t > 0 ? 1 - u->early : u->early);
    const double waits = u->gpu && t > 1 && t < n ? OUT_OF_STEP : 0;
    const double compute = (pairs > 0 ? pairs * u->pair + u->call + waits : 0) + merges + added;
    const double rows = t + 1 < n ? y->kv_rows[next] : 0;
    const double sent = t > 1 && u->backward ? larger(came, y->need_rows[before]) : 0;
    const double travel = rows * u->kv_row + sent * u->grad_row, moves = travel > 0 ? travel + u->latency : 0;
    double starts = r->begin[p];
    if (rows > 0) starts = larger(starts, r->begin[(p + n - 1) % n]);
    if (came > 0 && u->backward) starts = larger(starts, r->begin[from]);
    r->compute[p] += compute;
    r->end[p] = u->hides ? larger(r->begin[p] + compute, moves > 0 ? starts + moves : 0) : starts + moves + compute;
    r->end[p] = larger(r->end[p], r->host);
}

/* The share of a participant's own block that is computed on before the first keys have come, where so many rows of them
 * travel beside so many pairs. */
static double early_share(const struct tally *y, const struct unit *u, double rows, double pairs) {
    if (!u->own_last) return 1;
    return y->own_calls == 1 && y->n > 1 && 100 * rows * u->kv_row > pairs * u->pair ? u->early : 0;
}

static bool cost_of_ring(const struct tally *y, struct unit u, struct cost *c) {
    const int32_t n = y->n;
    double *numbers = calloc((size_t)n * 3, sizeof *numbers), fewest = 0;
    struct ring r = {.y = y, .u = &u, .begin = numbers, .end = numbers + n, .compute = numbers + 2 * n};
    if (!numbers) return false;
    for (int32_t p = 0; p < n; ++p) fewest = larger(fewest, y->pairs[p]);
    double first = 0; /* keys that travel first */
    for (int32_t p = 0; p < n && n > 1; ++p) first = larger(first, y->kv_rows[n + p]);
    u.early = early_share(y, &u, first, fewest);
    if (n > 1 && u.gpu) u.pair *= SMALLER_CALLS;
    r.host = BEGINNING * u.launch;
    for (int32_t p = 0; p < n; ++p) r.begin[p] = r.host;
    for (int32_t t = 0; t <= (u.backward ? n : n - 1); ++t) { /* a backward's last gradients travel when all is computed */
        const bool calls = t % n ? true : t > 0 ? u.early < 1 : u.early > 0;
        r.host += u.launch * (u.launches * calls + launches_of_exchange(&u, (t + 1 < n) + (u.backward && t > 1)));
        for (int32_t p = 0; p < n; ++p) take_step(&r, t, p);
        double *const begun = r.begin;
        r.begin = r.end, r.end = begun;
    }
    for (int32_t p = 0; p < n; ++p)
        c->compute = larger(c->compute, r.compute[p]), c->seconds = larger(c->seconds, r.begin[p]);
    if (n > 1) c->compute += u.round + u.round_q, c->seconds += u.round + u.round_q;
    c->host = r.host;
    free(numbers);
    return true;
}

/* Two exchanges, before and behind, of which nothing hides the launches. */
static struct cost cost_of_gather(const struct tally *y, struct unit u) {
    struct cost c = {0};
    const int32_t n = y->n;
    const int exchange = u.hides ? ALONE : BY_NCCL;
    double most = 0;
    for (int32_t p = 0; p < n; ++p) {
        double pairs = 0, rows = 0;
        for (int32_t t = 0; t < n; ++t) pairs += y->pairs[t * n + p], rows += t > 0 ? y->need_rows[t * n + p] : 0;
        const double added = rows * u.merge_k * (n == 2 && u.gpu ? MERGED_LAST : 1);
        const double compute = pairs * u.pair * (1 + u.lost / (rows + u.keys)) + u.call + added +
                               (n > 1 ? u.round + (u.rounds ? 0 : u.round_q) : 0);
        const double travels = (rows > 0 ? u.latency + rows * u.kv_row : 0) +
                               (u.backward ? u.latency + rows * u.grad_row : 0);
        c.compute = larger(c.compute, compute), most = larger(most, compute + travels);
    }
    c.host = u.launch * (BEGINNING + u.launches + exchange * (u.backward ? 2 : 1));
    c.seconds = larger(most + u.launch * (BEGINNING + exchange), c.host);
    return c;
}

/* The same where the participants' own blocks are apart: K and V travel beside them, in a backward beside some of their
 * heads, and gradients beside the others. */
static struct cost cost_of_gather_apart(const struct tally *y, struct unit u) {
    struct cost c = {.apart = true};
    const int32_t n = y->n;
    double most = 0, came = 0, fewest = 0;
    for (int32_t p = 0; p < n; ++p) {
        double rows = 0;
        for (int32_t t = 1; t < n; ++t) rows += y->need_rows[t * n + p];
        came = larger(came, rows), fewest = larger(fewest, y->pairs[p]);
    }
    u.early = early_share(y, &u, came, fewest);
    u.pair *= SMALLER_CALLS;
    for (int32_t p = 0; p < n; ++p) {
        const double own = y->pairs[p] * u.pair * u.own_longer;
        double pairs = 0, rows = 0, q_rows = 0;
        for (int32_t t = 1; t < n; ++t) {
            pairs += y->pairs[t * n + p], rows += y->need_rows[t * n + p];
            q_rows = larger(q_rows, y->q_rows[t * n + p]);
        }
        const double early = u.early > 0 ? u.early * own + u.call : 0, late = u.early < 1 ? (1 - u.early) * own + u.call : 0;
        const double merges = q_rows * u.merge_q * (u.backward ? MERGED_LAST : 1);
        const double others = pairs > 0 ? pairs * u.pair + u.call + merges : 0;
        const double added = u.backward ? rows * u.merge_k * (n == 2 ? MERGED_LAST : 1) + u.round + u.round_q : 0;
        const double keys = rows > 0 ? u.latency + rows * u.kv_row : 0, landed = rows * u.landed;
        const double gradients = u.backward ? u.latency + rows * u.grad_row : 0;
        c.compute = larger(c.compute, early + others + late + added);
        most = larger(most, larger(early, keys) + landed + others + larger(late, gradients) + added);
    }
    const int calls = 2 + (u.early > 0 && u.early < 1), exchanges = u.backward ? 2 : 1;
    c.host = u.launch * (BEGINNING + u.launches * calls + exchanges * launches_of_exchange(&u, n - 1));
    c.seconds = larger(most + u.launch * BEGINNING, c.host);
    return c;
}

/* Both ways of an all-to-all over heads: rows of this rank's share, of which it keeps one part. */
static double cost_of_heads(const struct shard *s, const struct unit *u, double *launches) {
    const struct whole *w = s->w;
    const double entries = (double)w->entries, parts = s->group, size = w->t.size;
    const double q = entries * (double)w->total_q / size * (double)w->a.heads_q, dim = (double)s->a.dim,
                 dim_v = (double)s->a.dim_v;
    const double k = entries * (double)w->total_k / size * (double)s->a.heads_kv * parts;
    const double in = (double)strobe__dist_bytes(w->a.q.dtype), out = (double)strobe__dist_bytes(w->a.out.dtype);
    double bytes = (q * dim + k * (dim + dim_v)) * in + q * (dim_v * out + sizeof(float));
    const double gradient = w->a.heads_kv % s->group == 0 ? in : sizeof(float);
    const bool leaves_out = w->backward && w->a.device == STROBE_CUDA; /* see heads.h */
    if (w->backward)
        bytes += q * (dim_v * out * (leaves_out ? 0 : 1) + dim * in + sizeof(float)) + k * (dim + dim_v) * gradient;
    const double passes = w->hides ? PASSES
                                   : 2; /* read and written, before or behind; also to and from slots, and in parts */
    const double packed = passes * bytes / w->rates.memory;
    const double travel = bytes / w->rates.bandwidth / strobe__dist_parts(w, s->group); /* of which nothing hides */
    if (s->group == 1) return 0;
    *launches = (u->hides ? ALONE : BY_NCCL) + 2 * PACKING;
    return (travel + packed) * (parts - 1) / parts + 2 * w->rates.latency;
}

bool strobe__dist_cost(const struct whole *w, int32_t scheme, struct cost *cost) {
    const struct scheme way = strobe__dist_scheme(w, scheme);
    struct shard s;
    double *numbers = NULL;
    bool ok = strobe__shard_make(&s, w, way.group, 1, 0);
    const size_t all = ok ? (size_t)s.participants * (size_t)s.participants : 0;
    if (ok) numbers = calloc(all * 4, sizeof *numbers);
    ok = ok && numbers;
    *cost = (struct cost){0};
    if (ok) {
        struct tally y = {s.participants, numbers, numbers + all, numbers + 2 * all, numbers + 3 * all, 0};
        for (int32_t source = 0; ok && source < y.n; ++source) ok = count_block(&s, source, &y);
        const struct unit u = unit_of(&s);
        double launches = 0;
        const double heads = cost_of_heads(&s, &u, &launches);
        if (way.gathers)
            *cost = cost_of_gather(&y, u);
        else
            ok = ok && cost_of_ring(&y, u, cost);
        if (way.gathers && w->hides && y.n > 1) { /* in one call or in two */
            const struct cost apart = cost_of_gather_apart(&y, u);
            if (apart.seconds < cost->seconds) *cost = apart;
        }
        cost->seconds += heads + u.launch * launches, cost->host += 2 * u.launch * launches;
        cost->seconds = larger(cost->seconds, cost->host);
        cost->exposed = cost->seconds - cost->compute;
    }
    free(numbers);
    strobe__shard_free(&s);
    return ok;
}

/* All by which the schemes of sequences that are not packed differ. Bytes between fields are zero. */
struct question {
    strobe_dist_rates rates;
    int64_t entries, total_q, total_k, left, right, heads_q, heads_kv, dim, dim_v;
    int32_t layout, group, size, device, dtype_q, dtype_k, dtype_out;
    bool backward, hides, bottom_right, alibi, dropout, bias, bool_mask, sums_rows;
};

static void make_question(const struct whole *w, struct question *q) {
    memset(q, 0, sizeof *q);
    q->rates = w->rates, q->rates.struct_size = 0;
    q->entries = w->entries, q->total_q = w->total_q, q->total_k = w->total_k, q->left = w->left, q->right = w->right;
    q->heads_q = w->a.heads_q, q->heads_kv = w->a.heads_kv, q->dim = w->a.dim, q->dim_v = w->a.dim_v;
    q->layout = w->d.layout, q->group = w->d.group, q->size = w->t.size, q->device = w->a.device;
    q->dtype_q = w->a.q.dtype, q->dtype_k = w->a.k.dtype, q->dtype_out = w->a.out.dtype;
    q->backward = w->backward, q->hides = w->hides, q->bottom_right = w->bottom_right;
    q->alibi = w->a.alibi != NULL, q->dropout = w->a.dropout && w->dropout.p > 0, q->bias = w->a.bias != NULL;
    q->bool_mask = w->a.bool_mask != NULL, q->sums_rows = w->g.dbias && w->bias.stride[2] == 0 && w->d.rows_q > 1;
}

/* What this thread has been asked last: of a layer's calls, forward and backward, and the queries of their workspace, all
 * but the first are answered at once. */
enum { REMEMBERED = 4 };
static _Thread_local struct {
    struct question asked[REMEMBERED];
    int32_t scheme[REMEMBERED]; /* STROBE_DIST_AUTOMATIC: none yet */
    unsigned next;
} memory;

static bool is_remembered(const struct question *q, int32_t *scheme) {
    for (int n = 0; n < REMEMBERED; ++n) {
        if (memory.scheme[n] == STROBE_DIST_AUTOMATIC || memcmp(q, &memory.asked[n], sizeof *q) != 0) continue;
        *scheme = memory.scheme[n];
        return true;
    }
    return false;
}

static void remember(const struct question *q, int32_t scheme) {
    memcpy(&memory.asked[memory.next], q, sizeof *q);
    memory.scheme[memory.next] = scheme;
    memory.next = (memory.next + 1) % REMEMBERED;
}

strobe_status strobe__dist_choose(const struct whole *w, int32_t *scheme) {
    if (w->d.scheme != STROBE_DIST_AUTOMATIC) {
        const char *why = strobe__dist_rejects(w, w->d.scheme);
        *scheme = w->d.scheme;
        if (!why) return STROBE_OK;
        return strobe__dist_fail(STROBE_UNSUPPORTED, "scheme %s does not take %s", strobe__dist_scheme_names[*scheme], why);
    }
    struct question question;
    make_question(w, &question);
    if (!w->cu_q && is_remembered(&question, scheme)) return STROBE_OK;
    double least = 0;
    *scheme = STROBE_DIST_AUTOMATIC;
    for (int32_t each = STROBE_DIST_RING; each <= STROBE_DIST_TWO_LEVELS; ++each) {
        struct cost cost;
        if (strobe__dist_rejects(w, each)) continue;
        if (!strobe__dist_cost(w, each, &cost)) return strobe__dist_no_memory();
        if (*scheme == STROBE_DIST_AUTOMATIC || cost.seconds < least) *scheme = each, least = cost.seconds;
    }
    if (*scheme != STROBE_DIST_AUTOMATIC && !w->cu_q) remember(&question, *scheme);
    if (*scheme != STROBE_DIST_AUTOMATIC) return STROBE_OK;
    const char *why = strobe__dist_rejects(w, STROBE_DIST_RING);
    return strobe__dist_fail(STROBE_UNSUPPORTED, "no scheme takes the problem; ring does not take %s", why);
}
