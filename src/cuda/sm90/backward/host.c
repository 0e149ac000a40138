/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.c: the host side of the Hopper backward: what it takes, the workspace, the three launches in stream order:
 *
 *   prepare   delta and lse of every row, counters set to 0         one CTA a block of rows
 *   main      dK, dV, and dQ's sums in fp32                     one CTA a block of keys
 *   finish    dQ, scaled and rounded                            one CTA a block of rows
 *
 * and around them, where they are asked for, dsinks and dbias by the kernels that all backward passes share.
 *
 * Memory is linear in the sequence: dQ in fp32, and two fp32 a query row and head; dbias in fp32. */
#include "cuda/sm90/backward/host.h"

#include <string.h>

#include "core/score/text.h"
#include "cuda/host/array_gradients.h"
#include "cuda/host/compiled.h"
#include "cuda/host/dbias.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/visible.h"
#include "cuda/sm90/backward/params.h"
#include "cuda/sm90/backward/tile_order.h"
#include "cuda/sm90/backward/variants.h"
#include "cuda/sm90/band.h"
#include "cuda/sm90/feature_class.h"
#include "cuda/sm90/trace_host.h"
#include "math/exp2.h"

CUDA_KERNEL(row_deltas);
CUDA_KERNEL(sink_sums);

enum { THREADS = 384, PREPARE_THREADS = 256, MOST_POSITIONS = 1 << 28, LEAST_SOFTCAP = 8, MOST_FUNCTION_DIM = 128 };

bool strobe__sm90_backward_choose(struct plan *plan) {
    const struct sm90_classes classes = strobe__sm90_classes(plan->problem);
    plan->variant = strobe__sm90_backward_variant(plan->problem, classes.alone);
    if (!plan->variant) plan->variant = strobe__sm90_backward_variant(plan->problem, classes.general);
    if (!plan->variant) plan->variant = strobe__sm90_backward_variant(plan->problem, FEATURES_ALL);
    strobe__cuda_visible_choose(plan);
    return plan->variant && strobe__cuda_dbias_choose(plan);
}

static const struct backward_variant *variant_of(const struct plan *plan) {
    return (const struct backward_variant *)plan->variant;
}

/* The variant that computes the shares of dK and dV, which are fp32; NULL if there is none. */
static const struct backward_variant *variant_of_shares(const struct plan *plan) {
    return strobe__sm90_backward_in_fp32(variant_of(plan));
}

/* Blocks have at least so many rows, and keys for each of their CTAs. */
enum { LEAST_BLOCK = 64 };

