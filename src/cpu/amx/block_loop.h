/* SPDX-License-Identifier: BSD-3-Clause
 *
 * block_loop.h: a block of query rows meets the keys of a super-block: strips of 32 keys, tiles of 32 rows, a unit of both
 * after the other, in three stages. While tiles multiply dV and dK of the strip before, vectors make weights of the unit
 * before.
 *
 *     time ->     step u                              step u + 1
 *     tiles       dV, dK (strip - 1)  S, dP (u)       dV, dK (strip - 1)  S, dP (u + 1)      at the end of a batch of
 *     vectors     P, dS (u - 1)                       P, dS (u)                              strips: dQ, tile by tile
 *
 * What dV and dK leave of the vector work is done under S. S^T and dP^T, 8 KiB, are read before they are written again, and
 * stay in L1: a tile is stored when its turn comes in the next chain of products (amx/gradients.h). P^T and dS^T are kept
 * for two strips, dS^T as pairs of keys for a batch, so that dQ, 8 KiB a tile at dim 64, is loaded and stored once for 256
 * keys. */
#ifndef STROBE_CPU_AMX_MEETING_H
#define STROBE_CPU_AMX_MEETING_H

#include "cpu/amx/backward.h"

/* A strip of keys and the tiles [begin, end) that see some of it. */
struct strip {
    int64_t j0, begin, end;
    uint32_t full; /* tiles, as bits, of which every row sees every key */
};

/* A strip's tile on its way; form: which of two strips' weights. */
struct unit {
    const struct strip *strip;
    int64_t tile, form;
};

/* dV and dK of a strip, 32 columns at a time: `next` of `groups` is to come. */
struct outer {
    const struct strip *strip;
    int64_t form, next, groups;
};

/* Rows and keys at hand. */
struct meeting {
    const struct backward *f;
    const struct scratch *c;
    const struct row_block *rows;
    const struct keys *k;
    float factor; /* exponent_factor() */
    struct strip strips[BATCH_STRIPS];
    int64_t count;
    struct quad open; /* what T0 to T3 hold and where it belongs */
};

static struct weights weights_of(const struct meeting *m, const struct strip *strip, int64_t tile, int64_t form) {
    const struct scratch *c = m->c;
    const int64_t at = (form * BLOCK_TILES + tile) * FORM_WORDS, n = strip - m->strips;
    return (struct weights){c->p + at, c->ds + at, c->pairs + (n * BLOCK_TILES + tile) * FORM_WORDS};
}

static bool find_tiles(const struct row_block *rows, struct strip *strip) {
    strip->begin = strip->end = 0, strip->full = 0;
    for (int64_t n = 0; n < rows->tiles; ++n) {
        const struct sight *sight = &rows->sight[n];
        const int64_t left = rows->tile[n].s.keys - strip->j0, j1 = strip->j0 + (left < STRIP_KEYS ? left : STRIP_KEYS);
        if (j1 <= sight->first || strip->j0 >= sight->end) continue;
        if (strip->end == 0) strip->begin = n;
        strip->end = n + 1;
        if (left >= STRIP_KEYS && strip->j0 >= sight->all_first && j1 <= sight->all_end) strip->full |= 1u << n;
    }
    return strip->end > 0;
}

/* The vector work of a unit. */
ALWAYS_INLINE struct weighing_gradients weighing_of(const struct meeting *m, const struct unit *u) {
    const struct tile_rows *t = &m->rows->tile[u->tile];
    const struct row_statistics of_rows = statistics_of(&m->f->tasks, &t->s, t->kv, m->rows->first + u->tile);
    struct weighing_gradients w = {.s = m->c->block.p, .dp = m->c->block.ds, .left = STRIP_KEYS / 2};
    w.to = weights_of(m, u->strip, u->tile, u->form);
    w.factor = v_set(m->factor);
    for (int i = 0; i < VECTORS; ++i) {
        w.lse2[i] = v_load(of_rows.lse2 + i * LANES);
        w.rows[i] = (__mmask16)columns_mask(t->n - i * LANES);
    }
    return w;
}

/* Whether a unit's scores are finished by the vector work above: no feature, every row sees every key. */
static inline bool is_plain(const struct meeting *m, const struct unit *u) {
    return !m->f->has_features && u->strip->full >> u->tile & 1;
}

