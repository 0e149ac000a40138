/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c: FlashAttention-2's forward (Dao, 2023, algorithm 1) on AMX tiles, in bf16, and, with numbers split into
 * bf16 parts (amx/operand.h), in fp16 and fp32, with FlashAttention-3's overlap
 * (Shah et al., 2024, section 3.2) of softmax and products, here between vector and tile units. amx/step.h has the loop.
 *
 *   for a task, some tiles of 32 packed query rows (rows.h) of one K/V head:
 *     for each super-block of keys that fits in L2:                   V^T packed once, K copied unless it lies well
 *       for each tile:                                                Q^T packed; m, l, O^T of the tile are kept between
 *         for each block of 64 keys, in three interleaved stages:     amx/step.h
 *           S^T = K Q^T;  softcap, bias, ALiBi, mask where there are any
 *           P = 2^(S c - m c);  l += sum P
 *           O^T += V^T P^T
 *     O / l and lse = m + ln l are written once
 *
 * m is not the maximum of the row but a reference near it: the maximum of the first block in which the row sees a key. Only
 * when a block's weights sum to more than RESCALE_ABOVE does m move to the true maximum, and O and l with it; floating point
 * is as precise anywhere below. So the usual block has no pass for the maximum and never multiplies O. The constant is part
 * of the result: m stands in lse and O alike. Weights are rounded to bf16 before they are summed.
 *
 * Tiles, blocks and the order of every sum depend on shapes alone, not on tasks, super-blocks or threads.
 *
 * Xeon VM with AMX, loaded, one thread, 2026-11-22, no lse, medians in calm windows, without a mask: bf16 32 to 38 % of the
 * AMX peak at d = 64 from 2048 keys on, at d = 128 33 to 37 % with 512, 40 to 42 % with 1024, 41 to 48 % with more; fp16 14
 * to 17 %, fp32 123 to 140 % of the FMA peak; PyTorch 2.13 takes 2.0 to 4.1 times as long in bf16, 1.8 to 3.0 in fp32.
 * docs/kernels/cpu.md has the rounds and what was tried. */
#include "core/parallel.h"
#include "cpu/amx/pack.h"
#include "cpu/amx/sizes.h"
#include "cpu/amx/step.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/finish.h"

enum { TASKS_A_WORKER = 4 };
#define RESCALE_ABOVE (256.0f * BLOCK_KEYS)

/* What a tile keeps between super-blocks. */
struct tile {
    struct tile_rows rows;
    float *o, *m, *l; /* [dim_v up to 16][TILE_ROWS], [TILE_ROWS] reference score, [TILE_ROWS] sum of weights */
    bool open;        /* some row has not seen a key: its m is -inf */
    bool o_empty;     /* nothing has been added to O: it is zero, whatever its memory holds */
};

/* One worker's memory. */
struct scratch {
    uint16_t *k, *tail, *v; /* super-block: K [keys][padded dim] unless it is read in place, the last block of K, V^T */
    uint64_t *held, *odd;   /* a block each: keys whose V is not finite, left out of V^T; keys whose K is not, in parts */
    uint16_t *q;
    float *s[2];
    uint32_t *p[2];
    float *state;
};

struct forward {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    int64_t rows_a_task, tasks_a_head, states;
    int64_t k_padded, v_padded, super_keys;
    bool k_in_place, may_hide, has_terms;
    bool streams; /* the output is written past the caches: beside q, k and v it would not stay in L2 until it is read */
    float factor; /* of scores, to exponents of 2 */
    struct dropout_place place;
};

/* The super-block at hand. */
struct keys {
    struct sequence s;
    int64_t kv, first, end;
};

static int64_t state_floats(const struct forward *f) { return f->v_padded * TILE_ROWS + 2 * TILE_ROWS; }

