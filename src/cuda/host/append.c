/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.c (cuda): the launch of device/append.cu: how the rows of q, k and v go, and how many CTAs have them. */
#include "cuda/host/append.h"

#include <string.h>

#include "cuda/device/append.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"

CUDA_KERNEL(append_copies);
CUDA_KERNEL(append_floats);
CUDA_KERNEL(append_bytes);
CUDA_KERNEL(append_all);
CUDA_KERNEL(append_run_64);
CUDA_KERNEL(append_run_128);
CUDA_KERNEL(append_run_256);

_Static_assert((int)APPEND_MOST_DIM == (int)DIM_LIMIT && (int)DIM_V_LIMIT <= (int)DIM_LIMIT, "a row fits shared memory");
_Static_assert(sizeof(struct append_params) <= 4096, "what every driver takes as a kernel's parameters");

/* CTAs on a multiprocessor below which a group of lanes has fewer units: a small call is over sooner. */
enum { FEW_CTAS = 4 };

/* Steps of warps on a multiprocessor from which on a call goes in runs that append.cu has a small kernel for; from which on
 * runs have four tokens, and eight: shorter ones leave no multiprocessor without work. */
enum { LEAST_RUN_STEPS = 3, STEPS_OF_FOUR = 12, STEPS_OF_EIGHT = 96 };

enum { VECTOR = 16 }; /* bytes */

static int64_t bytes_of(int32_t dtype) { return (int64_t)strobe__dtype_bytes(dtype); }

/* Whether every row begins at a multiple of `whole` bytes. extent: of batch, rows and heads. */
static bool is_aligned(const void *data, const int64_t stride[3], const int64_t extent[3], int64_t bytes, int64_t whole) {
    if ((uintptr_t)data % (size_t)whole != 0) return false;
    for (int axis = 0; axis < 3; ++axis)
        if (extent[axis] > 1 && stride[axis] % whole * bytes % whole != 0) return false;
    return true;
}

/* Whether both memories of a tensor can be read and written by units of so many columns. */
static bool takes_columns(const struct appending *call, const struct append_tensor *at, int64_t columns) {
    const struct quantise_tensor *t = &at->t;
    const int64_t from[3] = {t->batch, t->rows, t->heads};
    const int64_t to[3] = {at->cached ? call->cache.entries : t->batch, at->cached ? call->cache.rows : t->rows, t->heads};
    const int64_t from_bytes = bytes_of(t->from_dtype), to_bytes = bytes_of(at->to_dtype);
    const int64_t stored = columns * to_bytes < VECTOR ? columns * to_bytes : VECTOR;
    return t->dim % columns == 0 && is_aligned(t->from, t->from_stride, from, from_bytes, VECTOR) &&
           is_aligned(t->to, t->to_stride, to, to_bytes, stored);
}

static int32_t way_of(const struct appending *call, const struct append_tensor *at) {
    const struct quantise_tensor *t = &at->t;
    const struct quantise_choices *c = &call->choices;
    const int64_t columns = APPEND_MOST_COLUMNS;
    if (at->to_dtype == t->from_dtype && !t->rotary && !t->hadamard)
        return takes_columns(call, at, VECTOR / bytes_of(t->from_dtype)) ? APPEND_COPY : APPEND_ELEMENTS;
    const bool eights = !t->rotary || c->interleaved || c->pairs % columns == 0;
    const bool power = !t->hadamard || hadamard_columns(t->dim) == t->dim;
    const bool vectors = t->from_dtype != STROBE_FP32 && t->dim <= 32 * columns && eights && power;
    return vectors && takes_columns(call, at, columns) ? APPEND_VECTORS : APPEND_ELEMENTS;
}

static struct append_divisor divisor_of(int64_t by) {
    struct append_divisor d = {.by = (uint32_t)by};
    while ((uint64_t)1 << d.shift < (uint64_t)by) ++d.shift;
    d.multiplier = (uint32_t)(((((uint64_t)1 << d.shift) - (uint64_t)by) << 32) / (uint64_t)by + 1);
    return d;
}

