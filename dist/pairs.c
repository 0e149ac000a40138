/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pairs.c: which calls some rows have to make over some keys. Rows and keys come as runs of positions; each pair of a run of
 * rows and one of keys is a call, or one a packed sequence that both have a part of, and one for all sequences between that
 * lie in both as a whole. Rows that see no key of the call, and keys that no row sees, are left out. Calls over neighbours
 * in memory are then joined where one band still says who sees whom. */
#include <stdlib.h>

#include "dist.h"

void strobe__calls_free(struct calls *calls) {
    for (int64_t c = 0; c < calls->count; ++c) free(calls->at[c].cu_q), free(calls->at[c].segments);
    free(calls->at);
    *calls = (struct calls){0};
}

bool strobe__calls_add(struct calls *calls, struct call call) {
    if (calls->count == calls->capacity) {
        const int64_t capacity = calls->capacity ? 2 * calls->capacity : 4;
        struct call *at = realloc(calls->at, (size_t)capacity * sizeof *at);
        if (!at) return false;
        calls->at = at, calls->capacity = capacity;
    }
    calls->at[calls->count++] = call;
    return true;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

/* The pairs (i, j) with j - i <= limit, of rows x keys. */
static double pairs_up_to(int64_t limit, int64_t rows, int64_t keys) {
    const int64_t first_some = larger(0, -limit);                                  /* the first row that has any */
    const int64_t first_all = smaller(rows, larger(first_some, keys - 1 - limit)); /* the first that has all */
    if (first_some >= rows) return 0;
    const double some = (double)(first_all - first_some);
    const double sum = some * (double)(first_some + limit + 1) + some * (some - 1) / 2;
    return sum + (double)(rows - first_all) * (double)keys;
}

static double pairs_of(const struct call *c) {
    const double up_to = c->highest >= FAR ? (double)c->rows * (double)c->keys : pairs_up_to(c->highest, c->rows, c->keys);
    return up_to - (c->lowest <= -FAR ? 0 : pairs_up_to(c->lowest - 1, c->rows, c->keys));
}

/* The lengths of a sequence, of one that is not packed too. */
struct lengths {
    int64_t begin_q, begin_k, rows, keys;
};
static struct lengths lengths_of(const struct whole *w, int64_t document) {
    if (!w->cu_q) return (struct lengths){0, 0, w->total_q, w->total_k};
    const int64_t *q = w->cu_q + document, *k = w->cu_k + document;
    return (struct lengths){q[0], k[0], q[1] - q[0], k[1] - k[0]};
}

/* Fills in who sees whom: the caller's band, in steps of the layout. */
static void set_band(const struct whole *w, struct call *c, int64_t step, const struct lengths *l) {
    const int64_t diagonal = w->bottom_right ? l->keys - l->rows : 0;
    const int64_t ahead = c->k_first - c->q_first + w->a.k_start - w->a.q_start - diagonal; /* of key 0, before row 0's */
    c->lowest = w->left >= FAR ? -FAR : -floor_divide(w->left + ahead, step);
    c->highest = w->right >= FAR ? FAR : floor_divide(w->right - ahead, step);
}

double strobe__dist_pairs_before(const struct whole *w, int64_t document, int64_t rows) {
    const struct lengths l = lengths_of(w, document);
    struct call c = {.rows = rows, .keys = l.keys};
    set_band(w, &c, 1, &l);
    return c.lowest > c.highest ? 0 : pairs_of(&c);
}

/* Leaves out rows and keys at the ends; false if none are left. */
static bool clip(struct call *c, int64_t step) {
    const int64_t first = larger(0, c->highest >= FAR ? 0 : -c->highest);
    const int64_t last = smaller(c->rows - 1, c->lowest <= -FAR ? c->rows : c->keys - 1 - c->lowest);
    if (c->keys <= 0 || first > last || c->lowest > c->highest) return false;
    const int64_t first_key = larger(0, c->lowest <= -FAR ? 0 : first + c->lowest);
    const int64_t last_key = smaller(c->keys - 1, c->highest >= FAR ? c->keys : last + c->highest);
    if (first_key > last_key) return false;
    c->q_row += first, c->q_first += first * step, c->rows = last - first + 1;
    c->k_row += first_key, c->grad_row += first_key, c->k_first += first_key * step, c->keys = last_key - first_key + 1;
    if (c->lowest > -FAR) c->lowest += first - first_key;
    if (c->highest < FAR) c->highest += first - first_key;
    return true;
}

bool strobe__call_take_rows(const struct call *c, const struct segment *rows, struct calls *calls) {
    struct call part = *c;
    const int64_t first = rows->row - c->q_row;
    part.segments = NULL, part.segment_count = 0, part.whole = false;
    part.q_row += first, part.q_first += first, part.rows = rows->rows;
    if (part.lowest > -FAR) part.lowest += first;
    if (part.highest < FAR) part.highest += first;
    if (!clip(&part, 1)) return true; /* they see nothing */
    part.pairs = pairs_of(&part);
    return strobe__calls_add(calls, part);
}

/* Part of a sequence, or all of one: the rows and keys that both runs have of it. */
static bool add_part(const struct whole *w, int64_t document, const struct run *q, const struct run *k,
                     struct calls *calls) {
    const struct lengths l = lengths_of(w, document);
    const int64_t step = q->step > k->step ? q->step : k->step; /* runs of one position have no step of their own */
    const int64_t q0 = larger(q->first, l.begin_q),
                  q1 = smaller(q->first + (q->count - 1) * q->step, l.begin_q + l.rows - 1);
    const int64_t k0 = larger(k->first, l.begin_k),
                  k1 = smaller(k->first + (k->count - 1) * k->step, l.begin_k + l.keys - 1);
    if (q0 > q1 || k0 > k1) return true;
    struct call c = {.rows = (q1 - q0) / q->step + 1, .keys = (k1 - k0) / k->step + 1, .document = document, .documents = 1};
    c.q_row = q->row + (q0 - q->first) / q->step, c.k_row = k->row + (k0 - k->first) / k->step;
    c.grad_row = k->grad + (k0 - k->first) / k->step, c.q_first = q0 - l.begin_q, c.k_first = k0 - l.begin_k;
    c.whole = !w->cu_q && c.rows == l.rows && c.keys == l.keys;
    set_band(w, &c, step, &l);
    if (!c.whole && !clip(&c, step)) return true;
    c.pairs = pairs_of(&c);
    return strobe__calls_add(calls, c);
}

static bool lies_in(int64_t begin, int64_t length, const struct run *run) {
    return begin >= run->first && begin + length <= run->first + run->count;
}

/* Sequences [first, end), which lie in both runs as a whole. */
static bool add_documents(const struct whole *w, int64_t first, int64_t end, const struct run *q, const struct run *k,
                          struct calls *calls) {
    const int64_t n = end - first, begin_q = w->cu_q[first], begin_k = w->cu_k[first];
    struct call c = {.document = first, .documents = n, .whole = true, .cu_q = malloc((size_t)(2 * n + 2) * sizeof *c.cu_q)};
    if (!c.cu_q) return false;
    c.cu_k = c.cu_q + n + 1;
    for (int64_t d = 0; d <= n; ++d) c.cu_q[d] = w->cu_q[first + d] - begin_q, c.cu_k[d] = w->cu_k[first + d] - begin_k;
    c.q_row = q->row + begin_q - q->first, c.rows = c.cu_q[n];
    c.k_row = k->row + begin_k - k->first, c.grad_row = k->grad + begin_k - k->first, c.keys = c.cu_k[n];
    for (int64_t d = first; d < end; ++d) {
        const struct lengths l = lengths_of(w, d);
        struct call one = {.rows = l.rows, .keys = l.keys};
        set_band(w, &one, 1, &l);
        c.pairs += pairs_of(&one);
    }
    if (strobe__calls_add(calls, c)) return true;
    free(c.cu_q);
    return false;
}

/* The first sequence that ends behind a position. */
static int64_t document_at(const int64_t *cu, int64_t documents, int64_t position) {
    int64_t low = 0, high = documents;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (cu[middle + 1] > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool add_packed(const struct whole *w, const struct run *q, const struct run *k, struct calls *calls) {
    const int64_t documents = w->a.batch, end_q = q->first + q->count, end_k = k->first + k->count;
    int64_t d = larger(document_at(w->cu_q, documents, q->first), document_at(w->cu_k, documents, k->first));
    while (d < documents && w->cu_q[d] < end_q && w->cu_k[d] < end_k) {
        int64_t end = d;
        for (; end < documents; ++end) {
            const struct lengths l = lengths_of(w, end);
            if (l.rows == 0 || l.keys == 0 || !lies_in(l.begin_q, l.rows, q) || !lies_in(l.begin_k, l.keys, k)) break;
        }
        if (end > d && !add_documents(w, d, end, q, k, calls)) return false;
        if (end == d && !add_part(w, d, q, k, calls)) return false;
        d = end > d ? end : d + 1;
    }
    return true;
}

bool strobe__dist_pairs(const struct whole *w, const struct runs *q, const struct runs *k, struct calls *calls) {
    for (int64_t i = 0; i < q->count; ++i)
        for (int64_t j = 0; j < k->count; ++j)
            if (w->cu_q ? !add_packed(w, &q->at[i], &k->at[j], calls) : !add_part(w, 0, &q->at[i], &k->at[j], calls))
                return false;
    return true;
}

/* Joins calls of the same rows, keys of the second behind those of the first: rows see the first's up to its end, and the
 * second's from its beginning. */
static bool join_keys(struct call *a, const struct call *b) {
    if (a->q_row != b->q_row || a->rows != b->rows) return false;
    if (a->k_row + a->keys != b->k_row || a->grad_row + a->keys != b->grad_row) return false;
    if (a->highest < a->keys - 1 || b->highest < -1 || b->lowest > 1 - b->rows) return false;
    a->highest = b->highest >= FAR ? FAR : a->keys + b->highest;
    a->keys += b->keys, a->pairs += b->pairs;
    return true;
}

/* Joins calls of the same keys, rows of the second behind those of the first: the first's see from the first key on, the
 * second's to the last. */
static bool join_rows(struct call *a, const struct call *b) {
    if (a->k_row != b->k_row || a->grad_row != b->grad_row || a->keys != b->keys || a->q_row + a->rows != b->q_row)
        return false;
    if (a->lowest > 1 - a->rows || b->lowest > 1 || b->highest < b->keys - 1) return false;
    if (a->highest < FAR && a->highest + a->rows < a->keys - 1) return false;
    a->lowest = b->lowest <= -FAR ? -FAR : b->lowest - a->rows;
    a->rows += b->rows, a->pairs += b->pairs;
    return true;
}

/* Joins calls of which the second has the first's keys and others behind them, and rows behind the first's: one diagonal
 * goes through both, as through the two parts of a zigzag shard. */
static bool join_steps(struct call *a, const struct call *b) {
    if (a->q_row + a->rows != b->q_row || a->k_row != b->k_row || a->grad_row != b->grad_row || a->keys > b->keys)
        return false;
    if (a->highest >= FAR || b->highest != a->highest + a->rows || a->rows + a->highest > a->keys) return false;
    if (a->lowest > 1 - a->rows || b->lowest > 1 - b->rows) return false;
    a->lowest = -FAR;
    a->rows += b->rows, a->keys = b->keys, a->pairs += b->pairs;
    return true;
}

static void join(struct calls *calls, bool (*join_two)(struct call *, const struct call *)) {
    int64_t count = 0;
    for (int64_t c = 0; c < calls->count; ++c) {
        const struct call *call = &calls->at[c];
        struct call *last = count ? &calls->at[count - 1] : NULL;
        const bool parts = last && !last->whole && !call->whole && last->document == call->document;
        if (!parts || !join_two(last, call)) calls->at[count++] = *call;
    }
    calls->count = count;
}

/* Calls of many keys come first: what they write of dK and dV is then fresh, and shorter ones add to it. */
static void put_long_ones_first(struct calls *calls) {
    for (int64_t c = 1; c < calls->count; ++c) {
        const struct call call = calls->at[c];
        int64_t to = c;
        for (; to > 0 && calls->at[to - 1].keys < call.keys; --to) calls->at[to] = calls->at[to - 1];
        calls->at[to] = call;
    }
}

bool strobe__dist_calls(const struct whole *w, const struct runs *q, const struct runs *k, struct calls *calls) {
    if (!strobe__dist_pairs(w, q, k, calls)) return false;
    if (w->a.alibi || w->a.dropout || w->a.bias || w->a.bool_mask) return true; /* these go by positions, which have gaps */
    join(calls, join_keys);
    join(calls, join_rows);
    if (w->backward)
        join(calls, join_steps); /* a forward's first rows, which see no other rank's keys, are written at once */
    put_long_ones_first(calls);
    return true;
}
