/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tile_order.c: see tile_order.h. The figures behind the constants are in docs/kernels/sm90_backward.md. */
#include "cuda/sm90/backward/tile_order.h"

#include "cuda/device/params.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/visible.h"

static int64_t tiles_at_a_time(const struct problem *p, const struct tile_shape *shape) {
    return strobe__cuda_limits(p->a.device_index).multiprocessors / shape->ctas;
}

static int64_t all_heads(const struct problem *p, int64_t shares) { return p->a.batch * p->a.heads_kv * shares; }

bool strobe__sm90_tiles_differ(const struct problem *p) {
    return p->a.mask != STROBE_MASK_NONE || p->a.varlen || p->features & VISIBLE_FEATURES;
}

/* ---- dQ order */

/* At least so many tiles have keys. Lengths that only the device knows are at most these. */
static int64_t tiles_with_keys(const struct problem *p, const struct tile_shape *shape) {
    if (p->varlen.cu_seqlens_k) return ceil_div(p->varlen.total_k, shape->keys) * p->a.heads_kv;
    return ceil_div(p->a.seq_k, shape->keys) * all_heads(p, 1);
}

/* The sums of dQ have as many rows for each sequence as the longest has; these are half as many again as there are, or more.
 */
static bool is_mostly_padding(const struct problem *p) {
    return p->varlen.cu_seqlens_q && strobe__product(p->a.batch, p->a.seq_q) / 3 >= p->varlen.total_q / 2;
}

/* In a fixed order the first tile stores its dQ, and nobody clears sums before: of many short sequences, or of one long one
 * among them, that is a tenth of the time or more. Tiles wait for each other little where there are many heads. */
bool strobe__sm90_keeps_dq_order(const struct problem *p, const struct tile_shape *shape) {
    enum { TILES_AT_LEAST = 4 }; /* for each multiprocessor */
    const int64_t short_at_most = p->a.varlen || shape->ctas > 1 ? 1024 : 2048;
    if (p->a.flags & STROBE_DETERMINISTIC) return true;
    if (p->features & (SCORE_FEATURES | VISIBLE_FEATURES | FEATURE(SCORE) | FEATURE(DROPOUT) | FEATURE(DBIAS))) return false;
    const bool is_causal = p->a.mask == STROBE_MASK_CAUSAL_TOP_LEFT || p->a.mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    const bool is_short = p->a.seq_q <= short_at_most && p->a.seq_k <= short_at_most;
    return (is_causal || p->a.mask == STROBE_MASK_NONE) && p->group == 1 && (is_short || is_mostly_padding(p)) &&
           tiles_with_keys(p, shape) >= TILES_AT_LEAST * tiles_at_a_time(p, shape);
}

/* ---- tiles */

/* Of a K/V head: as many as all sequences have that are as long as the longest, or as packed ones can have. */
static int64_t most_tiles(const struct problem *p, const struct tile_shape *shape) {
    return ceil_div(p->a.seq_k, shape->keys) * p->a.batch;
}
static int64_t most_packed_tiles(const struct problem *p, const struct tile_shape *shape) {
    return p->varlen.total_k / shape->keys + p->a.batch;
}

bool strobe__sm90_has_sequences(const struct problem *p, const struct tile_shape *shape) {
    if (strobe__product(p->a.batch, p->a.heads_q) == 0 || p->a.seq_q == 0) return false;
    return p->varlen.cu_seqlens_k ? most_packed_tiles(p, shape) < most_tiles(p, shape) : p->varlen.used_k != NULL;
}

static int64_t tiles_of(const struct problem *p, const struct tile_shape *shape, int64_t shares) {
    const bool counts_packed = p->varlen.cu_seqlens_k && strobe__sm90_has_sequences(p, shape);
    return (counts_packed ? most_packed_tiles(p, shape) : most_tiles(p, shape)) * p->a.heads_kv * shares;
}

/* As many as sequences have at most or, where that is far more than there are of packed rows, these and one for each
 * sequence. */
int64_t strobe__sm90_row_ctas(const struct problem *p, const struct tile_shape *shape) {
    const int64_t all = ceil_div(p->a.seq_q, shape->rows) * p->a.heads_q * p->a.batch;
    const int64_t packed = (p->varlen.total_q / shape->rows + p->a.batch) * p->a.heads_q;
    return p->varlen.cu_seqlens_q && all / 2 > packed ? packed : all;
}

/* ---- shares */

static int64_t stored_columns(int64_t columns) { return ceil_div(columns, 8) * 8; }

/* Of one share. */
static int64_t all_rows(const struct problem *p) {
    return (p->varlen.cu_seqlens_k ? p->varlen.total_k : p->a.batch * p->a.seq_k) * p->a.heads_kv;
}

int64_t strobe__sm90_share_words(const struct problem *p) {
    return all_rows(p) * (stored_columns(p->a.dim) + stored_columns(p->a.dim_v));
}

