/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shard.c: what a rank computes on: all heads over its own rows, or after the all-to-all some heads over the rows of its
 * group. The tensors of the second are set by heads.c. */
#include <stdlib.h>

#include "dist.h"

#if !defined(STROBE_LEAST_BLOCKS) /* none for a GPU that the host plays, so that small problems have parts */
#define STROBE_LEAST_BLOCKS 256
#endif

int32_t strobe__shard_rank(const struct shard *s, int32_t participant) {
    return participant * s->group + s->w->t.rank % s->group;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

/* Heads [first, first + heads_q) of the whole. A K/V head of the shard serves as many query heads as divide both its group
 * and the shard: where a group is cut, two shards, or two heads of one, have the same K/V head. */
static void take_heads(struct shard *s) {
    strobe_attention *a = &s->a;
    const int64_t heads = s->w->a.heads_q / s->group / s->parts, group = s->w->a.heads_q / s->w->a.heads_kv;
    a->heads_q = heads;
    a->heads_kv = heads / common_divisor(group, heads);
}

bool strobe__dist_is_filled(int64_t heads_kv, int64_t keys) {
    enum { KEYS_OF_BLOCK = 128, LEAST_BLOCKS = STROBE_LEAST_BLOCKS };
    return heads_kv > 0 && heads_kv * (keys / KEYS_OF_BLOCK) >= LEAST_BLOCKS;
}

int64_t strobe__dist_early_heads(int64_t heads_kv, int64_t keys) {
    if (strobe__dist_is_filled(heads_kv / 4, keys)) return heads_kv / 4;
    return strobe__dist_is_filled(heads_kv, keys) ? heads_kv / 2 : 0;
}

int32_t strobe__dist_parts(const struct whole *w, int32_t group) {
    if (group == 1 || group < w->t.size || !w->hides || w->a.heads_kv < 1) return 1;
    const int64_t heads = w->a.heads_q / group, shared = w->a.heads_q / w->a.heads_kv;
    for (int32_t parts = MOST_PARTS; parts > 1; parts /= 2) {
        if (heads % parts != 0) continue;
        const int64_t heads_kv = heads / parts / common_divisor(shared, heads / parts);
        if (strobe__dist_is_filled(heads_kv, w->total_k / parts)) return parts;
    }
    return 1;
}

void strobe__shard_renew(struct shard *s, const struct whole *w) {
    s->w = w, s->a = w->a, s->g = w->g;
    if (s->group > 1) take_heads(s);
}

bool strobe__shard_make(struct shard *s, const struct whole *w, int32_t group, int32_t parts, int32_t part) {
    *s = (struct shard){.group = group, .parts = parts, .part = part};
    s->index = w->t.rank / group, s->participants = w->t.size / group;
    strobe__shard_renew(s, w);
    s->q = calloc((size_t)s->participants, sizeof *s->q), s->k = calloc((size_t)s->participants, sizeof *s->k);
    bool ok = s->q && s->k;
    for (int32_t p = 0; ok && p < s->participants; ++p)
        ok = strobe__layout_runs(w->d.layout, w->total_q, w->t.size, p * group, group, &s->q[p]) &&
             strobe__layout_runs(w->d.layout, w->total_k, w->t.size, p * group, group, &s->k[p]);
    if (!ok) return false;
    s->rows = strobe__runs_rows(&s->q[s->index]), s->keys = strobe__runs_rows(&s->k[s->index]);
    return true;
}

void strobe__shard_free(struct shard *s) {
    for (int32_t p = 0; s->q && s->k && p < s->participants; ++p) strobe__runs_free(&s->q[p]), strobe__runs_free(&s->k[p]);
    free(s->q), free(s->k);
    s->q = s->k = NULL;
}
