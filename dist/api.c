/* SPDX-License-Identifier: BSD-3-Clause
 *
 * api.c: the public calls: a job is read, checked, planned and measured; the ranks agree; then it runs. */
#include "agree.h"
#include "cost.h"
#include "engine.h"
#include "heads.h"
#include "plan.h"
#include "portable/posix.h"

struct job {
    struct whole w;
    struct plan *plan;          /* NULL until the arguments have been read */
    struct exchange x, heads_x; /* heads_x: of the all-to-all over heads */
    struct heads h[MOST_PARTS];
    struct engine e[MOST_PARTS];
    float *dsinks;                  /* the caller's */
    float *own_dsinks, *all_dsinks; /* [heads_q], [size][heads_q] */
};

/* ended_well: the plan is of use for later calls. */
static void release(struct job *j, bool ended_well) {
    for (int32_t n = 0; j->plan && n < j->plan->parts; ++n) strobe__heads_free(&j->h[n]);
    if (ended_well)
        strobe__plan_keep(j->plan);
    else
        strobe__plan_free(j->plan);
    strobe__exchange_free(&j->x), strobe__exchange_free(&j->heads_x);
    strobe__dist_release(&j->w);
}

/* Sets every pointer into the workspace; without a base counts its bytes. */
static strobe_status lay_out(struct job *j, struct room *room) {
    struct whole *w = &j->w;
    struct plan *p = j->plan;
    const int64_t heads = w->a.heads_q;
    if (w->g.dsinks) {
        j->own_dsinks = strobe__room_take(room, (size_t)heads * sizeof(float));
        j->all_dsinks = strobe__room_take(room, (size_t)(heads * w->t.size) * sizeof(float));
        w->dsinks.data = j->own_dsinks;
    }
    for (int32_t n = 0; n < p->parts; ++n) {
        struct heads *first = n > 0 ? &j->h[0] : NULL;
        strobe__heads_free(&j->h[n]);
        if (p->s[n].group > 1 && !strobe__heads_make(&j->h[n], &p->s[n], first, &w->place, &j->heads_x, room))
            return strobe__dist_no_memory();
        j->e[n].kernel_bytes = p->kernel_bytes[n], j->e[n].rounds_dq = p->rounds_dq[n];
        TRY(strobe__engine_make(&j->e[n], &p->s[n], &w->place, &p->schedule, &j->x, room));
        p->kernel_bytes[n] = j->e[n].kernel_bytes, p->rounds_dq[n] = j->e[n].rounds_dq;
    }
    return STROBE_OK;
}

/* A new plan: everything but the workspace and the data. */
static strobe_status make_plan(struct job *j) {
    const struct whole *w = &j->w;
    struct plan *p = j->plan;
    struct room room = {0};
    int32_t scheme;
    TRY(strobe__dist_choose(w, &scheme));
    const struct scheme way = strobe__dist_scheme(w, scheme);
    p->parts = strobe__dist_parts(w, way.group);
    for (int32_t n = 0; n < p->parts; ++n)
        if (!strobe__shard_make(&p->s[n], w, way.group, p->parts, n)) return strobe__dist_no_memory();
    struct cost cost = {.apart = false};
    if (way.gathers && w->hides && !strobe__dist_cost(w, scheme, &cost)) return strobe__dist_no_memory();
    if (!strobe__schedule_make(&p->schedule, &p->s[0], way.gathers, cost.apart)) return strobe__dist_no_memory();
    TRY(lay_out(j, &room));
    p->scheme = scheme, p->needed = room.used;
    return STROBE_OK;
}