static struct sm90_rows rows_of_shares(const struct problem *p, int64_t shares, float *data, int64_t columns) {
    const int64_t stored = stored_columns(columns), row = stored * p->a.heads_kv * shares;
    return (struct sm90_rows){.data = data,
                              .columns = (int32_t)columns,
                              .aligned = 1,
                              .stride = {p->varlen.cu_seqlens_k ? 0 : p->a.seq_k * row, row, stored}};
}

void strobe__sm90_fill_shares(struct sm90_backward_params *m, const struct problem *p, float *memory) {
    m->dk_shares = rows_of_shares(p, m->shares, memory, p->a.dim);
    m->dv_shares = rows_of_shares(p, m->shares, memory + all_rows(p) * m->shares * stored_columns(p->a.dim), p->a.dim_v);
}

struct sm90_backward_params strobe__sm90_params_of_shares(const struct sm90_backward_params *params) {
    struct sm90_backward_params m = *params;
    if (m.shares == 1) return m;
    m.heads_kv *= m.shares, m.group /= m.shares;
    m.dk_rows = m.dk_shares, m.dv_rows = m.dv_shares;
    return m;
}

/* What a launch takes with so many shares, in the time of a block's products. A tile takes some blocks' time for its keys
 * and their gradients. Nothing ends before the longest tile does, nor before all tiles are shared out evenly, and somewhat
 * later where these times are equal. Shares are written and read. Tiles that differ in length and go over more than four
 * query heads are at so many different rows, but in a fixed dQ order, that the L2 cache does not hold them. */
static double time_with(const struct problem *p, const struct tile_shape *shape, int64_t shares) {
    enum { TILE_BLOCKS = 6, BLOCK_BYTES = 5 << 20, HELD_HEADS = 4 };
    const bool differ = strobe__sm90_tiles_differ(p);
    const double blocks = (double)(ceil_div(p->a.seq_q, shape->rows) * p->group / shares);
    const double tiles = (double)(ceil_div(p->a.seq_k, shape->keys) * all_heads(p, shares));
    const double even = tiles * ((differ ? 0.5 : 1) * blocks + TILE_BLOCKS) / (double)tiles_at_a_time(p, shape);
    const double longest = blocks + TILE_BLOCKS, most = even > longest ? even : longest;
    const double ratio = (even < longest ? even : longest) / most, fourth = ratio * ratio * ratio * ratio;
    const bool apart = differ && !(p->a.flags & STROBE_DETERMINISTIC) && p->group / shares > HELD_HEADS;
    const double extra = shares > 1 ? 8.0 * (double)(strobe__sm90_share_words(p) * shares) / BLOCK_BYTES : 0;
    return extra + most * (1 + 0.09 * fourth * fourth) * (apart ? 1.2 : 1);
}

/* A group's query heads go to one tile, unless these are too few, or too long, for the multiprocessors. */
int64_t strobe__sm90_shares(const struct problem *p, const struct tile_shape *shape) {
    int64_t best = 1;
    for (int64_t shares = 2; shares <= p->group && p->a.seq_q > 0; ++shares)
        if (p->group % shares == 0 && time_with(p, shape, shares) < 0.95 * time_with(p, shape, best)) best = shares;
    return best;
}

/* ---- sections */

/* Of Q, dO and sums of dQ of a K/V head's share. */
static int64_t head_bytes(const struct problem *p, const struct tile_shape *shape, int64_t shares) {
    return p->a.seq_q * p->group / shares * (2 * (p->a.dim + p->a.dim_v) + 4 * shape->columns);
}

static int64_t heads_of(int64_t mebibytes, int64_t head) { return head > 0 ? (mebibytes << 20) / head : 1; }

/* Of all entries of the batch or, where lengths differ, of one. */
static int64_t heads_at_most(const struct problem *p, const struct tile_shape *shape, int64_t shares) {
    return strobe__sm90_has_sequences(p, shape) ? p->a.heads_kv * shares : all_heads(p, shares);
}

