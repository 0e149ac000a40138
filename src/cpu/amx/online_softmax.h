/* SPDX-License-Identifier: BSD-3-Clause
 *
 * online_softmax.h: what the AMX forward does with a block of scores besides products: features and mask, P = exp(S - m)
 * with a maximum that lags (amx/forward.c), rescale, dropout, and keys that are not finite. It is the same text for every
 * dtype of amx/operand.h. */
#ifndef STROBE_CPU_AMX_ONLINE_SOFTMAX_H
#define STROBE_CPU_AMX_ONLINE_SOFTMAX_H

#include "cpu/amx/pack.h"
#include "cpu/amx/step.h"
#include "cpu/vector/dropout.h"
#include "cpu/vector/next_rows.h"
#include "cpu/vector/scores.h"

#define RESCALE_ABOVE (256.0f * BLOCK_KEYS) /* P may grow to 2^8 on average: far from the end of bf16 and fp32 */

enum { OPERANDS = 3 }; /* of a task: K, V and Q */

/* The state of a tile's rows, kept between super-blocks. */
struct tile {
    struct tile_rows rows;
    float *o, *m, *l; /* O^T [v_padded][TILE_ROWS]; [TILE_ROWS] lagging maximum; [TILE_ROWS] sum of exponentials */
    bool any_unset;   /* some row has not seen a key: its m is -inf */
    bool o_empty;     /* nothing has been added to O: it is zero, whatever its memory holds */
    bool far;         /* the maximum of some row is so large that S c - m c says nothing, as under a bias of finfo.min */
};

/* One worker's memory. */
struct scratch {
    uint16_t *k;               /* the super-block's K in parts, [keys][k_padded], unless K is read in place */
    uint16_t *tail;            /* where K is read in place: its last block, if that is not whole */
    uint16_t *v;               /* the super-block's V^T in parts */
    uint64_t *v_nonfinite;     /* [blocks] one bit a key: its V is not finite and left out of V^T */
    uint64_t *k_nonfinite;     /* [blocks] one bit a key: its K, in parts, is not finite */
    bool *packed;              /* [blocks] K and V are packed */
    number *rows;              /* [64 keys][dim or dim_v] of keys in pages, side by side */
    uint16_t *q;               /* Q^T of the tile */
    float *s[2];               /* S^T of a block, two buffers */
    uint32_t *p[2];            /* P^T of a block, two buffers */
    float *state;              /* O^T, m and l of each tile of the task */
    struct score_memory score; /* the user's function; tiles come one after the other */
};

struct forward {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    int64_t tasks, workers, rows_a_task, tasks_a_head;
    int64_t states;                         /* tiles whose state a worker keeps */
    int64_t k_padded, v_padded, super_keys; /* dim and dim_v up to whole tiles; keys of a super-block */
    bool k_in_place;                        /* K is multiplied where the caller has it */
    bool some_hidden;                       /* a key may be hidden from some row of its block */
    bool packs_late;                        /* a block is packed when a tile sees it: some may be hidden from all */
    bool has_terms;                         /* scores_have_terms() */
    bool is_far;                            /* first_task_is_far() */
    bool streams;                           /* results bypass the caches (non-temporal stores) */
    float factor;                           /* exponent_factor() */
    struct dropout_place place;
};

/* What the worker probably reads in its next task: K, V and Q. Each step prefetches step_bytes of it. */
struct next_task {
    struct next_rows rows[OPERANDS];
    int64_t step_bytes;
};

/* A super-block: keys [first, end) of a K/V head. */
struct keys {
    struct sequence s;
    int64_t kv, first, end;
};

/* A block of keys on its way through the pipeline. */
struct key_block {
    int64_t j0, keys; /* its first key; those that exist and that some row may see */
    int64_t rows;     /* of S^T that are computed, 32 or 64; 0: there is no block */
};

/* The blocks of a super-block of which a tile sees some, one after the other. */
struct block_walk {
    int64_t begin, end;         /* the tile's keys in the super-block, from a whole block on */
    int64_t j0, step, up_from;  /* where to look for the next block; the way on; where it goes up from after going down */
    int64_t all_first, all_end; /* the keys inside the band of all rows */
    struct row_features features;
    struct visible_block visible; /* what the tile sees of the block found last */
};

/* The maximum over `rows` rows of s in each lane. Eight running maxima hide the latency of one. */
static vec maximum(const float *s, int64_t rows) {
    enum { CHAINS = 8 };
    vec m[CHAINS];
    for (int n = 0; n < CHAINS; ++n) m[n] = v_set(-INFINITY);
    for (int64_t j = 0; j < rows; j += CHAINS)
        for (int n = 0; n < CHAINS; ++n) m[n] = v_max(v_load(s + (j + n) * TILE_ROWS), m[n]);
    for (int n = CHAINS / 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) m[i] = v_max(m[i], m[i + n]);
    return m[0];
}