static size_t lay_out(struct scratch *t, float *base, const struct forward *f) {
    size_t used = 0;
    t->k = (uint16_t *)take(base, &used, f->k_in_place ? 0 : PARTS * f->super_keys * f->k_padded / 2);
    t->tail = (uint16_t *)take(base, &used, f->k_in_place ? BLOCK_KEYS * f->k_padded / 2 : 0);
    t->v = (uint16_t *)take(base, &used, PARTS * f->super_keys * f->v_padded / 2);
    t->held = (uint64_t *)(void *)take(base, &used, f->super_keys / BLOCK_KEYS * 2);
    t->odd = (uint64_t *)(void *)take(base, &used, f->super_keys / BLOCK_KEYS * 2);
    t->q = (uint16_t *)take(base, &used, PARTS * TILE_ROWS * f->k_padded / 2);
    for (int n = 0; n < 2; ++n) {
        t->s[n] = take(base, &used, BLOCK_KEYS * TILE_ROWS);
        t->p[n] = (uint32_t *)take(base, &used, PARTS * P_WORDS);
    }
    t->state = take(base, &used, f->states * state_floats(f));
    return used * sizeof(float);
}

/* The greatest of `rows` rows in each lane, at s; several at a time, since one chain would wait for itself. */
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

/* A tile's maximum becomes its reference in rows that had none: they have O = 0 and l = 0 whatever it is. */
static void take_maximum(struct tile *t, const float *s, int64_t rows) {
    t->open = false;
    for (int at = 0; at < TILE_ROWS; at += LANES) {
        const vec none = v_set(-INFINITY), before = v_load(t->m + at);
        const vec m = v_select_equal(before, none, maximum(s + at, rows), before);
        v_store(t->m + at, m);
        t->open = t->open || _mm512_cmp_ps_mask(m, none, _CMP_EQ_OQ);
    }
}

/* Raw scores of keys whose K holds an infinity or a NaN, of which the products of parts make a NaN in any case. */
static void score_odd_keys(const struct forward *f, const struct tile *t, const struct keys *k, float *s, int64_t j0,
                           uint64_t odd) {
    const strobe_attention *a = &f->p->a;
    const float sign = !f->has_terms && a->scale < 0 ? -1.0f : 1.0f;
    for (int64_t j = 0; odd; ++j, odd >>= 1) {
        if (!(odd & 1)) continue;
        const number *key = (const number *)a->k.data + strobe__key_offset(&a->k, &k->s, j0 + j, k->kv);
        for (int64_t r = 0; r < t->rows.n; ++r) {
            const number *row = (const number *)a->q.data + tile_offset(&t->rows, &a->q, r);
            float sum = 0;
            for (int64_t x = 0; x < a->dim; ++x) sum += to_float(key[x]) * to_float(row[x]);
            s[j * TILE_ROWS + r] = sign * sum;
        }
    }
}

/* Raw scores of a block become what is exponentiated; keys: those that exist; rows: of S, those that are exponentiated. */
static void prepare(const struct forward *f, struct tile *t, float *s, int64_t j0, int64_t keys, int64_t rows) {
    if (keys > rows) keys = rows;
    const enum coverage coverage = tile_covers(&t->rows, j0, j0 + keys);
    if (f->has_terms)
        for (int64_t at = 0; at < rows * TILE_ROWS; at += LANES)
            v_store(s + at, v_mul(v_load(s + at), v_set((float)f->p->a.scale)));
    scores_finish(s, NULL, &t->rows, j0, keys, coverage == BLOCK_FULL ? BLOCK_FULL : BLOCK_PARTIAL);
    for (int64_t at = keys * TILE_ROWS; at < rows * TILE_ROWS; at += LANES) v_store(s + at, v_set(-INFINITY));
    if (t->open) take_maximum(t, s, rows);
}

/* Field by field: gcc 12 clears a structure of this size by a string instruction, and what is loaded behind that waits until
 * the tiles stored before it have reached the cache. */
