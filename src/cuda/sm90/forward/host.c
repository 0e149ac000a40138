/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.c: the host side of the Hopper forward: what it takes, its tensors described, the launch. */
#include "cuda/sm90/forward/host.h"

#include <cuda_runtime_api.h>
#include <string.h>

#include "cuda/host/compiled.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/merge.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/visible.h"
#include "cuda/sm90/band.h"
#include "cuda/sm90/feature_class.h"
#include "cuda/sm90/forward/pages_host.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/parts_host.h"
#include "cuda/sm90/forward/rounds_host.h"
#include "cuda/sm90/trace_host.h"
#include "math/exp2.h"

#define VARIANT(name, ...) CUDA_KERNEL(name);
#include "sm90_forward_variants.h"
#include "sm90_fp8_variants.h"
#undef VARIANT

/* A variant of forward.cu, with what it is best for; the build writes the list, each dtype from few columns to many,
 * special ones before the general one. */
struct forward_variant {
    struct variant base;
    int32_t dtype, out, features;                               /* features: an enum feature_class */
    int64_t dim, keys, groups, stages, v_stages, q_slots, ctas; /* stages of K; of V, other ones for e4m3 alone */
    int64_t most_full, most_masked; /* keys that a row sees at most, without and with a mask; -1: as many as there are */
    struct cuda_kernel *symbol;
    struct compiled_text text; /* with a user's function; its feature class is still to be added */
};

