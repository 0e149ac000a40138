/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_append_refusals.c: what strobe_append is asked for wrongly is refused with a sentence that names the argument, its
 * value and what is accepted, and nothing is written before. */
#include <string.h>

#include "strobe/strobe_append.h"
#include "test.h"

enum { BATCH = 3, NEW = 4, HEADS = 2, GROUP = 2, DIM = 12, DIM_V = 8, LONGEST = 20, PAGE = 4, PAGES = 17, POSITIONS = 64 };

static float q[BATCH * NEW * HEADS * GROUP * DIM], k[BATCH * NEW * HEADS * DIM], v[BATCH * NEW * HEADS * DIM_V];
static float turned[BATCH * NEW * HEADS * GROUP * DIM], cosines[POSITIONS * DIM / 2], sines[POSITIONS * DIM / 2];
static float k_cache[BATCH * LONGEST * HEADS * DIM], v_cache[BATCH * LONGEST * HEADS * DIM_V];
static const int32_t lengths[BATCH] = {5, 0, 16}, after[BATCH] = {8, 0, 20}, table[BATCH * LONGEST / PAGE];

static struct call {
    strobe_attention a;
    strobe_varlen n;
    strobe_paged g;
    strobe_scales s;
    strobe_appender w;
    strobe_rotary r;
} c;

static void reset(void) {
    memset(&c, 0, sizeof c);
    c.a = (strobe_attention){.struct_size = sizeof c.a, .batch = BATCH, .seq_q = NEW, .seq_k = LONGEST, .heads_kv = HEADS};
    c.a.heads_q = HEADS * GROUP, c.a.dim = DIM, c.a.dim_v = DIM_V;
    c.a.q.data = turned, c.a.k.data = k_cache, c.a.v.data = v_cache;
    c.n.struct_size = sizeof c.n, c.r.struct_size = sizeof c.r, c.s.struct_size = sizeof c.s;
    c.g = (strobe_paged){.struct_size = sizeof c.g, .page_table = table, .page_size = PAGE, .pages = PAGES};
    c.w = (strobe_appender){.struct_size = sizeof c.w, .seq_new = NEW, .lengths = lengths};
    c.w.q.data = q, c.w.k.data = k, c.w.v.data = v;
    memset(k_cache, 0xff, sizeof k_cache), memset(v_cache, 0xff, sizeof v_cache), memset(turned, 0xff, sizeof turned);
}

static void refuses(strobe_status status, const char *sentence) {
    assert_int_equal(strobe_append(&c.a, &c.w, NULL), status);
    assert_string_equal(strobe_last_error(), sentence);
    for (size_t n = 0; n < sizeof k_cache; ++n) assert_int_equal(((uint8_t *)k_cache)[n], 0xff);
    for (size_t n = 0; n < sizeof turned; ++n) assert_int_equal(((uint8_t *)turned)[n], 0xff);
}

static void test_refused_numbers(void **state) {
    (void)state;
    static const int32_t negative[BATCH] = {5, -1, 3}, above[BATCH] = {5, 17, 3}, falling[BATCH + 1] = {0, 4, 3, 4};
    reset(), c.a.paged = &c.g, c.g.page_size = 0;
    refuses(STROBE_INVALID_ARGUMENT, "paged.page_size is 0; 1 to 1099511627776 is accepted");
    reset(), c.a.paged = &c.g, c.g.table_stride = 4;
    refuses(STROBE_INVALID_ARGUMENT, "paged.table_stride is 4; 5, for seq_k of 20 in pages of 4, or more is accepted");
    reset(), c.a.paged = &c.g, c.g.page_table = NULL;
    refuses(STROBE_INVALID_ARGUMENT, "paged.page_table is NULL; a pointer to its elements is accepted");
    reset(), c.w.lengths = negative;
    refuses(STROBE_INVALID_ARGUMENT, "appender.lengths[1] is -1; 0 or more is accepted");
    reset(), c.w.lengths = above;
    refuses(STROBE_INVALID_ARGUMENT, "appender.lengths[1] is 17; 0 to 16, with 4 new tokens in a cache of 20, is accepted");
    reset(), c.w.lengths = NULL, c.n.used_k = after, c.a.varlen = &c.n;
    refuses(STROBE_INVALID_ARGUMENT,
            "batch entry 1 has 4 new tokens and a length of 0 with them; at least as many is accepted");
    reset(), c.w.cu_seqlens_new = falling;
    refuses(STROBE_INVALID_ARGUMENT, "appender.cu_seqlens_new[2] is 3 after 4; a number of 0 to seq_new, 4, is accepted");
    reset(), c.w.used_new = above;
    refuses(STROBE_INVALID_ARGUMENT, "appender.used_new[0] is 5; 0 to 4 is accepted");
    reset(), c.w.index_bits = 16;
    refuses(STROBE_INVALID_ARGUMENT, "appender.index_bits is 16; 32 or 64 is accepted");
    reset(), c.w.flags = 2;
    refuses(STROBE_INVALID_ARGUMENT, "appender.flags is 2; 0 to 1 is accepted");
    reset(), c.w.seq_new = -1;
    refuses(STROBE_INVALID_ARGUMENT, "appender.seq_new is -1; 0 to 1099511627776 is accepted");
    reset(), c.w.hadamard = STROBE_HADAMARD, c.a.dim = 257;
    refuses(STROBE_UNSUPPORTED, "dim is 257 with appender.hadamard; 1 to 256 is taken");
    reset();
    assert_int_equal(strobe_append(&c.a, NULL, NULL), STROBE_INVALID_ARGUMENT);
    assert_int_equal(strobe_append(NULL, &c.w, NULL), STROBE_INVALID_ARGUMENT);
    assert_int_equal(strobe_append(&c.a, &c.w, &c), STROBE_INVALID_ARGUMENT);
}