static int64_t most_of(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t least_of(int64_t x, int64_t y) { return x < y ? x : y; }

/* Three writers (dq_writer.h) hold consumers up less, and tiles follow each other closer. */
static bool has_three_writers(const struct problem *p, const struct tile_shape *shape) {
    return shape->ctas == 1 && shape->rows < shape->keys && !(p->features & VISIBLE_FEATURES) && p->group == 1;
}

/* Heads of a section with a fixed dQ order, at least, of all but the longest sequences: sixteen under a mask with three
 * writers, else four. */
static int64_t heads_in_order(const struct problem *p, const struct tile_shape *shape) {
    return strobe__sm90_tiles_differ(p) && has_three_writers(p, shape) ? 16 : 4;
}

/* The same of sequences of any length: of heads of so many bytes. Tiles of a head follow each other over the same rows, so
 * that the cache need not hold all of these. */
static int64_t long_heads_in_order(const struct problem *p, const struct tile_shape *shape, int64_t head) {
    const int64_t least = heads_in_order(p, shape);
    const bool are_pairs = strobe__sm90_tiles_differ(p) && shape->ctas > 1 && p->group == 1;
    return least_of(least, heads_of(are_pairs ? 128 : 16 * least, head));
}

/* Heads whose Q, dO and sums of dQ take a part of the L2 cache: the CTAs are at two or three sections at a time, and rows
 * shall come from memory once. With a fixed dQ order tiles of one head wait for each other, so that more heads at a time are
 * better, most of all where later tiles are shorter; and they are at the same rows. Then these are sixteen, if the cache
 * holds them, and some in any case but of the longest sequences. */
static int64_t section_heads(const struct problem *p, const struct tile_shape *shape, int64_t shares) {
    enum { MOST_HEADS = 16 };
    const int64_t head = head_bytes(p, shape, shares);
    const bool in_order = strobe__sm90_keeps_dq_order(p, shape), differ = strobe__sm90_tiles_differ(p);
    int64_t heads = heads_of(in_order ? 16 : 8, head);
    if (in_order && differ) heads = most_of(heads, least_of(MOST_HEADS, heads_of(32, head)));
    if (in_order && (differ || has_three_writers(p, shape))) heads = most_of(heads, long_heads_in_order(p, shape, head));
    return most_of(1, least_of(heads, heads_at_most(p, shape, shares)));
}

/* Where tiles differ in length, heads of four tiles for each multiprocessor end the launch, long tiles first, so that all
 * CTAs end together; but not more than the L2 cache holds, since their tiles are at different rows, unless that is less than
 * a tile for each multiprocessor. With a fixed dQ order four heads or more, as in a section, of sequences whose length is
 * known also where that is more than four tiles. Heads of longer sequences, and in that order of several query heads, were
 * faster without this limit. */
static int64_t last_heads(const struct problem *p, const struct tile_shape *shape, int64_t shares) {
    if (!strobe__sm90_tiles_differ(p) || p->a.seq_k == 0) return 0;
    const int64_t at_a_time = tiles_at_a_time(p, shape), key_blocks = ceil_div(p->a.seq_k, shape->keys);
    const bool in_order = strobe__sm90_keeps_dq_order(p, shape);
    const int64_t least = in_order ? heads_in_order(p, shape) : most_of(1, at_a_time / key_blocks);
    const int64_t head = head_bytes(p, shape, shares), held = most_of(least, heads_of(32, head));
    const int64_t all = heads_at_most(p, shape, shares), most = least_of(all, ceil_div(4 * at_a_time, key_blocks));
    if (in_order ? p->group > shares : key_blocks > at_a_time) return most;
    if (!in_order || strobe__sm90_has_sequences(p, shape)) return least_of(held, most);
    return least_of(least_of(held, all), most_of(most, long_heads_in_order(p, shape, head)));
}

/* Where no fixed order is asked for, only the first tile of a block of rows has to come first, since it stores its dQ. Pairs
 * wait for each other in a full mask as well: there the fixed order, in which they are apart, is faster. */
static bool is_first_alone(const struct problem *p, const struct tile_shape *shape) {
    return strobe__sm90_keeps_dq_order(p, shape) && !(p->a.flags & STROBE_DETERMINISTIC) &&
           (shape->ctas == 1 || strobe__sm90_tiles_differ(p));
}

static void fill_divisors(struct sm90_backward_params *m) {
    const int32_t heads_kv = m->heads_kv * m->shares, section = m->section_heads;
    const int32_t left = (int32_t)(((int64_t)heads_kv * m->batch - m->last_heads) % section);
    m->by_section_tiles = divisor_of(section * m->key_blocks), m->by_section_heads = divisor_of(section);
    m->by_left_heads = divisor_of(left > 0 ? left : section);
    m->by_last_heads = divisor_of(m->last_heads > 0 ? m->last_heads : 1);
    m->by_heads_kv = divisor_of(heads_kv), m->by_shares = divisor_of(m->shares);
}

/* A band has no end on a side whose shift is at the most. */
void strobe__sm90_fill_order(struct sm90_backward_params *m, const struct problem *p, const struct tile_shape *shape,
                             int32_t features) {
    enum { NO_END = 1 << 28 };
    const bool in_order = strobe__sm90_keeps_dq_order(p, shape), ends = in_order && m->end_shift < NO_END;
    m->tiles = (int32_t)tiles_of(p, shape, m->shares);
    m->section_heads = (int32_t)section_heads(p, shape, m->shares);
    m->last_heads = m->tiles > 0 ? (int32_t)last_heads(p, shape, m->shares) : 0;
    if (m->tiles > 0) fill_divisors(m);
    m->is_staggered = !in_order && !strobe__sm90_tiles_differ(p) && p->a.seq_q > 0 && features != FEATURES_ALL;
    m->first_alone = is_first_alone(p, shape);
    m->last_keys_first = ends && shape->rows == shape->keys && !(features & FEATURES_MASK);
    m->even_keys_first = ends && m->first_shift < -NO_END && p->group == m->shares && !(features & FEATURES_MASK);
}
