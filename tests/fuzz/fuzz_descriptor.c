/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fuzz_descriptor.c: any bytes as a descriptor with any of its optional structures. The first byte chooses:
 *
 *   query   every field has any value, every data pointer is wild: strobe_workspace, strobe_select and strobe_explain must
 *           answer without touching data
 *   run     extents and strides are small, so that the arenas hold whatever they reach; other fields have any value:
 *           strobe_forward and strobe_backward must compute or refuse
 *   merge   the same for strobe_merge
 *   append  the same for strobe_append
 *
 * Every answer is STROBE_OK or a status with a sentence. */
#include <stdbool.h>

#include "input.h"
#include "strobe/strobe_append.h"
#include "strobe/strobe_mask_lists.h"
#include "strobe/strobe_score.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The structures of one call. */
enum structure {
    ATTENTION,
    GRADIENTS,
    VARLEN,
    PAGED,
    BIAS,
    BOOL_MASK,
    BLOCK_MASK,
    ALIBI,
    SINKS,
    DROPOUT,
    SCALES,
    PARALLEL,
    TUNING,
    MASK_LISTS,
    DBIAS,
    DSINKS,
    STRUCTURES
};

static const size_t sizes[STRUCTURES] = {
    [ATTENTION] = sizeof(strobe_attention),   [GRADIENTS] = sizeof(strobe_gradients), [VARLEN] = sizeof(strobe_varlen),
    [PAGED] = sizeof(strobe_paged),           [BIAS] = sizeof(strobe_bias),           [BOOL_MASK] = sizeof(strobe_bool_mask),
    [BLOCK_MASK] = sizeof(strobe_block_mask), [ALIBI] = sizeof(strobe_alibi),         [SINKS] = sizeof(strobe_sinks),
    [DROPOUT] = sizeof(strobe_dropout),       [SCALES] = sizeof(strobe_scales),       [PARALLEL] = sizeof(strobe_parallel),
    [TUNING] = sizeof(strobe_tuning),         [DBIAS] = sizeof(strobe_bias),          [DSINKS] = sizeof(strobe_sinks),
    [MASK_LISTS] = sizeof(strobe_mask_lists),
};

/* Each has room behind it: a struct_size may claim up to 64 KiB, and the library reads that far. */
enum { ROOM = 65536 };
static _Alignas(64) uint8_t structures[STRUCTURES][ROOM];

/* Where data pointers lead in a run: the middle of an arena, far from its ends for the strides that tame() lets through. */
enum { ARENAS = 24, ARENA = 1 << 20 };
static _Alignas(64) uint8_t arenas[ARENAS][ARENA];

static void answered(strobe_status status) {
    REQUIRE((int)status <= (int)STROBE_DEVICE_ERROR && strobe_status_name(status)[0] != 0);
    REQUIRE(status == STROBE_OK || strobe_last_error()[0] != 0);
}

/* Any bytes as a structure; mostly of the right size, for otherwise nothing else is looked at. */
static void *any_structure(struct input *in, enum structure which) {
    uint8_t *bytes = structures[which];
    memset(bytes + sizes[which], choose(in, 64) == 63, 64); /* what a newer client might have set */
    take(in, bytes, sizes[which]);
    size_t size = sizes[which];
    if (choose(in, 8) == 7) {
        take(in, &size, sizeof size);
        size %= ROOM + 16;
        size -= size % 8; /* cut between fields: half a stride would be a stride that no arena holds */
    }
    memcpy(bytes, &size, sizeof size);
    return bytes;
}

static const char *any_name(struct input *in) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    const int32_t index = choose(in, 32);
    if (index == 31) return "no such kernel";
    return strobe_kernel_at(index, &info) == STROBE_OK ? info.name : NULL;
}

