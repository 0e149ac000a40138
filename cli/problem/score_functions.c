/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_functions.c: see score_functions.h. */
#include "problem/score_functions.h"

#include "io/memory.h"

#include <pthread.h>
#include <string.h>

typedef struct entry {
    char score[PROBLEM_EXPRESSION], visible[PROBLEM_EXPRESSION];
    strobe_score *function;
    struct entry *next;
} entry;

static entry *entries;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const strobe_score *make(const problem *p) {
    static const strobe_score_array table = {"table", 2, STROBE_FP32};
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = p->score[0] ? p->score : NULL,
                                        .visible = p->visible[0] ? p->visible : NULL,
                                        .arrays = &table,
                                        .array_count = 1};
    strobe_score *function = NULL;
    if (strobe_score_create(&source, &function)) return NULL;
    entry *e = memory_zeroed(1, sizeof *e);
    memcpy(e->score, p->score, sizeof e->score);
    memcpy(e->visible, p->visible, sizeof e->visible);
    e->function = function;
    e->next = entries;
    entries = e;
    return function;
}

const strobe_score *score_function_of(const problem *p) {
    if (!p->score[0] && !p->visible[0]) return NULL;
    pthread_mutex_lock(&lock);
    const entry *e = entries;
    while (e && (strcmp(e->score, p->score) || strcmp(e->visible, p->visible))) e = e->next;
    const strobe_score *function = e ? e->function : make(p);
    pthread_mutex_unlock(&lock);
    return function;
}
