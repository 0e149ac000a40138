/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_calls.c: libstrobe_dist beside its results: layouts, what travels, the same bits again, ranks that disagree or
 * are called wrongly, transports that fail, the cost model's text. Each rank is a thread. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/rank_threads.h"
#include "strobe/strobe_dist.h"
#include "unit/test.h"

enum { HEADS = 2, DIM = 4, MOST_RANKS = 8, MOST_ROWS = 64 };

/* One call of each rank, on tensors of its own; a test changes what it likes before it runs them. */
struct rank {
    float q[MOST_ROWS * HEADS * DIM], k[MOST_ROWS * HEADS * DIM], v[MOST_ROWS * HEADS * DIM], out[MOST_ROWS * HEADS * DIM];
    float lse[MOST_ROWS * HEADS], dq[MOST_ROWS * HEADS * DIM], dk[MOST_ROWS * HEADS * DIM], dv[MOST_ROWS * HEADS * DIM];
    strobe_attention a;
    strobe_gradients g;
    strobe_dist d;
    strobe_varlen varlen;
    bool backward, refuses;
    size_t given; /* bytes of workspace, 0: the library's own */
    void *workspace;
    strobe_status status;
    char sentence[768];
};
static struct rank ranks[MOST_RANKS];
static int64_t sent[MOST_RANKS];

static void set_up(int32_t size, int32_t layout, int32_t scheme, int64_t seq) {
    memset(ranks, 0, sizeof ranks);
    for (int32_t n = 0; n < size; ++n) {
        struct rank *r = &ranks[n];
        struct random random = {.state = (uint64_t)n};
        for (size_t e = 0; e < COUNT(r->q); ++e)
            r->q[e] = (float)random_value(&random), r->k[e] = (float)random_value(&random),
            r->v[e] = (float)random_value(&random);
        r->a = (strobe_attention){.struct_size = sizeof r->a, .batch = 1, .seq_q = seq, .seq_k = seq, .heads_q = HEADS};
        r->a.dim = DIM, r->a.q.data = r->q, r->a.k.data = r->k, r->a.v.data = r->v, r->a.out.data = r->out,
        r->a.lse.data = r->lse;
        r->g = (strobe_gradients){.struct_size = sizeof r->g, .dout.data = r->q, .dq.data = r->dq, .dk.data = r->dk};
        r->g.dv.data = r->dv;
        r->d = (strobe_dist){.struct_size = sizeof r->d, .attention = &r->a, .layout = layout, .scheme = scheme};
        r->d.rows_q = r->d.rows_k = strobe_dist_rows(layout, seq, size, n);
    }
}

static void call(void *context, const strobe_transport *transport) {
    struct rank *r = &ranks[transport->rank];
    (void)context;
    r->d.transport = transport;
    r->status = r->refuses ? strobe_dist_refuse(transport, STROBE_OUT_OF_MEMORY, "the activations of layer 3 have no room")
                : r->backward ? strobe_dist_backward(&r->d, &r->g, r->workspace, r->given, NULL)
                              : strobe_dist_forward(&r->d, r->workspace, r->given, NULL);
    snprintf(r->sentence, sizeof r->sentence, "%s", r->status ? strobe_dist_last_error() : "");
}

static void run(int32_t size, int32_t broken, int64_t exchange) {
    struct world *world = world_make(size);
    if (broken >= 0) world_break(world, broken, exchange);
    world_run(world, call, NULL);
    for (int32_t n = 0; n < size; ++n) sent[n] = world_sent(world, n);
    world_free(world);
}

/* All ranks return the status, and the sentence. */
static void expect(int32_t size, strobe_status status, const char *sentence) {
    run(size, -1, 0);
    for (int32_t n = 0; n < size; ++n) {
        assert_string_equal(ranks[n].sentence, sentence);
        assert_int_equal(ranks[n].status, status);
        for (size_t e = 0; status && e < COUNT(ranks[n].out); ++e)
            assert_true(ranks[n].out[e] == 0); /* nothing was written */
    }
}

