/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpu_prefix.c: a step of decoding of many sequences that share a prefix: one call over all keys of each, and the three
 * calls of docs/serving.md, which read the prefix once. In turns in one process and on one thread, by the thread's own CPU
 * time; prints the medians, and the largest difference of the results. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe.h>

#include "median.h"

enum { SEQUENCES = 64, HEADS = 8, GROUP = 4, DIM = 128, PAGE = 16, OWN = 256, OWN_PAGES = OWN / PAGE, TURNS = 3 };
enum { HEADS_Q = HEADS * GROUP, ROW = HEADS_Q * DIM };

/* The cache of all sequences, bf16, and a step's rows. The first pages are the prefix's. */
struct cache {
    int64_t prefix_pages, pages;
    uint16_t *q, *k, *v;
    int32_t *table, used_all[SEQUENCES], used_own[SEQUENCES];
    float *whole, *out, *part[2],
        *lse[2]; /* [SEQUENCES][HEADS_Q][DIM]; prefix's lse [HEADS_Q][SEQUENCES], own [SEQUENCES][HEADS_Q] */
};

static void *allocate(int64_t bytes) {
    void *memory = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
    if (!memory) fputs("there is no memory\n", stderr), exit(1);
    return memory;
}

/* Normal numbers are not needed: bf16 of either sign and of magnitudes from 0.5 to 2. */
static uint16_t *random_numbers(int64_t count) {
    uint16_t *x = allocate(count * 2);
    uint32_t state = 1;
    for (int64_t n = 0; n < count; ++n)
        state = state * 1664525u + 1013904223u, x[n] = (uint16_t)(0x3f00u + (state >> 24) + (state >> 8 & 0x8000u));
    return x;
}

static void make(struct cache *c, int64_t prefix) {
    c->prefix_pages = prefix / PAGE, c->pages = c->prefix_pages + SEQUENCES * OWN_PAGES;
    c->q = random_numbers(SEQUENCES * ROW);
    c->k = random_numbers(c->pages * PAGE * HEADS * DIM), c->v = random_numbers(c->pages * PAGE * HEADS * DIM);
    const int64_t stride = c->prefix_pages + OWN_PAGES;
    c->table = allocate(SEQUENCES * stride * 4);
    for (int64_t b = 0; b < SEQUENCES; ++b) {
        for (int64_t n = 0; n < stride; ++n)
            c->table[b * stride + n] = (int32_t)(n < c->prefix_pages ? n : n + b * OWN_PAGES);
        c->used_all[b] = (int32_t)prefix + OWN, c->used_own[b] = OWN;
    }
    c->whole = allocate(SEQUENCES * ROW * 4), c->out = allocate(SEQUENCES * ROW * 4);
    for (int n = 0; n < 2; ++n) c->part[n] = allocate(SEQUENCES * ROW * 4), c->lse[n] = allocate(SEQUENCES * HEADS_Q * 4);
}

static void stop(void) { fprintf(stderr, "%s\n", strobe_last_error()), exit(1); }

static const strobe_parallel one = {.struct_size = sizeof one, .threads = 1};

static strobe_attention describe(const struct cache *c, strobe_paged *paged, int64_t keys) {
    strobe_attention a = {.struct_size = sizeof a, .batch = SEQUENCES, .seq_q = 1, .seq_k = keys, .dim = DIM};
    *paged = (strobe_paged){.struct_size = sizeof *paged, .page_table = c->table, .page_size = PAGE, .pages = c->pages};
    paged->table_stride = c->prefix_pages + OWN_PAGES;
    a.heads_q = HEADS_Q, a.heads_kv = HEADS, a.dtype = STROBE_BF16, a.parallel = &one, a.paged = paged;
    a.q.data = c->q, a.k.data = c->k, a.v.data = c->v, a.out.dtype = STROBE_FP32;
    return a;
}

/* One call over all keys of each sequence. */
static void attend_whole(const struct cache *c) {
    strobe_paged paged;
    strobe_varlen lengths = {.struct_size = sizeof lengths, .used_k = c->used_all};
    strobe_attention a = describe(c, &paged, c->prefix_pages * PAGE + OWN);
    a.varlen = &lengths, a.out.data = c->whole;
    if (strobe_forward(&a, NULL, 0, NULL)) stop();
}

/* The rows of all sequences as those of one, over the prefix; each over its own keys; the two results as one. */
static void attend_parts(const struct cache *c) {
    strobe_paged paged, own_pages;
    strobe_varlen lengths = {.struct_size = sizeof lengths, .used_k = c->used_own};
    strobe_attention a = describe(c, &paged, c->prefix_pages * PAGE);
    a.batch = 1, a.seq_q = SEQUENCES, a.out.data = c->part[0], a.lse.data = c->lse[0];
    if (strobe_forward(&a, NULL, 0, NULL)) stop();
    a = describe(c, &own_pages, OWN);
    own_pages.page_table += c->prefix_pages;
    a.varlen = &lengths, a.out.data = c->part[1], a.lse.data = c->lse[1];
    if (strobe_forward(&a, NULL, 0, NULL)) stop();
    const strobe_partial parts[2] = {
        {.out = {.data = c->part[0]}, .lse = {.data = c->lse[0], .stride = {1, SEQUENCES, SEQUENCES}}},
        {.out = {.data = c->part[1]}, .lse = {.data = c->lse[1]}}};
    strobe_partials m = {.struct_size = sizeof m, .batch = SEQUENCES, .seq_q = 1, .heads_q = HEADS_Q, .dim_v = DIM};
    m.count = 2, m.parts = parts, m.out.data = c->out, m.parallel = &one;
    if (strobe_merge(&m, NULL)) stop();
}

static void measure(int64_t prefix) {
    struct cache c;
    void (*const ways[2])(const struct cache *) = {attend_whole, attend_parts};
    double times[2][TURNS], difference = 0;
    make(&c, prefix);
    for (int turn = -1; turn < TURNS; ++turn)
        for (int n = 0; n < 2; ++n) {
            const double start = seconds_by(CLOCK_THREAD_CPUTIME_ID);
            ways[n](&c);
            times[n][turn < 0 ? 0 : turn] = seconds_by(CLOCK_THREAD_CPUTIME_ID) - start;
        }
    for (int64_t n = 0; n < SEQUENCES * ROW; ++n) difference = fmax(difference, fabs((double)c.whole[n] - (double)c.out[n]));
    const double whole = median(times[0], TURNS), parts = median(times[1], TURNS);
    printf("| %lld | %.0f | %.0f | %.2f | %.1e |\n", (long long)prefix, 1e3 * whole, 1e3 * parts, whole / parts, difference);
    void *const memory[] = {c.q, c.k, c.v, c.table, c.whole, c.out, c.part[0], c.part[1], c.lse[0], c.lse[1]};
    for (size_t n = 0; n < sizeof memory / sizeof memory[0]; ++n) free(memory[n]);
}

int main(void) {
    puts("| keys of the prefix | one call, ms | three calls, ms | times as fast | largest difference "
         "|\n|---|---|---|---|---|");
    for (int64_t prefix = 1024; prefix <= 16384; prefix *= 4) measure(prefix);
    return 0;
}
