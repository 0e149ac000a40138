/* SPDX-License-Identifier: BSD-3-Clause
 *
 * K and V in pages, on every kernel of the CPU that takes them in fp32: as where the same keys lie one after the other, for
 * pages of any size, both layouts of pages, lengths in use, and pages that are none; and nothing is read of what belongs to
 * no key, which holds NaN. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "strobe/strobe.h"
#include "test.h"

enum {
    BATCH = 3,
    HEADS = 2,
    GROUP = 2,
    DIM = 20,
    LONGEST = 150,
    SLOTS = 4096,
    STEP = 13
}; /* STEP: a prime, from page to page */

static float q[BATCH * LONGEST * HEADS * GROUP * DIM], k[BATCH * LONGEST * HEADS * DIM], v[BATCH * LONGEST * HEADS * DIM];
static float k_pages[SLOTS * HEADS * DIM], v_pages[SLOTS * HEADS * DIM];
static float out[2][BATCH * LONGEST * HEADS * GROUP * DIM], lse[2][BATCH * LONGEST * HEADS * GROUP];
static uint8_t mask[BATCH * LONGEST];
static int32_t table[BATCH * (LONGEST + 2)], used[BATCH] = {LONGEST, 1, 97};
static uint32_t state = 1;

static uint32_t draw(void) { return state = state * 1664525u + 1013904223u, state >> 8; }
static float number(void) { return (float)draw() / (float)(1 << 23) - 1; }

static void fill(float *x, size_t count) {
    for (size_t n = 0; n < count; ++n) x[n] = number();
}

/* Pages of this size with k and v in them, and a mask that hides the keys of those that are none. */
static void make_pages(strobe_paged *p, strobe_attention *a, int64_t size, bool heads_outside, bool missing) {
    const int64_t each = (LONGEST + size - 1) / size, count = BATCH * each + 1;
    const int64_t slot = heads_outside ? DIM : HEADS * DIM, head = heads_outside ? size * DIM : DIM;
    memset(k_pages, 0xff, sizeof k_pages), memset(v_pages, 0xff, sizeof v_pages);
    *p = (strobe_paged){.struct_size = sizeof *p, .page_table = table, .table_stride = each + 2, .page_size = size};
    p->pages = count;
    assert_true(count * size <= SLOTS && count % STEP != 0);
    for (int64_t b = 0; b < BATCH; ++b)
        for (int64_t n = 0; n < each; ++n) {
            const int64_t page = (b * each + n) * STEP % count;
            table[b * p->table_stride + n] = (int32_t)page;
            for (int64_t j = n * size; j < (n + 1) * size && j < used[b]; ++j)
                for (int64_t h = 0; h < HEADS; ++h) {
                    const int64_t to = page * size * HEADS * DIM + j % size * slot + h * head;
                    memcpy(k_pages + to, k + ((b * LONGEST + j) * HEADS + h) * DIM, DIM * sizeof *k);
                    memcpy(v_pages + to, v + ((b * LONGEST + j) * HEADS + h) * DIM, DIM * sizeof *v);
                }
            const bool gone = missing && (b + n) % 3 == 1;
            if (gone) table[b * p->table_stride + n] = n % 2 ? -1 - (int32_t)n : (int32_t)count + (int32_t)n;
            for (int64_t j = n * size; j < (n + 1) * size && j < LONGEST; ++j) mask[b * LONGEST + j] = !gone;
        }
    a->paged = p;
    a->k = (strobe_tensor){.data = k_pages, .stride = {size * HEADS * DIM, slot, head}};
    a->v = (strobe_tensor){.data = v_pages, .stride = {size * HEADS * DIM, slot, head}};
}

static void check_kernel(const char *kernel, int64_t rows, int64_t size, bool heads_outside, bool missing, bool causal) {
    strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_varlen varlen = {.struct_size = sizeof varlen, .used_k = used};
    strobe_bool_mask hides = {.struct_size = sizeof hides, .data = mask, .stride = {LONGEST, 0, 0}};
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = rows, .seq_k = LONGEST};
    strobe_paged paged;
    a.heads_q = HEADS * GROUP, a.heads_kv = HEADS, a.dim = DIM, a.tuning = &tuning, a.varlen = &varlen;
    a.mask = causal ? STROBE_MASK_CAUSAL_BOTTOM_RIGHT : STROBE_MASK_NONE;
    a.q.data = q, a.k.data = k, a.v.data = v;
    strobe_attention pages = a;
    make_pages(&paged, &pages, size, heads_outside, missing);
    memset(out, 0x7f, sizeof out), memset(lse, 0x7f, sizeof lse);
    pages.out.data = out[0], pages.lse.data = lse[0], a.out.data = out[1], a.lse.data = lse[1];
    tuning.kernel = missing ? "reference_forward" : kernel; /* not all that take pages take masks */
    if (missing) a.bool_mask = &hides;
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_OK);
    tuning.kernel = kernel;
    assert_int_equal(strobe_forward(&pages, NULL, 0, NULL), STROBE_OK);
    const int64_t count = BATCH * rows * HEADS * GROUP;
    for (int64_t n = 0; n < count * DIM; ++n)
        if (!(fabsf(out[0][n] - out[1][n]) <= 2e-6f))
            fail_msg("%s, pages of %d: out[%d] is %g, not %g", kernel, (int)size, (int)n, (double)out[0][n],
                     (double)out[1][n]);
    for (int64_t n = 0; n < count; ++n)
        if (!(lse[0][n] == lse[1][n] || fabsf(lse[0][n] - lse[1][n]) <= 4e-6f))
            fail_msg("%s, pages of %d: lse[%d] is %g, not %g", kernel, (int)size, (int)n, (double)lse[0][n],
                     (double)lse[1][n]);
}

/* Whether q, k and v may be fp32, as here; kernels of other dtypes are for `strobe check`. */
static bool takes_fp32(const strobe_kernel_info *info) {
    const int fp32 = 1 << STROBE_FP32, same = 1;
    return info->dtypes[0] & fp32 && info->dtypes[1] & (fp32 | same);
}

static void test_pages(void **unused) {
    (void)unused;
    static const int64_t sizes[] = {1, 3, 16, 65, 400};
    fill(q, sizeof q / sizeof *q), fill(k, sizeof k / sizeof *k), fill(v, sizeof v / sizeof *v);
    strobe_kernel_info info = {.struct_size = sizeof info};
    int kernels = 0;
    for (int32_t i = 0; strobe_kernel_at(i, &info) == STROBE_OK; ++i) {
        int bit = 0;
        while (strcmp(strobe_feature_name(bit), "paged k and v")) ++bit;
        if (info.device != STROBE_CPU || info.unavailable || !takes_fp32(&info) || !(info.features >> bit & 1)) continue;
        ++kernels;
        const bool decodes = strstr(info.name, "decode");
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; ++n)
            for (int flags = 0; flags < 8; ++flags)
                for (int64_t rows = 1; rows <= (decodes ? 3 : 81); rows += decodes ? 2 : 80)
                    check_kernel(info.name, rows, sizes[n], flags & 1, flags & 2, flags & 4);
    }
    assert_true(kernels >= 3); /* the baseline's two and the reference */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
