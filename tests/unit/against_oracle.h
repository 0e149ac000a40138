/* SPDX-License-Identifier: BSD-3-Clause
 *
 * against_oracle.h: one problem, every kernel of the table that takes it, against the float64 oracle. The allowance is that
 * of the flash-attn tests: twice the error that standard attention makes in the same dtype (three times with softcap), and
 * twice the rounding of the output's dtype at the largest value, or near 0.3 if that is smaller. Outputs are poisoned
 * before, guard bands are looked at after, and what the oracle leaves alone has to be left alone. Tensors and a workspace of
 * exactly the bytes that were asked for end where nobody may read on; the workspace holds NaN; with three workers, of which
 * the last does everything, the bits are the same. */
#ifndef STROBE_TESTS_UNIT_AGAINST_ORACLE_H
#define STROBE_TESTS_UNIT_AGAINST_ORACLE_H

#include "problem_fixture.h"
#include "test.h"

enum operations { FORWARD_ALONE, BOTH_OPERATIONS };

/* Fails the test at hand where a kernel is wrong, or where none takes the problem. */
void check_against_oracle(const struct shape *shape, enum operations operations);

/* check_against_oracle of a problem in one of three dtypes, as a test of its own: what it needs is kept in *test. */
enum { ORACLE_DTYPES = 3 };
extern const int32_t oracle_dtypes[ORACLE_DTYPES];
struct oracle_test {
    struct shape shape;
    enum operations operations;
    char name[80];
};
struct CMUnitTest oracle_test(struct oracle_test *test, const struct shape *shape, enum operations operations, size_t dtype);

/* The same, forward and backward, for other ways to compute the outputs of a fixture than its kernels, numbered from 0 on.
 * run writes them, and its name for the way; false: the way does not take the problem. A backward's out and lse are there. A
 * way may merge parts: what their weights, exp(lse), may be off by is allowed for. */
typedef bool run_way(struct fixture *f, strobe_operation operation, int way, char *name, size_t capacity);
void check_ways_against_oracle(const struct shape *shape, int ways, run_way *run);

#endif