const char *strobe__sm90_backward_reject(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t rows = strobe__product(a->batch, a->heads_q), keys = strobe__product(a->batch, a->heads_kv);
    if (strobe__sm90_sums_keys(p) && p->features & FEATURE(SCORE))
        return "dk and dv are fp32 and dq is not, with a score function; one dtype for all is taken";
    if (p->varlen.cu_seqlens_k && p->varlen.total_k == 0)
        return "varlen.total_k is 0; the keys of the packed tensors are taken";
    if (p->varlen.cu_seqlens_q && p->varlen.total_q == 0 && a->seq_q > 0)
        return "varlen.total_q is 0; the rows of the packed tensors are taken";
    if (a->block_mask && (p->block_mask.block_q % 8 != 0 || p->block_mask.block_q > MOST_POSITIONS))
        return "block_mask.block_q is not a multiple of 8 up to 2^28; these are taken";
    if (a->softcap > 0 && a->softcap < LEAST_SOFTCAP)
        return "softcap is below 8; 0 and from 8 on are taken, since softcap's slope is worked out from a weight";
    if (a->dropout && p->dropout.key_start % 4 != 0)
        return "dropout.key_start is not a multiple of 4; multiples of 4 are taken";
    if (a->alibi && (a->q_start - a->k_start > MOST_POSITIONS || a->k_start - a->q_start > MOST_POSITIONS))
        return "q_start and k_start are more than 2^28 apart with ALiBi; less is taken";
    if (p->varlen.total_q > MOST_POSITIONS || p->varlen.total_k > MOST_POSITIONS)
        return "varlen.total_q or total_k is above 2^28; up to that is taken";
    if (strobe__product(rows, ceil_div(a->seq_q, LEAST_BLOCK)) > INT32_MAX ||
        strobe__product(keys, ceil_div(a->seq_k, LEAST_BLOCK) + 1) > INT32_MAX)
        return "there are more than 2^31 blocks of rows or keys; fewer are taken";
    const int64_t batch_q = p->varlen.cu_seqlens_q ? 1 : a->batch, batch_k = p->varlen.cu_seqlens_k ? 1 : a->batch;
    if (!strobe__can_be_copied(&a->q, batch_q, a->heads_q) || !strobe__can_be_copied(&a->k, batch_k, a->heads_kv) ||
        !strobe__can_be_copied(&a->v, batch_k, a->heads_kv) || !strobe__can_be_copied(&p->g.dout, batch_q, a->heads_q))
        return "rows of q, k, v or dout do not start at ascending multiples of 16 bytes; rows that do are taken";
    if (p->features & FEATURE(VISIBLE) && strobe__cuda_dbias_is_ordered(p))
        return "visible is given with STROBE_DETERMINISTIC and a broadcast dbias; these are taken without it";
    if (p->features & FEATURE(SCORE) && (a->dim > MOST_FUNCTION_DIM || a->dim_v > MOST_FUNCTION_DIM))
        return "dim or dim_v is above 128 with a score function; up to 128 is taken";
    if (p->features & FEATURE(SCORE) && a->softcap > 0)
        return "softcap is given with a score function; 0 is taken, since softcap's slope is worked out from a weight";
    if (p->features & FEATURE(SCORE) && strobe__cuda_dbias_is_ordered(p))
        return "score is given with STROBE_DETERMINISTIC and a broadcast dbias; these are taken without it";
    if (p->g.dscore && a->flags & STROBE_DETERMINISTIC)
        return "dscore is given with STROBE_DETERMINISTIC, and is summed in any order; it is taken without that flag";
    return strobe__cuda_reject(p);
}

/* In shared memory and of dQ's sums: slabs have 64. */
static int64_t stored_columns(const struct backward_variant *v) { return ceil_div(v->dim, 64) * 64; }

static int64_t row_blocks(const struct plan *plan) { return ceil_div(plan->problem->a.seq_q, variant_of(plan)->rows); }
static int64_t key_blocks(const struct plan *plan) { return ceil_div(plan->problem->a.seq_k, variant_of(plan)->keys); }
static int64_t all_row_blocks(const struct plan *plan) {
    return row_blocks(plan) * plan->problem->a.heads_q * plan->problem->a.batch;
}

/* dQ of a block of rows is worked out in tiles of 64 x 64 elements; KERNEL_finish has a warp group for each. */
static int64_t dq_tiles(const struct backward_variant *v) { return v->rows * stored_columns(v) / 4096; }

static int64_t all_rows(const struct plan *plan) { return all_row_blocks(plan) * variant_of(plan)->rows; }

static struct tile_shape shape_of(const struct plan *plan) {
    const struct backward_variant *v = variant_of(plan);
    return (struct tile_shape){v->rows, v->keys, v->ctas, stored_columns(v)};
}

static int64_t shares_of(const struct plan *plan) {
    const struct tile_shape shape = shape_of(plan);
    const bool is_compiled = strobe__sm90_is_compiled(plan->problem, variant_of(plan)->features);
    return is_compiled || !variant_of_shares(plan) ? 1 : strobe__sm90_shares(plan->problem, &shape);
}

static bool keeps_dq_order(const struct plan *plan) {
    const struct tile_shape shape = shape_of(plan);
    return strobe__sm90_keeps_dq_order(plan->problem, &shape);
}

static int64_t blocks_of_rows(const struct plan *plan) {
    const struct tile_shape shape = shape_of(plan);
    return strobe__sm90_row_ctas(plan->problem, &shape);
}

