/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_divisor.c: quotients by a product are the quotients: around multiples of every small divisor and of large ones, up to
 * the greatest number that is taken. */
#include "math/divisor.h"
#include "test.h"

static void expect_quotients_around(int64_t n, int32_t by) {
    for (int64_t at = n - 1; at <= n + 1; ++at)
        if (at >= 0 && at <= INT32_MAX && quotient((int32_t)at, divisor_of(by)) != at / by)
            fail_msg("%lld / %d: %d", (long long)at, by, quotient((int32_t)at, divisor_of(by)));
}

static void expect_quotients_by(struct random *numbers, int32_t by) {
    expect_quotients_around(0, by);
    expect_quotients_around(INT32_MAX, by);
    expect_quotients_around((int64_t)INT32_MAX / by * by, by);
    for (int i = 0; i < 200; ++i) expect_quotients_around(random_below(numbers, (int64_t)INT32_MAX / by + 1) * by, by);
}

static void quotients_by_small_numbers(void **state) {
    struct random numbers = {1};
    (void)state;
    for (int32_t by = 1; by <= 5000; ++by) expect_quotients_by(&numbers, by);
}

static void quotients_by_large_numbers(void **state) {
    struct random numbers = {2};
    (void)state;
    for (int i = 0; i < 5000; ++i) expect_quotients_by(&numbers, 1 + (int32_t)random_below(&numbers, INT32_MAX));
    for (int bit = 0; bit < 31; ++bit) {
        expect_quotients_by(&numbers, (int32_t)1 << bit);
        expect_quotients_by(&numbers, (int32_t)(((int64_t)1 << bit) + (bit < 30)));
    }
    expect_quotients_by(&numbers, INT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotients_by_small_numbers),
        cmocka_unit_test(quotients_by_large_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
