/* SPDX-License-Identifier: BSD-3-Clause
 *
 * order.c: an order of packed sequences in which a layout gives every rank about as many pairs that see each other. The
 * layout cuts wherever its parts end, so that the last rows of a part, and of a sequence, may be other sequences' as well.
 * Orders are improved by exchanging and moving sequences, from several that are drawn, until all have been tried in vain or
 * a number of them has been looked at; the numbers drawn are the same everywhere, and so is the order. */
#include <stdlib.h>
#include <string.h>

#include "dist.h"

/* Sequences visited, by which the search ends: some ten milliseconds. */
enum { MOST_VISITED = 2 << 20, MOST_STARTS = 1000 };
#define EVEN 1.001 /* the most pairs of a rank over the mean: no better is looked for */

struct search {
    const struct whole *w;
    int64_t count;          /* of sequences */
    int64_t parts;          /* of the layout, in the order of positions */
    const int64_t *ends;    /* [parts] positions behind each */
    const int32_t *owner;   /* [parts] */
    double *pairs;          /* [count] of a sequence */
    double *load;           /* [size] of a rank */
    int64_t *order, *tried; /* [count] the best so far; the one that is changed */
    int64_t *start;         /* [count] the longest first */
    double mean, best;
    int64_t visited;
    uint64_t drawn;
};

static int64_t rows_of(const struct whole *w, int64_t document) { return w->cu_q[document + 1] - w->cu_q[document]; }

/* The most pairs of a rank. */
static double most_of(struct search *s, const int64_t *order) {
    int64_t at = 0, part = 0;
    memset(s->load, 0, (size_t)s->w->t.size * sizeof *s->load);
    for (int64_t i = 0; i < s->count; ++i) {
        const int64_t document = order[i], rows = rows_of(s->w, document);
        double before = 0;
        for (; part + 1 < s->parts && s->ends[part] < at + rows; ++part) {
            const double pairs = s->ends[part] > at ? strobe__dist_pairs_before(s->w, document, s->ends[part] - at) : 0;
            s->load[s->owner[part]] += pairs - before, before = pairs;
        }
        s->load[s->owner[part]] += s->pairs[document] - before;
        at += rows;
    }
    s->visited += s->count + s->parts;
    double most = 0;
    for (int32_t rank = 0; rank < s->w->t.size; ++rank) most = s->load[rank] > most ? s->load[rank] : most;
    return most;
}

static int64_t draw(struct search *s, int64_t count) {
    s->drawn ^= s->drawn << 13, s->drawn ^= s->drawn >> 7, s->drawn ^= s->drawn << 17;
    return (int64_t)(s->drawn % (uint64_t)count);
}

static void exchange(int64_t *order, int64_t i, int64_t j) {
    const int64_t document = order[i];
    order[i] = order[j], order[j] = document;
}

/* The sequence at place i goes to place j; those between make room. */
static void move(int64_t *order, int64_t i, int64_t j) {
    const int64_t document = order[i];
    if (i < j)
        memmove(order + i, order + i + 1, (size_t)(j - i) * sizeof *order);
    else
        memmove(order + j + 1, order + j, (size_t)(i - j) * sizeof *order);
    order[j] = document;
}

/* Improves s->tried until as many changes in a row as there are have brought nothing. */
static double improve(struct search *s) {
    double most = most_of(s, s->tried);
    const int64_t changes = s->count * s->count;
    for (int64_t vain = 0; vain < 2 * changes && s->visited < MOST_VISITED && most > s->mean * EVEN; ++vain) {
        const int64_t i = draw(s, s->count), j = draw(s, s->count);
        const bool moves = draw(s, 2);
        if (i == j) continue;
        if (moves)
            move(s->tried, i, j);
        else
            exchange(s->tried, i, j);
        const double changed = most_of(s, s->tried);
        if (changed <= most) {
            vain = changed < most ? 0 : vain;
            most = changed;
        } else if (moves) {
            move(s->tried, j, i);
        } else {
            exchange(s->tried, i, j);
        }
    }
    return most;
}

/* The longest first, to one part after the other and back again, so that parts have about the same of everything. */
static void deal(struct search *s) {
    const int64_t round = 2 * s->parts;
    int64_t at = 0;
    for (int64_t part = 0; part < s->parts; ++part)
        for (int64_t n = 0; n < s->count; ++n)
            if (n % round == part || n % round == round - 1 - part) s->tried[at++] = s->start[n];
}