/* The workspace, in words of 4 bytes: dQ's sums, then -lse, then D, then the sinks' weights; the order of sequences of
 * differing lengths; in a fixed dQ order a counter for each tile of dQ; a mark for sixteen keys, and as many that nobody
 * sets where dK and dV have another dtype than dQ; parts of dsinks; sums of dbias; and lse and D as an ordered dbias reads
 * them, where it is wanted. */
struct layout {
    int64_t rows_at, sinks_at, sequences_at, counts_at, heads_at, dq_semaphores_at, marks_at, no_marks_at, sink_parts_at,
        dbias_at, packed_at, words;
    int64_t packed_rows, shares;         /* of a K/V head */
    size_t shares_at;                    /* in bytes, behind the words: dK and dV of the shares, */
    size_t visible_at, arrays_at, bytes; /* what visible.cu writes, sums of arrays' gradients */
    struct view dbias_sum;
};

static struct layout lay_out(const struct plan *plan) {
    const struct problem *p = plan->problem;
    const bool packed = strobe__cuda_dbias_is_ordered(p);
    const struct tile_shape shape = shape_of(plan);
    struct layout l = {.packed_rows = ceil_div(p->a.seq_q * p->group, PACKED_PADDING) * PACKED_PADDING,
                       .shares = shares_of(plan)};
    l.rows_at = all_rows(plan) * stored_columns(variant_of(plan));
    l.sinks_at = l.rows_at + 2 * all_rows(plan);
    l.sequences_at = l.sinks_at + (p->g.dsinks ? all_rows(plan) : 0);
    l.counts_at = l.sequences_at + (strobe__sm90_has_sequences(p, &shape) ? 2 * (p->a.batch + 1) : 0);
    l.heads_at = l.counts_at + 2;
    l.dq_semaphores_at = l.heads_at + p->a.batch * p->a.heads_kv * l.shares;
    l.marks_at = l.dq_semaphores_at + (keeps_dq_order(plan) ? all_row_blocks(plan) * dq_tiles(variant_of(plan)) : 0);
    l.no_marks_at = l.marks_at + p->a.batch * p->a.heads_kv * ceil_div(p->a.seq_k, 16);
    l.sink_parts_at = strobe__sm90_sums_keys(p) ? 2 * l.no_marks_at - l.marks_at : l.no_marks_at;
    l.sink_parts_at += l.sink_parts_at % 2;
    l.dbias_at = l.sink_parts_at + (p->g.dsinks ? p->a.batch * p->a.heads_q * key_blocks(plan) * 2 * SINK_PARTS : 0);
    l.packed_at = l.dbias_at + strobe__cuda_dbias_sums(p, &l.dbias_sum);
    l.words = l.packed_at + (packed ? 2 * p->a.batch * p->a.heads_kv * l.packed_rows : 0);
    l.shares_at = ((size_t)l.words * sizeof(float) + 15) / 16 * 16;
    l.visible_at = l.shares_at + (l.shares > 1 ? (size_t)(strobe__sm90_share_words(p) * l.shares) * sizeof(float) : 0);
    l.arrays_at = l.visible_at + strobe__cuda_visible_bytes(p, OWNERS_ARE_KEYS);
    l.bytes = l.arrays_at + strobe__array_gradient_bytes(p);
    return l;
}

size_t strobe__sm90_backward_workspace(const struct plan *plan) { return TRACE_BYTES + lay_out(plan).bytes; }

static struct sm90_rows rows_of(const strobe_tensor *t, int64_t columns) {
    struct sm90_rows rows = {.data = t->data, .columns = (int32_t)columns, .aligned = strobe__rows_are_aligned(t)};
    memcpy(rows.stride, t->stride, sizeof rows.stride);
    return rows;
}

