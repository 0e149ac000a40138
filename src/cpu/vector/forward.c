/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c (vector): FlashAttention-2's forward (Dao, 2023, algorithm 1), one text for every level of vectors.
 *
 *   a task is a few tiles of TILE_ROWS packed query rows (rows.h) of one K/V head
 *   for each block of BLOCK_KEYS keys that some row of the task sees:             K, V converted to fp32 once, and packed
 *                                                                                 for many rows (panels.h)
 *     for each tile, unless the block is hidden from it (visible.h):
 *       S^T = K Q^T;  softcap, bias, ALiBi, mask where there are any              tile_scores, finish_scores
 *       m' = max(m, S);  P = exp(S - m') = 2^(S c - m' c);  l = a l + rowsum(P)   online_softmax
 *       O^T = a O^T + V^T P^T,  a = exp(m - m'), the rescale                      tile_accumulate
 *   O / l and lse = m + ln l are written once
 *
 * Query rows lie across the lanes, so the softmax has no horizontal step (tile.h). Memory of a worker, d = 128, AVX-512: S
 * 12 KiB, and for each tile Q and O 24 KiB each; K and V are streamed. A task has fewer tiles where there are
 * more threads, and every row's sums run in the order of the keys: results do not depend on the number of threads. */
#include "core/parallel.h"
#include "cpu/scratch.h"
#include "cpu/table.h"
#include "cpu/vector/dropout.h"
#include "cpu/vector/finish.h"
#include "cpu/vector/forward_tasks.h"
#include "cpu/vector/next_rows.h"
#include "cpu/vector/nonfinite.h"
#include "cpu/vector/panels.h"

/* So many vectors of rows pay for a copy of the keys that they attend to. */
enum { ENOUGH_VECTORS = 3, MOST_TILES = TASK_ROWS / TILE_ROWS };

/* The state of a tile's rows. */
struct tile {
    struct tile_rows rows;
    struct row_features features;
    float *q;     /* [dim][TILE_ROWS] */
    float *o;     /* [dim_v][TILE_ROWS], not divided by l */
    float *m, *l; /* [TILE_ROWS] maximum score, sum of exponentials */
    int vectors;  /* that hold rows */
    bool begun;   /* O has been written */
};

/* One worker's memory. */
struct scratch {
    struct tile *tile; /* [tiles of a task] */
    float *s;          /* [BLOCK_KEYS][TILE_ROWS] scores, then P */
    float *rescale;    /* [TILE_ROWS] */
    float *k, *v;      /* [BLOCK_KEYS][dim] and 2 [BLOCK_KEYS][dim_v]: converted, or without what is not finite */
    float *k_panels, *v_panels;
    float *rows; /* [LANES][dim] */
};

struct forward {
    const struct problem *p;
    char *workspace;
    size_t scratch_bytes;
    int64_t tiles, tasks_a_head; /* tiles of a task */
    bool v_in_k;
    struct dropout_place place;
};

/* The tiles of a task: fewer than there may be where workers would have too few tasks. */
static int64_t tiles_of_task(const struct problem *p) {
    const int64_t heads = p->a.batch * p->a.heads_kv, all = (p->a.seq_q * p->group + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t workers = strobe__workers(p->a.parallel), even = workers * EVEN_TASKS, few = SHORT_TASK / TILE_ROWS;
    const int64_t balancing = workers * BALANCING_TASKS, enough = balancing < ENOUGH_TASKS ? balancing : ENOUGH_TASKS;
    int64_t tiles = all < MOST_TILES ? all : MOST_TILES;
    if (tiles == 0) return 1;
    if (workers == 1) return tiles; /* a single worker has nothing to balance */
    while (tiles > few && heads * ((all + tiles - 1) / tiles) < even) tiles = tiles / 2 > few ? tiles / 2 : few;
    while (tiles > 1 && heads * ((all + tiles - 1) / tiles) < enough) tiles /= 2;
    return tiles;
}

/* Lays out a worker's memory; with base NULL only counts, and leaves the pieces of tiles out. Returns bytes. */
static size_t lay_out(struct scratch *t, float *base, const struct problem *p, int64_t tiles) {
    const strobe_attention *a = &p->a;
    size_t used = 0;
    t->tile = (struct tile *)(void *)take(base, &used, (tiles * (int64_t)sizeof *t->tile + 3) / 4);
    const struct score_memory score = take_score_memory(base, &used, p);
    for (int64_t n = 0; n < tiles; ++n) {
        struct tile counted, *tile = base ? &t->tile[n] : &counted;
        tile->q = take(base, &used, a->dim * TILE_ROWS);
        tile->o = take(base, &used, a->dim_v * TILE_ROWS);
        tile->m = take(base, &used, TILE_ROWS);
        tile->l = take(base, &used, TILE_ROWS);
        tile->features.score = take_tile_memory(&score, base, &used, p);
    }
    t->s = take(base, &used, BLOCK_KEYS * TILE_ROWS);
    t->rescale = take(base, &used, TILE_ROWS);
    t->k = take(base, &used, BLOCK_KEYS * a->dim);
    t->v = take(base, &used, 2 * BLOCK_KEYS * a->dim_v);
    t->k_panels = take(base, &used, BLOCK_KEYS * a->dim);
    t->v_panels = take(base, &used, BLOCK_KEYS * a->dim_v);
    t->rows = take(base, &used, LANES * a->dim);
    return used * sizeof(float);
}

static void clear_values(struct tile *t) {
    memset(t->o, 0, (size_t)(t->rows.p->a.dim_v * TILE_ROWS) * sizeof *t->o);
    t->begun = true;
}

static void start_tile(struct tile *t, const struct tile_rows *rows, float *memory) {
    const strobe_attention *a = &rows->p->a;
    t->rows = *rows;
    t->vectors = vectors_of(rows->n);
    tile_pack(t->q, rows, &a->q, a->dim, query_factor(rows->p), memory);
    find_row_features(&t->features, rows);
    t->begun = false;
    for (int r = 0; r < TILE_ROWS; ++r) {
        t->m[r] = -INFINITY;
        t->l[r] = 0;
    }
}

/* A block of keys. The tiles of a task come to it one after the other, those to which it is not hidden. */
struct key_block {
    int64_t first, keys;
    uint64_t missing;       /* those of them that do not exist, as bits */
    struct rows32 k, v;     /* what products read */
    struct rows32 v_rows;   /* V, not in panels */
    struct rows32 finite_v; /* V with zeros in the place of keys that are not finite; data NULL: not yet asked for */
    struct nonfinite_keys nonfinite;
    struct next_rows next_k, next_v; /* of the next block: a share of them is prefetched by each tile */
    int shares;                      /* tiles that see some of the block and have not come to it yet */
};

/* The maximum of m and the scores of a vector of rows. One chain of maxima would wait for itself. */
static vec highest_score(const float *s, int64_t keys, vec m) {
    vec chain[4] = {m, m, m, m};
    int64_t j = 0;
    for (; j + 4 <= keys; j += 4)
        for (int n = 0; n < 4; ++n) chain[n] = v_max(v_load(s + (j + n) * TILE_ROWS), chain[n]);
    for (; j < keys; ++j) chain[0] = v_max(v_load(s + j * TILE_ROWS), chain[0]);
    return v_max(v_max(chain[0], chain[1]), v_max(chain[2], chain[3]));
}

/* The shift is subtracted before the product: scores near m then lose nothing. */
ALWAYS_INLINE struct exp2_parts start_exponential(const float *s, vec shift, vec c) {
    return v_exp2_start(v_mul(v_sub(v_load(s), shift), c));
}

/* Scores of a vector of rows become P = 2^((S - shift) c); returns their sum. An exponential is one long chain, of which the
 * processor's window holds few: those of the next two keys are started before these two are finished. */
static vec exponentials(float *s, int64_t keys, vec shift, vec c) {
    vec sum[2] = {v_set(0), v_set(0)};
    if (keys % 2) {
        sum[0] = v_exp2_finish(start_exponential(s, shift, c));
        v_store(s, sum[0]);
        s += TILE_ROWS;
    }
    if (keys < 2) return sum[0];
    struct exp2_parts even = start_exponential(s, shift, c), odd = start_exponential(s + TILE_ROWS, shift, c);
    for (int64_t pairs = keys / 2; pairs > 0; --pairs, s += 2 * TILE_ROWS) {
        const struct exp2_parts first = even, second = odd;
        if (pairs > 1) {
            even = start_exponential(s + 2 * TILE_ROWS, shift, c);
            odd = start_exponential(s + 3 * TILE_ROWS, shift, c);
        }
        const vec p = v_exp2_finish(first), next_p = v_exp2_finish(second);
        sum[0] = v_add(sum[0], p);
        sum[1] = v_add(sum[1], next_p);
        v_store(s, p);
        v_store(s + TILE_ROWS, next_p);
    }
    return v_add(sum[0], sum[1]);
}

/* The online softmax of a block, for the rows of the vectors [first, end): s becomes P, and the tile's m and l are updated.
 * rescale gets exp(m_old - m_new), by which O has to be multiplied: exactly 1 where m stays, which the polynomial's 2^0 is
 * not. A row that has seen no key has m = -inf and subtracts 0. */
static void online_softmax(struct tile *t, float *s, float *rescale, int first, int end, int64_t keys, float factor) {
    const vec c = v_set(factor), none = v_set(-INFINITY), zero = v_set(0);
    for (int64_t at = first * LANES; at < end * LANES; at += LANES) {
        const vec before = v_load(t->m + at), m = highest_score(s + at, keys, before);
        const vec shift = v_select_equal(m, none, zero, m), sum = exponentials(s + at, keys, shift, c);
        const vec a = v_select_equal(m, before, v_set(1), v_exp2(v_mul(v_sub(before, shift), c)));
        v_store(t->m + at, m);
        v_store(t->l + at, v_fma(v_load(t->l + at), a, sum));
        v_store(rescale + at, a);
    }
}

/* A tile attends to a block of keys of which it sees some: those of its vectors of rows do that see a key. */
static void attend_block(const struct forward *f, struct tile *tile, const struct scratch *t, struct key_block *b,
                         const struct visible_block *visible) {
    const strobe_attention *a = &f->p->a;
    const int vectors = visible->end - visible->first;
    const int64_t at = visible->first * LANES, end = visible->end * LANES;
    prefetch_share(&b->next_k, b->shares);
    tile_scores(t->s + at, b->k, tile->q + at, a->dim, b->keys, vectors);
    const bool hidden = finish_block_scores(t->s, NULL, &tile->rows, &tile->features, visible, b->first, b->keys, 1);
    if (hidden && !b->finite_v.data) {
        b->finite_v = leave_out_nonfinite(&b->nonfinite, b->v_rows, t->v, b->keys, a->dim_v);
        if (b->nonfinite.count == 0) b->finite_v = b->v;
    }
    hide_missing_keys(t->s, b->missing);
    online_softmax(tile, t->s, t->rescale, visible->first, visible->end, b->keys, exponent_factor(f->p));
    if (a->dropout) apply_dropout_factors(t->s, &tile->features, visible, &f->place, b->first, b->keys);
    prefetch_share(&b->next_v, b->shares);
    --b->shares;
    if (!tile->begun && vectors < tile->vectors) clear_values(tile); /* those of the other rows stay without a key here */
    tile_accumulate(tile->o + at, hidden ? b->finite_v : b->v, t->s + at, tile->begun ? t->rescale + at : NULL, b->keys,
                    a->dim_v, vectors);
    tile->begun = true;
    if (hidden)
        add_nonfinite(&b->nonfinite, tile->o, b->v_rows, t->s, at, end < tile->rows.n ? end : tile->rows.n, a->dim_v);
}

/* Rows of K or V next to each other. In [batch, seq, heads, dim] they may lie 4 KiB apart, and then fall into the same few
 * sets of L1, and each on a page of its own. */
static struct rows32 brought_together(float *block, struct rows32 x, int64_t n, int64_t columns) {
    if (x.stride == columns) return x;
    for (int64_t j = 0; j < n; ++j) memcpy(block + j * columns, x.data + j * x.stride, (size_t)columns * sizeof *block);
    return (struct rows32){block, columns, false};
}

/* K and V of the block, for so many vectors of rows. The task's keys end at `end`. */
static void load_block(struct key_block *b, const struct forward *f, const struct scratch *t, const struct sequence *s,
                       int64_t kv, int64_t end, int vectors) {
    const strobe_attention *a = &f->p->a;
    const bool enough = vectors >= ENOUGH_VECTORS;
    b->missing = strobe__keys_missing(s, b->first, b->keys);
    b->k = true_rows(t->k, f->p, &a->k, s, kv, b->first, b->keys, a->dim);
    b->v_rows = f->v_in_k ? b->k : true_rows(t->v, f->p, &a->v, s, kv, b->first, b->keys, a->dim_v);
    if (vectors * LANES >= PANEL_ROWS) {
        b->v = pack_columns(t->v_panels, b->v_rows, b->keys, a->dim_v);
        b->k = pack_keys(t->k_panels, b->k, b->keys, a->dim);
    } else if (enough) {
        b->k = brought_together(t->k, b->k, b->keys, a->dim);
        b->v = b->v_rows = f->v_in_k ? b->k : brought_together(t->v, b->v_rows, b->keys, a->dim_v);
    } else {
        b->v = b->v_rows;
    }
    const int64_t next = b->first + b->keys, keys = end - next < BLOCK_KEYS ? end - next : BLOCK_KEYS;
    if (enough) b->next_k = next_keys(&a->k, s, kv, next, keys, a->dim);
    if (enough && !f->v_in_k) b->next_v = next_keys(&a->v, s, kv, next, keys, a->dim_v);
}

/* The tiles of a task, whose keys end at `end`, attend to the block of keys from j0 on. It is loaded only if one of them
 * sees some of it. */
static void attend_tiles(const struct forward *f, struct scratch *t, int tiles, const struct sequence *s, int64_t kv,
                         int64_t j0, int64_t end) {
    struct visible_block visible[MOST_TILES];
    struct key_block b = {.first = j0, .keys = s->keys - j0 < BLOCK_KEYS ? s->keys - j0 : BLOCK_KEYS};
    int vectors = 0; /* of rows that see some of it */
    for (int n = 0; n < tiles; ++n) {
        see_block(&visible[n], &t->tile[n].rows, &t->tile[n].features, j0, b.keys);
        if (visible[n].coverage == BLOCK_SKIPPED) continue;
        vectors += visible[n].end - visible[n].first;
        ++b.shares;
    }
    if (vectors == 0) return;
    load_block(&b, f, t, s, kv, end, vectors);
    for (int n = 0; n < tiles; ++n)
        if (visible[n].coverage != BLOCK_SKIPPED) attend_block(f, &t->tile[n], t, &b, &visible[n]);
}

static void finish_tile(struct tile *t) {
    float factor[TILE_ROWS] = {0};
    if (!t->begun) clear_values(t);
    finish_rows(&t->rows, t->m, t->l, factor);
    tile_unpack(&t->rows, &t->rows.p->a.out, t->o, t->rows.p->a.dim_v, factor);
}

/* Starts the tiles of a task, from packed row `first` on. Returns how many there are. */
static int start_tiles(const struct forward *f, struct scratch *t, const struct sequence *s, int64_t kv, int64_t first) {
    int count = 0;
    for (; count < f->tiles && first + count * TILE_ROWS < packed_rows(f->p, s); ++count) {
        const struct tile_rows rows = tile_rows_at(f->p, s, kv, first + count * TILE_ROWS);
        start_tile(&t->tile[count], &rows, t->rows);
    }
    return count;
}

static void forward_task(void *context, int64_t index, int32_t worker) {
    const struct forward *f = context;
    const strobe_attention *a = &f->p->a;
    const int64_t heads = a->batch * a->heads_kv, kv = index % heads % a->heads_kv;
    /* Under a causal mask the last rows see the most keys, and the longest tasks first balance the threads best. */
    const int64_t first = (f->tasks_a_head - 1 - index / heads) * f->tiles * TILE_ROWS;
    const struct sequence s = strobe__sequence(f->p, index % heads / a->heads_kv);
    if (first >= packed_rows(f->p, &s)) return;

    const float_mode mode = enter_flush_to_zero();
    struct scratch t;
    lay_out(&t, worker_memory(f->workspace, f->scratch_bytes, worker), f->p, f->tiles);
    const int tiles = start_tiles(f, &t, &s, kv, first);
    const int64_t end = tile_end_key(&t.tile[tiles - 1].rows);
    for (int64_t j0 = tile_first_key(&t.tile[0].rows) / BLOCK_KEYS * BLOCK_KEYS; j0 < end; j0 += BLOCK_KEYS)
        attend_tiles(f, &t, tiles, &s, kv, j0, end);
    for (int n = 0; n < tiles; ++n) finish_tile(&t.tile[n]);
    leave_flush_to_zero(mode);
}

size_t LEVEL_KERNEL(forward_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch t;
    return (size_t)strobe__workers(p->a.parallel) * lay_out(&t, NULL, p, tiles_of_task(p));
}

strobe_status LEVEL_KERNEL(forward)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct scratch t;
    struct forward f = {.p = p, .workspace = execution->workspace, .tiles = tiles_of_task(p), .v_in_k = strobe__v_in_k(p)};
    f.scratch_bytes = lay_out(&t, NULL, p, f.tiles);
    f.tasks_a_head = ((p->a.seq_q * p->group + TILE_ROWS - 1) / TILE_ROWS + f.tiles - 1) / f.tiles;
    if (p->a.dropout) f.place = strobe__dropout_place(p);
    strobe__parallel_for(p->a.parallel, p->a.batch * p->a.heads_kv * f.tasks_a_head, forward_task, &f);
    return STROBE_OK;
}