/* Lanes of a group, and with copies pieces of a row: as few idle lanes as may be, then as few pieces. */
static int64_t cut_row(struct append_side *s) {
    int32_t best = INT32_MAX, pieces_of_best = 1;
    const int32_t chunks = (int32_t)s->at.t.dim * s->from_bytes / VECTOR;
    s->lane_bits = 5;
    for (int32_t bits = 5; 1 << bits >= APPEND_LEAST_LANES && s->way != APPEND_ELEMENTS; --bits) {
        const int32_t pieces = (chunks + (1 << bits) - 1) >> bits;
        if (pieces << bits >= best || (pieces > 1 && s->way != APPEND_COPY)) continue;
        best = pieces << bits, pieces_of_best = pieces, s->lane_bits = bits;
    }
    return pieces_of_best;
}

/* Units of a group: as many as leave few groups with fewer, but one in a call that does not fill the GPU. */
static int64_t choose_each(const struct append_side *s, int64_t units, int64_t tokens, int64_t multiprocessors) {
    const int64_t few = multiprocessors * FEW_CTAS * (APPEND_THREADS >> s->lane_bits);
    int64_t best = 1;
    for (int64_t each = 2; each <= APPEND_UNITS; ++each)
        if (ceil_div(units, each) * each * best <= ceil_div(units, best) * best * each &&
            tokens * ceil_div(units, best) > few && ceil_div(units, each) * each * 8 <= units * 9)
            best = each;
    return best;
}

/* False where there are more groups than a launch takes. */
static bool set_side(struct append_side *s, const struct appending *call, const struct append_tensor *at) {
    const struct quantise_tensor *t = &at->t;
    if (!t->from || (at->cached && call->cache.entries == 0)) return true;
    s->at = *at;
    s->way = way_of(call, at);
    s->from_bytes = (int32_t)bytes_of(t->from_dtype);
    s->quantised = at->to_dtype == STROBE_FP8_E4M3 || at->to_dtype == STROBE_INT8;
    s->quantised_alone = s->quantised && s->way == APPEND_VECTORS && !t->rotary && !t->hadamard && t->block == 1;
    const int64_t pieces = cut_row(s), units = t->heads * pieces, tokens = strobe__product(t->batch, t->rows);
    const int64_t each = choose_each(s, units, tokens, strobe__cuda_limits(call->p.a.device_index).multiprocessors);
    const int64_t groups = strobe__product(tokens, ceil_div(units, each));
    if (groups > MOST_ROWS || units > MOST_ROWS) return false;
    s->units = (int32_t)units, s->each = (int32_t)each, s->groups = (uint32_t)groups;
    s->tokens = (uint32_t)tokens;
    s->rows = divisor_of(t->rows), s->parts = divisor_of(ceil_div(units, each)), s->pieces = divisor_of(pieces);
    s->blocks = (uint32_t)ceil_div(groups, APPEND_THREADS >> s->lane_bits);
    return true;
}

static void set_choices(struct append_params *p, const struct appending *call) {
    const struct quantise_choices *c = &call->choices;
    p->choices = *c;
    p->choices.frequency = NULL;
    p->columns = (int32_t)hadamard_columns(call->p.a.dim), p->norm = hadamard_norm(p->columns);
    p->computed = c->frequency != NULL;
    if (p->computed) memcpy(p->frequency, c->frequency, (size_t)c->pairs * sizeof *c->frequency);
    p->tables_aligned = !p->computed && (uintptr_t)c->cos % VECTOR == 0 && (uintptr_t)c->sin % VECTOR == 0 &&
                        c->pairs % (c->interleaved ? APPEND_MOST_COLUMNS / 2 : APPEND_MOST_COLUMNS) == 0;
}

