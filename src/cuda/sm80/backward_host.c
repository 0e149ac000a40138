/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward_host.c: the launches of the backward pass, in stream order:
 *
 *   row_deltas     delta and lse of every row, into the workspace, and zeros where dQ, dS and P are summed
 *   backward_fused dQ's sums, dK, dV; dq_round, dQ; what had NaN is marked, and computed again by the next two
 *     or, with STROBE_DETERMINISTIC, in fp32, or where its tile does not fit the GPU,
 *   backward_keys  dK, dV                     backward_rows  dQ, and fp32 sums of dbias, where asked
 *   sink_sums      dsinks, where asked, of delta and of the sums of dS and P over a row's keys
 *   dbias_round    dbias, where asked; or backward_dbias, where it is broadcast and its sums must be in order
 *
 * Memory is linear in the sequence: two fp32 a query row and head, two more for dsinks, dQ in fp32 for the one pass, and
 * dbias in fp32. */
#include "cuda/sm80/backward_host.h"

#include "cuda/host/array_gradients.h"
#include "cuda/host/compiled.h"
#include "cuda/host/dbias.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/visible.h"

#define VARIANT(kind, name, ...) CUDA_KERNEL(name);
#include "cuda_backward_variants.h"
#undef VARIANT
#define VARIANT(name, ...) CUDA_KERNEL(name);
#include "cuda_backward_fused_variants.h"
#undef VARIANT

CUDA_KERNEL(row_deltas);
CUDA_KERNEL(dq_round);
CUDA_KERNEL(sink_sums);

enum side { SIDE_rows, SIDE_keys, SIDE_fused };

/* own: rows or keys that a block of threads owns; slices: its columns are cut in that many. */
struct backward_variant {
    struct variant base;
    enum side side;
    int32_t dtype, tf32x3, dim, features, own, slices, threads, shared_bytes;
    struct cuda_kernel *symbol;
    struct compiled_text text; /* with a user's function */
};

