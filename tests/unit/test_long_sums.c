/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_long_sums.c: the sums over very many keys keep their digits. All keys are one key and all of V is one row, so out is
 * that row; a kernel that adds key after key to a sum that has grown loses a rounding of the whole sum each time. */
#include <math.h>

#include <strobe/strobe.h>

#include "test.h"

enum { KEYS = 16384, ROWS = 60, DIM = 8 };

/* The largest error of out, relative; negative where the kernel does not take the call. */
static double error_of(const char *kernel, int64_t rows) {
    float q[ROWS * DIM], k[DIM], v[DIM], out[ROWS * DIM];
    for (int n = 0; n < ROWS * DIM; ++n) q[n] = (float)(n % 13 - 6) / 8;
    for (int x = 0; x < DIM; ++x) k[x] = (float)(x - 3) / 4, v[x] = 1 + (float)x / 10;
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_attention a = {.struct_size = sizeof a};
    a.batch = 1, a.seq_q = rows, a.seq_k = KEYS, a.heads_q = 1, a.dim = DIM;
    a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out, a.tuning = &tuning;
    a.k.stride[0] = a.v.stride[0] = DIM; /* no key is apart from another */
    const strobe_status status = strobe_forward(&a, NULL, 0, NULL);
    if (status == STROBE_UNSUPPORTED) return -1;
    if (status) fail_msg("%s: %s", kernel, strobe_last_error());
    double most = 0;
    for (int64_t n = 0; n < rows * DIM; ++n) most = fmax(most, fabs((double)out[n] / (double)v[n % DIM] - 1));
    return most;
}

static void test_equal_keys(void **state) {
    (void)state;
    int taken = 0;
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t n = 0; strobe_kernel_at(n, &info) == STROBE_OK; ++n) {
        if (info.device != STROBE_CPU || info.operation != STROBE_FORWARD || info.unavailable || info.chosen_by_name)
            continue;
        const int64_t rows[] = {ROWS, 4};
        for (size_t i = 0; i < COUNT(rows); ++i) {
            const double error = error_of(info.name, rows[i]);
            if (error > 5e-5) fail_msg("%s, %d rows: out has an error of %.2g", info.name, (int)rows[i], error);
            taken += error >= 0;
        }
    }
    assert_true(taken >= 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