#define VARIANT(name, dtype, out, class, dim, keys, groups, stages, v_stages, q_slots, ctas, full, masked)               \
    {{#name},                                                                                                            \
     STROBE_##dtype,                                                                                                     \
     STROBE_##out,                                                                                                       \
     class,                                                                                                              \
     dim,                                                                                                                \
     keys,                                                                                                               \
     groups,                                                                                                             \
     stages,                                                                                                             \
     v_stages,                                                                                                           \
     q_slots,                                                                                                            \
     ctas,                                                                                                               \
     full,                                                                                                               \
     masked,                                                                                                             \
     &strobe__kernel_##name,                                                                                             \
     {"cuda/sm90/forward/forward.cu",                                                                                    \
      true,                                                                                                              \
      {"KERNEL=strobe__score", "ELEMENT_" #dtype, "HEAD_DIM=" #dim, "KEYS=" #keys, "GROUPS=" #groups, "STAGES=" #stages, \
       "Q_SLOTS=" #q_slots, "CTAS=" #ctas},                                                                              \
      {"strobe__score"}}},
static const struct forward_variant variants[] = {
#include "sm90_forward_variants.h"
#include "sm90_fp8_variants.h"
    {.symbol = NULL},
};
#undef VARIANT

#define VARIANT(name, ...) " " #name
const char strobe__sm90_forward_variants[] =
#include "sm90_forward_variants.h"
    "";
const char strobe__sm90_fp8_variants[] =
#include "sm90_fp8_variants.h"
    "";
#undef VARIANT

/* Whether q is e4m3 or int8: then k and v are bytes too. */
static bool has_byte_rows(const struct problem *p) { return strobe__dtype_bytes(p->a.q.dtype) == 1; }

/* Keys that a row may see. */
static int64_t visible_keys(const struct problem *p) {
    const struct sequence nothing = {0};
    const struct band band = strobe__band(p, &nothing);
    const int64_t span = band.left < p->a.seq_k && band.right < p->a.seq_k ? band.left + band.right + 1 : p->a.seq_k;
    return span < p->a.seq_k ? span : p->a.seq_k;
}

/* The copy engine takes longer over rows that are no whole 64 bytes, or 32, and several small CTAs read K and V more often.
 */
static bool has_whole_sectors(const strobe_attention *a, const struct forward_variant *v) {
    const int64_t columns = v->groups == 1 ? 32 : 16;
    return v->ctas == 1 || (a->dim % columns == 0 && a->dim_v % columns == 0);
}

static int64_t row_tiles(const strobe_attention *a, const struct forward_variant *variant) {
    return ceil_div(a->seq_q, 64 * variant->groups);
}

/* At least four fifths of the rows of a variant for short sequences are the sequence's. */
static bool fits_rows(const strobe_attention *a, const struct forward_variant *v, int64_t most) {
    return most < 0 || 5 * a->seq_q >= 4 * row_tiles(a, v) * 64 * v->groups;
}

static const struct variant *variant_of_class(const struct problem *p, int32_t features) {
    const strobe_attention *a = &p->a;
    const int64_t dim = a->dim > a->dim_v ? a->dim : a->dim_v, keys = visible_keys(p);
    const bool masked = a->mask != STROBE_MASK_NONE || a->varlen;
    for (const struct forward_variant *v = variants; v->symbol; ++v) {
        const int64_t most = masked ? v->most_masked : v->most_full;
        if (v->dtype == a->q.dtype && v->out == a->out.dtype && v->features == features && v->dim >= dim &&
            (most < 0 || keys <= most) && (masked || fits_rows(a, v, most)) && has_whole_sectors(a, v))
            return &v->base;
    }
    return NULL;
}

static struct sm90_cut cut_of(const struct problem *p, const struct forward_variant *v) {
    return strobe__sm90_cut(p, visible_keys(p), 64 * v->groups, v->keys);
}

/* The variant with parts that takes the problem, or NULL. */
static const struct forward_variant *variant_with_parts(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t dim = a->dim > a->dim_v ? a->dim : a->dim_v;
    const int32_t features = strobe__sm90_classes(p).general;
    if (features != FEATURES_NONE && features != FEATURES_PAGES) return NULL;
    for (const struct forward_variant *v = variants; v->symbol; ++v)
        if (v->features == (features | FEATURES_PARTS) && v->dtype == a->q.dtype && v->dim >= dim) return v;
    return NULL;
}

/* Whether parts are worth it, or pages have no other variant for an out in fp32. */
static bool wants_parts(const struct problem *p, const struct forward_variant *v) {
    return v && (cut_of(p, v).count > 1 || (p->a.paged && p->a.out.dtype == STROBE_FP32));
}

/* Whether tiles differ in length, so that CTAs take them from the tile counter. */
static bool is_dynamic(const struct problem *p) {
    return p->a.mask != STROBE_MASK_NONE || p->a.varlen || p->features & VISIBLE_FEATURES;
}

static int64_t most_ctas(const struct problem *p, const struct forward_variant *v) {
    return strobe__cuda_limits(p->a.device_index).multiprocessors * v->ctas;
}

/* How a problem's tiles fall into rounds. */
static struct sm90_rounds rounds_of(const struct problem *p, const struct forward_variant *v) {
    const struct sm90_rounds rounds = {row_tiles(&p->a, v), most_ctas(p, v), v->dim, v->keys,
                                       visible_keys(p),     !is_dynamic(p)};
    return rounds;
}

/* The variant with these features that takes what `plain` takes, or NULL. */
static const struct forward_variant *variant_like(const struct forward_variant *plain, int32_t features) {
    for (const struct forward_variant *v = variants; v->symbol; ++v)
        if (v->features == features && v->dtype == plain->dtype && v->out == plain->out && v->dim == plain->dim) return v;
    return NULL;
}

/* The variant in place of `chosen` whose CTAs share tiles, or K and V, or both; or `chosen`. */
static const struct variant *variant_that_shares(const struct problem *p, const struct variant *chosen) {
    const struct forward_variant *plain = (const struct forward_variant *)chosen;
    if (!plain || plain->features != FEATURES_NONE || strobe__sm90_is_compiled(p, FEATURES_NONE)) return chosen;
    const struct sm90_rounds rounds = rounds_of(p, plain);
    const int32_t tiles = strobe__sm90_relay_pays(p, rounds) ? FEATURES_RELAY : 0;
    const int32_t keys = strobe__sm90_has_pairs(rounds) ? FEATURES_PAIRS : 0;
    const struct forward_variant *v = keys ? variant_like(plain, tiles | keys) : NULL;
    if (!v && tiles) v = variant_like(plain, tiles);
    return v ? &v->base : chosen;
}

bool strobe__sm90_forward_choose(struct plan *plan) {
    const struct sm90_classes classes = strobe__sm90_classes(plan->problem);
    const struct forward_variant *parts = variant_with_parts(plan->problem);
    plan->variant = wants_parts(plan->problem, parts) ? &parts->base : NULL;
    if (!plan->variant) plan->variant = variant_of_class(plan->problem, classes.alone);
    if (!plan->variant) plan->variant = variant_of_class(plan->problem, classes.general);
    if (!plan->variant && !plan->problem->a.paged) plan->variant = variant_of_class(plan->problem, FEATURES_ALL);
    plan->variant = variant_that_shares(plan->problem, plan->variant);
    strobe__cuda_visible_choose(plan);
    return plan->variant;
}

/* Four columns of a row, or two of fp32, are 8 bytes at a multiple of 8. */
static bool has_aligned_columns(const strobe_tensor *t, int64_t columns) {
    const int64_t some = 8 / (int64_t)strobe__dtype_bytes(t->dtype);
    return (uintptr_t)t->data % 8 == 0 && t->stride[0] % some == 0 && t->stride[1] % some == 0 && t->stride[2] % some == 0 &&
           columns % some == 0;
}

enum { LEAST_TILE = 64 };

const char *strobe__sm90_forward_reject(const struct problem *p) {
    const strobe_attention *a = &p->a;
    const int64_t start = a->q_start - a->k_start;
    /* The copy engine must know where K and V end: it loads whole blocks. */
    if (p->varlen.cu_seqlens_k && p->varlen.total_k == 0)
        return "varlen.total_k is 0; the keys of the packed tensors are taken";
    if (a->block_mask && (p->block_mask.block_k % 8 != 0 || p->block_mask.block_k > MOST_POSITIONS))
        return "block_mask.block_k is not a multiple of 8 up to 2^28; these are taken";
    if (a->alibi && (start > MOST_POSITIONS || start < -MOST_POSITIONS))
        return "q_start and k_start are further apart than 2^28, with ALiBi; up to that is taken";
    if (a->dropout && p->dropout.key_start % 4 != 0)
        return "dropout.key_start is not a multiple of 4; multiples of 4 are taken";
    if (p->varlen.total_q > INT32_MAX || p->varlen.total_k > INT32_MAX)
        return "varlen.total_q or total_k is above 2^31; less is taken";
    if (strobe__product(strobe__product(a->batch, a->heads_q), ceil_div(a->seq_q, LEAST_TILE)) > INT32_MAX)
        return "there are more than 2^31 tiles of rows; fewer are taken";
    const int64_t batch_q = p->varlen.cu_seqlens_q ? 1 : a->batch;
    const int64_t batch_k = a->paged ? p->paged.pages : p->varlen.cu_seqlens_k ? 1 : a->batch;
    if (!strobe__can_be_copied(&a->q, batch_q, a->heads_q) || !strobe__can_be_copied(&a->k, batch_k, a->heads_kv) ||
        !strobe__can_be_copied(&a->v, batch_k, a->heads_kv))
        return "rows of q, k or v do not start at ascending multiples of 16 bytes; rows that do are taken";
    const struct forward_variant *parts = variant_with_parts(p);
    if (a->paged && a->out.dtype == STROBE_FP32 && !parts)
        return "out is fp32 with pages and what changes scores; q's dtype is taken";
    if (!has_byte_rows(p) && a->seq_q < LEAST_TILE &&
        (a->seq_q * p->group <= LEAST_TILE || !parts || cut_of(p, parts).count == 1))
        return "seq_q is below 64; that is taken where a K/V head has more than 64 rows, over many keys, with a mask "
               "or pages alone";
    const char *refused = strobe__sm90_cache_reject(p);
    if (refused) return refused;
    return strobe__cuda_reject(p);
}

static bool encode_maps(struct sm90_forward_params *m, const struct problem *p, const struct forward_variant *variant) {
    const strobe_attention *a = &p->a;
    const strobe_varlen *v = &p->varlen;
    const int64_t rows = v->cu_seqlens_q ? v->total_q : a->seq_q, keys = v->cu_seqlens_k ? v->total_k : a->seq_k;
    const int64_t batch_q = v->cu_seqlens_q ? 1 : a->batch, batch_k = v->cu_seqlens_k ? 1 : a->batch;
    if (variant->features == FEATURES_BIAS && !strobe__encode_scores_map(&m->bias_map, p, &p->bias, 64, 64)) return false;
    if (variant->features & FEATURES_PARTS ? !strobe__sm90_encode_cut(m, p)
                                           : !strobe__encode_map(&m->q, &a->q, a->dim, rows, a->heads_q, batch_q, 64))
        return false;
    if (a->paged) return strobe__sm90_encode_pages(m, p, variant->dim);
    return strobe__encode_map(&m->k, &a->k, a->dim, keys, a->heads_kv, batch_k, variant->keys) &&
           strobe__encode_map(&m->v, &a->v, a->dim_v, keys, a->heads_kv, batch_k, variant->keys);
}

/* Whether some key that is loaded may be hidden from a row. Keys past the end of a dense tensor arrive as zeros; masks,
 * dropout and neighbours in memory can bring others. */
static bool may_hide(const struct problem *p) {
    const strobe_attention *a = &p->a;
    return has_byte_rows(p) || a->mask != STROBE_MASK_NONE || a->varlen || a->bool_mask || a->block_mask || a->bias ||
           a->dropout || a->score;
}

/* A tensor over scores whose rows all start at multiples of 16 bytes is read many elements at a time. */
static struct view scores_view(const void *data, const int64_t stride[3], int32_t dtype) {
    struct view view = strobe__cuda_scores_view(data, stride, dtype);
    const int64_t elements = 16 / (int64_t)strobe__dtype_bytes(dtype);
    view.aligned = (uintptr_t)data % 16 == 0 && view.batch % elements == 0 && view.head % elements == 0 &&
                   view.row % elements == 0;
    return view;
}

/* How many doublings the maximum may lag in any case. The error of a greatest weight that is rounded is a smaller part of
 * the whole where rows see many keys; under a causal mask O's own rounding is more of it, since rows of few keys are larger.
 */
static float least_lag(const struct problem *p) {
    const bool is_triangle = p->a.mask != STROBE_MASK_NONE && visible_keys(p) == p->a.seq_k;
    return is_triangle || visible_keys(p) >= 4096 ? 2.75f : 0;
}

static void fill(struct sm90_forward_params *m, const struct problem *p, const struct forward_variant *variant) {
    const strobe_attention *a = &p->a;
    const struct sm90_band band = strobe__sm90_band(p);
    const struct sm90_alibi alibi = strobe__sm90_alibi(p, variant->features);
    m->start = alibi.start;
    m->first_shift = band.first_shift, m->end_shift = band.end_shift, m->bottom_right = band.bottom_right;
    m->may_hide = may_hide(p);
    m->out = a->out.data, m->lse = a->lse.data, m->out_is_aligned = has_aligned_columns(&a->out, a->dim_v);
    m->q_data = a->q.data, m->k_data = a->k.data, m->v_data = a->v.data;
    memcpy(m->out_stride, a->out.stride, sizeof m->out_stride), memcpy(m->lse_stride, a->lse.stride, sizeof m->lse_stride);
    memcpy(m->q_stride, a->q.stride, sizeof m->q_stride);
    memcpy(m->k_stride, a->k.stride, sizeof m->k_stride), memcpy(m->v_stride, a->v.stride, sizeof m->v_stride);
    m->batch = (int32_t)a->batch, m->seq_q = (int32_t)a->seq_q, m->seq_k = (int32_t)a->seq_k, m->group = (int32_t)p->group;
    m->heads_q = (int32_t)a->heads_q, m->all_heads = (int32_t)(a->heads_q * a->batch);
    m->dim = (int32_t)a->dim, m->dim_v = (int32_t)a->dim_v;
    m->row_tiles = (int32_t)row_tiles(a, variant), m->tiles = m->row_tiles * m->all_heads;
    m->is_dynamic = is_dynamic(p);
    m->known_tiles = m->is_dynamic && variant->dim <= 128 && visible_keys(p) <= 1280 ? 3 : 2;
    m->section_heads = (int32_t)strobe__sm90_section_heads(p, rounds_of(p, variant));
    m->cu_seqlens_q = p->varlen.cu_seqlens_q, m->cu_seqlens_k = p->varlen.cu_seqlens_k;
    m->used_q = p->varlen.used_q, m->used_k = p->varlen.used_k, m->index_bits = p->varlen.index_bits;
    m->scale = (float)a->scale, m->exponent = (float)(a->scale * LOG2_E);
    const bool terms = CLASS_HAS_SCORE_TERMS(variant->features) || variant->features == FEATURES_SOFTCAP ||
                       strobe__sm90_is_compiled(p, variant->features);
    const float exponent = terms ? (float)LOG2_E : m->exponent;
    m->to_natural = two_floats_of(exponent == 0 ? 0 : (terms ? 1 : a->scale) / (double)exponent);
    m->lag_unit = m->exponent == 0 ? 0 : 1 / m->exponent, m->least_lag = least_lag(p), m->softcap = (float)a->softcap;
    if (a->bias) m->bias = scores_view(p->bias.data, p->bias.stride, p->bias.dtype);
    if (a->bool_mask) m->mask = strobe__cuda_scores_view(p->bool_mask.data, p->bool_mask.stride, STROBE_INT8);
    if (a->block_mask) {
        const int64_t rows = p->block_mask.block_q;
        m->blocks = strobe__cuda_scores_view(p->block_mask.data, p->block_mask.stride, STROBE_INT8);
        m->block_q = (int32_t)(rows < MOST_POSITIONS ? rows : MOST_POSITIONS), m->block_k = (int32_t)p->block_mask.block_k;
    }
    if (a->dropout) {
        m->dropout = 1, m->place = strobe__dropout_place(p);
        m->rounds = philox_rounds_of(m->place.seed, m->place.offset);
    }
    if (variant->features == FEATURES_SOFTCAP) m->cap = softcap_terms_of(a->softcap, a->scale);
    if (variant->features == FEATURES_ALIBI)
        m->alibi_factor = (float)alibi.factor, m->inverse_scale = (float)(alibi.factor / a->scale);
    m->batch_is_inner = a->bias && p->bias.stride[0] == 0 && a->batch > 1 && !a->varlen;
    if (p->a.scales) {
        const strobe_scales *s = &p->scales;
        struct sm90_scales *to = &m->scales;
        to->q = s->q, to->k = s->k, to->v = s->v;
        to->block_q = (int32_t)s->block_q, to->block_k = (int32_t)s->block_k;
        memcpy(to->q_stride, s->stride_q, sizeof to->q_stride), memcpy(to->k_stride, s->stride_k, sizeof to->k_stride);
        memcpy(to->v_stride, s->stride_v, sizeof to->v_stride);
    }
    strobe__sm90_set_cache(m, p, variant->keys);
    m->is_ragged = m->cu_seqlens_q || m->cu_seqlens_k || m->used_q || m->used_k || m->cache.leftpad;
    m->alibi = alibi.slopes, m->alibi_stride = alibi.stride_batch;
    m->sinks = p->sinks.data;
}

/* What a tile's number is divided by. Sequences of different lengths have sections of their own. */
static void set_divisors(struct sm90_forward_params *m) {
    const bool has_lengths = m->cu_seqlens_q || m->used_q;
    const int32_t last = (has_lengths ? m->heads_q : m->all_heads) % m->section_heads;
    m->by_group = divisor_of(m->group), m->by_heads_q = divisor_of(m->heads_q);
    m->by_section_heads = divisor_of(m->section_heads), m->by_last_heads = divisor_of(last > 0 ? last : m->section_heads);
    m->by_section_tiles = divisor_of(m->section_heads * m->row_tiles);
}

/* Q, stages of K and V, of a bias, barriers, and what it takes to align to 1024 bytes. */
static int32_t shared_bytes(const struct forward_variant *v) {
    const int64_t slabs = (v->dim + 63) / 64, bias_stages = v->features != FEATURES_BIAS ? 0 : v->dim <= 64 ? 2 : 1;
    const int64_t slabs_e4m3 = (v->dim + 127) / 128, behind = v->dim % 128 == 0 ? 8 : 0; /* rows behind V^T */
    if (strobe__dtype_bytes(v->dtype) == 1)
        return (int32_t)(128 * (slabs_e4m3 * (64 * v->q_slots + v->stages * v->keys) +
                                v->v_stages * (slabs_e4m3 * v->keys + behind))) +
               4096 + 1024; /* scales of Q's rows too */
    return (int32_t)(slabs * 128 * (64 * v->q_slots + 2 * v->stages * v->keys) +
                     bias_stages * v->groups * 64 * v->keys * 2) +
           1024 + 1024;
}

/* Where what visible.cu writes, or parts, begin, behind the recompute marks. */
static size_t visible_at(const struct plan *plan) {
    const struct problem *p = plan->problem;
    const struct forward_variant *variant = (const struct forward_variant *)plan->variant;
    const struct sm90_cut cut = cut_of(p, variant);
    const int64_t tiles = variant->features & FEATURES_PARTS ? strobe__sm90_cut_tiles(p, &cut)
                                                             : row_tiles(&p->a, variant) * p->a.heads_q * p->a.batch;
    const int64_t warps = tiles * 4 * variant->groups;
    const size_t marks = may_hide(p) ? (size_t)warps * sizeof(int32_t) : 0;
    return TRACE_BYTES + sizeof(struct sm90_workspace) + (marks + 15) / 16 * 16;
}

/* What shared tiles leave in the workspace, behind its head, and what says that it is there: relay.h. */
static size_t relay_bytes(const struct problem *p, const struct forward_variant *v) {
    const size_t warps = (size_t)(most_ctas(p, v) * 4 * v->groups);
    return v->features & FEATURES_RELAY ? warps * (RELAY_WARP_BYTES((size_t)v->dim) + sizeof(uint64_t)) : 0;
}

size_t strobe__sm90_forward_workspace(const struct plan *plan) {
    const struct forward_variant *variant = (const struct forward_variant *)plan->variant;
    if (variant->features & FEATURES_PARTS)
        return visible_at(plan) + strobe__cuda_parts_bytes(plan->problem, cut_of(plan->problem, variant).count);
    return visible_at(plan) + relay_bytes(plan->problem, variant) +
           strobe__cuda_visible_bytes(plan->problem, OWNERS_ARE_ROWS);
}

/* Another one each time, never 0, and no small number that memory may hold by chance. */
static uint64_t launch_number(void) {
    static _Atomic uint64_t launches;
    return ++launches * 0x9e3779b97f4a7c15u;
}

/* The variant with the problem's function. */
static struct compiled_text text_of(const struct plan *plan) {
    const struct forward_variant *variant = (const struct forward_variant *)plan->variant;
    struct compiled_text text = variant->text;
    int count = 0;
    while (text.options[count]) ++count;
    text.options[count++] = strobe__sm90_compiled_class(plan->problem, variant->features);
    if (variant->out == STROBE_FP32) text.options[count] = "OUT_FP32";
    return text;
}

static strobe_status launch(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    const struct forward_variant *variant = (const struct forward_variant *)plan->variant;
    struct sm90_forward_params params;
    memset(&params, 0, sizeof params);
    fill(&params, p, variant);
    const bool has_parts = variant->features & FEATURES_PARTS;
    const struct sm90_cut cut = cut_of(p, variant);
    float *const parts = (float *)((char *)execution->workspace + visible_at(plan));
    if (has_parts) strobe__sm90_set_cut(&params, p, &cut, parts);
    set_divisors(&params);
    params.launch = launch_number();
    params.workspace = (struct sm90_workspace *)((char *)execution->workspace + TRACE_BYTES);
#if defined(STROBE_TRACE)
    params.trace = execution->workspace;
    const strobe_status cleared = clear_trace(params.trace, execution->stream);
    if (cleared) return cleared;
#endif
    if (!encode_maps(&params, p, variant))
        return strobe__fail(STROBE_DEVICE_ERROR, "q, k, v or bias could not be described to the tensor copy engine");
    if (p->features & VISIBLE_FEATURES) {
        const strobe_status status = strobe__cuda_visible(
            p, OWNERS_ARE_ROWS, (char *)execution->workspace + visible_at(plan), &params.visible, execution->stream);
        if (status) return status;
    }
    const int64_t most = most_ctas(p, variant);
    const int64_t ctas = params.tiles < most ? params.tiles : most;
    const int32_t threads = (int32_t)(128 * (variant->groups + 1));
    const bool early = strobe__cuda_visible_is_made(p); /* it may start while visible.cu ends */
    if (strobe__sm90_is_compiled(p, variant->features)) {
        const struct score_values values = strobe__score_values(p);
        const struct compiled_text text = text_of(plan);
        compiled_kernel kernels[MOST_COMPILED_KERNELS];
        const strobe_status status = strobe__compiled(p, &text, execution->stream, kernels);
        return status ? status
                      : strobe__compiled_launch(kernels[0], ctas, threads, shared_bytes(variant), &params, sizeof params,
                                                &values, execution->stream, early);
    }
    const strobe_status status = (early ? strobe__cuda_launch_early : strobe__cuda_launch)(
        variant->symbol, ctas, threads, shared_bytes(variant), &params, execution->stream);
    return status || !has_parts ? status : strobe__sm90_merge_cut(p, &cut, parts, execution->stream);
}

strobe_status strobe__sm90_forward_prepare(const struct plan *plan) {
    const struct forward_variant *variant = (const struct forward_variant *)plan->variant;
    if (!strobe__sm90_is_compiled(plan->problem, variant->features)) return STROBE_OK;
    const struct compiled_text text = text_of(plan);
    return strobe__compiled_prepare(plan->problem, (const struct compiled_text *const[]){&text, NULL});
}

strobe_status strobe__sm90_forward(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    if (!status) status = strobe__cuda_check_pointers(p, execution);
    if (!status) status = launch(plan, execution);
    strobe__cuda_leave(&visit);
    return status;
}
