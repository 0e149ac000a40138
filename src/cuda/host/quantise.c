/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.c (cuda): the launches of device/quantise_block.cu, of quantise_rows.cu and what is around them; see quantise.h.
 * Blocks of rows that a CTA has whole are quantised in one pass; else magnitudes are gathered in the scales first. */
#include "cuda/host/quantise.h"

#include "cuda/device/quantise.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"

CUDA_KERNEL(quantise_rows_64_plain);
CUDA_KERNEL(quantise_rows_128_plain);
CUDA_KERNEL(quantise_rows_256_plain);
CUDA_KERNEL(quantise_rows_64_general);
CUDA_KERNEL(quantise_rows_128_general);
CUDA_KERNEL(quantise_rows_256_general);
CUDA_KERNEL(quantise_block_64);
CUDA_KERNEL(quantise_block_96);
CUDA_KERNEL(quantise_block_128);
CUDA_KERNEL(quantise_block_192);
CUDA_KERNEL(quantise_block_256);
CUDA_KERNEL(quantise_block_int8_64);
CUDA_KERNEL(quantise_block_int8_96);
CUDA_KERNEL(quantise_block_int8_128);
CUDA_KERNEL(quantise_block_int8_192);
CUDA_KERNEL(quantise_block_int8_256);
CUDA_KERNEL(quantise_scales);
CUDA_KERNEL(quantise_mean);

enum { MOST_DIM = 256, MOST_HEADS = 1 << 30 /* of a list */, MOST_THREADS = 1024 /* of 64 registers in a multiprocessor */ };

/* Whether every row, of elements of `bytes`, begins at a multiple of `whole` bytes and has whole eights of them. */
static bool rows_are_aligned(const void *data, const int64_t stride[3], const struct quantise_tensor *t, int64_t bytes,
                             int64_t whole) {
    const int64_t extent[3] = {t->batch, t->rows, t->heads};
    if (t->dim % 8 != 0 || (uintptr_t)data % (size_t)whole != 0) return false;
    for (int axis = 0; axis < 3; ++axis)
        if (extent[axis] > 1 && stride[axis] * bytes % whole != 0) return false;
    return true;
}

static struct quantise_params params_of(const struct quantisation *q, const struct quantise_tensor *t) {
    struct quantise_params p = {.t = *t, .c = q->choices};
    const int64_t blocks = t->block == 0 ? 1 : ceil_div(t->rows, t->block);
    const int64_t extent[3] = {t->block == 0 ? t->sequences : t->batch, blocks, t->heads};
    for (int axis = 0; axis < 3; ++axis) p.scale_extent[axis] = t->scale_stride[axis] ? extent[axis] : 1;
    p.columns = (int32_t)hadamard_columns(t->dim), p.norm = hadamard_norm(p.columns);
    while (t->block >> p.block_shift > 1) ++p.block_shift;
    p.chunks = (int32_t)ceil_div(t->rows, QUANTISE_CHUNK);
    p.from_aligned = rows_are_aligned(t->from, t->from_stride, t, t->from_dtype == STROBE_FP32 ? 4 : 2, 16);
    p.to_aligned = rows_are_aligned(t->to, t->to_stride, t, 1, 8);
    p.tables_staged = t->rotary && QUANTISE_SHARED(t->dim) + QUANTISE_TABLES(t->dim) <=
                                       strobe__cuda_limits(q->p.a.device_index).shared_bytes;
    p.tables_aligned = (uintptr_t)p.c.cos % 16 == 0 && (uintptr_t)p.c.sin % 16 == 0 && p.c.pairs % 8 == 0;
    return p;
}

/* Whether no two blocks of rows share a scale, and a CTA has whole ones. */
static bool takes_one_pass(const struct quantise_params *p) {
    const struct quantise_tensor *t = &p->t;
    const int64_t extent[3] = {t->batch, p->chunks, t->heads};
    if (t->block == 0 || QUANTISE_CHUNK % t->block != 0) return false;
    for (int axis = 0; axis < 3; ++axis)
        if (t->scale_stride[axis] == 0 && (extent[axis] > 1 || (axis == 1 && t->rows > t->block))) return false;
    return true;
}