/* The plan of the call, a new one or one that was kept, whose arguments have been checked. */
static strobe_status plan(struct job *j, bool runs) {
    const struct whole *w = &j->w;
    j->plan = strobe__plan_take(w);
    if (!j->plan) return strobe__dist_no_memory();
    const bool is_made = strobe__plan_is_made(j->plan);
    if (!is_made) TRY(strobe__dist_check(w));
    if (runs) TRY(strobe__dist_check_run(w));
    if (w->g.dsinks) j->dsinks = w->dsinks.data;
    for (int32_t n = 0; is_made && n < j->plan->parts; ++n) strobe__shard_renew(&j->plan->s[n], w);
    return is_made ? STROBE_OK : make_plan(j);
}

/* The gradient of the sinks is a sum over all rows: each rank's part goes to every other. */
static strobe_status sum_dsinks(struct job *j) {
    struct whole *w = &j->w;
    const int64_t heads = w->a.heads_q;
    const size_t bytes = (size_t)heads * sizeof(float);
    if (!w->g.dsinks) return STROBE_OK;
    strobe__copy(&w->place, j->all_dsinks + w->t.rank * heads, j->own_dsinks, bytes);
    for (int32_t rank = 0; rank < w->t.size; ++rank) {
        if (rank == w->t.rank) continue;
        strobe__exchange_send(&j->x, rank, j->own_dsinks, bytes);
        strobe__exchange_receive(&j->x, rank, j->all_dsinks + rank * heads, bytes);
    }
    TRY(strobe__exchange_start(&j->x, true));
    TRY(strobe__exchange_wait(&j->x));
    strobe__sum_parts(&w->place, j->dsinks, j->all_dsinks, heads, w->t.size);
    return STROBE_OK;
}

/* Part n is computed on, if there is one, while the inputs of the next and the results of the one before travel. */
static strobe_status run_part(struct job *j, int32_t n) {
    const int32_t parts = j->plan->parts;
    const bool goes = j->plan->s[0].group > 1, next = goes && n + 1 < parts, before = goes && n > 0;
    const bool computes = n >= 0 && n < parts;
    if (next) strobe__heads_tell(&j->h[n + 1], true);
    if (before) strobe__heads_tell(&j->h[n - 1], false);
    TRY(strobe__exchange_start(&j->heads_x, !computes));
    if (next) strobe__heads_keep(&j->h[n + 1], true);
    if (before) strobe__heads_keep(&j->h[n - 1], false);
    if (computes) TRY(j->w.backward ? strobe__dist_run_backward(&j->e[n]) : strobe__dist_run_forward(&j->e[n]));
    TRY(strobe__exchange_wait(&j->heads_x));
    if (next) strobe__heads_put(&j->h[n + 1], true);
    if (before) strobe__heads_put(&j->h[n - 1], false);
    return STROBE_OK;
}

static strobe_status run(struct job *j) {
    const int32_t parts = j->plan->parts;
    const bool heads = j->plan->s[0].group > 1;
    if (j->w.g.dsinks) strobe__zero(&j->w.place, j->own_dsinks, (size_t)j->w.a.heads_q * sizeof *j->own_dsinks);
    for (int32_t n = heads ? -1 : 0; n < parts + heads; ++n) TRY(run_part(j, n));
    strobe_status status = STROBE_OK;
    for (int32_t n = 0; n < parts && !status; ++n) status = j->e[n].status;
    if (heads && !status) status = strobe__heads_finish(&j->h[0], j->e[0].zeros);
    TRY(sum_dsinks(j));
    if (status || !j->w.place.status) return status;
    return strobe__dist_fail(j->w.place.status, "the device failed to move data: %s", j->w.place.sentence);
}

static strobe_status agree(const struct job *j, strobe_status status) {
    struct named named[MOST_NAMED];
    const int count = status ? 0 : strobe__dist_fields(&j->w, j->plan->scheme, named);
    return strobe__dist_agree(&j->w.records, j->w.place.stream, named, count, status);
}

