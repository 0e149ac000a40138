/* SPDX-License-Identifier: BSD-3-Clause
 *
 * draw_ranks.c: see draw_ranks.h. Ranks are few, since each is a thread; more than there are rows are drawn as well, since
 * many problems have few rows. */
#include "check/draw_ranks.h"

#include "problem/problem_ranks.h"

#include <stdio.h>
#include <string.h>

static bool chance(random_stream *r, int64_t of, int64_t in) { return random_below(r, in) < of; }

/* Features that no scheme takes. */
static void leave_out(random_stream *r, problem *p) {
    if (p->dtype == STROBE_FP8_E4M3) p->dtype = STROBE_BF16, p->qk_dtype = 0;
    if (p->dtype == STROBE_FP64) p->dtype = STROBE_FP32;
    if (problem_is_quantised(p->kv_dtype)) p->kv_dtype = 0;
    p->out_dtype = p->dout_dtype = p->gradients_dtype = 0;
    p->scales = p->q_scales = p->page_size = p->missing = p->leftpad = 0;
    p->block_q = p->block_k = p->block_axes = 0;
    memset(p->score, 0, sizeof p->score), memset(p->visible, 0, sizeof p->visible);
    p->dscore = p->added = 0;
    if (!p->bool_mask) p->shows = 0;
    if (p->varlen) p->varlen = VARLEN_CU_Q | VARLEN_CU_K | (p->varlen & VARLEN_INDEX_64);
    const bool over_scores = p->bias || p->bool_mask;
    if (p->varlen && over_scores && chance(r, 1, 2)) p->varlen = p->lengths = 0;
    if (p->varlen) p->bias = p->bias_dtype = p->bias_hides = p->dbias = p->bool_mask = p->shows = 0;
    if (p->dbias && !(p->bias & AXIS_ROW)) p->dbias = 0; /* sums over rows of several ranks */
}

void draw_ranks(random_stream *r, problem *p) {
    leave_out(r, p);
    p->ranks = 1 + random_below(r, chance(r, 1, 8) ? 9 : 5);
    p->rank_layout = random_below(r, 3);
    const bool by_rows = p->bias || p->bool_mask, striped = p->rank_layout == STROBE_DIST_STRIPED;
    if (striped && (by_rows || p->varlen || p->alibi || p->dropout > 0) && chance(r, 3, 4))
        p->rank_layout = STROBE_DIST_ZIGZAG;
    p->rank_scheme = random_below(r, 5);
    if (p->rank_scheme == STROBE_DIST_ULYSSES) /* a number of ranks that divides the heads */
        while (p->heads_q % p->ranks) --p->ranks;
    if (p->rank_scheme == STROBE_DIST_TWO_LEVELS && p->rank_layout == STROBE_DIST_STRIPED)
        p->rank_layout = STROBE_DIST_CONTIGUOUS;
    if (p->rank_scheme == STROBE_DIST_TWO_LEVELS) {
        p->rank_group = 1 + random_below(r, 3);
        while (p->heads_q % p->rank_group) --p->rank_group;
        p->ranks = p->rank_group * (1 + random_below(r, 3));
    }
    if (by_rows && p->rank_scheme >= STROBE_DIST_ULYSSES) p->rank_scheme = 1 + random_below(r, 2), p->rank_group = 0;
}

strobe_status ranks_take(const problem *p, const call *c, char *message, size_t capacity) {
    strobe_transport transport;
    strobe_dist dist;
    size_t bytes;
    problem_ranks_describe(p, &c->attention, 0, &transport, &dist);
    const strobe_status status = strobe_dist_workspace(&dist, call_gradients(c), &bytes);
    snprintf(message, capacity, "%s", status ? strobe_dist_last_error() : "");
    return status;
}