/* From 2^24 on m c is rounded by 1 and more: every P of the row would be multiplied by a power of two that may be 0 or
 * infinite. */
static bool is_far(const float m[TILE_ROWS], float factor) {
    bool far = false;
    for (int r = 0; r < TILE_ROWS; ++r) far |= isfinite(m[r]) && !(fabsf(m[r] * factor) < 0x1p24f);
    return far;
}

/* Sets m to the maximum of the block in rows that have seen no key before; their O and l are 0, so nothing is rescaled. */
static void set_reference(struct tile *t, const float *s, int64_t rows, float factor) {
    t->any_unset = false;
    for (int at = 0; at < TILE_ROWS; at += LANES) {
        const vec none = v_set(-INFINITY), before = v_load(t->m + at);
        const vec m = v_select_equal(before, none, maximum(s + at, rows), before);
        v_store(t->m + at, m);
        t->any_unset = t->any_unset || v_equal_bits(m, none);
    }
    t->far = is_far(t->m, factor);
}

/* Computes S again for keys whose K holds an infinity or a NaN: a product of parts turns an infinity into a NaN. */
static void score_nonfinite_keys(const struct forward *f, const struct tile *t, const struct keys *k, float *s, int64_t j0,
                                 uint64_t k_nonfinite) {
    const strobe_attention *a = &f->p->a;
    const float sign = !f->has_terms && a->scale < 0 ? -1.0f : 1.0f;
    for (int64_t j = 0; k_nonfinite; ++j, k_nonfinite >>= 1) {
        if (!(k_nonfinite & 1)) continue;
        const number *key = (const number *)a->k.data + strobe__key_offset(&a->k, &k->s, j0 + j, k->kv);
        for (int64_t r = 0; r < t->rows.n; ++r) {
            const number *row = (const number *)a->q.data + tile_offset(&t->rows, &a->q, r);
            float sum = 0;
            for (int64_t x = 0; x < a->dim; ++x) sum += to_float(key[x]) * to_float(row[x]);
            s[j * TILE_ROWS + r] = sign * sum;
        }
    }
}

/* Applies softcap, bias, ALiBi and mask to the raw scores of a block. Rows of S^T without a key become -inf. */
static void finish_scores(const struct forward *f, struct tile *t, const struct block_walk *w, float *s,
                          const struct key_block *b) {
    const struct visible_block *v = &w->visible;
    const vec hidden = v_set(-INFINITY);
    const bool paged = t->rows.s.pages;
    if (!f->has_terms && v->coverage == BLOCK_FULL && b->keys == b->rows && !t->any_unset && !paged) return;
    finish_block_scores(s, NULL, &t->rows, &w->features, v, b->j0, b->keys, f->has_terms ? (float)f->p->a.scale : 1);
    if (v->coverage == BLOCK_PARTIAL && v->end - v->first < VECTORS) /* one vector of rows sees nothing */
        for (int64_t at = v->first > 0 ? 0 : v->end * LANES; at < b->keys * TILE_ROWS; at += TILE_ROWS)
            v_store(s + at, hidden);
    for (int64_t at = b->keys * TILE_ROWS; at < b->rows * TILE_ROWS; at += LANES) v_store(s + at, hidden);
    if (paged) hide_missing_keys(s, strobe__keys_missing(&t->rows.s, b->j0, b->keys));
    if (t->any_unset) set_reference(t, s, b->rows, f->factor);
}

/* Sets up the exponentials of a block, field by field: gcc 12 would clear a structure of this size by a string instruction,
 * and loads behind that wait until the tiles stored before it have reached the cache. */
ALWAYS_INLINE void start_exponentials(struct exponentials *e, const struct forward *f, const struct tile *t, const float *s,
                                      uint32_t *p, int64_t rows) {
    e->s = s;
    e->p = p;
    e->left = (int)rows / 2 * VECTORS;
    e->fine = f->p->a.lse.data || t->far;
    e->factor = v_set(f->factor);
    const vec shift_factor = e->fine || PARTS > 1 ? v_set(1) : e->factor;
    for (int n = 0; n < VECTORS; ++n) {
        const vec m = v_load(t->m + n * LANES);
        e->shift[n] = v_select_equal(m, v_set(-INFINITY), v_set(0), v_mul(m, shift_factor));
        e->sum[n] = v_set(0);
    }
}

/* Rescale: m of the rows in `moves` moves to the maximum of the block, and O, which holds the blocks before it, and l are
 * multiplied by exp(m_old - m_new); that is exactly 1 where m stays. */
