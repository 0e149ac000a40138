/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score.h: a function of a score after it has been parsed: a graph of nodes, each an operation on nodes before it, with
 * common subexpressions shared. Derivatives are nodes of the same graph (derive.c). Programs (program.c) say in which order
 * a kernel evaluates the nodes that it needs, and where their values lie.
 *
 *     text --parse.c--> nodes --derive.c--> slope and adjoints --program.c--> programs
 *     a call's scalars and arrays --bind.c--> struct score_call, after which evaluate.c or a kernel may run
 *
 * Every value is an integer of 32 bits or a float. Comparisons give 0 or 1. */
#ifndef STROBE_CORE_SCORE_H
#define STROBE_CORE_SCORE_H

#include <stdbool.h>
#include <stdint.h>

#include "math/score_operations.h"
#include "strobe/strobe_score.h"

enum {
    SCORE_MOST_TEXT = 4096,
    SCORE_MOST_DEPTH = 64,
    SCORE_MOST_NODES = 512,
    SCORE_MOST_SCALARS = 32,
    SCORE_MOST_ARRAYS = 16,
    SCORE_MOST_LOADS = 48,
    SCORE_MOST_RANK = 4,
    SCORE_MOST_NAME = 31,
};

/* Of what a value depends: nothing but the call and the sequence, the row, the key, or both. */
enum score_class { OF_CALL = 0, OF_ROW = 1, OF_KEY = 2, OF_PAIR = 3 };

/* I_AND and I_OR take 0 or 1; F_CHAIN(x, y) is x y, and 0 where x is 0; the operand of LOAD is an offset in elements. */
struct score_node {
    uint8_t operation;
    bool is_integer;
    uint8_t varies; /* an enum score_class */
    bool affine;    /* a sum of multiples of positions and sizes: what the call checks */
    uint16_t operand[3];
    uint8_t number, axis; /* of the scalar; of the array, and its axis (STRIDE, LAST) */
    double value;         /* of a constant */
};

/* An element of an array that an expression reads. */
struct score_load {
    uint16_t node, index[SCORE_MOST_RANK]; /* index: after clamping, where that is done */
    uint16_t column;                       /* in the text; from 1 on */
    uint8_t array;
    bool in_visible;
};

struct score_name {
    char text[SCORE_MOST_NAME + 1];
};

/* The steps of an evaluation: nodes in the order of their numbers, those of each class apart. Values of a call, a row and a
 * key have a place of their own in the graph (strobe_score.place); those of a pair share registers. */
struct score_program {
    uint16_t count[4];
    uint16_t step[SCORE_MOST_NODES]; /* of all classes, one class behind the other */
    uint16_t register_of[SCORE_MOST_NODES];
    uint16_t registers;
    uint16_t wide[SCORE_MOST_NODES]; /* values of keys that steps of pairs read, or roots */
    uint16_t wide_count;
};

struct strobe_score {
    uint64_t serial; /* no other function of this process has had it */
    uint16_t node_count, load_count;
    uint8_t scalar_count, array_count;
    bool has_score, has_visible;
    uint16_t score, visible, slope;     /* roots; slope: d score / d score */
    uint16_t adjoint[SCORE_MOST_LOADS]; /* d score / d element; NO_NODE where it is none */
    struct score_node node[SCORE_MOST_NODES];
    struct score_load load[SCORE_MOST_LOADS];
    struct score_name scalar_name[SCORE_MOST_SCALARS], array_name[SCORE_MOST_ARRAYS];
    double scalar_value[SCORE_MOST_SCALARS];
    bool scalar_is_integer[SCORE_MOST_SCALARS];
    uint8_t array_rank[SCORE_MOST_ARRAYS], array_dtype[SCORE_MOST_ARRAYS];
    bool array_has_gradient[SCORE_MOST_ARRAYS];

    struct score_program of_score, of_visible, of_slope, of_gradients; /* of_gradients: slope and adjoints */
    uint16_t place[SCORE_MOST_NODES];
    uint16_t slots[3]; /* of calls, rows, keys */
};

#define NO_NODE UINT16_MAX

/* A function with the scalars and arrays of one call. */
struct score_call {
    const struct strobe_score *function;
    double scalar[SCORE_MOST_SCALARS];
    strobe_score_elements array[SCORE_MOST_ARRAYS]; /* dtypes and strides filled in */
    strobe_score_elements gradient[SCORE_MOST_ARRAYS];
    bool wants_gradient[SCORE_MOST_ARRAYS], wants_gradients; /* and of any */
};

/* Where a score stands. i and j are positions. */
struct score_place {
    int64_t b, h, hkv, i, j, seq_q, seq_k;
};

/* ------------------------------------------------------------------------------------------ building: graph.c, parse.c --
 */

/* What is wrong, as a sentence. */
struct score_error {
    char sentence[400];
};

bool strobe__score_fail(struct score_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A node, an earlier one of the same meaning where there is one; NO_NODE when there is no room. */
uint16_t strobe__score_node(struct strobe_score *f, enum score_operation operation, uint16_t a, uint16_t b, uint16_t c);
uint16_t strobe__score_constant(struct strobe_score *f, bool is_integer, double value);
uint16_t strobe__score_named(struct strobe_score *f, enum score_operation operation, uint8_t number, uint8_t axis);
uint16_t strobe__score_load(struct strobe_score *f, uint8_t array, uint16_t offset);
int strobe__score_operands(enum score_operation operation);

/* Parses one text into the graph; NO_NODE when it is refused. */
uint16_t strobe__score_parse(struct strobe_score *f, const char *text, bool visible, struct score_error *error);

/* Adds slope and adjoints. False: no room. */
bool strobe__score_derive(struct strobe_score *f);

/* Works out the programs. */
void strobe__score_programs(struct strobe_score *f);

/* -------------------------------------------------------------------------------------------- evaluating: evaluate.c -- */

/* One operation in float64; integers wrap at 32 bits. */
double strobe__score_apply(enum score_operation operation, double a, double b, double c);

/* An element of an array at an offset. */
double strobe__score_element(const strobe_score_elements *array, int64_t offset);
size_t strobe__score_dtype_bytes(int32_t dtype);

/* Evaluates the steps of a program into value[node], for one score; in_fp32: every float is rounded to fp32. */
void strobe__score_evaluate(const struct score_call *call, const struct score_program *program,
                            const struct score_place *place, double score, bool in_fp32, double value[SCORE_MOST_NODES]);

#endif