ALWAYS_INLINE void start_weighing(struct weighing *w, const struct forward *f, const struct tile *t, const float *s,
                                  uint32_t *p, int64_t rows) {
    w->s = s, w->p = p, w->left = (int)rows / 2 * VECTORS, w->fine = f->p->a.lse.data;
    w->factor = v_set(f->factor);
    for (int n = 0; n < VECTORS; ++n) {
        const vec m = v_load(t->m + n * LANES);
        w->shift[n] = v_select_equal(m, v_set(-INFINITY), v_set(0), v_mul(m, w->factor));
        w->sum[n] = v_set(0);
    }
}

/* Rows in `lanes` of each vector move to the maximum of the block; O, which holds the blocks before it, and l follow. */
static void move_reference(const struct forward *f, struct tile *t, const float *s, int64_t rows,
                           const __mmask16 lanes[VECTORS]) {
    const vec factor = v_set(f->factor);
    for (int n = 0; n < VECTORS; ++n) {
        const vec before = v_load(t->m + n * LANES);
        const vec m = _mm512_mask_blend_ps(lanes[n], before, v_max(maximum(s + n * LANES, rows), before));
        const vec moved = v_exp2(v_mul(v_sub(before, m), factor));
        const vec correction = v_select_equal(m, before, v_set(1), moved);
        v_store(t->m + n * LANES, m);
        v_store(t->l + n * LANES, v_mul(v_load(t->l + n * LANES), correction));
        for (int64_t x = 0; x < f->v_padded; ++x) {
            float *o = t->o + x * TILE_ROWS + n * LANES;
            v_store(o, v_mul(v_load(o), correction));
        }
    }
}

/* Weights that dropout drops become zero; 1 / (1 - p) is part of the end. */
static void drop_weights(const struct forward *f, const struct tile *t, uint32_t *p, int64_t j0) {
    for (int64_t r = 0; r < t->rows.n; ++r) {
        const uint64_t row = dropout_row(&f->place, t->rows.s.b, packed_head(&t->rows, r), packed_row(&t->rows, r));
        for (int64_t j = 0; j < BLOCK_KEYS; ++j) { /* pairs of keys: j % 2 is the half of the word */
            if (dropout_keeps(&f->place, row, j0 + j)) continue;
            for (int n = 0; n < PARTS; ++n) p[n * P_WORDS + j / 2 * TILE_ROWS + r] &= j % 2 ? 0x0000ffffu : 0xffff0000u;
        }
    }
}

static void clear_if_empty(const struct forward *f, struct tile *t) {
    if (t->o_empty) memset(t->o, 0, (size_t)(f->v_padded * TILE_ROWS) * sizeof *t->o);
    t->o_empty = false;
}

/* O += P V for the keys that were left out of V^T, to the rows that give them a weight. */
static void add_held_keys(const struct forward *f, struct tile *t, const struct keys *k, const uint32_t *p, int64_t j0,
                          uint64_t held) {
    const strobe_tensor *v = &f->p->a.v;
    clear_if_empty(f, t);
    for (int64_t j = 0; held; ++j, held >>= 1) {
        if (!(held & 1)) continue;
        const number *row = (const number *)v->data + strobe__key_offset(v, &k->s, j0 + j, k->kv);
        for (int64_t r = 0; r < t->rows.n; ++r) {
            float weight = 0;
            for (int n = PARTS - 1; n >= 0; --n) {
                const uint32_t pair = p[n * P_WORDS + j / 2 * TILE_ROWS + r];
                weight += bf16_to_float((uint16_t)(j % 2 ? pair >> 16 : pair));
            }
            if (weight == 0) continue;
            for (int64_t x = 0; x < f->p->a.dim_v; ++x) t->o[x * TILE_ROWS + r] += weight * to_float(row[x]);
        }
    }
}

/* The weights of a block are there, O holds the blocks before it: l moves on, m where it has to. */
static void settle(const struct forward *f, struct tile *t, struct weighing *w, const float *s, uint32_t *p, int64_t rows) {
    __mmask16 lanes[VECTORS];
    bool any = false;
    for (int n = 0; n < VECTORS; ++n) {
        lanes[n] = _mm512_cmp_ps_mask(w->sum[n], v_set(RESCALE_ABOVE), _CMP_NLE_UQ);
        any = any || lanes[n];
    }
    if (any) {
        move_reference(f, t, s, rows, lanes);
        start_weighing(w, f, t, s, p, rows);
        weigh_rest(w);
    }
    for (int n = 0; n < VECTORS; ++n) v_store(t->l + n * LANES, v_add(v_load(t->l + n * LANES), w->sum[n]));
}