static strobe_attention *any_attention(struct input *in) {
    uint16_t present;
    take(in, &present, sizeof present);
    strobe_attention *a = any_structure(in, ATTENTION);
#define FEATURE(field, which) a->field = present >> (which)&1 ? any_structure(in, which) : NULL
    FEATURE(varlen, VARLEN), FEATURE(paged, PAGED), FEATURE(bias, BIAS), FEATURE(bool_mask, BOOL_MASK);
    FEATURE(block_mask, BLOCK_MASK), FEATURE(alibi, ALIBI), FEATURE(sinks, SINKS), FEATURE(dropout, DROPOUT);
    FEATURE(scales, SCALES), FEATURE(parallel, PARALLEL), FEATURE(tuning, TUNING), FEATURE(mask_lists, MASK_LISTS);
#undef FEATURE
    if (a->tuning) ((strobe_tuning *)structures[TUNING])->kernel = any_name(in);
    a->score = NULL; /* a query has one: its function is made by the library */
    return a;
}

/* NULL: the forward. */
static strobe_gradients *any_gradients(struct input *in) {
    const int32_t present = choose(in, 8);
    if (!(present & 1)) return NULL;
    strobe_gradients *g = any_structure(in, GRADIENTS);
    g->dbias = present & 2 ? any_structure(in, DBIAS) : NULL;
    g->dsinks = present & 4 ? any_structure(in, DSINKS) : NULL;
    g->dscore = NULL;
    return g;
}

/* Extents of any magnitude and choices that exist, so that the sums and products of sizes are reached. */
static void make_plausible(struct input *in, strobe_attention *a) {
    int64_t *extents[] = {&a->batch, &a->seq_q, &a->seq_k, &a->heads_q};
    for (int e = 0; e < 4; ++e) *extents[e] = (int64_t)((uint64_t)*extents[e] >> (choose(in, 40) + 24));
    a->heads_kv = choose(in, 2), a->dim = 2 * choose(in, 256), a->dim_v = 2 * choose(in, 256);
    a->dtype = choose(in, 5), a->mask = choose(in, 5), a->device = 0, a->device_index = 0, a->flags = 0;
    a->scale = 0, a->softcap = choose(in, 3);
    strobe_tensor *tensors[] = {&a->q, &a->k, &a->v, &a->out, &a->lse};
    for (int t = 0; t < 5; ++t) {
        if (choose(in, 8)) *tensors[t] = (strobe_tensor){.data = tensors[t]->data};
        tensors[t]->dtype = 0, tensors[t]->reserved = 0;
    }
}

/* A function with arguments of any value, and gradients of its array. */
static void attach_score(struct input *in, strobe_attention *a, strobe_gradients *g) {
    static const strobe_score_array array = {"table", 3, STROBE_FP32};
    static const strobe_score_scalar scalar = {"c", 3, 1, 0};
    static const strobe_score_source source = {.struct_size = sizeof source,
                                               .score = "score + table[h][i - j + c][i % c]",
                                               .scalars = &scalar,
                                               .arrays = &array,
                                               .scalar_count = 1,
                                               .array_count = 1};
    static strobe_score *function;
    static strobe_score_elements elements[2];
    static double value;
    static strobe_score_arguments arguments;
    static strobe_score_gradients gradients;
    if (!function) REQUIRE(strobe_score_create(&source, &function) == STROBE_OK);
    take(in, elements, sizeof elements), take(in, &value, sizeof value);
    for (int axis = 0; axis < 4 && choose(in, 4); ++axis)
        elements[0].extent[axis] &= 0xffff, elements[1].extent[axis] = elements[0].extent[axis],
                                            elements[0].stride[axis] = 0;
    elements[0].dtype = 0, elements[0].reserved = 0;
    arguments = (strobe_score_arguments){.struct_size = sizeof arguments,
                                         .function = function,
                                         .scalars = &value,
                                         .arrays = &elements[0],
                                         .scalar_count = 1,
                                         .array_count = 1};
    gradients = (strobe_score_gradients){.struct_size = sizeof gradients, .arrays = &elements[1], .array_count = 1};
    a->score = &arguments;
    if (g && choose(in, 2)) g->dscore = &gradients;
}

static void query(struct input *in) {
    strobe_attention *a = any_attention(in);
    strobe_gradients *g = any_gradients(in);
    const bool has_score = choose(in, 2);
    if (has_score) attach_score(in, a, g);
    if (choose(in, 4)) make_plausible(in, a);
    size_t bytes = 0, needed = 0;
    const char *kernel = NULL;
    char text[512];
    const strobe_status status = strobe_workspace(a, g, &bytes);
    answered(status);
    REQUIRE(strobe_select(a, g, &kernel) == status && (status || kernel[0]));
    const size_t capacity = (size_t)choose(in, 256) * 2;
    memset(text, '#', sizeof text);
    answered(strobe_explain(a, g, text, capacity, &needed));
    answered(strobe_mask_lists_bytes(a, a->mask_lists, &bytes));
    for (size_t i = capacity; i < sizeof text; ++i) REQUIRE(text[i] == '#');
}

