/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_long_sums.c: the sums over very many keys, and in the backward rows, keep their digits. All keys are one key and all
 * of V is one row, so out is that row; with one key and all of dO one row dV is so many times that row. A kernel that adds
 * key after key to a sum that has grown loses a rounding of the whole sum each time. */
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

/* The largest error of dV, relative; negative where the kernel does not take the call. */
static double error_of_dv(const char *kernel) {
    static float q[KEYS * DIM], dout[KEYS * DIM], out[KEYS * DIM], dq[KEYS * DIM], lse[KEYS];
    float k[DIM], dk[DIM], dv[DIM];
    for (int n = 0; n < KEYS * DIM; ++n) q[n] = 0, dout[n] = 1 + (float)(n % DIM) / 10, out[n] = 1;
    for (int x = 0; x < DIM; ++x) k[x] = 1;
    for (int i = 0; i < KEYS; ++i) lse[i] = 0;
    const strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = kernel};
    strobe_attention a = {.struct_size = sizeof a};
    a.batch = 1, a.seq_q = KEYS, a.seq_k = 1, a.heads_q = 1, a.dim = DIM;
    a.q.data = q, a.k.data = a.v.data = k, a.out.data = out, a.lse.data = lse, a.tuning = &tuning;
    strobe_gradients g = {.struct_size = sizeof g};
    g.dout.data = dout, g.dq.data = dq, g.dk.data = dk, g.dv.data = dv;
    const strobe_status status = strobe_backward(&a, &g, NULL, 0, NULL);
    if (status == STROBE_UNSUPPORTED) return -1;
    if (status) fail_msg("%s: %s", kernel, strobe_last_error());
    double most = 0;
    for (int x = 0; x < DIM; ++x) most = fmax(most, fabs((double)dv[x] / (KEYS * (double)dout[x]) - 1));
    return most;
}

static void test_equal_rows(void **state) {
    (void)state;
    int taken = 0;
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t n = 0; strobe_kernel_at(n, &info) == STROBE_OK; ++n) {
        if (info.device != STROBE_CPU || info.operation != STROBE_BACKWARD || info.unavailable || info.chosen_by_name)
            continue;
        const double error = error_of_dv(info.name);
        if (error > 5e-5) fail_msg("%s: dv has an error of %.2g", info.name, error);
        taken += error >= 0;
    }
    assert_true(taken >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_keys), cmocka_unit_test(test_equal_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
