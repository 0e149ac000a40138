/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test.h: cmocka with the headers that it wants before it, and what every unit test needs. */
#ifndef STROBE_TESTS_UNIT_TEST_H
#define STROBE_TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* A test of one row of a table. */
static inline struct CMUnitTest test_of_row(const char *name, CMUnitTestFunction function, const void *row) {
    return (struct CMUnitTest){.name = name, .test_func = function, .initial_state = (void *)(uintptr_t)row};
}

/* Numbers that are the same on every machine (splitmix64, Steele, Lea, Flood 2014). */
struct random {
    uint64_t state;
};

static inline uint64_t random_bits(struct random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In [0, count). */
static inline int64_t random_below(struct random *r, int64_t count) { return (int64_t)(random_bits(r) % (uint64_t)count); }

/* Uniform, mean 0, variance 1. */
static inline double random_value(struct random *r) {
    return ((double)(random_bits(r) >> 11) * 0x1p-53 * 2 - 1) * 1.7320508075688772;
}

#endif