/* ------------------------------------------------------------------------------------------- problems that can be run -- */

static int64_t small(struct input *in, int32_t count) { return choose(in, count); }

static void tame_stride(struct input *in, int64_t stride[3]) {
    const int32_t kind = choose(in, 4);
    for (int axis = 0; axis < 3; ++axis) stride[axis] = kind == 0 ? small(in, 256) - 64 : kind == 1 ? small(in, 32) : 0;
}

static void *tame_data(struct input *in, int arena) {
    const int32_t kind = choose(in, 64);
    return kind == 63 ? NULL : arenas[arena] + ARENA / 2 + (kind == 62);
}

static void tame_tensor(struct input *in, strobe_tensor *t, int arena) {
    t->data = tame_data(in, arena);
    tame_stride(in, t->stride);
    const int32_t dtype = choose(in, 32);
    t->dtype = dtype < 8 ? dtype : STROBE_DTYPE_DEFAULT;
    t->reserved = choose(in, 64) == 63;
}

/* Entries that are mostly lengths of small sequences; never so large that a row leaves the arena. */
static const void *tame_entries(struct input *in, int64_t store[4], int32_t bits, bool cumulative) {
    if (choose(in, 2) == 0) return NULL;
    int64_t entry = choose(in, 8) == 7 ? choose(in, 32) : 0;
    for (int b = 0; b < 4; ++b) {
        const int32_t narrow = (int32_t)entry;
        if (bits == 64)
            store[b] = entry;
        else
            memcpy((int32_t *)(void *)store + b, &narrow, sizeof narrow);
        entry = (cumulative ? entry : 0) + choose(in, 11) - (choose(in, 16) == 15);
    }
    return store;
}

static void tame_varlen(struct input *in) {
    static int64_t store[5][4];
    strobe_varlen *v = (strobe_varlen *)structures[VARLEN];
    v->index_bits = (int32_t[]){0, 32, 64, 64, 0, 0, 32, 16}[choose(in, 8)];
    v->cu_seqlens_q = tame_entries(in, store[0], v->index_bits, true);
    v->cu_seqlens_k = tame_entries(in, store[1], v->index_bits, true);
    v->used_q = tame_entries(in, store[2], v->index_bits, false);
    v->used_k = tame_entries(in, store[3], v->index_bits, false);
    v->leftpad_k = choose(in, 2) ? tame_entries(in, store[4], v->index_bits, false) : NULL;
    v->total_q = choose(in, 2) ? small(in, 64) : 0;
    v->total_k = choose(in, 2) ? small(in, 64) : 0;
}

/* Tables of which some entries lead nowhere. */
static void tame_paged(struct input *in) {
    static int32_t table[64];
    strobe_paged *paged = (strobe_paged *)structures[PAGED];
    paged->page_size = small(in, 8), paged->pages = small(in, 8), paged->table_stride = small(in, 16);
    for (int entry = 0; entry < 64; ++entry) table[entry] = choose(in, 10) - 1;
    paged->page_table = choose(in, 64) == 63 ? NULL : table;
}

static void serial(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker), void *context) {
    (void)self;
    for (int64_t index = tasks; index-- > 0;) task(context, index, 0); /* any order will do */
}

static void tame_bias(struct input *in, strobe_bias *bias, int arena) {
    strobe_tensor view;
    tame_tensor(in, &view, arena);
    bias->data = view.data, bias->dtype = view.dtype, bias->reserved = view.reserved;
    memcpy(bias->stride, view.stride, sizeof bias->stride);
}

static void tame_sinks(struct input *in, strobe_sinks *sinks, int arena) {
    sinks->data = tame_data(in, arena);
    sinks->dtype = choose(in, 8), sinks->reserved = 0;
}