static void test_layouts(void **state) {
    (void)state;
    for (int32_t layout = STROBE_DIST_CONTIGUOUS; layout <= STROBE_DIST_STRIPED; ++layout)
        for (int32_t size = 1; size < 6; ++size)
            for (int64_t seq = 0; seq < 25; ++seq) {
                int seen[25] = {0};
                for (int32_t rank = 0; rank < size; ++rank) {
                    const int64_t rows = strobe_dist_rows(layout, seq, size, rank);
                    int64_t before = -1;
                    for (int64_t row = 0; row < rows; ++row) {
                        const int64_t position = strobe_dist_position(layout, seq, size, rank, row);
                        assert_true(position > before && position < seq);
                        ++seen[position], before = position;
                    }
                    assert_int_equal(strobe_dist_position(layout, seq, size, rank, rows), -1);
                }
                for (int64_t position = 0; position < seq; ++position) assert_int_equal(seen[position], 1);
            }
    assert_int_equal(strobe_dist_rows(STROBE_DIST_CONTIGUOUS, 10, 4, 0), 3);
    assert_int_equal(strobe_dist_rows(STROBE_DIST_CONTIGUOUS, 10, 4, 3), 2);
    assert_int_equal(strobe_dist_position(STROBE_DIST_ZIGZAG, 8, 2, 1, 0), 2);
    assert_int_equal(strobe_dist_position(STROBE_DIST_ZIGZAG, 8, 2, 0, 2), 6);
    assert_int_equal(strobe_dist_position(STROBE_DIST_STRIPED, 8, 2, 1, 3), 7);
    assert_int_equal(strobe_dist_rows(3, 8, 2, 1), -1);
    assert_int_equal(strobe_dist_rows(0, -1, 2, 1), -1);
    assert_int_equal(strobe_dist_rows(0, 8, 2, 2), -1);
    assert_int_equal(strobe_dist_position(0, 8, 2, 1, -1), -1);
}

/* Bytes of rows of K and V. */
static int64_t kv_bytes(int64_t rows) { return 2 * rows * HEADS * DIM * (int64_t)sizeof(float); }

static void test_windows_travel_to_neighbours(void **state) {
    (void)state;
    for (int32_t scheme = STROBE_DIST_RING; scheme <= STROBE_DIST_ALL_GATHER; ++scheme) {
        set_up(8, STROBE_DIST_CONTIGUOUS, scheme, 256); /* 32 rows a rank */
        for (int32_t n = 0; n < 8; ++n) {
            ranks[n].a.mask = STROBE_MASK_WINDOW_TOP_LEFT, ranks[n].a.window_left = 8, ranks[n].a.window_right = 0;
            ranks[n].d.flags = STROBE_DIST_UNCOMPARED;
        }
        expect(8, STROBE_OK, "");
        for (int32_t n = 0; n < 7; ++n) assert_int_equal(sent[n], kv_bytes(8)); /* the last 8 keys, to the rank behind */
        assert_int_equal(sent[7], 0);
        for (int32_t n = 0; n < 8; ++n) ranks[n].backward = true;
        expect(8, STROBE_OK, "");
        assert_int_equal(sent[0], kv_bytes(8)), assert_int_equal(sent[3], 2 * kv_bytes(8)); /* and their gradients back */
        assert_int_equal(sent[7], kv_bytes(8));
    }
}

static void test_causal_travels_one_way(void **state) {
    (void)state;
    set_up(4, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 64);
    for (int32_t n = 0; n < 4; ++n) ranks[n].a.mask = STROBE_MASK_CAUSAL_TOP_LEFT, ranks[n].d.flags = STROBE_DIST_UNCOMPARED;
    expect(4, STROBE_OK, "");
    for (int32_t n = 0; n < 3; ++n) assert_int_equal(sent[n], (n + 1) * kv_bytes(16)); /* its own block, and those before */
    assert_int_equal(sent[3], 0);
}

static void test_documents_travel_alone(void **state) {
    static const int32_t cu[] = {0,  16, 20,
                                 32, 40, 64}; /* only the fourth is cut: at 32 there is an end, at 48 the last is */
    (void)state;
    for (int32_t scheme = STROBE_DIST_RING; scheme <= STROBE_DIST_ALL_GATHER; ++scheme) {
        set_up(4, STROBE_DIST_CONTIGUOUS, scheme, 24);
        for (int32_t n = 0; n < 4; ++n) {
            ranks[n].varlen = (strobe_varlen){.struct_size = sizeof(strobe_varlen), .cu_seqlens_q = cu, .cu_seqlens_k = cu};
            ranks[n].a.varlen = &ranks[n].varlen, ranks[n].a.batch = 5, ranks[n].d.rows_q = ranks[n].d.rows_k = 16;
            ranks[n].a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, ranks[n].d.flags = STROBE_DIST_UNCOMPARED;
        }
        expect(4, STROBE_OK, "");
        assert_int_equal(sent[0], 0), assert_int_equal(sent[1], 0), assert_int_equal(sent[3], 0);
        assert_int_equal(sent[2], kv_bytes(8));
    }
}

