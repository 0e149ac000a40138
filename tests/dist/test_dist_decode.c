/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_decode.c: attention over a cache that is split over ranks, against one process with the whole cache, and the
 * same bits on every rank: lengths of each sequence, pages, int8, positions, sinks, packed queries, ranks without keys. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/rank_threads.h"
#include "portable/posix.h"
#include "unit/test.h"

enum { MOST_RANKS = 5, BATCH = 3, KEYS = 50, HEADS = 4, HEADS_KV = 2, DIM = 16, DIM_V = 8, MOST_ROWS = 6, PAGE = 4 };
enum { Q_ELEMENTS = BATCH * MOST_ROWS * HEADS * DIM, OUT_ELEMENTS = BATCH * MOST_ROWS * HEADS * DIM_V };
enum { K_ELEMENTS = BATCH * KEYS * HEADS_KV * DIM, V_ELEMENTS = BATCH * KEYS * HEADS_KV * DIM_V };

struct problem {
    const char *name;
    int64_t rows;
    bool causal, lengths, paged, quantised, sinks, packed, without_lse;
    int64_t keys; /* 0: all */
};

static const struct problem problems[] = {
    {"one token", .rows = 1},
    {"lengths of their own", .rows = 1, .lengths = true, .sinks = true},
    {"several tokens, by positions", .rows = 5, .causal = true},
    {"a cache in pages", .rows = 1, .lengths = true, .paged = true},
    {"an int8 cache", .rows = 2, .quantised = true, .lengths = true},
    {"sinks, and rows that see nothing", .rows = 3, .causal = true, .sinks = true, .keys = 2},
    {"packed queries", .rows = 4, .packed = true, .lengths = true, .sinks = true},
    {"without lse", .rows = 2, .without_lse = true},
    {"fewer keys than ranks", .rows = 2, .keys = 3},
    {"no keys", .rows = 1, .lengths = true, .sinks = true, .keys = -1},
};

/* The whole cache, and what all ranks share. */
static struct {
    float q[Q_ELEMENTS], k[K_ELEMENTS], v[V_ELEMENTS], k_scale[BATCH * KEYS * HEADS_KV], v_scale[BATCH * KEYS * HEADS_KV];
    int8_t k8[K_ELEMENTS], v8[V_ELEMENTS];
    float sinks[HEADS];
    int32_t lengths[BATCH], cu_q[BATCH + 1];
} all;

static void fill(void) {
    struct random r = {.state = 7};
    for (size_t e = 0; e < COUNT(all.q); ++e) all.q[e] = (float)random_value(&r);
    for (size_t e = 0; e < COUNT(all.k); ++e) all.k[e] = (float)random_value(&r);
    for (size_t e = 0; e < COUNT(all.v); ++e) all.v[e] = (float)random_value(&r);
    for (size_t e = 0; e < COUNT(all.k8); ++e) all.k8[e] = (int8_t)(random_below(&r, 255) - 127);
    for (size_t e = 0; e < COUNT(all.v8); ++e) all.v8[e] = (int8_t)(random_below(&r, 255) - 127);
    for (size_t e = 0; e < COUNT(all.k_scale); ++e) all.k_scale[e] = (float)(1 + random_below(&r, 9)) / 512;
    for (size_t e = 0; e < COUNT(all.v_scale); ++e) all.v_scale[e] = (float)(1 + random_below(&r, 9)) / 512;
    for (size_t h = 0; h < HEADS; ++h) all.sinks[h] = (float)random_value(&r);
}

/* One call on keys [begin, end) of every sequence. */
struct part {
    strobe_attention a;
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_scales scales;
    strobe_sinks sinks;
    int32_t used[BATCH], table[BATCH * KEYS];
    float pages_k[BATCH * (KEYS + PAGE) * HEADS_KV * DIM], pages_v[BATCH * (KEYS + PAGE) * HEADS_KV * DIM_V];
    float out[OUT_ELEMENTS], lse[BATCH * MOST_ROWS * HEADS];
};