/* Kernels of ours move these before the core library looks at them. */
static strobe_status check_memory(const struct whole *w, const void *workspace) {
    const strobe_attention *a = &w->a;
    const strobe_gradients *g = &w->g;
    const bool rows = w->entries > 0 && w->d.rows_q > 0, keys = w->entries > 0 && w->d.rows_k > 0;
    const struct {
        const char *name;
        const void *data;
    } all[] = {{"workspace", workspace},
               {"q", rows ? a->q.data : NULL},
               {"k", keys ? a->k.data : NULL},
               {"v", keys ? a->v.data : NULL},
               {"out", rows ? a->out.data : NULL},
               {"lse", rows ? a->lse.data : NULL},
               {"sinks", a->sinks ? a->sinks->data : NULL},
               {"dout", rows ? g->dout.data : NULL},
               {"dlse", rows ? g->dlse.data : NULL},
               {"dq", rows ? g->dq.data : NULL},
               {"dk", keys ? g->dk.data : NULL},
               {"dv", keys ? g->dv.data : NULL},
               {"dbias", rows && g->dbias ? g->dbias->data : NULL}};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; ++n) TRY(strobe__place_check(&w->place, all[n].name, all[n].data));
    return STROBE_OK;
}

/* Everything that may go wrong on one rank alone. */
static strobe_status prepare(struct job *j, void *workspace, size_t given, void **own) {
    struct room room = {0};
    struct whole *w = &j->w;
    TRY(plan(j, true));
    const int64_t messages = 2 * (int64_t)w->t.size + strobe__schedule_messages(&j->plan->schedule);
    if (!strobe__exchange_make(&j->x, &w->t, w->place.stream, messages) ||
        !strobe__exchange_make(&j->heads_x, &w->t, w->place.stream, 2 * MOST_ITEMS * (int64_t)w->t.size))
        return strobe__dist_no_memory();
    const size_t needed = j->plan->needed;
    TRY(strobe__room_find(&room, &w->place, needed, workspace, given, own));
    TRY(check_memory(w, needed ? workspace : NULL));
    TRY(strobe__place_check(&w->place, "dsinks", j->dsinks));
    return lay_out(j, &room); /* nothing is allocated after this */
}

static strobe_status call(const strobe_dist *dist, const strobe_gradients *gradients, bool backward, void *workspace,
                          size_t given, void *stream) {
    struct job j = {.plan = NULL};
    void *own = NULL;
    int entered = 0;
    strobe_status status = strobe__dist_read(&j.w, dist, gradients, backward);
    bool compares = !(j.w.d.flags & STROBE_DIST_UNCOMPARED) && j.w.records.size > 0; /* else there is nobody to tell */
    j.w.place.stream = stream;
    if (!status) status = strobe__place_enter(&j.w.place, &entered);
    if (!status && compares && j.w.t.size > 1) status = strobe__place_may_wait(&j.w.place), compares = !status;
    if (!status) status = prepare(&j, workspace, given, &own);
    if (compares) status = agree(&j, status);
    if (!status) status = run(&j);
    aligned_free(own);
    strobe__place_leave(&j.w.place, entered);
    release(&j, status == STROBE_OK);
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
    strobe_transport t, records;
    TRY(strobe__dist_read_transport(&t, &records, transport));
    if (status == STROBE_OK) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "status is 0; an error is accepted");
    TRY(strobe__dist_check_transport(&t, &records, true));
    strobe__dist_fail(status, "%s", sentence ? sentence : "it does not say why");
    return strobe__dist_agree(&records, NULL, NULL, 0, status);
}

strobe_status strobe_dist_workspace(const strobe_dist *dist, const strobe_gradients *gradients, size_t *bytes) {
    if (!bytes) return strobe__dist_fail(STROBE_INVALID_ARGUMENT, "bytes is NULL; a pointer to a size_t is accepted");
    struct job j = {.plan = NULL};
    strobe_status status = strobe__dist_read(&j.w, dist, gradients, gradients != NULL);
    if (!status) status = plan(&j, false);
    if (!status) *bytes = j.plan->needed;
    release(&j, status == STROBE_OK);
    return status;
}
