/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_struct_size.c: structures of another version. An older program's are shorter: what lies behind them is not read. A
 * newer program's are longer: they work as long as what the library does not know is zero, and are refused, with the place
 * of the byte, when it is not. A size that no version has is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "refusal.h"
#include "test.h"

/* The structures of a call: where they stand, and where the pointer to each lies. */
static const struct {
    const char *name;
    size_t at, bytes;
    size_t pointer; /* in struct call; 0: handed over by itself */
} structures[] = {
#define STRUCTURE(name, field, pointer) \
    { name, offsetof(struct call, field), sizeof(((struct call *)0)->field), pointer }
    STRUCTURE("attention", a, 0),
    STRUCTURE("gradients", g, 0),
    STRUCTURE("varlen", varlen, offsetof(struct call, a.varlen)),
    STRUCTURE("paged", paged, offsetof(struct call, a.paged)),
    STRUCTURE("bias", bias, offsetof(struct call, a.bias)),
    STRUCTURE("bool_mask", bool_mask, offsetof(struct call, a.bool_mask)),
    STRUCTURE("block_mask", block_mask, offsetof(struct call, a.block_mask)),
    STRUCTURE("alibi", alibi, offsetof(struct call, a.alibi)),
    STRUCTURE("sinks", sinks, offsetof(struct call, a.sinks)),
    STRUCTURE("dropout", dropout, offsetof(struct call, a.dropout)),
    STRUCTURE("scales", scales, offsetof(struct call, a.scales)),
    STRUCTURE("parallel", parallel, offsetof(struct call, a.parallel)),
    STRUCTURE("tuning", tuning, offsetof(struct call, a.tuning)),
    STRUCTURE("score", score, offsetof(struct call, a.score)),
    STRUCTURE("mask_lists", mask_lists, offsetof(struct call, a.mask_lists)),
    STRUCTURE("dbias", dbias, offsetof(struct call, g.dbias)),
    STRUCTURE("dsinks", dsinks, offsetof(struct call, g.dsinks)),
    STRUCTURE("dscore", dscore, offsetof(struct call, g.dscore)),
};
enum { ATTENTION, GRADIENTS, PAGED = 3, SCALES = 10, MASK_LISTS = 14, DBIAS = 15, DSINKS = 16, DSCORE = 17 };

/* A copy of structure n of the call in a buffer with room behind it, attached in its place. */
static _Alignas(8) unsigned char copy[256 + 65536];

static void attach_copy(size_t n, size_t claimed_bytes, unsigned char behind) {
    reset_call();
    if (n == MASK_LISTS) call.a.bool_mask = &call.bool_mask;
    if (n == DBIAS) call.a.bias = &call.bias;
    if (n == DSINKS) call.a.sinks = &call.sinks;
    if (n == DSCORE) call.a.score = &call.score;
    memset(copy, behind, sizeof copy);
    memcpy(copy, (char *)&call + structures[n].at, structures[n].bytes);
    memcpy(copy, &claimed_bytes, sizeof claimed_bytes);
    const void *pointer = copy;
    if (structures[n].pointer) memcpy((char *)&call + structures[n].pointer, &pointer, sizeof pointer);
}

static strobe_status run(size_t n) {
    const strobe_attention *a = n == ATTENTION ? (const void *)copy : &call.a;
    const strobe_gradients *g = n == GRADIENTS ? (const void *)copy : &call.g;
    const strobe_status status = strobe_forward(a, NULL, 0, NULL);
    return n == ATTENTION || (status && n < DBIAS && n != GRADIENTS) ? status : strobe_backward(a, g, NULL, 0, NULL);
}

static void test_no_version_has_this_size(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 7, 65537, SIZE_MAX, (size_t)1 << 32};
    for (size_t n = 0; n < COUNT(structures); ++n)
        for (size_t s = 0; s < COUNT(sizes); ++s) {
            char sentence[200];
            attach_copy(n, sizes[s], 0);
            snprintf(sentence, sizeof sentence, "%s.struct_size is %zu; sizeof the structure, %zu, is accepted",
                     structures[n].name, sizes[s], structures[n].bytes);
            assert_int_equal(run(n), STROBE_INVALID_ARGUMENT);
            assert_string_equal(strobe_last_error(), sentence);
        }
}

/* Sizes that end within a field: a pointer of which some bytes are the caller's and the others 0 would be followed. */
static void test_sizes_that_cut_a_field(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(structures); ++n)
        for (size_t size = sizeof(size_t); size < structures[n].bytes; ++size) {
            char sentence[200];
            if (size % sizeof(void *) == 0) continue;
            attach_copy(n, size, 0xee);
            snprintf(sentence, sizeof sentence, "%s.struct_size is %zu; sizeof the structure, %zu, is accepted",
                     structures[n].name, size, structures[n].bytes);
            assert_int_equal(run(n), STROBE_INVALID_ARGUMENT);
            assert_string_equal(strobe_last_error(), sentence);
        }
}

static void test_newer(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(structures); ++n) {
        const strobe_status sound = n == PAGED || n == SCALES ? STROBE_UNSUPPORTED : STROBE_OK;
        static const size_t more[] = {1, 8, 100};
        for (size_t m = 0; m < COUNT(more); ++m) {
            attach_copy(n, structures[n].bytes + more[m], 0xee); /* behind the claimed bytes: somebody else's */
            memset(copy + structures[n].bytes, 0, more[m]);
            if (run(n) != sound) fail_msg("%s, %zu bytes longer: %s", structures[n].name, more[m], strobe_last_error());
            const size_t at = structures[n].bytes + more[m] - 1;
            char sentence[300];
            attach_copy(n, structures[n].bytes + more[m], 0xee);
            memset(copy + structures[n].bytes, 0, more[m]);
            copy[at] = 1;
            snprintf(sentence, sizeof sentence,
                     "%s has a nonzero byte at offset %zu, in a field that this library, version %s, does not know; zero is "
                     "accepted there",
                     structures[n].name, at, strobe_version());
            assert_int_equal(run(n), STROBE_INVALID_ARGUMENT);
            assert_string_equal(strobe_last_error(), sentence);
        }
        attach_copy(n, 65536, 0);
        if (run(n) != sound) fail_msg("%s of 65536 bytes: %s", structures[n].name, strobe_last_error());
    }
}

