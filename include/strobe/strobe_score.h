/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_score.h: functions of a score, written by the user as text, the same on every device, and their manual.
 *
 *     score = f(score, b, h, i, j, ...)     changes a score, after scale, softcap, bias and ALiBi, and before the mask
 *     visible = m(b, h, i, j, ...)          nonzero: row i sees key j; combined with the other masks by "and"
 *
 * Both are expressions of C, checked by the library's own parser and differentiated by it:
 *
 *     strobe_score_array table = {.name = "table", .rank = 2, .dtype = STROBE_FP32};       // [heads][1023]
 *     strobe_score_source source = {.struct_size = sizeof source};
 *     source.score = "score + table[h][i - j + 511]", source.visible = "j <= i";
 *     source.arrays = &table, source.array_count = 1;
 *     strobe_score *function;
 *     if (strobe_score_create(&source, &function) != STROBE_OK) fprintf(stderr, "%s\n", strobe_last_error());
 *     strobe_score_elements elements = {.data = data, .extent = {heads, 1023}};
 *     strobe_score_arguments score = {.struct_size = sizeof score, .function = function};
 *     score.arrays = &elements, score.array_count = 1;
 *     attention.score = &score;                                                            // and strobe_forward()
 *
 * Names         score; b, h, hkv: batch entry, query head, K/V head; i, j: positions of row and key, q_start and k_start
 *               included; seq_q, seq_k: the sequence's lengths; the declared scalars and arrays. `visible` has no score.
 * Operators     + - * / %, < <= > >= == !=, && || !, c ? x : y, with C's precedence. inf is infinity, 0.5f is 0.5.
 * Functions     min max abs (of integers or floats), exp exp2 log tanh sqrt floor pow, int(x) towards zero, float(x).
 * Integers      have 32 bits. Positions and what is made of them alone is checked not to leave them; beside elements of
 *               arrays, sums and products wrap. / and % round towards zero, as in C; by 0 they give 0. An operator with
 *               one float among its operands computes in fp32 (float64 in the reference). min(x, y) is x < y ? x : y.
 * Arrays        a[x][y]: as many indices as the rank, integers. An index that is a sum of multiples of b, h, hkv, i, j,
 *               seq_q, seq_k and constants is checked at the call, for all positions of the problem: it is refused when
 *               it may lie outside. Any other index is clamped to 0 and the extent less one.
 * Results       A score of -inf makes its key invisible. Both sides of c ? x : y and of && are computed.
 * Gradients     A derivative is that of the formula; of floor, int and comparisons it is 0, of abs at 0 it is 0, of min and
 *               max it goes to the operand that was taken. Where the factor before it is 0 a derivative is 0.
 * Blocks        Of `visible`, blocks that are hidden for certain are skipped, and those that are visible for certain are
 *               not asked pair by pair: the expression is evaluated on ranges of i and j first. A conjunction of bounds
 *               of j - i, as `j <= i && i - j < w`, also with seq_k - seq_q, is computed as the mask that it is.
 *
 * A text has up to 4096 characters, with up to 64 parentheses, brackets or operators inside each other. */
#ifndef STROBE_SCORE_H
#define STROBE_SCORE_H

#include "strobe/strobe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Dtypes of arrays beside fp32, fp16 and bf16. Their elements are integers. */
enum { STROBE_INT32 = 32, STROBE_UINT8 = 33 };

/* A named number. value: where a call gives none. integer: nonzero when the name is an integer in expressions, and its value
 * a whole number of 32 bits. Scalars are arguments: another value compiles nothing anew. */
typedef struct strobe_score_scalar {
    const char *name;
    double value;
    int32_t integer;
    int32_t reserved; /* zero */
} strobe_score_scalar;

/* A named array. rank: 1 to 4. dtype: fp32, fp16, bf16, STROBE_INT32 or STROBE_UINT8. */
typedef struct strobe_score_array {
    const char *name;
    int32_t rank;
    int32_t dtype;
} strobe_score_array;

/* What a function is made of. Names are letters, digits and _, up to 31, not those above, each once. */
typedef struct strobe_score_source {
    size_t struct_size;
    const char *score;   /* NULL: the score stays as it is */
    const char *visible; /* NULL: every key is visible. One of both is given */
    const strobe_score_scalar *scalars;
    const strobe_score_array *arrays;
    int32_t scalar_count, array_count; /* up to 32, up to 16 */
} strobe_score_source;

/* A function: it never changes, any number of threads may use it, and it keeps nothing of the source. */
typedef struct strobe_score strobe_score;

/* Makes a function of texts. INVALID_ARGUMENT with the text and the column of what is wrong, OUT_OF_MEMORY. */
STROBE_API strobe_status strobe_score_create(const strobe_score_source *source, strobe_score **function);

/* Compiles what a call with this descriptor would have to compile first: on a GPU a kernel for a function that changes
 * scores. Data may be NULL. A call compiles it, too, which takes seconds the first time; but not while its stream is being
 * captured. gradients: NULL for the forward. OK where there is nothing to compile. */
STROBE_API strobe_status strobe_prepare(const strobe_attention *attention, const strobe_gradients *gradients);

/* Frees it; NULL is nothing. No call that uses it may be running. */
STROBE_API void strobe_score_destroy(strobe_score *function);

/* The elements of an array: extents and strides, in elements, of as many axes as its rank, all strides zero: contiguous.
 * Within 2^31 elements of the first. dtype: the declared one, 0 for it; of a gradient fp32, fp16, bf16 or fp64. */
typedef struct strobe_score_elements {
    void *data;
    int64_t extent[4];
    int64_t stride[4];
    int32_t dtype;
    int32_t reserved; /* zero */
} strobe_score_elements;

/* A function in a call: strobe_attention.score. scalars: NULL, or one for each that was declared, in that order; arrays the
 * same. The counts are those of the declaration (scalar_count 0 with scalars NULL). */
struct strobe_score_arguments {
    size_t struct_size;
    const strobe_score *function;
    const double *scalars;
    const strobe_score_elements *arrays;
    int32_t scalar_count, array_count;
};

/* Gradients of arrays: strobe_gradients.dscore. arrays: one for each that was declared, data NULL where none is wanted, with
 * the array's extents. Written; each element the sum over all scores that read it, in float64 on the CPU. Only arrays of
 * floats that `score` reads have one. */
struct strobe_score_gradients {
    size_t struct_size;
    const strobe_score_elements *arrays;
    int32_t array_count;
    int32_t reserved; /* zero */
};

#ifdef __cplusplus
}
#endif

#endif