/* Whether PLAIN variants take it, see device/quantise_load.h. */
static bool is_plain(const struct quantise_params *p) {
    const struct quantise_tensor *t = &p->t;
    return p->from_aligned && p->to_aligned && t->from_dtype != STROBE_FP32 && !t->cu_seqlens &&
           (!t->rotary || (p->tables_aligned && !p->c.interleaved));
}

static strobe_status launch_rows(struct quantise_params *p, enum quantise_phase phase, void *stream) {
    const struct quantise_tensor *t = &p->t;
    const int lanes = t->dim <= 64 ? 8 : t->dim <= 128 ? 16 : 32;
    static struct cuda_kernel *const rows[2][3] = {
        {&strobe__kernel_quantise_rows_64_general, &strobe__kernel_quantise_rows_128_general,
         &strobe__kernel_quantise_rows_256_general},
        {&strobe__kernel_quantise_rows_64_plain, &strobe__kernel_quantise_rows_128_plain,
         &strobe__kernel_quantise_rows_256_plain}};
    struct cuda_kernel *const kernel = rows[is_plain(p)][lanes / 16];
    if (t->rows == 0) return STROBE_OK;
    p->phase = phase;
    return strobe__cuda_launch(kernel, strobe__product(t->batch * p->chunks, t->heads), QUANTISE_GROUPS * lanes, 0, p,
                               stream);
}

/* quantise_block.cu for rows of so many columns, NULL where there is none. */
static struct cuda_kernel *block_kernel(int64_t dim, bool int8) {
    switch (dim) {
    case 64: return int8 ? &strobe__kernel_quantise_block_int8_64 : &strobe__kernel_quantise_block_64;
    case 96: return int8 ? &strobe__kernel_quantise_block_int8_96 : &strobe__kernel_quantise_block_96;
    case 128: return int8 ? &strobe__kernel_quantise_block_int8_128 : &strobe__kernel_quantise_block_128;
    case 192: return int8 ? &strobe__kernel_quantise_block_int8_192 : &strobe__kernel_quantise_block_192;
    case 256: return int8 ? &strobe__kernel_quantise_block_int8_256 : &strobe__kernel_quantise_block_256;
    default: return NULL;
    }
}

/* Whether quantise_block.cu takes it, of what is plain and takes one pass. */
static bool is_for_block(const struct quantise_params *p) {
    const struct quantise_tensor *t = &p->t;
    return is_plain(p) && block_kernel(t->dim, t->int8) && !t->lse_shift &&
           rows_are_aligned(t->to, t->to_stride, t, 1, 16) && (!t->rotary || 2 * p->c.pairs == t->dim);
}

/* CTAs of quantise_block.cu that a GPU takes at once. */
static int64_t resident_ctas(int32_t dim, int32_t shared, const struct cuda_limits *limits) {
    const int64_t by_threads = MOST_THREADS / (QUANTISE_CHUNK * QUANTISE_LANES(dim));
    const int64_t by_memory = limits->shared_bytes / shared;
    return limits->multiprocessors * (by_threads < by_memory ? by_threads : by_memory < 1 ? 1 : by_memory);
}

/* The most heads of a CTA. Without tables there is little to begin with, and CTAs that end at other times are faster; as
 * measured on an H200 (docs/kernels/sm90_fp8.md). */
static int64_t most_heads(int32_t dim, bool staged) {
    if (staged) return dim == 64 ? 16 : QUANTISE_HEADS;
    return dim <= 96 ? 3 : dim == 128 ? 8 : QUANTISE_HEADS;
}

/* Heads of a CTA, of the list of all: those with which CTAs that come one after the other take the least time, where a
 * begin, tables and first rows that are waited for, takes as long as a head. */