/* Keys of the part in pages of their own, last page first; slots behind the keys hold NaN. */
static void put_in_pages(struct part *p, int64_t begin, int64_t end) {
    const int64_t pages = (end - begin + PAGE - 1) / PAGE;
    for (size_t e = 0; e < COUNT(p->pages_k); ++e) p->pages_k[e] = NAN;
    for (size_t e = 0; e < COUNT(p->pages_v); ++e) p->pages_v[e] = NAN;
    for (int64_t b = 0; b < BATCH; ++b)
        for (int64_t j = 0; j < end - begin; ++j) {
            const int64_t page = BATCH * pages - 1 - (b * pages + j / PAGE), slot = page * PAGE + j % PAGE;
            p->table[b * pages + j / PAGE] = (int32_t)page;
            memcpy(p->pages_k + slot * HEADS_KV * DIM, all.k + (b * KEYS + begin + j) * HEADS_KV * DIM,
                   HEADS_KV * DIM * sizeof(float));
            memcpy(p->pages_v + slot * HEADS_KV * DIM_V, all.v + (b * KEYS + begin + j) * HEADS_KV * DIM_V,
                   HEADS_KV * DIM_V * sizeof(float));
        }
    p->paged = (strobe_paged){.struct_size = sizeof p->paged, .page_table = p->table, .table_stride = pages};
    p->paged.page_size = PAGE, p->paged.pages = BATCH * pages;
    p->a.k.data = p->pages_k, p->a.v.data = p->pages_v;
    memset(p->a.k.stride, 0, sizeof p->a.k.stride), memset(p->a.v.stride, 0, sizeof p->a.v.stride);
    if (end > begin) p->a.paged = &p->paged;
}

static void set_lengths(struct part *p, const struct problem *of, int64_t begin, int64_t end) {
    p->varlen = (strobe_varlen){.struct_size = sizeof p->varlen};
    for (int64_t b = 0; b < BATCH; ++b) {
        const int64_t used = all.lengths[b] < end ? all.lengths[b] - begin : end - begin;
        p->used[b] = (int32_t)(used < 0 ? 0 : used);
    }
    if (of->lengths) p->varlen.used_k = p->used;
    if (of->packed) p->varlen.cu_seqlens_q = all.cu_q;
    if (of->lengths || of->packed) p->a.varlen = &p->varlen;
}

static void make(struct part *p, const struct problem *of, int64_t begin, int64_t end) {
    memset(p, 0, sizeof *p);
    strobe_attention *a = &p->a;
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = BATCH, .seq_q = of->rows, .seq_k = end - begin};
    a->heads_q = HEADS, a->heads_kv = HEADS_KV, a->dim = DIM, a->dim_v = DIM_V;
    a->q.data = all.q, a->out.data = p->out, a->lse.data = of->without_lse ? NULL : p->lse;
    a->k = (strobe_tensor){.data = all.k + begin * HEADS_KV * DIM, .stride = {KEYS * HEADS_KV * DIM, HEADS_KV * DIM, DIM}};
    a->v = (strobe_tensor){.data = all.v + begin * HEADS_KV * DIM_V,
                           .stride = {KEYS * HEADS_KV * DIM_V, HEADS_KV * DIM_V, DIM_V}};
    if (of->quantised) {
        a->k.data = all.k8 + begin * HEADS_KV * DIM, a->v.data = all.v8 + begin * HEADS_KV * DIM_V;
        a->k.dtype = a->v.dtype = STROBE_INT8;
        p->scales = (strobe_scales){.struct_size = sizeof p->scales, .block_q = 1, .block_k = 1};
        p->scales.k = all.k_scale + begin * HEADS_KV, p->scales.v = all.v_scale + begin * HEADS_KV;
        const int64_t stride[3] = {KEYS * HEADS_KV, HEADS_KV, 1};
        memcpy(p->scales.stride_k, stride, sizeof stride), memcpy(p->scales.stride_v, stride, sizeof stride);
        a->scales = &p->scales;
    }
    if (of->causal) /* the last row is at the last key, and rows before the first key see nothing */
        a->mask = STROBE_MASK_CAUSAL_TOP_LEFT, a->q_start = (of->keys ? of->keys : KEYS) - of->rows, a->k_start = begin;
    if (of->sinks) p->sinks = (strobe_sinks){.struct_size = sizeof p->sinks, .data = all.sinks}, a->sinks = &p->sinks;
    set_lengths(p, of, begin, end);
    if (of->paged) put_in_pages(p, begin, end);
}

static struct part whole, parts[MOST_RANKS];
static strobe_status statuses[MOST_RANKS];
static char sentences[MOST_RANKS][768];
static uint64_t flags;

static void decode(void *context, const strobe_transport *transport) {
    struct part *p = &parts[transport->rank];
    size_t bytes = 0;
    (void)context;
    void *workspace = NULL;
    if (strobe_dist_decode_workspace(&p->a, transport, &bytes) == STROBE_OK && transport->rank % 2) {
        workspace = aligned_alloc(64, bytes);
        memset(workspace, 0xff, bytes);
    }
    statuses[transport->rank] = strobe_dist_decode(&p->a, transport, flags, workspace, workspace ? bytes : 0, NULL);
    snprintf(sentences[transport->rank], sizeof sentences[0], "%s",
             statuses[transport->rank] ? strobe_dist_last_error() : "");
    aligned_free(workspace);
}