static void test_same_bits(void **state) {
    static struct rank before[4];
    (void)state;
    for (int32_t scheme = STROBE_DIST_RING; scheme <= STROBE_DIST_ULYSSES; ++scheme)
        for (int again = 0; again < 4; ++again) {
            const int32_t size = scheme == STROBE_DIST_ULYSSES ? 2 : 4;
            set_up(size, STROBE_DIST_ZIGZAG, scheme, 61);
            for (int32_t n = 0; n < size; ++n) ranks[n].a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
            expect(size, STROBE_OK, "");
            for (int32_t n = 0; n < size; ++n) ranks[n].backward = true;
            expect(size, STROBE_OK, "");
            for (int32_t n = 0; n < size && again > 0; ++n) {
                assert_memory_equal(ranks[n].out, before[n].out, sizeof before[n].out);
                assert_memory_equal(ranks[n].dq, before[n].dq, sizeof before[n].dq);
                assert_memory_equal(ranks[n].dk, before[n].dk, sizeof before[n].dk);
                assert_memory_equal(ranks[n].dv, before[n].dv, sizeof before[n].dv);
            }
            memcpy(before, ranks, sizeof before);
        }
}

static void test_disagreements(void **state) {
    (void)state;
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[2].a.seq_k = 31, ranks[2].d.rows_k = 10;
    expect(3, STROBE_INVALID_ARGUMENT, "seq_k is 30 on rank 0 and 31 on rank 2; the same on every rank is accepted");
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    expect(3, STROBE_INVALID_ARGUMENT, "mask is 0 on rank 0 and 1 on rank 1; the same on every rank is accepted");
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[0].d.layout = STROBE_DIST_ZIGZAG;
    expect(3, STROBE_INVALID_ARGUMENT, "layout is 1 on rank 0 and 0 on rank 1; the same on every rank is accepted");
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].backward = true;
    expect(3, STROBE_INVALID_ARGUMENT,
           "the operation (0 forward, 1 backward, 2 decode) is 0 on rank 0 and 1 on rank 1; the same on every rank is "
           "accepted");
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].refuses = true;
    expect(3, STROBE_OUT_OF_MEMORY, "rank 1: the activations of layer 3 have no room");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].a.q.dtype = ranks[1].a.k.dtype = ranks[1].a.v.dtype = STROBE_FP16;
    expect(2, STROBE_INVALID_ARGUMENT, "q.dtype is 1 on rank 0 and 2 on rank 1; the same on every rank is accepted");
}

static void test_refusals(void **state) {
    static const strobe_scales scales = {.struct_size = sizeof scales};
    (void)state;
    set_up(3, STROBE_DIST_ZIGZAG, STROBE_DIST_RING, 31);
    ranks[1].d.rows_q = 9;
    expect(3, STROBE_INVALID_ARGUMENT,
           "rank 1: rows_q is 9; 10, what rank 1 of 3 has of 31 in the zigzag layout, is accepted");
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].a.k.data = NULL, ranks[2].a.q.data = NULL;
    expect(3, STROBE_INVALID_ARGUMENT, "rank 1: k is NULL; a pointer is accepted");
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_ULYSSES, 30);
    expect(3, STROBE_UNSUPPORTED, "rank 0: scheme ulysses does not take heads_q, 2, which is no multiple of 3 ranks");
    set_up(4, STROBE_DIST_STRIPED, STROBE_DIST_TWO_LEVELS, 30);
    for (int32_t n = 0; n < 4; ++n) ranks[n].d.group = 2;
    expect(4, STROBE_UNSUPPORTED, "rank 0: scheme two_levels does not take the striped layout");
    for (int32_t n = 0; n < 4; ++n) ranks[n].d.group = 3;
    expect(4, STROBE_INVALID_ARGUMENT, "rank 0: group is 3; a divisor of transport.size, 4, is accepted");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].a.scales = &scales;
    expect(2, STROBE_UNSUPPORTED, "rank 1: scales is given; NULL is accepted over many processes");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].a.dim = 577;
    expect(2, STROBE_INVALID_ARGUMENT, "rank 1: dim is 577; 1 to 576 is accepted");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[0].d.layout = 3;
    expect(2, STROBE_INVALID_ARGUMENT, "rank 0: layout is 3; 0 to 2 is accepted");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    for (int32_t n = 0; n < 2; ++n) ranks[n].backward = true;
    ranks[1].g.accumulate = STROBE_ADD_TO_DQ;
    expect(2, STROBE_INVALID_ARGUMENT, "rank 1: gradients.accumulate is 1; 0 is accepted");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[0].d.struct_size = 3;
    run(2, 0, 0); /* of this call not even the transport is known */
    assert_string_equal(ranks[0].sentence, "dist.struct_size is 3; sizeof the structure, 72, is accepted");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[0].d.struct_size = offsetof(strobe_dist, transport) + 1; /* one byte of a pointer */
    run(2, 0, 0);
    assert_string_equal(ranks[0].sentence, "dist.struct_size is 17; sizeof the structure, 72, is accepted");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[0].a.device = STROBE_CUDA;
    expect(2, STROBE_INVALID_ARGUMENT, "rank 0: device is 1 with a transport whose device is 0; the same is accepted");
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    ranks[1].a.out.stride[0] = 0, ranks[1].a.out.stride[1] = 0, ranks[1].a.out.stride[2] = 4;
    expect(2, STROBE_INVALID_ARGUMENT,
           "rank 1: out.stride is {0, 0, 4}; strides that keep the elements of an output apart are accepted");
}

