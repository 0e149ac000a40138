/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c (amx): FlashAttention-2's forward (Dao, 2023, algorithm 1) on AMX tiles in bf16. The same text is compiled for
 * fp16 and fp32, whose numbers are split into bf16 parts (amx/operand.h). The softmax of one block overlaps with the
 * products of its neighbours as in FlashAttention-3 (Shah et al., 2024, section 3.2), here between vector units and tile
 * unit: amx/step.h has this pipeline and the memory map of a tile.
 *
 *   a task is some tiles of 32 packed query rows (rows.h) of one K/V head
 *   for each super-block of keys, half of L2:           V^T is packed once, K is copied unless it can be read in place
 *     for each tile of the task:                        Q^T is packed; m, l and O^T wait in memory between super-blocks
 *       for each block of 64 keys that the tile sees:   a step of the pipeline, three stages
 *         S^T = K Q^T;  softcap, bias, ALiBi and mask where there are any
 *         online softmax:  P = exp(S - m) = 2^(S c - m c), c = scale log2 e;  l += rowsum(P)
 *         O^T += V^T P^T
 *   O / l and lse = m + ln l are written once
 *
 * Lagging maximum: m is not the running maximum of a row but the maximum of the first block in which the row sees a key. It
 * moves to the true maximum, and O and l are rescaled, only when the exponentials of a block sum to more than RESCALE_ABOVE;
 * below that, fp32 is equally precise at any magnitude. So the usual block has no pass for the maximum and no rescale.
 * RESCALE_ABOVE is part of the result, since m is in lse and in O. l sums P in fp32, before P is rounded to bf16.
 *
 * Causal skip: a tile loops over the blocks that its band reaches, and the last block is cut to half of its keys where no
 * row sees the others. The number of threads decides how many rows a task has, but results do not depend on it: tiles,
 * blocks and the order of every sum follow from shapes alone.
 *
 * docs/kernels/cpu.md has the versions and what was tried, docs/benchmarks.md the figures. */
#include "core/parallel.h"
#include "cpu/amx/pack.h"
#include "cpu/amx/sizes.h"
#include "cpu/amx/step.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/finish.h"

enum {
    STREAM_ABOVE = 1 << 19, /* bytes of output: beyond, results bypass the caches, since they would not stay in L2 */
    TASKS_A_WORKER = 4,     /* wanted at least, to balance the threads */
};
#define RESCALE_ABOVE (256.0f * BLOCK_KEYS) /* P may grow to 2^8 on average: far from the end of bf16 and fp32 */

/* The state of a tile's rows, kept between super-blocks. */
struct tile {
    struct tile_rows rows;
    float *o, *m, *l; /* O^T [v_padded][TILE_ROWS]; [TILE_ROWS] lagging maximum; [TILE_ROWS] sum of exponentials */
    bool any_unset;   /* some row has not seen a key: its m is -inf */
    bool o_empty;     /* nothing has been added to O: it is zero, whatever its memory holds */
};

/* One worker's memory. */
struct scratch {
    uint16_t *k;           /* the super-block's K in parts, [keys][k_padded], unless K is read in place */
    uint16_t *tail;        /* where K is read in place: its last block, if that is not whole */
    uint16_t *v;           /* the super-block's V^T in parts */
    uint64_t *v_nonfinite; /* [blocks] one bit a key: its V is not finite and left out of V^T */
    uint64_t *k_nonfinite; /* [blocks] one bit a key: its K, in parts, is not finite */
    uint16_t *q;           /* Q^T of the tile */
    float *s[2];           /* S^T of a block, two buffers */
    uint32_t *p[2];        /* P^T of a block, two buffers */
    float *state;          /* O^T, m and l of each tile of the task */
};

struct forward {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    int64_t rows_a_task, tasks_a_head, states; /* states: tiles whose state a worker keeps */
    int64_t k_padded, v_padded, super_keys;    /* dim and dim_v up to whole tiles; keys of a super-block */
    bool k_in_place;                           /* K is multiplied where the caller has it */
    bool some_hidden;                          /* a key may be hidden from some row of its block */
    bool has_terms;                            /* scores_have_terms() */
    bool streams;                              /* results bypass the caches (non-temporal stores) */
    float factor;                              /* exponent_factor() */
    struct dropout_place place;
};

