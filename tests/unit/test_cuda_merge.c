/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cuda_merge.c: on a GPU, few and many partial results merge to what they merge to on the CPU, and more than a launch
 * has places for are refused. Skipped without a GPU. */
#include <math.h>
#include <string.h>

#include "with_gpu.h"

enum { BATCH = 2, ROWS = 5, HEADS = 3, DIM = 70, ALL_ROWS = BATCH * ROWS * HEADS, MOST = 256 };

static float part_out[MOST][ALL_ROWS * DIM], part_lse[MOST][ALL_ROWS];

/* Part n saw nothing of every seventh row, and says so with lse = -inf and a NaN. out lies by rows, lse by heads. */
static void fill_parts(void) {
    uint32_t state = 1;
    for (int n = 0; n < MOST; ++n)
        for (int row = 0; row < ALL_ROWS; ++row) {
            const int b = row / (ROWS * HEADS), i = row / HEADS % ROWS, h = row % HEADS;
            const int empty = (row + n) % 7 == 0;
            part_lse[n][(b * HEADS + h) * ROWS + i] = empty ? -INFINITY : (float)(row % 5) - (float)(n % 11);
            for (int x = 0; x < DIM; ++x) {
                state = state * 1664525u + 1013904223u;
                part_out[n][row * DIM + x] = empty ? NAN : (float)(state >> 8) * 0x1p-24f - 0.5f;
            }
        }
}

static strobe_partials partials(strobe_partial *parts, int count, int32_t device) {
    return (strobe_partials){.struct_size = sizeof(strobe_partials),
                             .batch = BATCH,
                             .seq_q = ROWS,
                             .heads_q = HEADS,
                             .dim_v = DIM,
                             .count = count,
                             .parts = parts,
                             .device = device};
}

static void merge_on_both(int count) {
    static float out[ALL_ROWS * DIM], lse[ALL_ROWS], right[ALL_ROWS * DIM], right_lse[ALL_ROWS];
    strobe_partial here[MOST] = {0}, there[MOST] = {0};
    char message[256];
    for (int n = 0; n < count; ++n) {
        here[n].out.data = part_out[n], here[n].lse.data = part_lse[n];
        there[n].out.data = cuda_memory_copied(part_out[n], sizeof part_out[n]);
        there[n].lse.data = cuda_memory_copied(part_lse[n], sizeof part_lse[n]);
        assert_non_null(there[n].out.data);
        assert_non_null(there[n].lse.data);
    }
    strobe_partials on_cpu = partials(here, count, STROBE_CPU), on_gpu = partials(there, count, STROBE_CUDA);
    on_cpu.out.data = right, on_cpu.lse.data = right_lse;
    on_gpu.out.data = cuda_memory_copied(NULL, sizeof out), on_gpu.lse.data = cuda_memory_copied(NULL, sizeof lse);
    assert_int_equal(strobe_merge(&on_cpu, NULL), STROBE_OK);
    assert_int_equal(strobe_merge(&on_gpu, NULL), STROBE_OK);
    assert_true(cuda_memory_wait(message, sizeof message));
    assert_true(cuda_memory_copy_back(out, on_gpu.out.data, sizeof out));
    assert_true(cuda_memory_copy_back(lse, on_gpu.lse.data, sizeof lse));
    /* Sums of `count` terms below 1, and weights by exponentials of 2^-22. */
    const float allowed = (float)(count + 8) * 0x1p-22f;
    for (int i = 0; i < ALL_ROWS * DIM; ++i) assert_true(fabsf(out[i] - right[i]) <= allowed);
    for (int i = 0; i < ALL_ROWS; ++i)
        assert_true(lse[i] == right_lse[i] || fabsf(lse[i] - right_lse[i]) <= allowed * (1 + fabsf(right_lse[i])));
    for (int n = 0; n < count; ++n) cuda_memory_free(there[n].out.data), cuda_memory_free(there[n].lse.data);
    cuda_memory_free(on_gpu.out.data), cuda_memory_free(on_gpu.lse.data);
}

static void parts_merge_as_on_the_cpu(void **state) {
    (void)state;
    fill_parts();
    static const int counts[] = {1, 2, 32, 33, 100, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i) merge_on_both(counts[i]);
}

static void more_parts_than_places_are_refused(void **state) {
    (void)state;
    static strobe_partial parts[MOST + 1];
    for (int n = 0; n <= MOST; ++n) parts[n].out.data = part_out[0], parts[n].lse.data = part_lse[0];
    strobe_partials p = partials(parts, MOST + 1, STROBE_CUDA);
    p.out.data = part_out[0], p.lse.data = part_lse[0];
    assert_int_equal(strobe_merge(&p, NULL), STROBE_UNSUPPORTED);
    assert_non_null(strstr(strobe_last_error(), "count is 257; 1 to 256"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_merge_as_on_the_cpu),
        cmocka_unit_test(more_parts_than_places_are_refused),
    };
    return RUN_WITH_GPU(tests);
}