static int32_t heads_of_cta(int64_t chunks, int32_t heads, int64_t resident, int64_t most) {
    int64_t least = INT64_MAX, best = 1;
    for (int64_t parts = ceil_div(heads, most); parts <= heads; ++parts) {
        const int64_t each = ceil_div(heads, parts), waves = ceil_div(strobe__product(chunks, parts), resident);
        const int64_t time = strobe__product(waves, each + 1);
        if (time < least) least = time, best = each;
        if (waves > 16) break; /* CTAs enough to end evenly */
    }
    return (int32_t)best;
}

static strobe_status launch_together(struct quantise_together *all, int32_t device_index, void *stream) {
    const struct quantise_tensor *t = &all->tensor[0].t;
    const struct cuda_limits limits = strobe__cuda_limits(device_index);
    const int32_t dim = (int32_t)t->dim, threads = QUANTISE_CHUNK * QUANTISE_LANES(dim);
    const int64_t chunks = t->batch * all->tensor[0].chunks;
    int32_t shared = QUANTISE_SHARED(dim);
    bool staged = false;
    all->heads = 0;
    for (int n = all->count - 1; n >= 0; --n) {
        const int64_t own = all->tensor[n].t.heads;
        all->heads += (int32_t)own;
        if (n < all->count - 1)
            all->share[n] = (uint32_t)ceil_div(own << 32, all->heads); /* the last one has what is left */
        staged = staged || all->tensor[n].tables_staged;
    }
    if (staged) shared += QUANTISE_TABLES(dim);
    all->each = heads_of_cta(chunks, all->heads, resident_ctas(dim, shared, &limits), most_heads(dim, staged));
    return strobe__cuda_launch(block_kernel(dim, t->int8), strobe__product(chunks, ceil_div(all->heads, all->each)), threads,
                               shared, all, stream);
}

/* Whether tensors are in one launch. */
static bool go_together(const struct quantise_params *a, const struct quantise_params *b) {
    const struct quantise_tensor *s = &a->t, *t = &b->t;
    if (s->dim != t->dim || s->int8 != t->int8 || s->batch != t->batch || s->rows != t->rows) return false;
    return !s->rotary || !t->rotary || (s->start == t->start && s->hadamard == t->hadamard);
}

/* Puts a tensor with those that are launched together; these go first where it is another kind. */
static strobe_status put_with(struct quantise_together *all, const struct quantise_params *p, int32_t device_index,
                              void *stream) {
    bool fits = true;
    int64_t heads = p->t.heads;
    for (int n = 0; n < all->count; ++n) {
        fits = fits && go_together(&all->tensor[n], p);
        heads += all->tensor[n].t.heads;
    }
    if (!fits || heads > MOST_HEADS) {
        const strobe_status status = all->count > 0 ? launch_together(all, device_index, stream) : STROBE_OK;
        if (status) return status;
        all->count = 0;
    }
    all->tensor[all->count++] = *p;
    return STROBE_OK;
}

static strobe_status launch_scales(struct quantise_params *p, enum quantise_phase phase, void *stream) {
    const int64_t slots = strobe__product(p->scale_extent[0] * p->scale_extent[1], p->scale_extent[2]);
    p->phase = phase;
    return strobe__cuda_launch(&strobe__kernel_quantise_scales, ceil_div(slots, 256), 256, 0, p, stream);
}