/* The part of K that holds block j0: in place, copied, or the tail. */
static const uint16_t *block_of_k(const struct forward *f, const struct scratch *t, const struct keys *k, int64_t j0,
                                  int64_t *stride) {
    const strobe_tensor *x = &f->p->a.k;
    *stride = f->k_padded;
    if (!f->k_in_place) return t->k + PARTS * (j0 - k->first) * f->k_padded;
    if (k->s.keys - j0 < BLOCK_KEYS) return t->tail;
    *stride = x->stride[1];
    return (const uint16_t *)x->data + strobe__key_offset(x, &k->s, j0, k->kv);
}

/* Rows of S of block j0: half of them where no query sees the second half of the keys. */
static int64_t rows_seen(int64_t j0, int64_t end) { return end - j0 > HALF_KEYS ? BLOCK_KEYS : HALF_KEYS; }

/* The tile meets the super-block, a step of the pipeline after the other. */
static void tile_meets_keys(const struct forward *f, struct tile *t, const struct scratch *c, const struct keys *k) {
    int64_t first = tile_first_key(&t->rows) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&t->rows);
    if (first < k->first) first = k->first;
    if (end > k->end) end = k->end;
    if (first >= end) return;
    const strobe_attention *a = &f->p->a;
    const int64_t blocks = (end - first + BLOCK_KEYS - 1) / BLOCK_KEYS;
    for (int64_t n = -1; n <= blocks; ++n) { /* block n is exponentiated */
        const int64_t j0 = first + n * BLOCK_KEYS, next = j0 + BLOCK_KEYS, rows = rows_seen(j0, end),
                      next_rows = rows_seen(next, end);
        float *const s = c->s[n & 1], *const next_s = c->s[(n + 1) & 1];
        uint32_t *const weights = c->p[n & 1];
        struct step step = {.q = c->q, .chunks = f->k_padded / TILE_DEPTH, .s = next_s, .o = t->o, .k_keys = next_rows};
        step.p = c->p[(n + 1) & 1], step.tiles = f->v_padded / TILE_SIDE,
        step.v_whole = rows_seen(j0 - BLOCK_KEYS, end) == BLOCK_KEYS;
        if (n + 1 < blocks) step.k = block_of_k(f, c, k, next, &step.k_stride);
        step.o_empty = t->o_empty;
        if (n >= 1) t->o_empty = false, step.v = c->v + PARTS * (j0 - BLOCK_KEYS - k->first) * f->v_padded;
        const bool weighs = n >= 0 && n < blocks;
        struct weighing w;
        start_weighing(&w, f, t, s, weights, weighs ? rows : 0);
        step_run(&step, &w);
        if (weighs) {
            settle(f, t, &w, s, weights, rows);
            if (a->dropout) drop_weights(f, t, weights, j0);
            const uint64_t held = c->held[(j0 - k->first) / BLOCK_KEYS];
            if (held) add_held_keys(f, t, k, weights, j0, rows == BLOCK_KEYS ? held : (uint32_t)held);
        }
        if (step.k) {
            const int64_t left = k->s.keys - next;
            const uint64_t odd = c->odd[(next - k->first) / BLOCK_KEYS];
            if (odd) score_odd_keys(f, t, k, next_s, next, odd);
            prepare(f, t, next_s, next, left < BLOCK_KEYS ? left : BLOCK_KEYS, next_rows);
        }
    }
}

