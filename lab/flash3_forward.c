/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flash3_forward.c: FlashAttention-3 forward: a producer that fills a ring of K and V blocks, consumers that share a block
 * of queries by rows, and in each consumer the two-stage pipeline, which issues the next S = Q K^T before the current P V.
 * This file counts what is moved and calculated and does it one step after another; schedule_machine.c simulates what runs
 * at the same time on Hopper. Numbers are the lines of FA3's Algorithm 2 (consumer), (1.n) of Algorithm 1 (producer). */
#include "algorithms.h"
#include "arithmetic.h"

typedef struct consumer {
    lab_tile Q_i, O_i, S_cur, S_next; /* S becomes P~ in place */
    lab_tile m_i, l_i, m_new, row;
    lab_tile rescale; /* e^(m_old - m_i): applied to O_i once the product in flight has ended */
} consumer;

typedef struct ring {
    lab_tile K[LAB_MOST_STAGES], V[LAB_MOST_STAGES];
} ring;

static consumer create_consumer(lab_memory *memory, const lab_problem *p, int64_t rows) {
    return (consumer){.Q_i = lab_tile_create(memory, "Q_i", rows, p->d),
                      .O_i = lab_tile_create(memory, "O_i", rows, p->dv),
                      .S_cur = lab_tile_create(memory, "S_cur", rows, p->bc),
                      .S_next = lab_tile_create(memory, "S_next", rows, p->bc),
                      .m_i = lab_tile_create(memory, "m_i", rows, 1),
                      .l_i = lab_tile_create(memory, "l_i", rows, 1),
                      .m_new = lab_tile_create(memory, "m_new", rows, 1),
                      .row = lab_tile_create(memory, "row", rows, 1),
                      .rescale = lab_tile_create(memory, "e^(m_old - m_i)", rows, 1)};
}

/* 6, 13: the online softmax: m_i, P~ and l_i from S, and the factor by which O_i will be rescaled. */
static void softmax(lab_memory *memory, const lab_problem *p, consumer *c, lab_tile *S, int64_t i, int64_t j) {
    lab_mask(memory, S, p, i, j);
    lab_row_max(memory, &c->row, S);
    lab_max(memory, &c->m_new, &c->m_i, &c->row);
    lab_exp_difference(memory, &c->rescale, &c->m_i, &c->m_new);
    lab_exp_minus(memory, S, S, &c->m_new);
    lab_row_sum(memory, &c->row, S);
    lab_scale_add(memory, &c->l_i, &c->rescale, &c->row);
    lab_copy(memory, &c->m_i, &c->m_new);
    lab_dropout(memory, S, p, i, j);
}

/* 2 to 6: the first block. O_i is zero, so nothing is rescaled. */
static void first_block(lab_memory *memory, const lab_head *head, consumer *c, const lab_tile *K, int64_t i, int64_t rows) {
    const lab_problem *p = head->problem;
    lab_load_part(memory, &c->Q_i, head->q, i, 0, rows, p->d); /* (1.4) */
    lab_zero(memory, &c->O_i, rows, p->dv);                    /* 2 */
    lab_zero(memory, &c->l_i, rows, 1);
    lab_minus_infinity(memory, &c->m_i, rows, 1);
    lab_product_nt(memory, &c->S_cur, p->scale, &c->Q_i, K); /* 4 */
    softmax(memory, p, c, &c->S_cur, i, 0);                  /* 6 */
}

/* 8 to 16: the scores of block j, and block j - 1 into the output. */
static void next_block(lab_memory *memory, const lab_problem *p, consumer *c, const lab_tile *K, const lab_tile *V_before,
                       int64_t i, int64_t j) {
    lab_product_nt(memory, &c->S_next, p->scale, &c->Q_i, K);   /*  9: issued ... */
    lab_accumulate_nn(memory, &c->O_i, 1, &c->S_cur, V_before); /* 11: ... and this too, before the first has ended */
    softmax(memory, p, c, &c->S_next, i, j);                    /* 13: under the product of line 11 */
    lab_rescale_rows(memory, &c->O_i, &c->rescale);             /* 14 */
    const lab_tile swap = c->S_cur;                             /* 16: S_cur = S_next, without moving it */
    c->S_cur = c->S_next;
    c->S_next = swap;
}

/* 18 to 20. */
static void last_block(lab_memory *memory, const lab_head *head, consumer *c, const lab_tile *V, int64_t i) {
    lab_accumulate_nn(memory, &c->O_i, 1, &c->S_cur, V); /* 19 */
    lab_divide_rows(memory, &c->O_i, &c->l_i);           /* 20 */
    lab_lse(memory, &c->row, &c->m_i, &c->l_i);
    lab_store(memory, &c->O_i, head->o, i);
    lab_store(memory, &c->row, head->lse, i);
}

/* (1.8): the producer loads block j into its stage of the ring. A stage is free when all consumers are done with it. */
static void produce(lab_memory *memory, const lab_head *head, ring *r, int64_t block) {
    const lab_problem *p = head->problem;
    lab_load(memory, &r->K[block % p->stages], head->k, block * p->bc);
    lab_load(memory, &r->V[block % p->stages], head->v, block * p->bc);
}

/* How many blocks of keys the queries [i, end) see. Without a block mask they are the first ones (causal skip). */
static int64_t blocks_seen(const lab_problem *p, int64_t i, int64_t end) {
    int64_t seen = lab_ceil_div(p->n, p->bc);
    while (seen > 1 && !lab_block_visible(p, i, end - i, (seen - 1) * p->bc, lab_rest(p->n, (seen - 1) * p->bc, p->bc)))
        --seen;
    return seen;
}

void lab_flash3_forward(lab_memory *memory, const lab_head *head) {
    const lab_problem *p = head->problem;
    const int64_t own = lab_ceil_div(p->br, p->workers);
    consumer consumers[LAB_MOST_WORKERS];
    ring r;
    for (int64_t s = 0; s < p->stages; ++s) {
        r.K[s] = lab_tile_create(memory, "K (ring)", p->bc, p->d);
        r.V[s] = lab_tile_create(memory, "V (ring)", p->bc, p->dv);
    }
    for (int64_t w = 0; w < p->workers; ++w) consumers[w] = create_consumer(memory, p, own);
    if (!lab_fits(memory)) return;

    for (int64_t i = 0; i < p->m; i += p->br) { /* a thread block of the paper: i is its index */
        const int64_t end = i + lab_rest(p->m, i, p->br), busy = lab_ceil_div(end - i, own);
        const int64_t blocks = blocks_seen(p, i, end);
        produce(memory, head, &r, 0);
        for (int64_t w = 0; w < busy; ++w)
            first_block(memory, head, &consumers[w], &r.K[0], i + w * own, lab_rest(end, i + w * own, own));
        for (int64_t b = 1; b < blocks; ++b) { /* 7; two stages at least: V of block b - 1 is still in use */
            produce(memory, head, &r, b);
            for (int64_t w = 0; w < busy; ++w)
                next_block(memory, p, &consumers[w], &r.K[b % p->stages], &r.V[(b - 1) % p->stages], i + w * own, b * p->bc);
        }
        for (int64_t w = 0; w < busy; ++w)
            last_block(memory, head, &consumers[w], &r.V[(blocks - 1) % p->stages], i + w * own);
    }
    lab_release(memory);
}
