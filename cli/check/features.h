/* SPDX-License-Identifier: BSD-3-Clause
 *
 * features.h: what a problem has, as a set: for counting what random checks have covered. The names are this command's, read
 * from a problem's words; what kernels declare is the library's. */
#ifndef STROBE_CLI_FEATURES_H
#define STROBE_CLI_FEATURES_H

#include "problem/problem_text.h"

enum { MOST_FEATURES = 128 };

typedef struct feature_set {
    uint64_t bits[MOST_FEATURES / 64];
} feature_set;

int features_count(void);
const char *feature_name(int feature);

/* The operation that alone can have the feature; -1: either. */
int feature_operation(int feature);

/* Whether two features say different things of one field, so that no problem has both. */
bool features_exclude(int one, int other);

feature_set features_of(const problem *p);

static inline bool features_has(const feature_set *s, int feature) { return s->bits[feature / 64] >> feature % 64 & 1; }

#endif