static void test_workspace(void **state) {
    static _Alignas(64) unsigned char memory[2][1 << 16];
    size_t bytes = 0;
    (void)state;
    set_up(2, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
    const strobe_transport nowhere = {.struct_size = sizeof nowhere, .rank = 1, .size = 2};
    ranks[1].d.transport = &nowhere;
    assert_int_equal(strobe_dist_workspace(&ranks[1].d, NULL, &bytes), STROBE_OK);
    assert_true(bytes > 64 && bytes < sizeof memory[0]);
    for (int32_t n = 0; n < 2; ++n) ranks[n].workspace = memory[n], ranks[n].given = sizeof memory[n];
    ranks[1].given = bytes - 64;
    char sentence[128];
    snprintf(sentence, sizeof sentence, "rank 1: workspace_bytes is %zu; at least %zu is accepted", bytes - 64, bytes);
    expect(2, STROBE_WORKSPACE_TOO_SMALL, sentence);
    ranks[1].given = bytes;
    expect(2, STROBE_OK, "");
}

static void test_broken_transports(void **state) {
    (void)state;
    for (int64_t exchange = 0; exchange < 4; ++exchange) {
        set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_RING, 30);
        run(3, 1, exchange);
        char sentence[128];
        snprintf(sentence, sizeof sentence, "the transport failed: exchange %lld of rank 1 is broken", (long long)exchange);
        assert_int_equal(ranks[1].status, STROBE_DEVICE_ERROR);
        assert_string_equal(ranks[1].sentence, sentence);
        assert_true(ranks[0].status == STROBE_DEVICE_ERROR || ranks[2].status == STROBE_DEVICE_ERROR);
    }
}

static void test_explain(void **state) {
    char text[1024];
    size_t needed = 0;
    const strobe_transport nowhere = {.struct_size = sizeof nowhere, .rank = 1, .size = 3};
    (void)state;
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_AUTOMATIC, 60);
    ranks[1].d.transport = &nowhere;
    assert_int_equal(strobe_dist_explain(&ranks[1].d, NULL, text, sizeof text, &needed), STROBE_OK);
    assert_int_equal(needed, strlen(text) + 1);
    assert_non_null(strstr(text, "ring: ")), assert_non_null(strstr(text, ": chosen, predicted "));
    assert_non_null(strstr(text, "ulysses: does not take heads_q, 2, which is no multiple of 3 ranks\n"));
    assert_non_null(strstr(text, "two_levels: does not take group 0: nobody said how many ranks a group has\n"));
    char few[8];
    assert_int_equal(strobe_dist_explain(&ranks[1].d, NULL, few, sizeof few, &needed), STROBE_OK);
    assert_int_equal(strlen(few), 7);
    assert_int_equal(needed, strlen(text) + 1);
}

/* With links that cost nothing a ring hides what an all-gather cannot; where an exchange is dear, one is better than many.
 */
static void test_choice(void **state) {
    static const strobe_dist_rates fast = {
        .struct_size = sizeof fast, .bandwidth = 1e6, .latency = 1e-9, .call = 1e-9, .flops = 1e6};
    static const strobe_dist_rates slow = {.struct_size = sizeof slow, .latency = 1, .call = 1e-9};
    const strobe_transport nowhere = {.struct_size = sizeof nowhere, .rank = 2, .size = 3};
    char text[1024];
    (void)state;
    set_up(3, STROBE_DIST_CONTIGUOUS, STROBE_DIST_AUTOMATIC, 60);
    ranks[1].d.transport = &nowhere, ranks[1].d.rates = &fast;
    assert_int_equal(strobe_dist_explain(&ranks[1].d, NULL, text, sizeof text, NULL), STROBE_OK);
    assert_non_null(strstr(text, "ring: chosen"));
    ranks[1].d.rates = &slow;
    assert_int_equal(strobe_dist_explain(&ranks[1].d, NULL, text, sizeof text, NULL), STROBE_OK);
    assert_non_null(strstr(text, "all_gather: chosen"));
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_windows_travel_to_neighbours),
        cmocka_unit_test(test_causal_travels_one_way),
        cmocka_unit_test(test_documents_travel_alone),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_disagreements),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_broken_transports),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