static void rescale_rows(const struct forward *f, struct tile *t, const float *s, int64_t rows,
                         const lane_mask moves[VECTORS]) {
    const vec factor = v_set(f->factor);
    for (int n = 0; n < VECTORS; ++n) {
        const vec before = v_load(t->m + n * LANES);
        const vec m = v_pick(moves[n], v_max(maximum(s + n * LANES, rows), before), before);
        const vec power = v_exp2(v_mul(v_sub(before, m), factor));
        const vec rescale = v_select_equal(m, before, v_set(1), power);
        v_store(t->m + n * LANES, m);
        v_store(t->l + n * LANES, v_mul(v_load(t->l + n * LANES), rescale));
        for (int64_t x = 0; x < f->v_padded; ++x) {
            float *o = t->o + x * TILE_ROWS + n * LANES;
            v_store(o, v_mul(v_load(o), rescale));
        }
    }
    t->far = is_far(t->m, f->factor);
}

/* Sets the elements of P to zero that dropout drops. The others are multiplied by 1 / (1 - p) in finish_tile(). Four keys
 * share a counter of Philox (dropout.h); a word of P holds the keys j and j + 1. */
static void apply_dropout(const struct forward *f, const struct row_features *features, uint32_t *p, int64_t j0,
                          int64_t rows) {
    const uint64_t key = (uint64_t)(f->place.key_start + j0);
    const vec_words threshold = w_set(f->place.threshold), first = w_set(0x0000ffffu), second = w_set(0xffff0000u);
    for (int n = 0; n < VECTORS; ++n) {
        lane_mask dropped[BLOCK_KEYS + 6], *of_block = dropped + 3; /* up to three keys before the block and behind it */
        for (int64_t j = -(int64_t)(key % 4); j < rows; j += 4) {
            const uint64_t *row = features->dropout_row + n * LANES, quad = (key + (uint64_t)j) / 4;
            vec_words even[4], odd[4];
            philox_vectors(even, f->place.seed, f->place.offset, row, quad);
            philox_vectors(odd, f->place.seed, f->place.offset, row + LANES / 2, quad);
            for (int i = 0; i < 4; ++i) of_block[j + i] = lanes_below(w_join(even[i], odd[i]), threshold);
        }
        for (int part = 0; part < PARTS; ++part)
            for (int64_t j = 0; j < rows; j += 2) {
                uint32_t *at = p + part * P_WORDS + j / 2 * TILE_ROWS + n * LANES;
                vec_words pair = w_load(at);
                pair = w_and_where(of_block[j], pair, second);
                pair = w_and_where(of_block[j + 1], pair, first);
                w_store(at, pair);
            }
    }
}

static void clear_if_empty(const struct forward *f, struct tile *t) {
    if (t->o_empty) memset(t->o, 0, (size_t)(f->v_padded * TILE_ROWS) * sizeof *t->o);
    t->o_empty = false;
}

/* O += P V for the keys that were left out of V^T, in rows where their P is not 0. */
static void add_nonfinite_keys(const struct forward *f, struct tile *t, const struct keys *k, const uint32_t *p, int64_t j0,
                               uint64_t v_nonfinite) {
    const strobe_tensor *v = &f->p->a.v;
    clear_if_empty(f, t);
    for (int64_t j = 0; v_nonfinite; ++j, v_nonfinite >>= 1) {
        if (!(v_nonfinite & 1)) continue;
        const number *row = (const number *)v->data + strobe__key_offset(v, &k->s, j0 + j, k->kv);
        for (int64_t r = 0; r < t->rows.n; ++r) {
            float p_ij = 0;
            for (int n = PARTS - 1; n >= 0; --n) {
                const uint32_t pair = p[n * P_WORDS + j / 2 * TILE_ROWS + r];
                p_ij += bf16_to_float((uint16_t)(j % 2 ? pair >> 16 : pair));
            }
            if (p_ij == 0) continue;
            for (int64_t x = 0; x < f->p->a.dim_v; ++x) t->o[x * TILE_ROWS + r] += p_ij * to_float(row[x]);
        }
    }
}

/* The end of the online softmax of a block whose P is computed; O holds the blocks before it. l grows by rowsum(P). Where
 * that exceeds RESCALE_ABOVE (or is NaN), m moves, O and l are rescaled, and P is computed again with the new m. */
static void online_softmax(const struct forward *f, struct tile *t, struct exponentials *e, const float *s, uint32_t *p,
                           int64_t rows) {
    lane_mask moves[VECTORS];
    bool any = false;
    for (int n = 0; n < VECTORS; ++n) {
        moves[n] = lanes_not_at_most(e->sum[n], v_set(RESCALE_ABOVE));
        any = any || lanes_any(moves[n]);
    }
    if (any) {
        rescale_rows(f, t, s, rows, moves);
        start_exponentials(e, f, t, s, p, rows);
        exponentials_rest(e);
    }
    for (int n = 0; n < VECTORS; ++n) v_store(t->l + n * LANES, v_add(v_load(t->l + n * LANES), e->sum[n]));
}

#endif
