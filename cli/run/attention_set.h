/* SPDX-License-Identifier: BSD-3-Clause
 *
 * attention_set.h: q, k and v from files, for `strobe run`: found by name, checked to belong together, turned into the
 * problem's inputs. */
#ifndef STROBE_CLI_ATTENTION_SET_H
#define STROBE_CLI_ATTENTION_SET_H

#include "io/array.h"
#include "io/safetensors.h"
#include "problem/inputs.h"

/* Arrays are [batch, seq, heads, dim], or [seq, heads, dim] for a batch of one. */
typedef struct attention_set {
    char prefix[ARRAY_NAME]; /* of the names: "layer0." */
    const array *q, *k, *v;
    const array *expected; /* prefix + "out", an answer to compare with; NULL if the file has none */
} attention_set;

/* The next set in a file from array *at on, whose prefix is the wanted one if that is not NULL. False at the end. */
bool attention_set_next(const safetensors *file, const char *wanted, size_t *at, attention_set *set);

/* Puts the arrays' sizes into p, and their dtype unless keep_dtype. False with a sentence if they do not fit together. */
bool attention_set_problem(const attention_set *set, problem *p, bool keep_dtype, char *message, size_t capacity);

/* Inputs with the set's q, k and v, rounded to the problem's dtype. */
bool attention_set_inputs(const attention_set *set, const problem *p, inputs *in, char *message, size_t capacity);

/* The file's own answer, if it has one of the right shape. */
const array *attention_set_expected(const attention_set *set, const problem *p);

/* An array as a buffer of the problem's kind, for comparisons; its elements are not aligned. */
buffer attention_set_view(const array *a);

#endif