/* All vector work of a unit that is not. */
static void weigh_unit(struct meeting *m, const struct unit *u) {
    const struct backward *f = m->f;
    const struct tile_rows *t = &m->rows->tile[u->tile];
    const struct block block = m->c->block;
    const int64_t j0 = u->strip->j0, left = t->s.keys - j0, keys = left < STRIP_KEYS ? left : STRIP_KEYS;
    const struct row_statistics of_rows = statistics_of(&f->tasks, &t->s, t->kv, m->rows->first + u->tile);
    const enum coverage coverage = u->strip->full >> u->tile & 1 ? BLOCK_FULL : BLOCK_PARTIAL;
    struct weighing_gradients w = weighing_of(m, u);
    quad_store(&m->open);
    tile_barrier();
    if (f->has_terms)
        for (int64_t at = 0; at < UNIT_FLOATS; at += LANES)
            v_store(block.p + at, v_mul(v_load(block.p + at), v_set((float)f->p->a.scale)));
    const bool hidden = scores_finish(block.p, block.slope, t, j0, keys, coverage);
    if (f->has_more) block_gradients(&f->tasks.sums, &block, t, &of_rows, &f->tasks.place, j0, keys, hidden);
    for (int64_t at = keys * TILE_ROWS; at < UNIT_FLOATS; at += LANES) v_store(block.p + at, v_set(-INFINITY));
    if (f->has_more)
        weigh_gradients(&w, STRIP_KEYS, true, true);
    else
        weigh_gradients(&w, STRIP_KEYS, true, false);
}

/* The vector work of a unit: all of it is done where scores have features, none yet where they have not. */
ALWAYS_INLINE struct weighing_gradients start_weighing(struct meeting *m, const struct unit *u) {
    struct weighing_gradients w = weighing_of(m, u);
    if (!is_plain(m, u)) weigh_unit(m, u), w.left = 0;
    return w;
}

/* The next group of dV or dK. */
ALWAYS_INLINE void outer_step(struct meeting *m, struct outer *o, struct weighing_gradients *w) {
    const struct backward *f = m->f;
    const struct scratch *c = m->c;
    const int64_t k = f->k_padded, v = f->v_padded, begin = o->strip->begin, depth = o->strip->end - begin;
    const int64_t at = o->strip->j0 - m->k->first, v_groups = v / TILE_DEPTH, n = o->next++;
    const struct weights weights = weights_of(m, o->strip, begin, o->form);
    const bool summed = c->summed[at / STRIP_KEYS];
    if (n < v_groups)
        product_outer(&m->open, c->dv + at * v, weights.p, c->dout_pairs + begin * TILE_ROWS * v, n, v / TILE_SIDE, depth,
                      summed, w);
    else
        product_outer(&m->open, c->dk + at * k, weights.ds, c->q_pairs + begin * TILE_ROWS * k, n - v_groups, k / TILE_SIDE,
                      depth, summed, w);
    if (o->next == o->groups) c->summed[at / STRIP_KEYS] = true;
}

/* S^T and dP^T of a unit, some groups of dV and dK of the strip before, and the vector work of the unit before. */
static void unit_step(struct meeting *m, const struct unit *u, struct outer *o, int64_t until,
                      const struct weighing_gradients *weighing) {
    struct weighing_gradients w = *weighing;
    const struct backward *f = m->f;
    const struct scratch *c = m->c;
    const int64_t k = f->k_padded, v = f->v_padded, at = u->strip->j0 - m->k->first, row = u->tile * TILE_ROWS;
    float *minus_d = statistics_of(&f->tasks, &m->k->s, m->k->kv, m->rows->first + u->tile).minus_D;
    tile_barrier();
    while (o->next < until) outer_step(m, o, &w);
    product_scores(&m->open, c->block.p, NULL, c->k + at * k, c->q + row * k, k / TILE_DEPTH, &w);
    product_scores(&m->open, c->block.ds, f->has_more ? NULL : minus_d, c->v + at * v, c->dout + row * v, v / TILE_DEPTH,
                   NULL);
    tile_barrier();
}

