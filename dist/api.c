/* SPDX-License-Identifier: BSD-3-Clause
 *
 * api.c: the public calls: a job is read, checked, planned and measured; the ranks agree; then it runs. */
#include <string.h>

#include "agree.h"
#include "cost.h"
#include "engine.h"
#include "heads.h"
#include "portable/posix.h"

struct job {
    struct whole w;
    struct shard s;
    struct schedule schedule;
    struct exchange x;
    struct heads h;
    struct engine e;
    int32_t scheme;
    float *dsinks;                  /* the caller's */
    float *own_dsinks, *all_dsinks; /* [heads_q], [size][heads_q] */
};

static void release(struct job *j) {
    strobe__heads_free(&j->h);
    strobe__schedule_free(&j->schedule);
    strobe__shard_free(&j->s);
    strobe__exchange_free(&j->x);
    strobe__dist_release(&j->w);
}

/* Sets every pointer into the workspace; without a base counts its bytes. */
static strobe_status lay_out(struct job *j, struct room *room) {
    struct whole *w = &j->w;
    const int64_t heads = w->a.heads_q;
    if (w->g.dsinks) {
        j->own_dsinks = strobe__room_take(room, (size_t)heads * sizeof(float));
        j->all_dsinks = strobe__room_take(room, (size_t)(heads * w->t.size) * sizeof(float));
        w->dsinks.data = j->own_dsinks;
    }
    strobe__heads_free(&j->h);
    if (j->s.group > 1 && !strobe__heads_make(&j->h, &j->s, &j->x, room)) return strobe__dist_no_memory();
    return strobe__engine_make(&j->e, &j->s, &j->schedule, &j->x, room);
}

/* Everything but the workspace and the data. */
static strobe_status plan(struct job *j, bool runs, struct room *room) {
    struct whole *w = &j->w;
    TRY(strobe__dist_check(w, runs));
    TRY(strobe__dist_choose(w, &j->scheme));
    const struct scheme way = strobe__dist_scheme(w, j->scheme);
    if (w->g.dsinks) j->dsinks = w->dsinks.data;
    if (!strobe__shard_make(&j->s, w, way.group)) return strobe__dist_no_memory();
    if (!strobe__schedule_make(&j->schedule, &j->s, way.gathers)) return strobe__dist_no_memory();
    return lay_out(j, room);
}

/* The gradient of the sinks is a sum over all rows: each rank's part goes to every other. */
static strobe_status sum_dsinks(struct job *j) {
    const struct whole *w = &j->w;
    const int64_t heads = w->a.heads_q;
    const size_t bytes = (size_t)heads * sizeof(float);
    if (!w->g.dsinks) return STROBE_OK;
    memcpy(j->all_dsinks + w->t.rank * heads, j->own_dsinks, bytes);
    for (int32_t rank = 0; rank < w->t.size; ++rank) {
        if (rank == w->t.rank) continue;
        strobe__exchange_send(&j->x, rank, j->own_dsinks, bytes);
        strobe__exchange_receive(&j->x, rank, j->all_dsinks + rank * heads, bytes);
    }
    TRY(strobe__exchange_start(&j->x));
    TRY(strobe__exchange_wait(&j->x));
    for (int64_t h = 0; h < heads; ++h) {
        double sum = 0;
        for (int32_t rank = 0; rank < w->t.size; ++rank) sum += j->all_dsinks[rank * heads + h];
        j->dsinks[h] = (float)sum;
    }
    return STROBE_OK;
}

static strobe_status run(struct job *j) {
    if (j->w.g.dsinks) memset(j->own_dsinks, 0, (size_t)j->w.a.heads_q * sizeof *j->own_dsinks);
    if (j->s.group > 1) TRY(strobe__heads_scatter(&j->h));
    TRY(j->w.backward ? strobe__dist_run_backward(&j->e) : strobe__dist_run_forward(&j->e));
    if (j->s.group > 1) TRY(strobe__heads_gather(&j->h, j->e.zeros));
    TRY(sum_dsinks(j));
    return j->e.status;
}

static strobe_status agree(const struct job *j, strobe_status status) {
    struct named named[MOST_NAMED];
    const int count = status ? 0 : strobe__dist_fields(&j->w, j->scheme, named);
    return strobe__dist_agree(&j->w.t, named, count, status);
}

static strobe_status call(const strobe_dist *dist, const strobe_gradients *gradients, bool backward, void *workspace,
                          size_t given, void *stream) {
    struct job j = {.scheme = STROBE_DIST_AUTOMATIC};
    struct room room = {0};
    void *own = NULL;
    strobe_status status = strobe__dist_read(&j.w, dist, gradients, backward);
    const bool talks = j.w.t.start && j.w.t.wait && j.w.t.rank >= 0 &&
                       j.w.t.rank < j.w.t.size; /* else there is nobody to tell */
    if (!status && stream)
        status = strobe__dist_fail(STROBE_INVALID_ARGUMENT, "stream is %p; NULL is accepted on the CPU", stream);
    if (!status && !strobe__exchange_make(&j.x, &j.w.t, 2 * (int64_t)j.w.t.size + 2)) status = strobe__dist_no_memory();
    if (!status) status = plan(&j, true, &room);
    if (!status) status = strobe__room_find(&room, room.used, workspace, given, &own);
    if (!status) status = lay_out(&j, &room); /* nothing is allocated after this */
    if (talks && !(j.w.d.flags & STROBE_DIST_UNCOMPARED)) status = agree(&j, status);
    if (!status) status = run(&j);
    aligned_free(own);
    release(&j);
    return status;
}

strobe_status strobe_dist_forward(const strobe_dist *dist, void *workspace, size_t workspace_bytes, void *stream) {
    return call(dist, NULL, false, workspace, workspace_bytes, stream);
}

strobe_status strobe_dist_backward(const strobe_dist *dist, const strobe_gradients *gradients, void *workspace,
                                   size_t workspace_bytes, void *stream) {
    return call(dist, gradients, true, workspace, workspace_bytes, stream);
}

strobe_status strobe_dist_refuse(const strobe_transport *transport, strobe_status status, const char *sentence) {
    strobe_transport t;
    TRY(strobe__dist_read_transport(&t, transport));
    if (status == STROBE_OK) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "status is 0; an error is accepted");
    if (t.size > 1 && (!t.start || !t.wait))
        return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "transport.%s is NULL; a pointer is accepted",
                                 t.start ? "wait" : "start");
    strobe__dist_fail(status, "%s", sentence ? sentence : "it does not say why");
    return strobe__dist_agree(&t, NULL, 0, status);
}

strobe_status strobe_dist_workspace(const strobe_dist *dist, const strobe_gradients *gradients, size_t *bytes) {
    if (!bytes) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "bytes is NULL; a pointer to a size_t is accepted");
    struct job j = {.scheme = STROBE_DIST_AUTOMATIC};
    struct room room = {0};
    strobe_status status = strobe__dist_read(&j.w, dist, gradients, gradients != NULL);
    if (!status) status = plan(&j, false, &room);
    if (!status) *bytes = room.used;
    release(&j);
    return status;
}