static strobe_status check_pointers(const struct appending *call) {
    const strobe_appender *n = &call->n;
    const struct append_cache *c = &call->cache;
    const struct append_tensor *q = &call->tensor[APPEND_Q], *k = &call->tensor[APPEND_K], *v = &call->tensor[APPEND_V];
    const bool rotates = call->rotary.given && (q->t.from || k->t.from), caches = k->t.from || v->t.from;
    const bool by_lengths = rotates || (caches && !c->slots);
    const struct {
        const char *name;
        const void *data;
    } pointers[] = {
        {"appender.q", q->t.from},
        {"appender.k", k->t.from},
        {"appender.v", v->t.from},
        {"q", q->t.from ? q->t.to : NULL},
        {"k", k->t.from ? k->t.to : NULL},
        {"v", v->t.from ? v->t.to : NULL},
        {"scales.q", q->t.from ? q->t.scale : NULL},
        {"scales.k", k->t.from ? k->t.scale : NULL},
        {"scales.v", v->t.from ? v->t.scale : NULL},
        {"varlen.cu_seqlens_q", q->t.from ? q->t.cu_seqlens : NULL},
        {"varlen.used_q", q->t.from ? q->t.used : NULL},
        {"appender.cu_seqlens_new", n->cu_seqlens_new},
        {"appender.used_new", n->used_new},
        {"appender.lengths", by_lengths ? n->lengths : NULL},
        {"appender.positions", rotates ? n->positions : NULL},
        {"appender.slots", caches ? c->slots : NULL},
        {"varlen.used_k", by_lengths ? c->cache_used : NULL},
        {"varlen.cu_seqlens_k", by_lengths ? c->cache_cu : NULL},
        {"paged.page_table", caches && !c->slots ? c->page_table : NULL},
        {"rotary.cos", rotates ? call->choices.cos : NULL},
        {"rotary.sin", rotates ? call->choices.sin : NULL},
    };
    for (size_t i = 0; i < sizeof pointers / sizeof pointers[0]; ++i) {
        const strobe_status status = strobe__cuda_check_pointer(pointers[i].name, pointers[i].data, call->p.a.device_index);
        if (status) return status;
    }
    return STROBE_OK;
}

/* Everything of `p`, and the CTAs in all. */
static strobe_status set_params(struct append_params *p, const struct appending *call, int64_t *blocks) {
    static const char *const names[] = {"q", "k", "v"};
    p->cache = call->cache;
    set_choices(p, call);
    for (int n = 0; n < APPEND_TENSORS; ++n) {
        if (!set_side(&p->side[n], call, &call->tensor[n]))
            return strobe__fail(STROBE_UNSUPPORTED,
                                "appender.%s has %lld rows of %lld heads; less than 2^31 together is taken on the GPU",
                                names[n], (long long)strobe__product(call->tensor[n].t.batch, call->tensor[n].t.rows),
                                (long long)call->tensor[n].t.heads);
        *blocks += p->side[n].blocks;
    }
    return STROBE_OK;
}

/* Heads that a warp has at once in runs of rows of `dim` columns, a power of two: as many as leave few lanes without a row.
 */
static int32_t run_heads(int64_t heads, int64_t dim) {
    int32_t each = APPEND_RUN_ROWS(dim);
    while (ceil_div(heads, each) * each * 8 > heads * 9) each /= 2;
    return each;
}

/* Whether a tensor's rows of `dim` columns can go in runs. */
static bool can_run(const struct append_side *s, const struct append_params *p, int64_t dim) {
    const struct quantise_tensor *t = &s->at.t;
    if (s->blocks == 0) return true;
    const bool ways = s->way == APPEND_VECTORS || (s->way == APPEND_COPY && s->from_bytes == 2);
    if (!ways || t->dim != dim || (dim != 64 && dim != 128 && dim != 256)) return false;
    return !t->rotary ||
           (p->choices.pairs * 2 == dim && APPEND_RUN_ROWS(dim) / run_heads(t->heads, dim) <= APPEND_RUN_TOKENS(dim));
}

/* Steps of warps in runs of a tensor. */
static int64_t run_steps(const struct append_side *s) {
    if (s->blocks == 0) return 0;
    const int64_t dim = s->at.t.dim, each = run_heads(s->at.t.heads, dim);
    return ceil_div(s->tokens, APPEND_RUN_ROWS(dim) / each) * ceil_div(s->at.t.heads, each);
}