static void find_order(struct search *s) {
    const size_t bytes = (size_t)s->count * sizeof *s->order;
    for (int n = 0; n < MOST_STARTS && s->visited < MOST_VISITED && s->best > s->mean * EVEN; ++n) {
        if (n == 0)
            deal(s);
        else
            memcpy(s->tried, s->order, bytes);
        for (int64_t i = s->count - 1; i > 0 && n > 1; --i) exchange(s->tried, i, draw(s, i + 1));
        const double most = improve(s);
        if (most < s->best) memcpy(s->order, s->tried, bytes), s->best = most;
    }
}

struct sized {
    double pairs;
    int64_t document;
};

static int by_pairs(const void *a, const void *b) {
    const struct sized *x = a, *y = b;
    if (x->pairs != y->pairs) return x->pairs > y->pairs ? -1 : 1;
    return (x->document > y->document) - (x->document < y->document);
}

/* The sequences of most pairs first. */
static bool sort(struct search *s) {
    struct sized *all = malloc((size_t)(s->count + 1) * sizeof *all);
    if (!all) return false;
    for (int64_t n = 0; n < s->count; ++n) all[n] = (struct sized){s->pairs[n], n};
    qsort(all, (size_t)s->count, sizeof *all, by_pairs);
    for (int64_t n = 0; n < s->count; ++n) s->start[n] = all[n].document;
    free(all);
    return true;
}

/* The parts of the layout, by position. */
static void cut(const struct whole *w, int64_t parts, int64_t *ends, int32_t *owner) {
    int64_t end = 0;
    for (int64_t part = 0; part < parts; ++part) {
        end += w->total_q / parts + (part < w->total_q % parts);
        ends[part] = end, owner[part] = (int32_t)(part < w->t.size ? part : parts - 1 - part);
    }
}

static bool search(const struct whole *w, int64_t *order, double *balance) {
    const int64_t count = w->a.batch, parts = w->d.layout == STROBE_DIST_ZIGZAG ? 2 * (int64_t)w->t.size : w->t.size;
    struct search s = {.w = w, .count = count, .parts = parts, .order = order, .drawn = 88172645463325252u};
    int64_t *numbers = malloc((size_t)(2 * count + parts + 1) * sizeof *numbers);
    double *reals = calloc((size_t)(count + w->t.size), sizeof *reals);
    int32_t *owner = malloc((size_t)parts * sizeof *owner);
    bool ok = numbers && reals && owner;
    if (ok) {
        s.tried = numbers, s.start = numbers + count, s.ends = numbers + 2 * count, s.owner = owner;
        s.pairs = reals, s.load = reals + count;
        cut(w, parts, numbers + 2 * count, owner);
        for (int64_t n = 0; n < count; ++n) {
            order[n] = n, s.pairs[n] = strobe__dist_pairs_before(w, n, w->cu_q[n + 1] - w->cu_q[n]);
            s.mean += s.pairs[n] / w->t.size;
        }
        s.best = most_of(&s, order);
        const double given = s.best;
        ok = sort(&s);
        if (ok && s.mean > 0) find_order(&s);
        if (balance) balance[0] = s.mean > 0 ? given / s.mean : 1, balance[1] = s.mean > 0 ? s.best / s.mean : 1;
    }
    free(numbers), free(reals), free(owner);
    return ok;
}

static strobe_status check(const struct whole *w, const int64_t *order) {
    if (!order) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "order is NULL; room for batch numbers is accepted");
    if (w->a.batch < 0 || w->a.batch >= (int64_t)1 << 32)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "batch is %lld; 0 to 2^32 - 1 is accepted", (long long)w->a.batch);
    if (w->a.mask < STROBE_MASK_NONE || w->a.mask > STROBE_MASK_WINDOW_BOTTOM_RIGHT)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "mask is %d; 0 to 4 is accepted", w->a.mask);
    if (w->d.layout < STROBE_DIST_CONTIGUOUS || w->d.layout > STROBE_DIST_STRIPED)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "layout is %d; 0 to 2 is accepted", w->d.layout);
    if (w->d.layout == STROBE_DIST_STRIPED)
        return strobe__dist_fail(STROBE_UNSUPPORTED,
                                 "layout is striped; contiguous and zigzag have orders of packed sequences");
    if (!w->cu_q)
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "attention has no packed sequences; varlen with cu_seqlens_q and "
                                                          "cu_seqlens_k is accepted");
    return STROBE_OK;
}

strobe_status strobe_dist_order(const strobe_dist *dist, int64_t *order, double *balance) {
    struct whole w;
    strobe_status status = strobe__dist_read(&w, dist, NULL, false);
    if (!status) status = check(&w, order);
    if (!status && !search(&w, order, balance)) status = strobe__dist_no_memory();
    strobe__dist_release(&w);
    return status;
}