static void fill_mask(struct sm90_backward_params *m, const struct plan *plan) {
    const struct problem *p = plan->problem;
    const struct sm90_band band = strobe__sm90_band(p);
    m->first_shift = band.first_shift, m->end_shift = band.end_shift, m->bottom_right = band.bottom_right;
    /* A neighbour's keys are in a block. Of no rows no tile asks for its place among their blocks. */
    m->may_hide = p->a.mask != STROBE_MASK_NONE || p->a.varlen || p->a.score || p->a.seq_q == 0 ||
                  variant_of(plan)->features & (FEATURES_MASK | FEATURES_BIAS | FEATURES_DROPOUT);
    m->cu_seqlens_q = p->varlen.cu_seqlens_q, m->cu_seqlens_k = p->varlen.cu_seqlens_k;
    m->used_q = p->varlen.used_q, m->used_k = p->varlen.used_k;
    m->index64 = p->varlen.index_bits == 64, m->finds_rows = blocks_of_rows(plan) < all_row_blocks(plan);
}

static void fill_tensors(struct sm90_backward_params *m, const struct problem *p) {
    const strobe_attention *a = &p->a;
    const strobe_gradients *g = &p->g;
    m->q_rows = rows_of(&a->q, a->dim), m->k_rows = rows_of(&a->k, a->dim), m->v_rows = rows_of(&a->v, a->dim_v);
    m->out_rows = rows_of(&a->out, a->dim_v), m->dout_rows = rows_of(&g->dout, a->dim_v);
    m->dq_rows = rows_of(&g->dq, a->dim), m->dk_rows = rows_of(&g->dk, a->dim), m->dv_rows = rows_of(&g->dv, a->dim_v);
    m->lse = a->lse.data, m->dlse = g->dlse.data;
    memcpy(m->lse_stride, a->lse.stride, sizeof m->lse_stride),
        memcpy(m->dlse_stride, g->dlse.stride, sizeof m->dlse_stride);
}

/* What stands over scores, but for the sums of dbias. */
static void fill_terms(struct sm90_backward_params *m, const struct plan *plan) {
    const struct problem *p = plan->problem;
    const strobe_attention *a = &p->a;
    m->scale = (float)a->scale;
    const int32_t features = variant_of(plan)->features;
    const bool natural = CLASS_HAS_SCORE_TERMS(features) || features == FEATURES_SOFTCAP ||
                         strobe__sm90_is_compiled(p, features);
    const struct sm90_alibi alibi = strobe__sm90_alibi(p, features);
    m->exponent = (float)((natural ? 1 : a->scale) * LOG2_E);
    if (features == FEATURES_ALIBI) m->inverse_scale = (float)(alibi.factor / a->scale);
    if (features == FEATURES_SOFTCAP)
        m->cap = softcap_terms_of(a->softcap, a->scale), m->cap_natural = (float)(LN_2 / a->softcap);
    m->softcap = (float)a->softcap, m->alibi = alibi.slopes, m->alibi_stride = alibi.stride_batch;
    m->alibi_start = alibi.start;
    if (a->softcap > 0) m->cap_rate = (float)(2 * LOG2_E * a->scale / a->softcap), m->cap_inverse = (float)(1 / a->softcap);
    if (a->bias) m->bias = strobe__cuda_scores_view(p->bias.data, p->bias.stride, p->bias.dtype);
    if (a->bool_mask) m->mask = strobe__cuda_scores_view(p->bool_mask.data, p->bool_mask.stride, STROBE_INT8);
    if (a->block_mask) {
        const int64_t keys = p->block_mask.block_k;
        m->blocks = strobe__cuda_scores_view(p->block_mask.data, p->block_mask.stride, STROBE_INT8);
        m->block_q = (int32_t)p->block_mask.block_q, m->block_k = (int32_t)(keys < MOST_POSITIONS ? keys : MOST_POSITIONS);
    }
    if (a->dropout) {
        m->dropout = 1, m->place = strobe__dropout_place(p);
        m->rounds = philox_rounds_of(m->place.seed, m->place.offset);
    }
    m->dv_factor = a->dropout ? m->place.keep_scale : 1;
}