/* Cut off in front of each field in turn: the rest is garbage in memory and its default to the library. */
static void test_older(void **state) {
    (void)state;
    static const size_t ends[] = {
        offsetof(strobe_attention, softcap), offsetof(strobe_attention, window_left), offsetof(strobe_attention, varlen),
        offsetof(strobe_attention, bias),    offsetof(strobe_attention, dropout),     offsetof(strobe_attention, tuning),
        offsetof(strobe_attention, score),   offsetof(strobe_attention, mask_lists),
    };
    float expected[2 * 4 * 4 * 8];
    reset_call();
    assert_int_equal(strobe_forward(&call.a, NULL, 0, NULL), STROBE_OK);
    memcpy(expected, call.a.out.data, sizeof expected);
    for (size_t n = 0; n < COUNT(ends); ++n) {
        attach_copy(ATTENTION, ends[n], 0xee);
        memset(copy + ends[n], 0xee, sizeof copy - ends[n]);
        if (run(ATTENTION)) fail_msg("cut off at %zu: %s", ends[n], strobe_last_error());
        assert_memory_equal(expected, call.a.out.data, sizeof expected);
    }
    /* What an older structure does not reach has its default, which for extents is a refusal. */
    attach_copy(ATTENTION, offsetof(strobe_attention, dim), 0xee);
    assert_int_equal(run(ATTENTION), STROBE_INVALID_ARGUMENT);
    assert_string_equal(strobe_last_error(), "dim is 0; 1 to 576 is accepted");
}

/* Shorter features: varlen without index_bits, a bias without dtype, dropout without starts, gradients without dsinks. */
static void test_older_features(void **state) {
    (void)state;
    static const struct {
        size_t structure, bytes;
    } rows[] = {
        {2, offsetof(strobe_varlen, cu_seqlens_q)},
        {4, offsetof(strobe_bias, dtype)},
        {6, sizeof(strobe_block_mask) - 8},
        {7, offsetof(strobe_alibi, stride_batch)},
        {8, offsetof(strobe_sinks, dtype)},
        {9, offsetof(strobe_dropout, heads)},
        {9, offsetof(strobe_dropout, p)},
        {11, sizeof(size_t)},
        {12, sizeof(size_t)},
        {GRADIENTS, offsetof(strobe_gradients, dbias)},
        {GRADIENTS, offsetof(strobe_gradients, dscore)},
        {GRADIENTS, offsetof(strobe_gradients, accumulate)},
    };
    for (size_t n = 0; n < COUNT(rows); ++n) {
        attach_copy(rows[n].structure, rows[n].bytes, 0xee);
        memset(copy + rows[n].bytes, 0xee, sizeof copy - rows[n].bytes);
        if (run(rows[n].structure))
            fail_msg("%s of %zu bytes: %s", structures[rows[n].structure].name, rows[n].bytes, strobe_last_error());
    }
}

/* --------------------------------------------------------------------------------- structures that the library fills -- */

typedef strobe_status filler(void *info);
static strobe_status fill_kernel(void *info) { return strobe_kernel_at(0, info); }
static strobe_status fill_device(void *info) { return strobe_device_at(STROBE_CPU, 0, info); }

static void check_filled(filler *fill, size_t bytes) {
    static _Alignas(8) unsigned char whole[512], other[512];
    char sentence[128];
    memset(whole, 0, sizeof whole);
    memcpy(whole, &bytes, sizeof bytes);
    assert_int_equal(fill(whole), STROBE_OK);
    for (size_t size = sizeof(size_t); size < bytes + 64; size += 4) { /* older, the same, newer */
        memset(other, 0xee, sizeof other);
        memcpy(other, &size, sizeof size);
        assert_int_equal(fill(other), STROBE_OK);
        assert_memory_equal(other, &size, sizeof size);
        const size_t known = (size < bytes ? size : bytes) - sizeof size;
        assert_memory_equal(other + sizeof size, whole + sizeof size, known);
        for (size_t n = bytes; n < size; ++n) assert_int_equal(other[n], 0);
        for (size_t n = size; n < sizeof other; ++n) assert_int_equal(other[n], 0xee);
    }
    static const size_t bad[] = {0, 7, 65537, SIZE_MAX};
    for (size_t n = 0; n < COUNT(bad); ++n) {
        memcpy(other, &bad[n], sizeof bad[n]);
        assert_int_equal(fill(other), STROBE_INVALID_ARGUMENT);
        snprintf(sentence, sizeof sentence, "info.struct_size is %zu; sizeof the structure, %zu, is accepted", bad[n],
                 bytes);
        assert_string_equal(strobe_last_error(), sentence);
    }
}

static void test_filled(void **state) {
    (void)state;
    check_filled(fill_kernel, sizeof(strobe_kernel_info));
    check_filled(fill_device, sizeof(strobe_device_info));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_version_has_this_size),
        cmocka_unit_test(test_sizes_that_cut_a_field),
        cmocka_unit_test(test_newer),
        cmocka_unit_test(test_older),
        cmocka_unit_test(test_older_features),
        cmocka_unit_test(test_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