/* What the host cannot read there it is told, whatever the device would find. */
static void test_totals_on_a_gpu(void **state) {
    (void)state;
    reset(), c.a.device = STROBE_CUDA, c.w.cu_seqlens_new = lengths;
    refuses(STROBE_UNSUPPORTED,
            "appender.total_new is 0 with cumulative lengths in device memory, which the host cannot read; the rows of the "
            "packed tensor are taken");
    reset(), c.a.device = STROBE_CUDA, c.a.varlen = &c.n, c.n.cu_seqlens_k = lengths;
    refuses(STROBE_UNSUPPORTED,
            "varlen.total_k is 0 with cumulative lengths in device memory, which the host cannot read; the rows of the "
            "packed cache are taken");
}

static void test_refused_tensors(void **state) {
    (void)state;
    static const float bad[] = {-1};
    reset(), c.a.v.dtype = STROBE_BF16;
    refuses(STROBE_UNSUPPORTED, "k and v differ in dtype, fp32 and bf16; one dtype for both is taken");
    reset(), c.a.k.dtype = c.a.v.dtype = STROBE_INT8;
    refuses(STROBE_INVALID_ARGUMENT, "scales.k is NULL and k.dtype is int8; int8 with its scales is accepted");
    reset(), c.a.scales = &c.s, c.s.k = cosines;
    refuses(STROBE_UNSUPPORTED, "scales.k is given and k.dtype is fp32; NULL is taken");
    reset(), c.a.k.dtype = c.a.v.dtype = STROBE_INT8, c.a.scales = &c.s, c.s.k = c.s.v = cosines, c.s.block_k = 16;
    refuses(STROBE_UNSUPPORTED, "scales.block_k is 16; 0 or 1 is taken");
    c.s.block_k = 1;
    refuses(STROBE_INVALID_ARGUMENT,
            "scales.k.stride is {0, 0, 0}; strides that keep the elements of an output apart are accepted");
    c.s.block_k = 0, c.s.k = bad;
    refuses(STROBE_INVALID_ARGUMENT, "scales.k of batch entry 0 and head 0 is -1; a positive finite number is accepted");
    reset(), c.a.k.data = NULL;
    refuses(STROBE_INVALID_ARGUMENT, "k is NULL; a pointer to its elements is accepted");
    reset(), c.w.k.dtype = STROBE_INT8;
    refuses(STROBE_INVALID_ARGUMENT, "appender.k.dtype is int8; accepted are fp32, fp16, bf16");
    reset(), c.w.k.data = v_cache;
    refuses(STROBE_INVALID_ARGUMENT, "appender.k is the memory of v; memory of its own is accepted");
    reset(), c.a.k.stride[0] = c.a.k.stride[2] = DIM, c.a.k.stride[1] = HEADS * DIM;
    refuses(STROBE_INVALID_ARGUMENT,
            "k.stride is {12, 24, 12}; strides that keep the elements of an output apart are accepted");
    reset(), c.w.rotary = &c.r, c.r.base = 10000, c.r.dim = 3;
    refuses(STROBE_INVALID_ARGUMENT, "rotary.dim is 3; an even number is accepted");
    c.r.dim = 14;
    refuses(STROBE_INVALID_ARGUMENT, "rotary.dim is 14; 2 to 12 is accepted");
    c.r.dim = 4, c.r.base = 0.5;
    refuses(STROBE_INVALID_ARGUMENT, "rotary.base is 0.5 without tables; a finite number from 1 on is accepted");
    c.r.base = 0;
    refuses(STROBE_INVALID_ARGUMENT, "rotary.cos is NULL; a pointer to its elements is accepted");
    c.r.cos = cosines, c.r.sin = sines, c.r.positions = 19;
    refuses(STROBE_INVALID_ARGUMENT,
            "q of batch entry 2 stands at positions 16 to 19; 0 to rotary.positions - 1, 18, is accepted");
    c.r.base = 7;
    refuses(STROBE_INVALID_ARGUMENT, "rotary.base is 7 beside tables; 0 is accepted");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_numbers), cmocka_unit_test(test_totals_on_a_gpu),
                                       cmocka_unit_test(test_refused_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