/* Both kernels lay out their own tile twice and stages of the other side's; keys have lse and D of rows beside them. */
#define VARIANT(kind, name, dtype_, dim_, slice, tiles, warps, stages, features_, blocks)                              \
    {.base = {#name},                                                                                                  \
     .side = SIDE_##kind,                                                                                              \
     .dtype = DTYPE_##dtype_,                                                                                          \
     .tf32x3 = IS_TF32X3_##dtype_,                                                                                     \
     .dim = dim_,                                                                                                      \
     .features = features_,                                                                                            \
     .own = 16 * (warps),                                                                                              \
     .slices = ((dim_) / (slice)) * (SIDE_##kind == SIDE_keys && (dim_) > 128 ? 2 : 1),                                \
     .threads = 32 * (warps),                                                                                          \
     .shared_bytes = 2 * (16 * (warps) + (stages)*8 * (tiles)) * (dim_)*BYTES_##dtype_ +                               \
                     (SIDE_##kind == SIDE_keys ? (stages)*2 * 8 * (tiles)*4 : 0),                                      \
     .symbol = &strobe__kernel_##name,                                                                                 \
     .text = {.source = "cuda/sm80/backward_" #kind ".cu",                                                             \
              .options = {"KERNEL=strobe__score", ELEMENT_OPTIONS_##dtype_, "DIM=" #dim_, "SLICE=" #slice,             \
                          "M_TILES=" #tiles, "N_TILES=" #tiles, "WARPS=" #warps, "STAGES=" #stages, "BLOCKS=" #blocks, \
                          "FEATURES=" #features_},                                                                     \
              .names = {"strobe__score"}}},

static const struct backward_variant variants[] = {
#include "cuda_backward_variants.h"
#undef VARIANT
/* K, V, stages of Q and lse, D, and of dO; dS^T and, where it is stored, P^T, two of them where warps are skewed. */
#define PAIRS(keys, rows, stored, skewed) ((keys) * (rows) * (1 + (stored)) * (1 + (skewed)))
#define VARIANT(name, dtype_, dim_, keys, rows, warps, stored, stages, skewed, features_, s_n, k_n, q_m, blocks)           \
    {.base = {#name},                                                                                                      \
     .side = SIDE_fused,                                                                                                   \
     .dtype = DTYPE_##dtype_,                                                                                              \
     .tf32x3 = IS_TF32X3_##dtype_,                                                                                         \
     .dim = dim_,                                                                                                          \
     .features = features_,                                                                                                \
     .own = keys,                                                                                                          \
     .slices = 1,                                                                                                          \
     .threads = 32 * (warps),                                                                                              \
     .shared_bytes = BYTES_##dtype_ * (2 * (keys) * (dim_) + (2 + (skewed) + (stages)) * (rows) * (dim_) +                 \
                                       PAIRS(keys, rows, stored, skewed)) +                                                \
                     (2 + (skewed)) * 8 * (rows),                                                                          \
     .symbol = &strobe__kernel_##name,                                                                                     \
     .text = {.source = "cuda/sm80/backward_fused.cu",                                                                     \
              .options = {"KERNEL=strobe__score", ELEMENT_OPTIONS_##dtype_, "DIM=" #dim_, "KEYS=" #keys, "ROWS=" #rows,    \
                          "WARPS=" #warps, "S_N=" #s_n, "K_N=" #k_n, "Q_M=" #q_m, "DO_STAGES=" #stages, "SKEWED=" #skewed, \
                          "BLOCKS=" #blocks, "FEATURES=" #features_},                                                      \
              .names = {"strobe__score"}}},
#include "cuda_backward_fused_variants.h"
#undef VARIANT
    {.symbol = NULL},
};

#define NAME_BF16(name) " " #name
#define NAME_FP16(name) " " #name
#define NAME_FP32(name)
#define NAME_TF32X3(name)
#define VARIANT(kind, name, dtype, ...) NAME_##dtype(name)
const char strobe__sm80_backward_variants[] =
#include "cuda_backward_variants.h"
#undef VARIANT
#define VARIANT(name, dtype, ...) NAME_##dtype(name)
#include "cuda_backward_fused_variants.h"
#undef VARIANT
    "";
#undef NAME_BF16
#undef NAME_FP16
#undef NAME_FP32
#define NAME_BF16(name)
#define NAME_FP16(name)
#define NAME_FP32(name)                 " " #name
#define VARIANT(kind, name, dtype, ...) NAME_##dtype(name)
const char strobe__sm80_backward_variants_fp32[] =
#include "cuda_backward_variants.h"
    "";
#undef NAME_FP32
#undef NAME_TF32X3
#define NAME_FP32(name)
#define NAME_TF32X3(name) " " #name
const char strobe__sm80_backward_variants_tf32x3[] =
#include "cuda_backward_variants.h"
#undef VARIANT
#define VARIANT(name, dtype, ...) NAME_##dtype(name)
#include "cuda_backward_fused_variants.h"
#undef VARIANT
    "";

static bool takes(const struct backward_variant *v, const struct plan *plan, enum side side, bool features) {
    const strobe_attention *a = &plan->problem->a;
    if (v->dtype != a->q.dtype || v->tf32x3 != strobe__is_tf32x3(plan->kernel)) return false;
    return v->side == side && v->dim >= a->dim && v->dim >= a->dim_v && (!features || v->features) &&
           v->shared_bytes <= strobe__cuda_limits(a->device_index).shared_bytes;
}

/* The first of the fewest columns. */
static const struct backward_variant *find(const struct plan *plan, enum side side, bool features) {
    const struct backward_variant *best = NULL;
    for (const struct backward_variant *v = variants; v->symbol; ++v)
        if (takes(v, plan, side, features) && (!best || v->dim < best->dim)) best = v;
    return best;
}

/* The plan's passes: the main one does dQ, dK and dV at once, by atomics, unless a fixed order is wanted or none fits. Then
 * it is that of keys. Those of keys and of rows are always there: they do again what has NaN. */
enum { KEYS_PASS, ROWS_PASS };

/* Whether dS and P are summed over keys, for dsinks: fp32 tensors have an exact O, and without keys there is nothing to sum.
 * The variants with FEATURES do it. */
static bool sums_rows(const struct problem *p) {
    return p->g.dsinks && p->a.q.dtype != STROBE_FP32 && p->a.out.dtype != STROBE_FP32 && p->a.seq_k > 0;
}

bool strobe__sm80_backward_choose(struct plan *plan) {
    const struct problem *p = plan->problem;
    const bool features = strobe__cuda_needs_features(p), of_rows = features || sums_rows(p);
    const struct backward_variant *keys = find(plan, SIDE_keys, features), *rows = find(plan, SIDE_rows, of_rows);
    const struct backward_variant *fused = p->a.flags & STROBE_DETERMINISTIC ? NULL : find(plan, SIDE_fused, of_rows);
    if (!keys || !rows) return false;
    plan->variant = fused ? &fused->base : &keys->base;
    plan->more[KEYS_PASS] = &keys->base, plan->more[ROWS_PASS] = &rows->base;
    if (strobe__cuda_asks_what_is_visible(p)) strobe__cuda_visible_choose(plan);
    return strobe__cuda_dbias_choose(plan);
}

/* NULL where there are two passes. */
static const struct backward_variant *fused_of(const struct plan *plan) {
    return plan->variant == plan->more[KEYS_PASS] ? NULL : (const struct backward_variant *)plan->variant;
}

/* The workspace: lse and D of packed rows, for dsinks their sums of dS and P, the sums of dbias, and for one pass marks and
 * the sums of dQ, in words of 4 bytes; then what visible.cu writes, by keys, and by rows where their pass is not for marked
 * ones alone. */
struct layout {
    const struct backward_variant *fused; /* NULL: two passes */
    struct view dbias_sum;
    int64_t packed_rows, heads, dbias, dbias_at, key_units, row_units, marks_at, dq_at, words;
    bool keys_visible, rows_visible;
    size_t keys_at, rows_at; /* in bytes, behind the words: what visible.cu writes; a user's function's is at keys_at */
    size_t arrays_at;        /* sums of the gradients of a function's arrays, behind that */
};

static struct layout with_visible(struct layout l, const struct plan *plan) {
    const struct problem *p = plan->problem;
    l.keys_visible = plan->more[VISIBLE_PASS], l.rows_visible = l.keys_visible && !l.fused;
    l.keys_at = ((size_t)l.words * sizeof(float) + 15) / 16 * 16;
    l.rows_at = l.keys_at;
    l.rows_at += l.keys_visible ? strobe__cuda_visible_bytes(p, OWNERS_ARE_KEYS) : strobe__cuda_function_bytes(p);
    l.arrays_at = l.rows_at + (l.rows_visible ? strobe__cuda_visible_bytes(p, OWNERS_ARE_ROWS) : 0);
    return l;
}

static struct layout lay_out(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct layout l = {.fused = fused_of(plan),
                       .packed_rows = ceil_div(p->a.seq_q * p->group, PACKED_PADDING) * PACKED_PADDING,
                       .heads = p->a.batch * p->a.heads_kv};
    l.dbias = strobe__cuda_dbias_sums(p, &l.dbias_sum);
    l.dbias_at = (sums_rows(p) ? 4 : 2) * l.heads * l.packed_rows;
    l.words = l.dbias_at + l.dbias;
    if (!l.fused) return with_visible(l, plan);
    l.key_units = ceil_div(p->a.seq_k, RECOMPUTE_UNIT), l.row_units = l.packed_rows / RECOMPUTE_UNIT;
    l.marks_at = l.words;
    l.dq_at = ceil_div(l.marks_at + 2 + l.heads * (l.key_units + l.row_units), 16) * 16;
    l.words = l.dq_at + l.heads * l.packed_rows * l.fused->dim;
    return with_visible(l, plan);
}

size_t strobe__sm80_backward_workspace(const struct plan *plan) {
    return lay_out(plan).arrays_at + strobe__array_gradient_bytes(plan->problem);
}

static struct params fill_in(const struct problem *p, const struct layout *l, float *workspace) {
    struct params to = strobe__cuda_params(p);
    to.packed_rows = (int32_t)l->packed_rows;
    const int64_t rows = l->heads * l->packed_rows;
    to.row_lse = workspace, to.row_delta = workspace + rows;
    if (sums_rows(p)) to.row_ds = workspace + 2 * rows, to.row_p = workspace + 3 * rows;
    to.dbias_sum = l->dbias_sum;
    if (l->dbias) to.dbias_sum.data = workspace + l->dbias_at;
    if (!l->fused) return to;
    to.dq_sum = workspace + l->dq_at, to.dq_columns = l->fused->dim;
    to.key_units = (int32_t)l->key_units, to.row_units = (int32_t)l->row_units;
    to.recompute_keys = (int32_t *)workspace + l->marks_at;
    to.recompute_rows = to.recompute_keys + 1 + l->heads * l->key_units;
    to.recompute_count = 2 + l->heads * (l->key_units + l->row_units);
    return to;
}

/* marked: 0, or the blocks of threads that look for marked jobs, as many as the device holds: nearly always none has work.
 */
static strobe_status launch_main(const struct problem *p, struct params params, const struct backward_variant *v,
                                 const struct score_values *values, int64_t marked, void *stream) {
    params.tiles = (int32_t)ceil_div(v->side == SIDE_rows ? p->a.seq_q * p->group : p->a.seq_k, v->own);
    params.slices = v->slices;
    const int64_t jobs = (int64_t)params.tiles * v->slices * p->a.batch * p->a.heads_kv;
    if (marked) params.jobs = (int32_t)jobs;
    const int64_t blocks = marked && marked < jobs ? marked : jobs;
    if (!values) return strobe__cuda_launch(v->symbol, blocks, v->threads, v->shared_bytes, &params, stream);
    compiled_kernel kernels[MOST_COMPILED_KERNELS];
    const strobe_status status = strobe__compiled(p, &v->text, stream, kernels);
    return status ? status
                  : strobe__compiled_launch(kernels[0], blocks, v->threads, v->shared_bytes, &params, sizeof params, values,
                                            stream, false);
}

/* dK and dV by their keys, dQ by its rows: all of them, or what is marked. rows_visible: what the masks show, by rows. */
static strobe_status launch_two(const struct plan *plan, const struct params *params, const struct visible *rows_visible,
                                const struct score_values *values, int64_t marked, void *stream) {
    const struct backward_variant *keys = (const struct backward_variant *)plan->more[KEYS_PASS];
    const struct backward_variant *rows = (const struct backward_variant *)plan->more[ROWS_PASS];
    struct params by_rows = *params;
    by_rows.visible = *rows_visible;
    const strobe_status status = launch_main(plan->problem, *params, keys, values, marked, stream);
    return status ? status : launch_main(plan->problem, by_rows, rows, values, marked, stream);
}

/* The kernels of device/delta.cu that have PACKED_PADDING packed rows a block of threads. */
static strobe_status launch_rows(struct cuda_kernel *kernel, const struct layout *l, const struct params *params,
                                 void *stream) {
    return strobe__cuda_launch(kernel, l->heads * l->packed_rows / PACKED_PADDING, 256, 0, params, stream);
}

static strobe_status launch_fused(const struct plan *plan, const struct params *params, const struct layout *l,
                                  const struct score_values *values, void *stream) {
    const struct problem *p = plan->problem;
    const struct visible unknown = {.mask_states = NULL},
                         *by_rows = params->visible.of_function ? &params->visible : &unknown;
    const int64_t marked = 2 * strobe__cuda_limits(p->a.device_index).multiprocessors;
    strobe_status status = launch_main(p, *params, l->fused, values, 0, stream);
    if (l->packed_rows == 0) return status; /* without rows nothing is marked, nor have the marks been cleared */
    if (!status) status = launch_rows(&strobe__kernel_dq_round, l, params, stream);
    struct params again = *params;
    again.row_ds = again.row_p = NULL; /* these leave hidden pairs out at once */
    return status ? status : launch_two(plan, &again, by_rows, values, marked, stream);
}

/* What is visible by keys goes into params, and by rows into by_rows. The user's function's is the same for both. */
static strobe_status launch_visible(const struct plan *plan, const struct layout *l, struct params *params,
                                    struct visible *by_rows, char *workspace, void *stream) {
    const struct problem *p = plan->problem;
    strobe_status status;
    if (!l->keys_visible) {
        status = strobe__cuda_function(p, workspace + l->keys_at, &params->visible, stream);
        *by_rows = params->visible;
        return status;
    }
    status = strobe__cuda_visible(p, OWNERS_ARE_KEYS, workspace + l->keys_at, &params->visible, stream);
    if (!status && l->rows_visible)
        status = strobe__cuda_visible(p, OWNERS_ARE_ROWS, workspace + l->rows_at, by_rows, stream);
    return status;
}

static strobe_status launch_all(const struct plan *plan, struct params *params, const struct layout *l, char *workspace,
                                void *stream) {
    const struct problem *p = plan->problem;
    const bool has_function = p->features & FEATURE(SCORE);
    struct score_values values;
    struct visible by_rows = {.mask_states = NULL};
    if (has_function) values = strobe__score_values(p);
    const struct score_values *given = has_function ? &values : NULL;
    strobe_status status = launch_visible(plan, l, params, &by_rows, workspace, stream);
    if (!status) status = strobe__cuda_dbias_begin(p, params, stream);
    if (!status && has_function) status = strobe__array_gradients_begin(p, workspace + l->arrays_at, &values, stream);
    if (!status) status = launch_rows(&strobe__kernel_row_deltas, l, params, stream);
    if (!status)
        status = l->fused ? launch_fused(plan, params, l, given, stream)
                          : launch_two(plan, params, &by_rows, given, 0, stream);
    if (!status && p->g.dsinks)
        status = strobe__cuda_launch(&strobe__kernel_sink_sums, p->a.heads_q, SINK_THREADS, 0, params, stream);
    if (!status && has_function) status = strobe__array_gradients_end(p, &values, stream);
    if (!status) status = strobe__cuda_dbias_end(plan, params, stream);
    return status;
}

const char *strobe__sm80_backward_reject(const struct problem *p) {
    if (p->features & FEATURE(SCORE) && strobe__cuda_dbias_is_ordered(p))
        return "score is given with STROBE_DETERMINISTIC and a broadcast dbias; these are taken without it";
    if (p->g.dscore && p->a.flags & STROBE_DETERMINISTIC)
        return "dscore is given with STROBE_DETERMINISTIC, and is summed in any order; it is taken without that flag";
    return strobe__cuda_reject(p);
}

/* The texts of all passes, up to a NULL. */
static void list_texts(const struct plan *plan, const struct compiled_text *texts[4]) {
    int count = 0;
    if (fused_of(plan)) texts[count++] = &fused_of(plan)->text;
    for (int n = 0; n < 2; ++n) texts[count++] = &((const struct backward_variant *)plan->more[n])->text;
    texts[count] = NULL;
}

strobe_status strobe__sm80_backward_prepare(const struct plan *plan) {
    const struct compiled_text *texts[4];
    list_texts(plan, texts);
    return strobe__compiled_prepare(plan->problem, texts);
}

static strobe_status compile_passes(const struct plan *plan, void *stream) {
    const struct compiled_text *texts[4];
    if (!(plan->problem->features & FEATURE(SCORE))) return STROBE_OK;
    list_texts(plan, texts);
    return strobe__compiled_all(plan->problem, texts, stream);
}

strobe_status strobe__sm80_backward(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    const struct layout l = lay_out(plan);
    struct params params = fill_in(p, &l, execution->workspace);
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status) status = compile_passes(plan, execution->stream);
    if (!status) status = launch_all(plan, &params, &l, execution->workspace, execution->stream);
    strobe__cuda_leave(&visit);
    return status;
}
