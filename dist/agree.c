/* SPDX-License-Identifier: BSD-3-Clause
 *
 * agree.c: before data move, each rank tells each other what it was called with and whether that is sound. So all ranks
 * return the same sentence, and none waits for one that has refused. Records go around in rounds of a few ranks at a time,
 * so that no memory has to be had for them. */
#include "agree.h"

#include <stdio.h>
#include <string.h>

enum { AT_A_TIME = 8 };

struct record {
    int32_t status, fields;
    int64_t field[MOST_NAMED];
    char sentence[512];
};

/* Finds the lowest rank that has refused, else the first field and lowest rank that differ from rank 0: the same on every
 * rank. */
struct verdict {
    struct record first; /* rank 0's */
    int32_t refused, differs, field;
    strobe_status status;
    int64_t value;
    char sentence[512];
};

static void judge(struct verdict *v, const struct record *r, int32_t rank) {
    if (r->status && (v->refused < 0 || rank < v->refused)) {
        v->refused = rank, v->status = (strobe_status)r->status;
        memcpy(v->sentence, r->sentence, sizeof v->sentence);
    }
    if (r->status || v->first.status) return;
    for (int32_t f = 0; f < r->fields; ++f) {
        if (r->field[f] == v->first.field[f]) continue;
        if (v->differs < 0 || f < v->field || (f == v->field && rank < v->differs))
            v->differs = rank, v->field = f, v->value = r->field[f];
        return;
    }
}

/* Rank 0's record goes to all others before theirs, since they are compared with it. */
static strobe_status hear_first(struct exchange *x, const struct record *own, struct verdict *v) {
    const int32_t size = x->t->size, rank = x->t->rank;
    for (int32_t peer = 1; peer < size && rank == 0; peer += AT_A_TIME) {
        for (int32_t p = peer; p < size && p < peer + AT_A_TIME; ++p) strobe__exchange_send(x, p, own, sizeof *own);
        TRY(strobe__exchange_start(x, true));
        TRY(strobe__exchange_wait(x));
    }
    if (rank > 0) strobe__exchange_receive(x, 0, &v->first, sizeof v->first);
    TRY(strobe__exchange_start(x, true));
    return strobe__exchange_wait(x);
}

static strobe_status hear(struct exchange *x, const struct record *own, struct verdict *v) {
    const int32_t size = x->t->size, rank = x->t->rank;
    struct record heard[AT_A_TIME];
    TRY(hear_first(x, own, v));
    judge(v, &v->first, 0);
    judge(v, own, rank);
    for (int32_t distance = 1; distance < size; distance += AT_A_TIME) {
        const int32_t end = distance + AT_A_TIME < size ? distance + AT_A_TIME : size;
        for (int32_t d = distance; d < end; ++d) {
            const int32_t to = (rank + d) % size, from = (rank - d + size) % size;
            if (rank > 0) strobe__exchange_send(x, to, own, sizeof *own);
            if (from > 0) strobe__exchange_receive(x, from, &heard[d - distance], sizeof *heard);
        }
        TRY(strobe__exchange_start(x, true));
        TRY(strobe__exchange_wait(x));
        for (int32_t d = distance; d < end; ++d)
            if ((rank - d + size) % size > 0) judge(v, &heard[d - distance], (rank - d + size) % size);
    }
    return STROBE_OK;
}

strobe_status strobe__dist_agree(const strobe_transport *t, void *stream, const struct named *named, int count,
                                 strobe_status status) {
    strobe_message sends[AT_A_TIME], receives[AT_A_TIME];
    struct exchange x = {.t = t, .stream = stream, .sends = sends, .receives = receives};
    struct record own = {.status = (int32_t)status};
    struct verdict v = {.refused = -1, .differs = -1};
    if (t->size == 1) return status;
    if (status) {
        snprintf(own.sentence, sizeof own.sentence, "%s", strobe_dist_last_error());
    } else {
        own.fields = count;
        for (int f = 0; f < count; ++f) own.field[f] = named[f].value;
    }
    if (t->rank == 0) v.first = own;
    TRY(hear(&x, &own, &v));
    if (v.refused >= 0) return strobe__dist_fail(v.status, "rank %d: %s", v.refused, v.sentence);
    if (v.differs < 0) return STROBE_OK;
    return strobe__dist_fail(STROBE_INVALID_ARGUMENT,
                             "%s is %lld on rank 0 and %lld on rank %d; the same on every rank is accepted",
                             named[v.field].name, (long long)v.first.field[v.field], (long long)v.value, v.differs);
}
