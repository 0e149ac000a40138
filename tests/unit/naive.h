/* SPDX-License-Identifier: BSD-3-Clause
 *
 * naive.h: attention once more, written from the words of the public header alone and without a line of the library: what
 * the oracle itself is compared with. */
#ifndef STROBE_TESTS_UNIT_NAIVE_H
#define STROBE_TESTS_UNIT_NAIVE_H

#include "problem_fixture.h"

/* A sequence of a fixture: its lengths, and where its rows lie in slots of queries and of keys. */
struct piece {
    int64_t b, rows, keys;
    int64_t entry_q, entry_k; /* the slots' first index: 0 when packed */
    int64_t first_q, first_k; /* added to their second */
};

struct piece piece_of(const struct fixture *f, int64_t b);

/* The pair (i, j) of head h is visible. */
bool naive_sees(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, int64_t j);

/* The score of a visible pair, scale, softcap, bias and ALiBi included. */
double naive_score(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, int64_t j);

/* What dropout makes of a weight: 0, or 1 / (1 - p); 1 without dropout. */
double naive_dropout(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, int64_t j);

/* One row: out [dim_v] and lse; scores [seq_k] is scratch. Returns the largest magnitude of a score. */
double naive_row(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, double *out, double *lse,
                 double *scores);

#endif