/* The kernel of rows of `dim` columns. */
static struct cuda_kernel *run_kernel(int64_t dim) {
    return dim == 64    ? &strobe__kernel_append_run_64
           : dim == 128 ? &strobe__kernel_append_run_128
                        : &strobe__kernel_append_run_256;
}

/* Makes runs of a call's rows, and says of which kernel: NULL where `other`, which has them else, is better or alone can. */
static struct cuda_kernel *make_runs(struct append_params *p, const struct cuda_kernel *other, int64_t multiprocessors,
                                     int64_t *blocks) {
    int64_t dim = 0, steps = 0;
    for (int n = 0; n < APPEND_TENSORS; ++n)
        if (p->side[n].blocks > 0) dim = p->side[n].at.t.dim;
    for (int n = 0; n < APPEND_TENSORS; ++n) {
        if (!can_run(&p->side[n], p, dim)) return NULL;
        steps += run_steps(&p->side[n]);
    }
    if (steps == 0 || other == &strobe__kernel_append_copies) return NULL;
    if (other != &strobe__kernel_append_all && steps < multiprocessors * LEAST_RUN_STEPS) return NULL;
    const int32_t run = steps < multiprocessors * STEPS_OF_FOUR ? 1 : steps < multiprocessors * STEPS_OF_EIGHT ? 4 : 8;
    *blocks = 0;
    for (int n = 0; n < APPEND_TENSORS; ++n) {
        struct append_side *s = &p->side[n];
        if (s->blocks == 0) continue;
        const int32_t each = run_heads(s->at.t.heads, dim), at_once = APPEND_RUN_ROWS(dim) / each;
        const int64_t parts = ceil_div(s->at.t.heads, each);
        s->each = each, s->parts = divisor_of(parts), s->units = (int32_t)s->at.t.heads;
        s->run = run < at_once ? at_once : run;
        s->groups = (uint32_t)(ceil_div(s->tokens, s->run) * parts);
        s->blocks = (uint32_t)ceil_div(s->groups, APPEND_THREADS / 32);
        *blocks += s->blocks;
    }
    return run_kernel(dim);
}

/* The least that has all of the call. */
static struct cuda_kernel *variant_of(const struct append_params *p) {
    static struct cuda_kernel *const variants[] = {&strobe__kernel_append_copies, &strobe__kernel_append_floats,
                                                   &strobe__kernel_append_bytes, &strobe__kernel_append_all};
    bool needs[APPEND_ALL + 1] = {false};
    for (int n = 0; n < APPEND_TENSORS; ++n) {
        const struct append_side *s = &p->side[n];
        if (s->blocks == 0 || s->way == APPEND_COPY) continue;
        needs[s->way == APPEND_ELEMENTS || (s->quantised && !s->quantised_alone) ? APPEND_ALL
              : s->quantised                                                     ? APPEND_BYTES
                                                                                 : APPEND_FLOATS] = true;
    }
    if (needs[APPEND_BYTES] && needs[APPEND_FLOATS]) needs[APPEND_ALL] = true;
    int variant = APPEND_ALL;
    while (variant > APPEND_COPIES && !needs[variant]) --variant;
    return variants[variant];
}

strobe_status strobe__cuda_append(const struct appending *call, void *stream) {
    const int32_t device = call->p.a.device_index;
    const char *lack = strobe__cuda_lacks(CUDA_SM80, device);
    if (lack) return strobe__fail(STROBE_UNSUPPORTED, "device is %d; %s", call->p.a.device, lack);
    struct append_params p = {.computed = 0};
    int64_t blocks = 0;
    strobe_status status = set_params(&p, call, &blocks);
    if (status) return status;
    struct cuda_visit visit;
    status = strobe__cuda_enter(device, &visit);
    if (!status) status = check_pointers(call);
    struct cuda_kernel *const other = variant_of(&p);
    struct cuda_kernel *const runs = make_runs(&p, other, strobe__cuda_limits(device).multiprocessors, &blocks);
    if (!status) status = strobe__cuda_launch(runs ? runs : other, blocks, APPEND_THREADS, 0, &p, stream);
    strobe__cuda_leave(&visit);
    return status;
}
