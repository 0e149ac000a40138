/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fp8.h: FlashAttention-3 in FP8 (FA3, section 3.3). Q, K and V become e4m3 with one scale for the whole tensor, for a head
 * or for a block of rows. Incoherent processing multiplies Q and K by one random orthogonal matrix, random signs and then a
 * Hadamard matrix, which leaves Q K^T as it was and spreads outliers over all dimensions.
 *
 * Quantisation by blocks fits the tiling: a block is read, transformed, scaled and written once. The scale of a head or of a
 * tensor has to be known before the first number is written, so everything is read twice. */
#ifndef STROBE_LAB_FP8_H
#define STROBE_LAB_FP8_H

#include "problem.h"

typedef enum lab_scale_unit { LAB_PER_TENSOR, LAB_PER_HEAD, LAB_PER_BLOCK } lab_scale_unit;

/* The transforms of the rows of Q or K before they become FP8, in this order; V has none. */
typedef struct lab_transform {
    bool rotary;         /* rotary position embedding, row i at position i */
    const double *signs; /* [d], each 1 or -1: signs, then Hadamard; NULL: neither */
} lab_transform;

/* ------------------------------------------------------------------------------------------- rows in fast memory -- */

/* diag(signs) H / sqrt(d) applied to every row, by butterflies: d log2 d additions instead of d^2 multiply-adds. d must be a
 * power of two. */
void lab_hadamard_rows(lab_memory *memory, lab_tile *x, const double *signs);

/* Rotates the pairs (2i, 2i + 1) of a row at position p by the angle p / 10000^(2i / d). */
void lab_rotary_rows(lab_memory *memory, lab_tile *x, int64_t first_position);

/* d signs from a seed. */
void lab_signs(double *signs, int64_t d, uint64_t seed);

/* --------------------------------------------------------------------------------------------------- quantisation -- */

/* max |x| over all rows, after the transform, by one pass over slow memory, `block` rows at a time. */
double lab_largest(lab_memory *memory, const lab_matrix *x, int64_t rows, int64_t cols, int64_t block,
                   const lab_transform *transform);

/* x -> stored with x = scale * stored. largest > 0: one scale for all rows, from that largest |x|; 0: a scale for every
 * block. scales: [ceil(rows / block)][1]. One pass. */
void lab_quantise(lab_memory *memory, const lab_matrix *x, lab_matrix *stored, lab_matrix *scales, int64_t rows,
                  int64_t cols, int64_t block, const lab_transform *transform, double largest);

/* Q, K, V in FP8 with their scales; O in 16 bit. */
typedef struct lab_fp8_head {
    const lab_problem *problem; /* br and bc are the blocks of the scales too */
    lab_matrix *q, *k, *v, *q_scale, *k_scale, *v_scale, *o;
} lab_fp8_head;

/* FlashAttention with the products in FP8. P is stored times 2^8, which uses e4m3's range and costs nothing, as it is an
 * addition to the exponent. memory->elements is the format of P: e4m3, or fp16 for the baseline. */
void lab_flash3_fp8_forward(lab_memory *memory, const lab_fp8_head *head);

/* ---------------------------------------------------------------------------------------------------- the comparison -- */

typedef struct lab_fp8_variant {
    const char *name, *summary;
    bool fp8; /* else fp16: standard attention or FlashAttention-2 */
    bool standard;
    lab_scale_unit unit;
    bool hadamard;
    lab_type weights; /* the format of P */
    double published; /* RMSE in the paper, 0 where it has none */
} lab_fp8_variant;

const lab_fp8_variant *lab_fp8_variant_at(int index); /* NULL past the end */

/* heads of q [m][d], k [n][d], v [n][d], one after another. */
typedef struct lab_fp8_input {
    int64_t heads, m, n, d, block;
    const double *q, *k, *v;
    uint64_t seed; /* of the signs */
} lab_fp8_input;

typedef struct lab_fp8_result {
    double rmse, largest_error; /* against float64 on the inputs as given */
    double scale_q;             /* largest scale of Q: how coarse the grid is */
    lab_counts counts;          /* of quantisation and attention, all heads */
} lab_fp8_result;

/* oracle: [heads][m][d]. False with a sentence in message[LAB_REFUSAL]. */
bool lab_fp8_oracle(const lab_fp8_input *input, double *oracle, char *message);
bool lab_fp8_measure(const lab_fp8_variant *variant, const lab_fp8_input *input, const double *oracle,
                     lab_fp8_result *result, char *message);

#endif