static void fill(struct sm90_backward_params *m, const struct plan *plan, float *workspace) {
    const struct problem *p = plan->problem;
    const strobe_attention *a = &p->a;
    const struct layout l = lay_out(plan);
    const struct tile_shape shape = shape_of(plan);
    fill_tensors(m, p), fill_mask(m, plan), fill_terms(m, plan);
    m->dq_sum = workspace, m->row_lse = workspace + l.rows_at, m->row_delta = m->row_lse + all_rows(plan);
    if (p->g.dsinks) {
        m->row_sink = workspace + l.sinks_at, m->sink_parts = workspace + l.sink_parts_at;
        m->sinks = p->sinks.data;
    }
    m->tile_counter = (uint32_t *)workspace + l.counts_at, m->clear_counter = m->tile_counter + 1;
    m->heads_cleared = (uint32_t *)workspace + l.heads_at, m->counts = l.dbias_at - l.counts_at;
    m->dq_semaphores = keeps_dq_order(plan) ? (uint32_t *)workspace + l.dq_semaphores_at : NULL;
    m->marks = (uint32_t *)workspace + l.marks_at, m->dbias_sum = l.dbias_sum;
    if (l.packed_at > l.dbias_at) m->dbias_sum.data = workspace + l.dbias_at;
    m->seq_q = (int32_t)a->seq_q, m->seq_k = (int32_t)a->seq_k, m->batch = (int32_t)a->batch;
    m->heads_kv = (int32_t)a->heads_kv, m->group = (int32_t)p->group, m->shares = (int32_t)l.shares;
    if (l.shares > 1) strobe__sm90_fill_shares(m, p, (float *)((char *)workspace + l.shares_at));
    m->row_blocks = (int32_t)row_blocks(plan), m->key_blocks = (int32_t)key_blocks(plan);
    if (strobe__sm90_has_sequences(p, &shape)) m->sequences = (struct sequence_at *)(workspace + l.sequences_at);
    strobe__sm90_fill_order(m, p, &shape, variant_of(plan)->features);
}

static bool encode_maps(struct sm90_backward_params *m, const struct plan *plan) {
    const struct problem *p = plan->problem;
    const strobe_attention *a = &p->a;
    const strobe_varlen *v = &p->varlen;
    const int64_t all_q = v->cu_seqlens_q ? v->total_q : a->seq_q, all_k = v->cu_seqlens_k ? v->total_k : a->seq_k;
    const int64_t batch_q = v->cu_seqlens_q ? 1 : a->batch, batch_k = v->cu_seqlens_k ? 1 : a->batch;
    const int64_t rows = variant_of(plan)->rows, keys = variant_of(plan)->keys / variant_of(plan)->ctas;
    if (variant_of(plan)->features == FEATURES_BIAS && !strobe__encode_scores_map(&m->bias_map, p, &p->bias, 16, rows))
        return false;
    return strobe__encode_map(&m->q, &a->q, a->dim, all_q, a->heads_q, batch_q, rows) &&
           strobe__encode_map(&m->k, &a->k, a->dim, all_k, a->heads_kv, batch_k, keys) &&
           strobe__encode_map(&m->v, &a->v, a->dim_v, all_k, a->heads_kv, batch_k, keys) &&
           strobe__encode_map(&m->dout, &p->g.dout, a->dim_v, all_q, a->heads_q, batch_q, rows) &&
           (!(v->cu_seqlens_q || v->used_q) ||
            (strobe__encode_ends_map(&m->q_ends, &a->q, a->dim, all_q, a->heads_q, batch_q, rows) &&
             strobe__encode_ends_map(&m->dout_ends, &p->g.dout, a->dim_v, all_q, a->heads_q, batch_q, rows)));
}

/* One on each multiprocessor, which draw tiles; where there are no rows, whose preparation clears the counter they draw
 * from, and for pairs, one or two for each tile. */
static int64_t main_ctas(const struct plan *plan, int32_t tiles) {
    const struct problem *p = plan->problem;
    const int64_t most = strobe__cuda_limits(p->a.device_index).multiprocessors;
    return variant_of(plan)->ctas == 1 && all_row_blocks(plan) > 0 && tiles > most ? most : tiles * variant_of(plan)->ctas;
}

