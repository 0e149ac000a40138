/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_schedule.c: the calls that a rank makes over copy engines: as few as can be, rows of one part without sums, and
 * enough heads before the first keys have come. No data are there. */
#include "dist/schedule.h"
#include "unit/test.h"

struct planned {
    strobe_attention a;
    strobe_gradients g;
    strobe_transport records, transport;
    strobe_dist d;
    struct whole w;
    struct shard s;
    struct schedule schedule;
};

static int nothing(void *self, void *stream) {
    (void)self, (void)stream;
    return 0;
}

static int start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream) {
    (void)sends, (void)send_count, (void)receives, (void)receive_count;
    return nothing(self, stream);
}

/* Of bf16 on GPUs. */
enum way { RING, GATHER, APART };
static void plan(struct planned *p, enum way way, int32_t size, int32_t rank, int32_t layout, int64_t seq, int64_t heads_kv,
                 int32_t mask, int64_t left, bool backward) {
    *p = (struct planned){.a = {.struct_size = sizeof p->a, .batch = 1, .seq_q = seq, .seq_k = seq, .heads_q = 32}};
    p->a.heads_kv = heads_kv, p->a.dim = 128, p->a.dtype = STROBE_BF16, p->a.device = STROBE_CUDA;
    p->a.mask = mask, p->a.window_left = left;
    p->g = (strobe_gradients){.struct_size = sizeof p->g};
    p->records = (strobe_transport){.struct_size = sizeof p->records, .rank = rank, .size = size, .start = start};
    p->records.wait = nothing, p->transport = p->records;
    p->transport.device = STROBE_CUDA, p->transport.records = &p->records;
    p->transport.flags = STROBE_TRANSPORT_BESIDE_KERNELS;
    p->d = (strobe_dist){.struct_size = sizeof p->d, .attention = &p->a, .transport = &p->transport, .layout = layout};
    p->d.rows_q = p->d.rows_k = strobe_dist_rows(layout, seq, size, rank),
    p->d.scheme = way == RING ? STROBE_DIST_RING : STROBE_DIST_ALL_GATHER;
    assert_int_equal(strobe__dist_read(&p->w, &p->d, backward ? &p->g : NULL, backward), STROBE_OK);
    assert_true(strobe__shard_make(&p->s, &p->w, 1, 1, 0));
    assert_true(strobe__schedule_make(&p->schedule, &p->s, way != RING, way == APART));
}

static void end(struct planned *p) {
    strobe__schedule_free(&p->schedule);
    strobe__shard_free(&p->s);
    strobe__dist_release(&p->w);
}

static int64_t calls_of(const struct planned *p) {
    int64_t calls = 0;
    for (int64_t t = 0; t < p->schedule.count; ++t) calls += p->schedule.steps[t].calls.count;
    return calls;
}

/* A zigzag shard's own two parts are one call, of which some heads come first if they fill a GPU. */
static void test_backward(void **state) {
    struct planned p;
    (void)state;
    for (int32_t rank = 0; rank < 2; ++rank) {
        plan(&p, RING, 2, rank, STROBE_DIST_ZIGZAG, 8201, 32, STROBE_MASK_CAUSAL_TOP_LEFT, 0, true);
        assert_int_equal(calls_of(&p), 2);
        assert_true(p.schedule.late);
        assert_int_equal(p.schedule.early_heads, 8);
        end(&p);
    }
    plan(&p, RING, 2, 1, STROBE_DIST_ZIGZAG, 8192, 8, STROBE_MASK_CAUSAL_TOP_LEFT, 0, true);
    assert_int_equal(p.schedule.early_heads, 4);
    end(&p);
    plan(&p, RING, 2, 1, STROBE_DIST_ZIGZAG, 4096, 8, STROBE_MASK_CAUSAL_TOP_LEFT, 0, true);
    assert_int_equal(p.schedule.early_heads, 0); /* 128 blocks of keys */
    end(&p);
    plan(&p, RING, 4, 3, STROBE_DIST_ZIGZAG, 65536, 8, STROBE_MASK_CAUSAL_TOP_LEFT, 0, true);
    assert_int_equal(calls_of(&p), 4);
    assert_int_equal(p.schedule.early_heads, 2);
    end(&p);
}