static void run(int32_t size) {
    struct world *world = world_make(size);
    world_run(world, decode, NULL);
    world_free(world);
}

static void expect_near(const float *a, const float *b, size_t count) {
    for (size_t e = 0; e < count; ++e) {
        if (isinf(b[e]) && a[e] == b[e]) continue;
        if (!(fabsf(a[e] - b[e]) < 2e-6f * (1 + fabsf(b[e])))) fail_msg("element %zu is %g, not %g", e, a[e], b[e]);
    }
}

static void test_split_caches(void **state) {
    const struct problem *of = *state;
    const int64_t keys = of->keys < 0 ? 0 : of->keys ? of->keys : KEYS;
    for (int64_t b = 0; b < BATCH; ++b) all.lengths[b] = (int32_t)(b == 1 && of->lengths ? keys / 5 : keys - b * (keys > 9));
    for (int64_t b = 0; b <= BATCH; ++b) all.cu_q[b] = (int32_t)(b * of->rows - (b > 1)); /* the second has one row less */
    make(&whole, of, 0, keys);
    if (strobe_forward(&whole.a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
    for (int32_t size = 1; size <= MOST_RANKS; ++size) {
        flags = size % 2 ? 0 : STROBE_DIST_UNCOMPARED;
        for (int32_t rank = 0; rank < size; ++rank) {
            const int64_t step = (keys / size + PAGE) / PAGE * PAGE; /* the last rank has fewer keys, or none */
            const int64_t begin = rank * step < keys ? rank * step : keys;
            make(&parts[rank], of, begin, rank + 1 == size || begin + step > keys ? keys : begin + step);
        }
        run(size);
        for (int32_t rank = 0; rank < size; ++rank) {
            if (statuses[rank]) fail_msg("rank %d of %d: %s", rank, size, sentences[rank]);
            expect_near(parts[rank].out, whole.out, COUNT(whole.out));
            expect_near(parts[rank].lse, whole.lse, COUNT(whole.lse));
            assert_memory_equal(parts[rank].out, parts[0].out, sizeof whole.out);
            assert_memory_equal(parts[rank].lse, parts[0].lse, sizeof whole.lse);
        }
    }
}

static void expect(int32_t size, strobe_status status, const char *sentence) {
    flags = 0;
    run(size);
    for (int32_t rank = 0; rank < size; ++rank) {
        assert_string_equal(sentences[rank], sentence);
        assert_int_equal(statuses[rank], status);
        for (size_t e = 0; e < COUNT(parts[rank].out); ++e) assert_true(parts[rank].out[e] == 0);
    }
}

static void make_three(void) {
    for (int32_t rank = 0; rank < 3; ++rank) make(&parts[rank], &problems[0], 10 * rank, 10 * rank + 10);
}

static void test_refusals(void **state) {
    (void)state;
    make_three();
    parts[2].a.k.data = NULL;
    expect(3, STROBE_INVALID_ARGUMENT, "rank 2: k is NULL; a pointer to its elements is accepted");
    make_three();
    parts[1].a.out.data = NULL;
    expect(3, STROBE_INVALID_ARGUMENT, "rank 1: out is NULL; a pointer is accepted");
    make_three();
    parts[1].a.scale = 2;
    expect(3, STROBE_INVALID_ARGUMENT,
           "scale (its bits) is 0 on rank 0 and 4611686018427387904 on rank 1; the same on every rank is accepted");
    make_three();
    parts[0].a.dtype = STROBE_FP64;
    expect(3, STROBE_UNSUPPORTED, "rank 0: dtype is 4; any but fp64 is accepted where partial results merge");
    make_three();
    parts[1].a.device = STROBE_CUDA;
    expect(3, STROBE_INVALID_ARGUMENT, "rank 1: device is 1 with a transport whose device is 0; the same is accepted");
    const strobe_transport bad = {.struct_size = sizeof bad, .rank = 2, .size = 2};
    assert_int_equal(strobe_dist_decode(&parts[0].a, &bad, 0, NULL, 0, NULL), STROBE_INVALID_ARGUMENT);
    assert_string_equal(strobe_dist_last_error(), "transport.rank is 2; 0 to 1 is accepted");
}

int main(void) {
    struct CMUnitTest tests[COUNT(problems) + 1];
    fill();
    for (size_t n = 0; n < COUNT(problems); ++n) tests[n] = test_of_row(problems[n].name, test_split_caches, &problems[n]);
    tests[COUNT(problems)] = (struct CMUnitTest)cmocka_unit_test(test_refusals);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