/* The variant with the problem's function. One whose slope is 1 takes as few registers as ALiBi, whose variant at 128
 * columns is faster with P and dS in one part. */
static struct compiled_text text_of(const struct plan *plan) {
    struct compiled_text text = variant_of(plan)->text;
    int count = 0;
    for (; text.options[count]; ++count)
        if (strcmp(text.options[count], "PARTS=2") == 0 && variant_of(plan)->dim == 128 &&
            strobe__score_slope_is_one(plan->problem->score_call.function))
            text.options[count] = "PARTS=1";
    text.options[count++] = strobe__sm90_compiled_class(plan->problem, variant_of(plan)->features);
    if (variant_of(plan)->gradients == STROBE_FP32) text.options[count] = "GRADIENTS_FP32";
    return text;
}

strobe_status strobe__sm90_backward_prepare(const struct plan *plan) {
    if (!strobe__sm90_is_compiled(plan->problem, variant_of(plan)->features)) return STROBE_OK;
    const struct compiled_text text = text_of(plan);
    return strobe__compiled_prepare(plan->problem, (const struct compiled_text *const[]){&text, NULL});
}

/* The same three launches of kernels that are compiled with the problem's function. */
static strobe_status launch_compiled(const struct plan *plan, const struct sm90_backward_params *params,
                                     const struct score_values *values, void *stream) {
    const struct compiled_text text = text_of(plan);
    const int64_t blocks = blocks_of_rows(plan), bytes = sizeof *params;
    compiled_kernel kernels[MOST_COMPILED_KERNELS];
    strobe_status status = strobe__compiled(plan->problem, &text, stream, kernels);
    if (!status)
        status = strobe__compiled_launch(kernels[0], blocks, PREPARE_THREADS, 0, params, (size_t)bytes, values, stream,
                                         false);
    if (!status)
        status = strobe__compiled_launch(kernels[1], main_ctas(plan, params->tiles), THREADS, SHARED_BYTES, params,
                                         (size_t)bytes, values, stream, true);
    return status ? status
                  : strobe__compiled_launch(kernels[2], blocks, (int32_t)(128 * dq_tiles(variant_of(plan))), 0, params,
                                            (size_t)bytes, values, stream, true);
}

/* KERNEL_finish of dQ, of the inputs' dtype, to which no key is marked and none is shared; then that of fp32, to which dQ
 * has no columns, for the keys that are marked and shared, by as many CTAs as run at once. */
static strobe_status launch_finishes(const struct plan *plan, const struct sm90_backward_params *params, int64_t blocks,
                                     void *stream) {
    const struct backward_variant *variant = variant_of(plan);
    const int32_t threads = (int32_t)(128 * dq_tiles(variant));
    const int64_t at_once = 2 * (int64_t)strobe__cuda_limits(plan->problem->a.device_index).multiprocessors;
    const struct layout l = lay_out(plan);
    struct sm90_backward_params of_rows = *params, of_keys = *params;
    of_rows.shares = 1, of_rows.marks = params->marks + (l.no_marks_at - l.marks_at);
    of_keys.dq_rows.columns = 0;
    const strobe_status status = strobe__cuda_launch_early(variant->finish, blocks, threads, 0, &of_rows, stream);
    if (status || (!params->may_hide && params->shares == 1)) return status;
    return strobe__cuda_launch_early(strobe__sm90_backward_in_fp32(variant)->finish, blocks < at_once ? blocks : at_once,
                                     threads, 0, &of_keys, stream);
}