/* A super-block: keys [first, end) of a K/V head. */
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
    t->v_nonfinite = (uint64_t *)(void *)take(base, &used, f->super_keys / BLOCK_KEYS * 2);
    t->k_nonfinite = (uint64_t *)(void *)take(base, &used, f->super_keys / BLOCK_KEYS * 2);
    t->q = (uint16_t *)take(base, &used, PARTS * TILE_ROWS * f->k_padded / 2);
    for (int n = 0; n < 2; ++n) {
        t->s[n] = take(base, &used, BLOCK_KEYS * TILE_ROWS);
        t->p[n] = (uint32_t *)take(base, &used, PARTS * P_WORDS);
    }
    t->state = take(base, &used, f->states * state_floats(f));
    return used * sizeof(float);
}

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

/* Sets m to the maximum of the block in rows that have seen no key before; their O and l are 0, so nothing is rescaled. */
static void set_reference(struct tile *t, const float *s, int64_t rows) {
    t->any_unset = false;
    for (int at = 0; at < TILE_ROWS; at += LANES) {
        const vec none = v_set(-INFINITY), before = v_load(t->m + at);
        const vec m = v_select_equal(before, none, maximum(s + at, rows), before);
        v_store(t->m + at, m);
        t->any_unset = t->any_unset || _mm512_cmp_ps_mask(m, none, _CMP_EQ_OQ);
    }
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

/* Applies softcap, bias, ALiBi and mask to the raw scores of a block. keys: how many of its keys exist; rows: how many rows
 * of S^T are exponentiated, of which those without a key become -inf. */
static void finish_scores(const struct forward *f, struct tile *t, float *s, int64_t j0, int64_t keys, int64_t rows) {
    if (keys > rows) keys = rows;
    const enum coverage coverage = tile_covers(&t->rows, j0, j0 + keys);
    if (f->has_terms)
        for (int64_t at = 0; at < rows * TILE_ROWS; at += LANES)
            v_store(s + at, v_mul(v_load(s + at), v_set((float)f->p->a.scale)));
    scores_finish(s, NULL, &t->rows, j0, keys, coverage == BLOCK_FULL ? BLOCK_FULL : BLOCK_PARTIAL);
    for (int64_t at = keys * TILE_ROWS; at < rows * TILE_ROWS; at += LANES) v_store(s + at, v_set(-INFINITY));
    if (t->any_unset) set_reference(t, s, rows);
}

/* Sets up the exponentials of a block, field by field: gcc 12 would clear a structure of this size by a string instruction,
 * and loads behind that wait until the tiles stored before it have reached the cache. */
ALWAYS_INLINE void start_exponentials(struct exponentials *e, const struct forward *f, const struct tile *t, const float *s,
                                      uint32_t *p, int64_t rows) {
    e->s = s;
    e->p = p;
    e->left = (int)rows / 2 * VECTORS;
    e->fine = f->p->a.lse.data;
    e->factor = v_set(f->factor);
    const vec shift_factor = e->fine || PARTS > 1 ? v_set(1) : e->factor;
    for (int n = 0; n < VECTORS; ++n) {
        const vec m = v_load(t->m + n * LANES);
        e->shift[n] = v_select_equal(m, v_set(-INFINITY), v_set(0), v_mul(m, shift_factor));
        e->sum[n] = v_set(0);
    }
}

/* Rescale: m of the rows in `lanes` moves to the maximum of the block, and O, which holds the blocks before it, and l are
 * multiplied by exp(m_old - m_new); that is exactly 1 where m stays. */
static void rescale_rows(const struct forward *f, struct tile *t, const float *s, int64_t rows,
                         const __mmask16 lanes[VECTORS]) {
    const vec factor = v_set(f->factor);
    for (int n = 0; n < VECTORS; ++n) {
        const vec before = v_load(t->m + n * LANES);
        const vec m = _mm512_mask_blend_ps(lanes[n], before, v_max(maximum(s + n * LANES, rows), before));
        const vec power = v_exp2(v_mul(v_sub(before, m), factor));
        const vec rescale = v_select_equal(m, before, v_set(1), power);
        v_store(t->m + n * LANES, m);
        v_store(t->l + n * LANES, v_mul(v_load(t->l + n * LANES), rescale));
        for (int64_t x = 0; x < f->v_padded; ++x) {
            float *o = t->o + x * TILE_ROWS + n * LANES;
            v_store(o, v_mul(v_load(o), rescale));
        }
    }
}

/* Sets the elements of P to zero that dropout drops. The others are multiplied by 1 / (1 - p) in finish_tile(). */
static void apply_dropout(const struct forward *f, const struct tile *t, uint32_t *p, int64_t j0) {
    for (int64_t r = 0; r < t->rows.n; ++r) {
        const uint64_t row = dropout_row(&f->place, t->rows.s.b, packed_head(&t->rows, r), packed_row(&t->rows, r));
        for (int64_t j = 0; j < BLOCK_KEYS; ++j) { /* a word holds keys j and j + 1 */
            if (dropout_keeps(&f->place, row, j0 + j)) continue;
            for (int n = 0; n < PARTS; ++n) p[n * P_WORDS + j / 2 * TILE_ROWS + r] &= j % 2 ? 0x0000ffffu : 0xffff0000u;
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
    __mmask16 lanes[VECTORS];
    bool any = false;
    for (int n = 0; n < VECTORS; ++n) {
        lanes[n] = _mm512_cmp_ps_mask(e->sum[n], v_set(RESCALE_ABOVE), _CMP_NLE_UQ);
        any = any || lanes[n];
    }
    if (any) {
        rescale_rows(f, t, s, rows, lanes);
        start_exponentials(e, f, t, s, p, rows);
        exponentials_rest(e);
    }
    for (int n = 0; n < VECTORS; ++n) v_store(t->l + n * LANES, v_add(v_load(t->l + n * LANES), e->sum[n]));
}

/* Where K of block j0 lies: with the caller, in the worker's copy, or in the tail. */
static const uint16_t *block_of_k(const struct forward *f, const struct scratch *t, const struct keys *k, int64_t j0,
                                  int64_t *stride) {
    const strobe_tensor *x = &f->p->a.k;
    *stride = f->k_padded;
    if (!f->k_in_place) return t->k + PARTS * (j0 - k->first) * f->k_padded;
    if (k->s.keys - j0 < BLOCK_KEYS) return t->tail;
    *stride = x->stride[1];
    return (const uint16_t *)x->data + strobe__key_offset(x, &k->s, j0, k->kv);
}

/* The rows of S^T of block j0 that are computed: half of them where no query sees the second half of the keys. */
static int64_t rows_seen(int64_t j0, int64_t end) { return end - j0 > HALF_KEYS ? BLOCK_KEYS : HALF_KEYS; }

/* A tile attends to a super-block: the loop over its blocks, a step of the pipeline each and one more at either end. */
static void attend_super_block(const struct forward *f, struct tile *t, const struct scratch *c, const struct keys *k) {
    int64_t first = tile_first_key(&t->rows) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&t->rows);
    if (first < k->first) first = k->first;
    if (end > k->end) end = k->end;
    if (first >= end) return;
    const strobe_attention *a = &f->p->a;
    const int64_t blocks = (end - first + BLOCK_KEYS - 1) / BLOCK_KEYS;
    for (int64_t n = -1; n <= blocks; ++n) { /* block n is exponentiated */
        const int64_t j0 = first + n * BLOCK_KEYS, next = j0 + BLOCK_KEYS, before = j0 - BLOCK_KEYS;
        const int64_t rows = rows_seen(j0, end), next_rows = rows_seen(next, end);
        float *const s = c->s[n & 1], *const next_s = c->s[(n + 1) & 1];
        uint32_t *const p = c->p[n & 1];
        struct step step = {.q = c->q, .chunks = f->k_padded / TILE_DEPTH, .s = next_s, .o = t->o, .k_keys = next_rows};
        step.p = c->p[(n + 1) & 1];
        step.tiles = f->v_padded / TILE_SIDE;
        step.v_whole = rows_seen(before, end) == BLOCK_KEYS;
        if (n + 1 < blocks) step.k = block_of_k(f, c, k, next, &step.k_stride);
        step.o_empty = t->o_empty;
        if (n >= 1) {
            t->o_empty = false;
            step.v = c->v + PARTS * (before - k->first) * f->v_padded;
        }
        const bool exponentiates = n >= 0 && n < blocks;
        struct exponentials e;
        start_exponentials(&e, f, t, s, p, exponentiates ? rows : 0);
        step_run(&step, &e);
        if (exponentiates) {
            online_softmax(f, t, &e, s, p, rows);
            if (a->dropout) apply_dropout(f, t, p, j0);
            const uint64_t v_nonfinite = c->v_nonfinite[(j0 - k->first) / BLOCK_KEYS];
            if (v_nonfinite) add_nonfinite_keys(f, t, k, p, j0, rows == BLOCK_KEYS ? v_nonfinite : (uint32_t)v_nonfinite);
        }
        if (step.k) {
            const int64_t left = k->s.keys - next;
            const uint64_t k_nonfinite = c->k_nonfinite[(next - k->first) / BLOCK_KEYS];
            if (k_nonfinite) score_nonfinite_keys(f, t, k, next_s, next, k_nonfinite);
            finish_scores(f, t, next_s, next, left < BLOCK_KEYS ? left : BLOCK_KEYS, next_rows);
        }
    }
}

/* Packs K and V of a super-block. */
static void pack_super_block(const struct forward *f, const struct scratch *t, const struct keys *k) {
    const strobe_attention *a = &f->p->a;
    for (int64_t j0 = k->first; j0 < k->end; j0 += BLOCK_KEYS) {
        const int64_t left = k->s.keys - j0, n = left < BLOCK_KEYS ? left : BLOCK_KEYS, at = j0 - k->first;
        const number *key = (const number *)a->k.data + strobe__key_offset(&a->k, &k->s, j0, k->kv);
        const number *value = (const number *)a->v.data + strobe__key_offset(&a->v, &k->s, j0, k->kv);
        const bool search = f->some_hidden || PARTS > 1; /* in parts, an infinity times a part of zero would be NaN */
        bool finite = true;
        if (!f->k_in_place)
            finite = pack_keys(t->k + PARTS * at * f->k_padded, key, a->k.stride[1], n, a->dim, f->k_padded);
        else if (n < BLOCK_KEYS)
            pack_keys(t->tail, key, a->k.stride[1], n, a->dim, f->k_padded);
        t->k_nonfinite[at / BLOCK_KEYS] = PARTS > 1 && !finite ? keys_not_finite(key, a->k.stride[1], n, a->dim) : 0;
        uint16_t *v = t->v + PARTS * at * f->v_padded;
        finite = pack_values(v, value, a->v.stride[1], n, a->dim_v, f->v_padded, 0);
        t->v_nonfinite[at / BLOCK_KEYS] = search && !finite ? keys_not_finite(value, a->v.stride[1], n, a->dim_v) : 0;
        if (t->v_nonfinite[at / BLOCK_KEYS])
            pack_values(v, value, a->v.stride[1], n, a->dim_v, f->v_padded, t->v_nonfinite[at / BLOCK_KEYS]);
    }
}

static void start_tile(const struct forward *f, struct tile *t, float *state, const struct tile_rows *rows) {
    *t = (struct tile){.rows = *rows, .o = state, .any_unset = true, .o_empty = true};
    t->m = state + f->v_padded * TILE_ROWS;
    t->l = t->m + TILE_ROWS;
    for (int r = 0; r < TILE_ROWS; ++r) {
        t->m[r] = -INFINITY;
        t->l[r] = 0;
    }
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

/* The forward of the packed rows [first, first + rows) of a K/V head. */
static void forward_rows(const struct forward *f, const struct scratch *c, struct keys *k, int64_t first, int64_t rows) {
    struct tile tiles[FORWARD_MOST_ROWS / TILE_ROWS];
    const int64_t count = (rows + TILE_ROWS - 1) / TILE_ROWS, stride = state_floats(f);
    const struct tile_rows top = tile_rows_at(f->p, &k->s, k->kv, first);
    const struct tile_rows bottom = tile_rows_at(f->p, &k->s, k->kv, first + (count - 1) * TILE_ROWS);
    const int64_t begin = tile_first_key(&top) / BLOCK_KEYS * BLOCK_KEYS, end = tile_end_key(&bottom);
    const bool one_super_block = end - begin <= f->super_keys; /* then all tiles use one state, one after the other */
    for (k->first = begin; k->first < end || k->first == begin; k->first += f->super_keys) {
        k->end = end - k->first < f->super_keys ? end : k->first + f->super_keys;
        pack_super_block(f, c, k);
        pack_tile(f, c, &top);
        for (int64_t n = 0; n < count; ++n) {
            const struct tile_rows at = tile_rows_at(f->p, &k->s, k->kv, first + n * TILE_ROWS);
            const struct tile_rows next = tile_rows_at(f->p, &k->s, k->kv, first + (n + 1) * TILE_ROWS);
            if (k->first == begin) start_tile(f, &tiles[n], c->state + (one_super_block ? 0 : n) * stride, &at);
            attend_super_block(f, &tiles[n], c, k);
            /* Q^T of the next tile comes before the results of this one. Stores to the caches wait for those that bypass
             * them, and loads of Q^T wait for both. */
            if (n + 1 < count) pack_tile(f, c, &next);
            if (k->end >= end) finish_tile(f, &tiles[n]);
        }
    }
}

static void forward_task(void *context, int64_t index, int32_t worker) {
    const struct forward *f = context;
    const strobe_attention *a = &f->p->a;
    const int64_t heads = a->batch * a->heads_kv;
    /* Under a causal mask the last rows see the most keys, and the longest tasks first balance the threads best. */
    const int64_t first = (f->tasks_a_head - 1 - index / heads) * f->rows_a_task;
    struct keys k = {.s = strobe__sequence(f->p, index % heads / a->heads_kv), .kv = index % heads % a->heads_kv};
    const int64_t left = packed_rows(f->p, &k.s) - first;
    if (left <= 0) return;
    const float_mode mode = enter_flush_to_zero();
    tiles_enter();
    struct scratch t;
    lay_out(&t, worker_memory(f->workspace, f->scratch_bytes, worker), f);
    forward_rows(f, &t, &k, first, left < f->rows_a_task ? left : f->rows_a_task);
    tiles_leave();
    if (f->streams) _mm_sfence(); /* orders the non-temporal stores before whatever the caller does next */
    leave_flush_to_zero(mode);
}

/* Sizes. A task has up to FORWARD_MOST_ROWS rows of a head, and fewer where the workers would have too few tasks. */
static struct forward forward_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct forward f = {.p = p, .k_padded = up_to(a->dim, TILE_DEPTH)};
    f.v_padded = up_to(a->dim_v, PARTS == 1 ? TILE_SIDE : 2 * TILE_SIDE);
    const int64_t keys = up_to(a->seq_k > 0 ? a->seq_k : 1, BLOCK_KEYS), rows = a->seq_q * p->group;
    f.super_keys = FORWARD_SUPER_BYTES / 2 / PARTS / (f.k_padded + f.v_padded) / BLOCK_KEYS * BLOCK_KEYS;
    if (f.super_keys > keys) f.super_keys = keys;
    /* K is read in place where its rows are adjacent: rows that are far apart fall into few sets of the cache. */
    f.k_in_place = PARTS == 1 && a->k.stride[1] == a->dim && a->dim == f.k_padded && (uintptr_t)a->k.data % 64 == 0;
    f.some_hidden = a->mask || scores_have_element_masks(p);
    f.has_terms = scores_have_terms(p);
    f.factor = exponent_factor(p);
    f.streams = a->batch * a->seq_q * a->heads_q * a->dim_v * (int64_t)sizeof(number) > STREAM_ABOVE;
    f.rows_a_task = FORWARD_MOST_ROWS;
    const int64_t wanted = TASKS_A_WORKER * (int64_t)strobe__workers(a->parallel), heads = a->batch * a->heads_kv;
    while (f.rows_a_task > FORWARD_LEAST_ROWS && heads * ((rows + f.rows_a_task - 1) / f.rows_a_task) < wanted)
        f.rows_a_task /= 2;
    f.tasks_a_head = (rows + f.rows_a_task - 1) / f.rows_a_task;
    f.states = keys <= f.super_keys ? 1 : (f.rows_a_task < rows ? f.rows_a_task : rows + TILE_ROWS - 1) / TILE_ROWS;
    if (a->dropout) f.place = strobe__dropout_place(p);
    return f;
}

size_t AMX_KERNEL(forward_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch t;
    struct forward f = forward_of(p);
    f.k_in_place = false; /* a workspace query may have no pointer to K yet */
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&t, NULL, &f);
}

strobe_status AMX_KERNEL(forward)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct forward f = forward_of(p);
    struct scratch t;
    f.workspace = execution->workspace;
    f.scratch_bytes = lay_out(&t, NULL, &f);
    strobe__parallel_for(p->a.parallel, p->a.batch * p->a.heads_kv * f.tasks_a_head, forward_task, &f);
    return STROBE_OK;
}