/* Packs the keys that the task's tiles see in the super-block. */
static void pack_super_block(const struct forward *f, const struct scratch *t, const struct keys *k) {
    const strobe_attention *a = &f->p->a;
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
        const number *key = (const number *)a->k.data + strobe__key_offset(&a->k, &k->s, j0, k->kv);
        const number *value = (const number *)a->v.data + strobe__key_offset(&a->v, &k->s, j0, k->kv);
        const bool search = f->may_hide || PARTS > 1; /* an infinity times a part that is zero would be NaN */
        bool finite = true;
        if (!f->k_in_place)
            finite = pack_keys(t->k + PARTS * at * f->k_padded, key, a->k.stride[1], n, a->dim, f->k_padded);
        else if (n < BLOCK_KEYS)
            pack_keys(t->tail, key, a->k.stride[1], n, a->dim, f->k_padded);
        t->odd[at / BLOCK_KEYS] = PARTS > 1 && !finite ? keys_not_finite(key, a->k.stride[1], n, a->dim) : 0;
        uint16_t *v = t->v + PARTS * at * f->v_padded;
        finite = pack_values(v, value, a->v.stride[1], n, a->dim_v, f->v_padded, 0);
        t->held[at / BLOCK_KEYS] = search && !finite ? keys_not_finite(value, a->v.stride[1], n, a->dim_v) : 0;
        if (t->held[at / BLOCK_KEYS])
            pack_values(v, value, a->v.stride[1], n, a->dim_v, f->v_padded, t->held[at / BLOCK_KEYS]);
    }
}

static void start_tile(const struct forward *f, struct tile *t, float *state, const struct tile_rows *rows) {
    *t = (struct tile){.rows = *rows, .o = state, .open = true, .o_empty = true};
    t->m = state + f->v_padded * TILE_ROWS;
    t->l = t->m + TILE_ROWS;
    for (int r = 0; r < TILE_ROWS; ++r) t->m[r] = -INFINITY, t->l[r] = 0;
}

static void finish_tile(const struct forward *f, struct tile *t) {
    clear_if_empty(f, t);
    float factor[TILE_ROWS] = {0};
    finish_rows(&t->rows, t->m, t->l, factor);
    if (f->p->a.dropout)
        for (int r = 0; r < TILE_ROWS; ++r) factor[r] *= f->place.keep_scale;
    unpack_rows(&t->rows, &f->p->a.out, t->o, f->p->a.dim_v, factor, f->streams);
}

static void pack_tile(const struct forward *f, const struct scratch *c, const struct tile_rows *rows) {
    const strobe_attention *a = &f->p->a;
    pack_queries(c->q, rows, &a->q, a->dim, !f->has_terms && a->scale < 0);
}

/* Packed rows [first, first + rows) of a K/V head. */
static void forward_rows(const struct forward *f, const struct scratch *c, struct keys *k, int64_t first, int64_t rows) {
    struct tile tiles[FORWARD_MOST_ROWS / TILE_ROWS];
    const int64_t count = (rows + TILE_ROWS - 1) / TILE_ROWS, stride = state_floats(f);
    const struct tile_rows top = tile_rows_at(f->p, &k->s, k->kv, first);
    const struct tile_rows bottom = tile_rows_at(f->p, &k->s, k->kv, first + (count - 1) * TILE_ROWS);
    const int64_t begin = tile_first_key(&top) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&bottom);
    const bool once = end - begin <= f->super_keys; /* then a tile starts, meets its keys and is finished at once */
    for (k->first = begin; k->first < end || k->first == begin; k->first += f->super_keys) {
        k->end = end - k->first < f->super_keys ? end : k->first + f->super_keys;
        pack_super_block(f, c, k);
        pack_tile(f, c, &top);
        for (int64_t n = 0; n < count; ++n) {
            const struct tile_rows at = tile_rows_at(f->p, &k->s, k->kv, first + n * TILE_ROWS);
            const struct tile_rows next = tile_rows_at(f->p, &k->s, k->kv, first + (n + 1) * TILE_ROWS);
            if (k->first == begin) start_tile(f, &tiles[n], c->state + (once ? 0 : n) * stride, &at);
            tile_meets_keys(f, &tiles[n], c, k);
            /* Before the tile is written: stores to the caches wait for those past them, and loads of Q^T for both. */
            if (n + 1 < count) pack_tile(f, c, &next);
            if (k->end >= end) finish_tile(f, &tiles[n]);
        }
    }
}