/* Each of the three may start while the one before it ends, and waits for what that writes. */
static strobe_status launch_three(const struct plan *plan, const struct sm90_backward_params *params, void *stream) {
    const struct backward_variant *variant = variant_of(plan),
                                  *main = params->shares > 1 || strobe__sm90_sums_keys(plan->problem)
                                              ? variant_of_shares(plan)
                                              : variant;
    const int64_t blocks = blocks_of_rows(plan);
    const struct sm90_backward_params of_main = strobe__sm90_params_of_shares(params);
    strobe_status status = strobe__cuda_launch(variant->prepare, blocks, PREPARE_THREADS, 0, params, stream);
    if (!status)
        status = strobe__cuda_launch_early(params->dq_semaphores ? main->ordered : main->symbol,
                                           main_ctas(plan, params->tiles), THREADS, SHARED_BYTES, &of_main, stream);
    if (!status && strobe__sm90_sums_keys(plan->problem)) return launch_finishes(plan, params, blocks, stream);
    if (!status)
        status = strobe__cuda_launch_early(variant->finish, blocks, (int32_t)(128 * dq_tiles(variant)), 0, params, stream);
    return status;
}

/* What the kernels of device/ are given for dsinks and dbias. */
static struct params shared_params(const struct problem *p, const struct layout *l, float *workspace) {
    struct params params = strobe__cuda_params(p);
    params.packed_rows = (int32_t)l->packed_rows;
    params.row_lse = workspace + l->packed_at;
    params.row_delta = params.row_lse + p->a.batch * p->a.heads_kv * l->packed_rows;
    params.dbias_sum = l->dbias_sum, params.dbias_sum.data = workspace + l->dbias_at;
    return params;
}

/* dsinks, from the deltas that `prepare` has left, those of a head are neighbours, as if each had its own K and V; and from
 * the main kernel's sums. */
static strobe_status sum_sinks(const struct plan *plan, const struct sm90_backward_params *params,
                               const struct params *around, void *stream) {
    struct params heads = *around;
    heads.heads_kv = params->heads_kv * params->group, heads.group = 1;
    heads.packed_rows = params->row_blocks * (int32_t)variant_of(plan)->rows, heads.row_delta = params->row_delta;
    heads.sink_parts = params->sink_parts, heads.sink_parts_of_head = params->key_blocks * SINK_PARTS;
    return strobe__cuda_launch(&strobe__kernel_sink_sums, heads.heads_kv, SINK_THREADS, 0, &heads, stream);
}

static strobe_status launch(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    const struct layout l = lay_out(plan);
    float *workspace = (float *)((char *)execution->workspace + TRACE_BYTES);
    const struct params around = shared_params(p, &l, workspace);
    struct sm90_backward_params params;
    void *stream = execution->stream;
    memset(&params, 0, sizeof params);
    fill(&params, plan, workspace);
    if (all_row_blocks(plan) > 0 && params.tiles > 0 && !encode_maps(&params, plan))
        return strobe__fail(STROBE_DEVICE_ERROR, "q, k, v, dout or bias could not be described to the tensor copy engine");
    strobe_status status = strobe__cuda_dbias_begin(p, &around, stream);
    if (!status && p->features & VISIBLE_FEATURES)
        status = strobe__cuda_visible(p, OWNERS_ARE_KEYS, (char *)workspace + l.visible_at, &params.visible, stream);
#if defined(STROBE_TRACE)
    params.trace = execution->workspace;
    if (!status) status = clear_trace(params.trace, stream);
#endif
    if (!status && l.words > l.packed_at)
        status = strobe__cuda_launch(&strobe__kernel_row_deltas, p->a.batch * p->a.heads_kv * l.packed_rows / PACKED_PADDING,
                                     256, 0, &around, stream);
    if (!status && strobe__sm90_is_compiled(p, variant_of(plan)->features)) {
        struct score_values values = strobe__score_values(p);
        status = strobe__array_gradients_begin(p, (char *)workspace + l.arrays_at, &values, stream);
        if (!status) status = launch_compiled(plan, &params, &values, stream);
        if (!status) status = strobe__array_gradients_end(p, &values, stream);
    } else if (!status) {
        status = launch_three(plan, &params, stream);
    }
    if (!status && p->g.dsinks) status = sum_sinks(plan, &params, &around, stream);
    return status ? status : strobe__cuda_dbias_end(plan, &around, stream);
}

strobe_status strobe__sm90_backward(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status) status = launch(plan, execution);
    strobe__cuda_leave(&visit);
    return status;
}