/* Rows that see their own rank's keys alone are written at once, by one call; the others have a part of each of two. */
static void test_window(void **state) {
    struct planned p;
    int64_t direct = 0, merged = 0;
    (void)state;
    plan(&p, RING, 2, 1, STROBE_DIST_CONTIGUOUS, 8192, 8, STROBE_MASK_WINDOW_TOP_LEFT, 511, false);
    assert_int_equal(calls_of(&p), 3);
    for (int64_t t = 0; t < p.schedule.count; ++t)
        for (int64_t c = 0; c < p.schedule.steps[t].calls.count; ++c) {
            const struct call *call = &p.schedule.steps[t].calls.at[c];
            *(call->rows_fresh && call->rows_last ? &direct : &merged) += call->rows;
        }
    assert_int_equal(direct, 4096 - 511);
    assert_int_equal(merged, 2 * 511);
    assert_int_equal(p.schedule.rest.count, 0);
    end(&p);
    plan(&p, RING, 2, 1, STROBE_DIST_CONTIGUOUS, 8192, 8, STROBE_MASK_WINDOW_TOP_LEFT, 511, true);
    const struct step *late = &p.schedule.steps[p.schedule.count - 1];
    assert_int_equal(late->calls.at[0].segment_count, 2); /* with a part before, and without */
    assert_int_equal(late->calls.at[0].segments[0].rows, 511);
    assert_true(late->calls.at[0].segments[1].fresh && late->calls.at[0].segments[1].last);
    end(&p);
    plan(&p, RING, 2, 1, STROBE_DIST_CONTIGUOUS, 65536, 8, STROBE_MASK_WINDOW_TOP_LEFT, 4095, true);
    assert_int_equal(p.schedule.early_heads, 0); /* the few keys that travel do not take long */
    end(&p);
}

/* Of an all-gather's rows a rank's own are not those of the block that comes, where they are apart. */
static void test_gather(void **state) {
    struct planned p;
    (void)state;
    plan(&p, GATHER, 4, 1, STROBE_DIST_ZIGZAG, 16384, 8, STROBE_MASK_CAUSAL_TOP_LEFT, 0, true);
    const int64_t whole = p.schedule.steps[1].rows;
    assert_int_equal(calls_of(&p), 2); /* each half of the rows sees other keys */
    assert_false(p.schedule.late);
    end(&p);
    plan(&p, APART, 4, 1, STROBE_DIST_ZIGZAG, 16384, 8, STROBE_MASK_CAUSAL_TOP_LEFT, 0, true);
    assert_int_equal(p.schedule.count, 3);
    assert_true(p.schedule.late);
    assert_int_equal(p.schedule.steps[0].calls.count, 0);
    assert_int_equal(p.schedule.steps[2].calls.count, 1);
    assert_int_equal(p.schedule.steps[1].rows, whole - 4096);
    assert_int_equal(p.schedule.early_heads, strobe__dist_early_heads(8, 4096));
    end(&p);
    plan(&p, APART, 4, 1, STROBE_DIST_ZIGZAG, 16384, 8, STROBE_MASK_CAUSAL_TOP_LEFT, 0, false);
    assert_int_equal(p.schedule.count, 2);
    assert_int_equal(p.schedule.steps[0].calls.count, 2); /* each half of the rows by itself, as in a ring */
    assert_int_equal(p.schedule.steps[1].rows, whole - 4096);
    end(&p);
    plan(&p, APART, 4, 0, STROBE_DIST_CONTIGUOUS, 16384, 8, STROBE_MASK_CAUSAL_TOP_LEFT, 0,
         true); /* needs no keys of others */
    assert_false(p.schedule.late);
    assert_int_equal(p.schedule.steps[0].calls.count, 1);
    assert_int_equal(p.schedule.steps[1].rows, 0);
    end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_backward), cmocka_unit_test(test_window),
                                       cmocka_unit_test(test_gather)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