/* G[j] += P[j][r] Y_r for the rows of a tile that are not finite: they were left out of Y, lest 0 * NaN reach a key that the
 * row does not see. */
static void add_held_rows(float *g, const struct tile_rows *t, const uint32_t *form, const strobe_tensor *y, uint32_t held,
                          int64_t columns, int64_t padded) {
    for (int64_t r = 0; held; ++r, held >>= 1) {
        if (!(held & 1)) continue;
        const uint16_t *row = (const uint16_t *)y->data + tile_offset(t, y, r);
        for (int64_t j = 0; j < STRIP_KEYS; ++j) {
            const float weight = weight_of(form, j, r);
            float *to = g + j / TILE_SIDE * TILE_SIDE * padded + j % TILE_SIDE * TILE_SIDE;
            for (int64_t x = 0; weight != 0 && x < columns; ++x)
                to[x / TILE_SIDE * TILE_SIDE * TILE_SIDE + x % TILE_SIDE] += weight * bf16_to_float(row[x]);
        }
    }
}

/* dQ += dS K for the keys of a strip that were left out of K^T, to the rows that see them. */
static void add_held_keys(const struct backward *f, float *dq, const struct tile_rows *t, const uint32_t *form, int64_t j0,
                          uint32_t held) {
    const strobe_tensor *k = &f->p->a.k;
    for (int64_t j = 0; held; ++j, held >>= 1) {
        if (!(held & 1)) continue;
        const uint16_t *row = (const uint16_t *)k->data + strobe__key_offset(k, &t->s, j0 + j, t->kv);
        for (int64_t r = 0; r < t->n; ++r) {
            const float weight = weight_of(form, j, r);
            for (int64_t x = 0; weight != 0 && x < f->p->a.dim; ++x) dq[x * TILE_ROWS + r] += weight * bf16_to_float(row[x]);
        }
    }
}

/* The weights of a strip are there: what is left of the strip before is done, then what was left out of this one's operands.
 */
static void next_outer(struct meeting *m, struct outer *o, const struct unit *last) {
    const struct backward *f = m->f;
    const strobe_attention *a = &f->p->a;
    struct weighing_gradients none = {.left = 0};
    while (o->next < o->groups) outer_step(m, o, &none);
    if (!last) return;
    *o = (struct outer){.strip = last->strip, .form = last->form, .groups = (f->k_padded + f->v_padded) / TILE_DEPTH};
    if (!f->may_hide) return;
    tile_barrier();
    const int64_t at = last->strip->j0 - m->k->first;
    for (int64_t n = last->strip->begin; n < last->strip->end; ++n) {
        const struct weights weights = weights_of(m, last->strip, n, last->form);
        const struct tile_rows *t = &m->rows->tile[n];
        const uint32_t held = (uint32_t)(m->c->held[at / BLOCK_KEYS] >> at % BLOCK_KEYS);
        if (held)
            add_held_keys(f, dq_of_tile(&f->tasks, &m->k->dq, m->rows->first + n), t, weights.ds, last->strip->j0, held);
        if (m->rows->dout_held[n] | m->rows->q_held[n]) start_sums(f, m->c, at);
        add_held_rows(m->c->dv + at * f->v_padded, t, weights.p, &f->p->g.dout, m->rows->dout_held[n], a->dim_v,
                      f->v_padded);
        add_held_rows(m->c->dk + at * f->k_padded, t, weights.ds, &a->q, m->rows->q_held[n], a->dim, f->k_padded);
    }
    tile_barrier();
}

/* dQ^T += K^T dS^T of 32 columns of K, over a strip. */
ALWAYS_INLINE void queries_step(const uint16_t *k, const uint32_t *pairs, const struct turn *turn) {
    _tile_stream_loadd(4, k, 64);
    _tile_loadd(6, pairs, TILE_ROWS * sizeof *pairs);
    if (turn) TURN_TILE(0, turn, 0, 0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, pairs + LANES, TILE_ROWS * sizeof *pairs);
    if (turn) TURN_TILE(1, turn, 1, 0);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, k + 2 * TILE_ELEMENTS, 64);
    if (turn) TURN_TILE(2, turn, 0, 1);
    _tile_dpbf16ps(2, 5, 6);
    if (turn) TURN_TILE(3, turn, 1, 1);
    _tile_dpbf16ps(3, 5, 7);
}