static void forward_task(void *context, int64_t index, int32_t worker) {
    const struct forward *f = context;
    const strobe_attention *a = &f->p->a;
    const int64_t heads = a->batch * a->heads_kv;
    /* The last rows see the most keys under a causal mask: longest first balances threads. */
    const int64_t first = (f->tasks_a_head - 1 - index / heads) * f->rows_a_task;
    struct keys k = {.s = strobe__sequence(f->p, index % heads / a->heads_kv), .kv = index % heads % a->heads_kv};
    const int64_t left = packed_rows(f->p, &k.s) - first;
    if (left <= 0) return;
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    struct scratch t;
    lay_out(&t, (float *)(void *)(f->workspace + (size_t)worker * f->scratch_bytes), f);
    forward_rows(f, &t, &k, first, left < f->rows_a_task ? left : f->rows_a_task);
    tiles_leave();
    if (f->streams) _mm_sfence(); /* such stores are ordered only by this */
    leave_flush_to_zero(mode);
}

/* Sizes. Rows of a task: all of a head where there are heads enough for the workers, else fewer. */
static struct forward forward_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct forward f = {.p = p, .k_padded = up_to(a->dim, TILE_DEPTH)};
    f.v_padded = up_to(a->dim_v, PARTS == 1 ? TILE_SIDE : 2 * TILE_SIDE);
    const int64_t keys = up_to(a->seq_k > 0 ? a->seq_k : 1, BLOCK_KEYS), rows = a->seq_q * p->group;
    f.super_keys = FORWARD_SUPER_BYTES / 2 / PARTS / (f.k_padded + f.v_padded) / BLOCK_KEYS * BLOCK_KEYS;
    if (f.super_keys > keys) f.super_keys = keys;
    /* Rows of K that lie far apart fall into few sets of the cache; lines are 64 bytes. */
    f.k_in_place = PARTS == 1 && a->k.stride[1] == a->dim && a->dim == f.k_padded && (uintptr_t)a->k.data % 64 == 0;
    f.may_hide = a->mask || scores_have_holes(p);
    f.has_terms = scores_have_terms(p);
    f.factor = exponent_factor(p);
    f.streams = a->batch * a->seq_q * a->heads_q * a->dim_v * (int64_t)sizeof(number) > FORWARD_SUPER_BYTES / 2;
    f.rows_a_task = FORWARD_MOST_ROWS;
    const int64_t wanted = TASKS_A_WORKER * (int64_t)strobe__workers(a->parallel), heads = a->batch * a->heads_kv;
    while (f.rows_a_task > FORWARD_LEAST_ROWS && heads * ((rows + f.rows_a_task - 1) / f.rows_a_task) < wanted)
        f.rows_a_task /= 2;
    f.tasks_a_head = (rows + f.rows_a_task - 1) / f.rows_a_task;
    f.states = keys <= f.super_keys ? 1 : (f.rows_a_task < rows ? f.rows_a_task : rows + TILE_ROWS - 1) / TILE_ROWS;
    if (a->dropout) f.place = strobe__dropout_place(p);
    return f;
}

size_t AMX_KERNEL(forward_workspace)(const struct problem *p) {
    struct scratch t;
    struct forward f = forward_of(p);
    f.k_in_place = false; /* where K lies is not known in queries */
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&t, NULL, &f);
}

strobe_status AMX_KERNEL(forward)(const struct problem *p, const struct execution *execution) {
    struct forward f = forward_of(p);
    struct scratch t;
    f.workspace = execution->workspace;
    f.scratch_bytes = lay_out(&t, NULL, &f);
    strobe__parallel_for(p->a.parallel, p->a.batch * p->a.heads_kv * f.tasks_a_head, forward_task, &f);
    return STROBE_OK;
}