static void tame_features(struct input *in) {
    tame_varlen(in), tame_paged(in);
    tame_bias(in, (strobe_bias *)structures[BIAS], 10);
    tame_bias(in, (strobe_bias *)structures[DBIAS], 11);
    tame_sinks(in, (strobe_sinks *)structures[SINKS], 12);
    tame_sinks(in, (strobe_sinks *)structures[DSINKS], 13);
    strobe_bool_mask *mask = (strobe_bool_mask *)structures[BOOL_MASK];
    mask->data = tame_data(in, 14);
    tame_stride(in, mask->stride);
    strobe_block_mask *blocks = (strobe_block_mask *)structures[BLOCK_MASK];
    blocks->data = tame_data(in, 15), blocks->block_q = small(in, 8), blocks->block_k = small(in, 8);
    tame_stride(in, blocks->stride);
    strobe_alibi *alibi = (strobe_alibi *)structures[ALIBI];
    alibi->slopes = tame_data(in, 16), alibi->stride_batch = small(in, 8);
    strobe_dropout *dropout = (strobe_dropout *)structures[DROPOUT];
    dropout->p = (double)choose(in, 256) / 240;
    if (choose(in, 8)) memset(&dropout->heads, 0, sizeof *dropout - offsetof(strobe_dropout, heads));
    strobe_scales *scales = (strobe_scales *)structures[SCALES];
    scales->q = choose(in, 16) == 15 ? tame_data(in, 17) : NULL;
    scales->k = choose(in, 8) ? tame_data(in, 18) : NULL, scales->v = choose(in, 8) ? tame_data(in, 19) : NULL;
    tame_stride(in, scales->stride_k), tame_stride(in, scales->stride_v);
    scales->block_k = small(in, 5);
    strobe_parallel *parallel = (strobe_parallel *)structures[PARALLEL];
    parallel->threads = choose(in, 5), parallel->reserved = 0;
    parallel->run = choose(in, 2) ? serial : NULL;
}

static void tame(struct input *in, strobe_attention *a, strobe_gradients *g) {
    a->batch = small(in, 3), a->seq_q = small(in, 11), a->seq_k = small(in, 11);
    a->heads_q = small(in, 5), a->heads_kv = small(in, 3), a->dim = small(in, 36), a->dim_v = small(in, 36);
    a->dtype = choose(in, 8), a->mask = choose(in, 6), a->flags = (uint64_t)choose(in, 3);
    a->device = choose(in, 32) == 31, a->device_index = 0;
    if (choose(in, 2)) a->scale = 0;
    if (choose(in, 2)) a->softcap = 0;
    if (choose(in, 2)) a->window_left = small(in, 12) - 1, a->window_right = small(in, 12) - 1;
    if (choose(in, 2)) a->q_start = small(in, 12), a->k_start = small(in, 12);
    strobe_tensor *tensors[] = {&a->q, &a->k, &a->v, &a->out, &a->lse};
    for (int t = 0; t < 5; ++t) tame_tensor(in, tensors[t], t);
    tame_features(in);
    if (!g) return;
    strobe_tensor *more[] = {&g->dout, &g->dlse, &g->dq, &g->dk, &g->dv};
    for (int t = 0; t < 5; ++t) tame_tensor(in, more[t], 5 + t);
}

/* Lists as they came, or made here: where there are masks, of sizes that a call could have. */
static void make_lists(struct input *in, const strobe_attention *a) {
    strobe_mask_lists *lists = (strobe_mask_lists *)structures[MASK_LISTS];
    if (a->mask_lists && choose(in, 4)) {
        *lists = (strobe_mask_lists){.struct_size = lists->struct_size, .uses = choose(in, 4)};
        answered(strobe_mask_lists_make(a, lists, NULL));
    }
}