static strobe_status launch_tensor(const struct quantisation *q, const struct quantise_tensor *t,
                                   struct quantise_together *all, void *stream) {
    struct quantise_params p = params_of(q, t);
    strobe_status status = STROBE_OK;
    if (t->mean)
        status = strobe__cuda_launch(&strobe__kernel_quantise_mean, t->sequences * t->heads * ceil_div(t->dim, 8),
                                     MEAN_PARTS, 0, &p, stream);
    if (status || !quantise_has_scales(t)) return status;
    if (takes_one_pass(&p))
        return is_for_block(&p) ? put_with(all, &p, q->p.a.device_index, stream) : launch_rows(&p, QUANTISE_AT_ONCE, stream);
    status = launch_scales(&p, QUANTISE_CLEAR, stream);
    if (!status) status = launch_rows(&p, QUANTISE_GATHER, stream);
    if (!status) status = launch_scales(&p, QUANTISE_CONCLUDE, stream);
    return status ? status : launch_rows(&p, QUANTISE_STORE, stream);
}

static strobe_status check_pointers(const struct quantisation *q) {
    static const char *const sources[] = {"quantiser.q", "quantiser.k", "quantiser.v"}, *const targets[] = {"q", "k", "v"};
    static const char *const scales[] = {"scales.q", "scales.k", "scales.v"};
    const int32_t device = q->p.a.device_index;
    for (int n = 0; n < QUANTISE_TENSORS; ++n) {
        const struct quantise_tensor *t = &q->tensor[n];
        const struct {
            const char *name;
            const void *data;
        } pointers[] = {
            {sources[n], t->from},
            {targets[n], t->to},
            {scales[n], t->scale},
            {"varlen", t->cu_seqlens},
            {"varlen", t->used},
            {"quantiser.k_mean", t->mean},
            {"quantiser.k_mean", t->key_mean},
            {"quantiser.lse_shift", t->lse_shift},
            {"rotary.cos", t->rotary ? q->choices.cos : NULL},
            {"rotary.sin", t->rotary ? q->choices.sin : NULL},
        };
        for (size_t i = 0; t->from && i < sizeof pointers / sizeof pointers[0]; ++i) {
            const strobe_status status = strobe__cuda_check_pointer(pointers[i].name, pointers[i].data, device);
            if (status) return status;
        }
    }
    return STROBE_OK;
}

/* Numbers that a launch takes. */
static strobe_status check_sizes(const struct quantisation *q) {
    for (int n = 0; n < QUANTISE_TENSORS; ++n) {
        const struct quantise_tensor *t = &q->tensor[n];
        if (!t->from) continue;
        if (t->dim > MOST_DIM)
            return strobe__fail(STROBE_UNSUPPORTED, "%s is %lld; 1 to %d is taken on the GPU",
                                n == QUANTISE_V ? "dim_v" : "dim", (long long)t->dim, MOST_DIM);
        if (t->rows > MOST_ROWS || t->batch > INT32_MAX)
            return strobe__fail(STROBE_UNSUPPORTED, "%s is %lld; less than 2^31 is taken on the GPU",
                                t->rows > MOST_ROWS ? "the number of rows" : "batch",
                                (long long)(t->rows > MOST_ROWS ? t->rows : t->batch));
    }
    return STROBE_OK;
}

strobe_status strobe__cuda_quantise(const struct quantisation *q, void *stream) {
    static const int order[] = {QUANTISE_V, QUANTISE_K,
                                QUANTISE_Q}; /* q's lse_shift takes K's mean; k and q have one dtype */
    const char *lack = strobe__cuda_lacks(CUDA_SM80, q->p.a.device_index);
    if (lack) return strobe__fail(STROBE_UNSUPPORTED, "device is %d; %s", q->p.a.device, lack);
    strobe_status status = check_sizes(q);
    if (status) return status;
    struct quantise_together all = {.count = 0};
    struct cuda_visit visit;
    status = strobe__cuda_enter(q->p.a.device_index, &visit);
    if (!status) status = check_pointers(q);
    for (size_t n = 0; n < sizeof order / sizeof order[0] && !status; ++n)
        if (q->tensor[order[n]].from) status = launch_tensor(q, &q->tensor[order[n]], &all, stream);
    if (all.count > 0 && !status) status = launch_together(&all, q->p.a.device_index, stream);
    strobe__cuda_leave(&visit);
    return status;
}