/* dQ^T += K^T dS^T of a tile, over the strips of the batch. */
static void product_queries(struct meeting *m, int64_t tile) {
    const int64_t padded = m->f->k_padded;
    const struct strip *first = m->strips, *end = m->strips + m->count;
    while (first < end && (tile < first->begin || tile >= first->end)) ++first;
    while (first < end && (tile < end[-1].begin || tile >= end[-1].end)) --end;
    if (first == end) return;
    const int64_t of_head = m->rows->first + tile;
    const bool summed = m->k->dq.summed[of_head];
    float *dq = m->k->dq.dq + of_head * TILE_ROWS * padded;
    for (int64_t x = 0; x < padded; x += TILE_DEPTH) {
        const struct quad c = {dq + x * TILE_ROWS, LANES, TILE_SIDE * TILE_ROWS, TILE_ROWS * sizeof *dq};
        struct turn turn = {&m->open, summed ? &c : NULL};
        for (const struct strip *s = first; s < end; ++s, turn.open = NULL) {
            const int64_t at = s->j0 - m->k->first, n = s - m->strips;
            const uint16_t *k = m->c->k_columns + at / BLOCK_KEYS * BLOCK_KEYS * padded + at % BLOCK_KEYS * TILE_SIDE +
                                x * BLOCK_KEYS;
            const uint32_t *pairs = m->c->pairs + (n * BLOCK_TILES + tile) * FORM_WORDS;
            if (turn.open)
                queries_step(k, pairs, &turn);
            else
                queries_step(k, pairs, NULL);
        }
        m->open = c;
    }
    m->k->dq.summed[of_head] = true;
}

/* The rows meet a batch of strips, unit after unit: a pipeline of three stages, S^T and dP^T of a unit, the weights of the
 * unit before, dV and dK of the strip before. */
static void rows_meet_batch(struct meeting *m) {
    struct unit before = {.strip = NULL};
    struct outer o = {.strip = NULL};
    int64_t form = 0;
    for (int64_t n = 0; n < m->count; ++n) {
        const struct strip *s = &m->strips[n];
        for (int64_t tile = s->begin; tile < s->end; ++tile) {
            const struct unit u = {.strip = s, .tile = tile, .form = form};
            struct weighing_gradients w = {.left = 0};
            if (before.strip) w = start_weighing(m, &before);
            const int64_t done = tile - s->begin, units = s->end - s->begin - 1;
            unit_step(m, &u, &o, done == 0 ? 0 : o.groups * done / units, &w);
            if (before.strip && before.strip != s) next_outer(m, &o, &before);
            before = u;
        }
        if (s->end > s->begin) form ^= 1;
    }
    if (!before.strip) return;
    struct weighing_gradients w = start_weighing(m, &before);
    quad_store(&m->open);
    weigh_gradients(&w, STRIP_KEYS, false, false);
    tile_barrier();
    next_outer(m, &o, &before);
    next_outer(m, &o, NULL);
    for (int64_t tile = 0; tile < m->rows->tiles; ++tile) product_queries(m, tile);
    quad_store(&m->open);
    tile_barrier();
}

/* The rows meet the keys [begin, end) of the super-block. */
static void rows_meet_strips(const struct backward *f, const struct scratch *c, const struct row_block *rows,
                             const struct keys *k, int64_t begin, int64_t end) {
    struct meeting m = {.f = f, .c = c, .rows = rows, .k = k, .factor = exponent_factor(f->p)};
    const int64_t strips = (end - begin + STRIP_KEYS - 1) / STRIP_KEYS, batches = (strips + BATCH_STRIPS - 1) / BATCH_STRIPS;
    const int64_t batch = (strips + batches - 1) / batches;
    for (int64_t j0 = begin; j0 < end; j0 += STRIP_KEYS) {
        m.strips[m.count].j0 = j0;
        if (find_tiles(rows, &m.strips[m.count])) ++m.count;
        if (m.count == batch) rows_meet_batch(&m), m.count = 0;
    }
    rows_meet_batch(&m);
}

#endif