static void run(struct input *in) {
    static _Alignas(64) uint8_t workspace[1 << 20];
    strobe_attention *a = any_attention(in);
    strobe_gradients *g = any_gradients(in);
    tame(in, a, g);
    make_lists(in, a);
    for (int arena = 0; arena < 3; ++arena) take(in, arenas[arena] + ARENA / 2, 64);

    size_t needed = 0;
    const strobe_status known = strobe_workspace(a, g, &needed), sound = strobe_check(a, g);
    answered(known), answered(sound);
    const int32_t kind = choose(in, 8);
    void *work = kind == 0 ? NULL : workspace;
    size_t bytes = kind == 0 ? 0 : needed;
    if (needed > sizeof workspace) work = NULL, bytes = 0;
    if (kind == 1 && bytes >= 64) bytes -= 64; /* too small: refused */
    const strobe_status status = g ? strobe_backward(a, g, work, bytes, NULL) : strobe_forward(a, work, bytes, NULL);
    answered(status);
    REQUIRE(known == STROBE_OK || status != STROBE_OK); /* what a query refuses is not run */
    REQUIRE(sound == STROBE_OK || status == sound);
}

static void merge(struct input *in) {
    strobe_partial parts[4];
    static strobe_parallel parallel;
    parallel = (strobe_parallel){.struct_size = sizeof parallel, .threads = choose(in, 4), .run = serial};
    strobe_partials m = {.struct_size = sizeof m};
    m.batch = small(in, 3), m.seq_q = small(in, 11), m.heads_q = small(in, 5), m.dim_v = small(in, 36),
    m.count = small(in, 5);
    m.dtype = choose(in, 8), m.device = choose(in, 16) == 15, m.parts = choose(in, 16) == 15 ? NULL : parts;
    m.parallel = choose(in, 2) ? &parallel : NULL;
    for (int p = 0; p < 4; ++p) tame_tensor(in, &parts[p].out, 2 * p), tame_tensor(in, &parts[p].lse, 2 * p + 1);
    tame_tensor(in, &m.out, 8), tame_tensor(in, &m.lse, 9);
    if (choose(in, 2)) m.out = parts[0].out, m.lse = parts[0].lse;
    answered(strobe_merge(&m, NULL));
}

static void tame_rotary(struct input *in, strobe_rotary *r) {
    const bool tables = choose(in, 2);
    *r = (strobe_rotary){.struct_size = sizeof *r, .dim = small(in, 38), .interleaved = choose(in, 3)};
    r->base = choose(in, 4) ? 10000 : choose(in, 3) * 0.5;
    if (tables) r->cos = tame_data(in, 20), r->sin = tame_data(in, 21), r->positions = small(in, 64), r->base = 0;
}

/* Slots in the cache, before it, and as far away as a number goes. */
static const int64_t *tame_slots(struct input *in) {
    static int64_t slots[64];
    for (int n = 0; n < 64; ++n) slots[n] = choose(in, 16) == 15 ? INT64_MAX - choose(in, 3) : choose(in, 80) - 10;
    return choose(in, 3) ? NULL : slots;
}

static void append(struct input *in) {
    static strobe_rotary rotary;
    static int64_t store[4][4];
    strobe_attention *a = any_attention(in);
    strobe_appender n = {.struct_size = sizeof n, .dtype = choose(in, 8), .hadamard = choose(in, 8) == 7};
    tame(in, a, NULL);
    strobe_scales *scales = (strobe_scales *)structures[SCALES]; /* written */
    tame_stride(in, scales->stride_q), scales->block_q = choose(in, 3);
    tame_rotary(in, &rotary);
    tame_tensor(in, &n.q, 7), tame_tensor(in, &n.k, 8), tame_tensor(in, &n.v, 9);
    if (choose(in, 4) == 3) n.q = a->q;
    n.seq_new = small(in, 11), n.total_new = choose(in, 2) ? small(in, 64) : 0, n.flags = choose(in, 3);
    n.index_bits = (int32_t[]){0, 32, 64, 16}[choose(in, 4)];
    n.cu_seqlens_new = tame_entries(in, store[0], n.index_bits, true);
    n.used_new = tame_entries(in, store[1], n.index_bits, false);
    n.lengths = tame_entries(in, store[2], n.index_bits, false);
    n.positions = tame_entries(in, store[3], n.index_bits, false);
    n.slots = tame_slots(in);
    n.rotary = choose(in, 2) ? &rotary : NULL;
    answered(strobe_append(a, &n, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, data + size};
    void (*const targets[])(struct input *) = {query, run, run, merge, append};
    targets[choose(&in, 5)](&in);
    return 0;
}
