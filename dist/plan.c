/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plan.c: see plan.h. Kept plans are the process's: a backward may come from another thread than its forward. A plan in use
 * is in nobody else's hands, so that ranks in threads share none. */
#include "plan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 32 };
static struct {
    pthread_mutex_t mutex;
    struct plan *plan[KEPT];
    unsigned next; /* to be replaced where all places are taken */
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *trace_of(const void *p) { return p ? (void *)(uintptr_t)(ALIGNMENTS + (uintptr_t)p % ALIGNMENTS) : NULL; }

static void trace_tensors(strobe_attention *a, strobe_gradients *g) {
    strobe_tensor *const tensors[] = {&a->q, &a->k, &a->v, &a->out, &a->lse, &g->dout, &g->dlse, &g->dq, &g->dk, &g->dv};
    for (size_t t = 0; t < sizeof tensors / sizeof tensors[0]; ++t) tensors[t]->data = trace_of(tensors[t]->data);
}

/* Structures that are pointed to, by whether they are there; what they hold stands beside. */
static void trace_features(strobe_attention *a, strobe_gradients *g) {
    static const char there;
    a->bias = a->bias ? (const void *)&there : NULL, a->bool_mask = a->bool_mask ? (const void *)&there : NULL;
    a->alibi = a->alibi ? (const void *)&there : NULL, a->sinks = a->sinks ? (const void *)&there : NULL;
    a->dropout = a->dropout ? (const void *)&there : NULL, a->tuning = a->tuning ? (const void *)&there : NULL;
    g->dbias = g->dbias ? (const void *)&there : NULL, g->dsinks = g->dsinks ? (const void *)&there : NULL;
}

/* False for calls whose plans are not kept. */
static bool make_key(const struct whole *w, struct plan_key *key) {
    const strobe_attention *a = &w->a;
    const char *kernel = a->tuning && w->tuning.kernel ? w->tuning.kernel : "";
    if (a->device != STROBE_CUDA || a->varlen || a->parallel || a->paged || a->block_mask || a->scales || a->score ||
        a->mask_lists || w->g.dscore || strlen(kernel) >= sizeof key->kernel)
        return false;
    key->d = w->d, key->d.attention = NULL, key->d.transport = NULL, key->d.rates = NULL;
    key->rates = w->rates, key->a = *a, key->g = w->g;
    trace_tensors(&key->a, &key->g), trace_features(&key->a, &key->g);
    key->bias = w->bias, key->bias.data = trace_of(w->bias.data);
    key->dbias = w->dbias, key->dbias.data = trace_of(w->dbias.data);
    key->bool_mask = w->bool_mask, key->bool_mask.data = trace_of(w->bool_mask.data);
    key->alibi = w->alibi, key->alibi.slopes = trace_of(w->alibi.slopes);
    key->sinks = w->sinks, key->sinks.data = trace_of(w->sinks.data);
    key->dsinks = w->dsinks, key->dsinks.data = trace_of(w->dsinks.data);
    key->dropout = w->dropout, key->dropout.seed = key->dropout.offset = 0;
    key->split_keys = w->tuning.split_keys;
    memcpy(key->kernel, kernel, strlen(kernel));
    key->rank = w->t.rank, key->size = w->t.size, key->hides = w->hides, key->backward = w->backward;
    return true;
}

/* Of two that are kept for the same calls, which ranks or threads have made at once, either will do. */
static struct plan *take_kept(const struct plan_key *key) {
    struct plan *found = NULL;
    pthread_mutex_lock(&kept.mutex);
    for (int n = 0; n < KEPT && !found; ++n) {
        if (!kept.plan[n] || memcmp(&kept.plan[n]->key, key, sizeof *key) != 0) continue;
        found = kept.plan[n], kept.plan[n] = NULL;
    }
    pthread_mutex_unlock(&kept.mutex);
    return found;
}

struct plan *strobe__plan_take(const struct whole *w) {
    struct plan_key key;
    memset(&key, 0, sizeof key);
    const bool has_key = make_key(w, &key);
    struct plan *p = has_key ? take_kept(&key) : NULL;
    if (p) return p;
    p = calloc(1, sizeof *p);
    if (p) p->has_key = has_key, memcpy(&p->key, &key, sizeof key);
    return p;
}

bool strobe__plan_is_made(const struct plan *p) { return p->scheme != STROBE_DIST_AUTOMATIC; }

void strobe__plan_keep(struct plan *p) {
    struct plan *replaced = p;
    if (p->has_key && strobe__plan_is_made(p)) {
        pthread_mutex_lock(&kept.mutex);
        int at = -1;
        for (int n = 0; n < KEPT && at < 0; ++n)
            if (!kept.plan[n]) at = n;
        if (at < 0) at = (int)(kept.next++ % KEPT);
        replaced = kept.plan[at], kept.plan[at] = p;
        pthread_mutex_unlock(&kept.mutex);
    }
    strobe__plan_free(replaced);
}

void strobe__plan_free(struct plan *p) {
    if (!p) return;
    for (int32_t n = 0; n < p->parts; ++n) strobe__shard_free(&p->s[n]);
    strobe__schedule_free(&p->schedule);
    free(p);
}

/* When the library is closed, or the process ends. */
__attribute__((destructor)) static void forget(void) {
    for (int n = 0; n < KEPT; ++n) strobe__plan_free(kept.plan[n]), kept.plan[n] = NULL;
}
