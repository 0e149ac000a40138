/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blocks.c: block sizes from the size of the fast memory; see blocks.h. */
#include "blocks.h"

#include <stdio.h>

void lab_paper_blocks(lab_problem *p, int64_t budget) {
    const int64_t quarter = lab_ceil_div(budget, 4 * p->d);
    p->bc = quarter < p->n ? quarter : p->n;
    p->br = quarter < p->d ? quarter : p->d;
    if (p->br > p->m) p->br = p->m;
}

int64_t lab_fast_need(const lab_algorithm *algorithm, const lab_problem *problem) {
    lab_memory memory;
    lab_head head;
    lab_memory_open(&memory, 0, LAB_FP64, LAB_PROBE);
    if (lab_head_create(&memory, &head, problem, algorithm->parts)) algorithm->run(&memory, &head);
    lab_head_destroy(&memory, &head);
    return memory.counts.fast_peak;
}

static bool fits(const lab_algorithm *algorithm, const lab_problem *problem, int64_t capacity) {
    return lab_fast_need(algorithm, problem) <= capacity;
}

/* The formula at the largest budget that fits; the need grows with the budget. */
static void formula(const lab_algorithm *algorithm, lab_problem *p, int64_t capacity) {
    int64_t good = 1, bad = capacity + 1; /* the caller knows that one query and one key fit */
    while (bad - good > 1) {
        const int64_t budget = good + (bad - good) / 2;
        lab_paper_blocks(p, budget);
        if (fits(algorithm, p, capacity))
            good = budget;
        else
            bad = budget;
    }
    lab_paper_blocks(p, good);
}

/* The largest *size in [1, most] at which the problem, of which it is a member, fits. False: not even 1 does. */
static bool largest(const lab_algorithm *algorithm, const lab_problem *p, int64_t *size, int64_t most, int64_t capacity) {
    int64_t good = 0, bad = most + 1;
    while (bad - good > 1) {
        *size = good + (bad - good) / 2;
        if (fits(algorithm, p, capacity))
            good = *size;
        else
            bad = *size;
    }
    *size = good;
    return good > 0;
}

static int64_t predicted(const lab_algorithm *algorithm, const lab_problem *p, int64_t capacity) {
    const lab_prediction prediction = algorithm->predict(p, capacity);
    return prediction.reads + prediction.writes;
}

static void best(const lab_algorithm *algorithm, lab_problem *p, int64_t capacity) {
    lab_problem least = *p; /* one query, one key */
    for (int64_t power = 1; power < p->m || power < p->n; power *= 2) {
        lab_problem by_queries = *p, by_keys = *p;
        by_queries.br = power < p->m ? power : p->m;
        if (largest(algorithm, &by_queries, &by_queries.bc, p->n, capacity) &&
            predicted(algorithm, &by_queries, capacity) < predicted(algorithm, &least, capacity))
            least = by_queries;
        by_keys.bc = power < p->n ? power : p->n;
        if (largest(algorithm, &by_keys, &by_keys.br, p->m, capacity) &&
            predicted(algorithm, &by_keys, capacity) < predicted(algorithm, &least, capacity))
            least = by_keys;
    }
    /* As few rows as give this number of query blocks, and then as many keys as fit: at the same traffic, less to rescale.
     */
    *p = least;
    least.br = lab_ceil_div(p->m, lab_ceil_div(p->m, p->br));
    if (largest(algorithm, &least, &least.bc, p->n, capacity) &&
        predicted(algorithm, &least, capacity) <= predicted(algorithm, p, capacity))
        *p = least;
}

bool lab_choose_blocks(const lab_algorithm *algorithm, lab_problem *p, int64_t capacity, lab_block_rule rule,
                       char *message) {
    if (rule == LAB_BLOCKS_PAPER) {
        lab_paper_blocks(p, capacity);
        return true;
    }
    p->br = p->bc = 1;
    if (!fits(algorithm, p, capacity)) {
        snprintf(message, LAB_REFUSAL, "%s: one query and one key of d = %lld need %lld scalars of fast memory, S is %lld",
                 algorithm->name, (long long)p->d, (long long)lab_fast_need(algorithm, p), (long long)capacity);
        return false;
    }
    if (rule == LAB_BLOCKS_BEST || algorithm->parts & LAB_SCORES)
        best(algorithm, p, capacity);
    else
        formula(algorithm, p, capacity);
    return true;
}

bool lab_complete_blocks(const lab_algorithm *algorithm, lab_problem *p, int64_t capacity, char *message) {
    const bool by_queries = p->br > 0;
    if (largest(algorithm, p, by_queries ? &p->bc : &p->br, by_queries ? p->n : p->m, capacity)) return true;
    *(by_queries ? &p->bc : &p->br) = 1;
    snprintf(message, LAB_REFUSAL,
             "%s: blocks of %s = %lld and one %s of d = %lld need %lld scalars of fast memory, S is %lld", algorithm->name,
             by_queries ? "Br" : "Bc", (long long)(by_queries ? p->br : p->bc), by_queries ? "key" : "query",
             (long long)p->d, (long long)lab_fast_need(algorithm, p), (long long)capacity);
    return false;
}
