/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.h: the machine that the papers reason about: a slow memory without limit (HBM, DRAM), a fast memory of S scalars
 * (shared memory, cache), and arithmetic on the fast memory alone. Everything that is moved between the two is counted, and
 * a tile that does not fit is refused.
 *
 * A lab_matrix is in slow memory and opaque: an algorithm can read a number of it by lab_load only. A lab_tile is in fast
 * memory. S is a number of scalars of any format, as in the papers.
 *
 *     lab_memory memory;
 *     lab_memory_open(&memory, 25600, LAB_FP32, LAB_COMPUTE);
 *     lab_matrix *x = lab_matrix_create(&memory, "X", 1024, 64, LAB_FP32, LAB_OPERAND);
 *     lab_tile X_i = lab_tile_create(&memory, "X_i", 128, 64);
 *     if (lab_fits(&memory)) lab_load(&memory, &X_i, x, 0);              // 8,192 reads
 *     else puts(memory.refusal);
 *     lab_release(&memory);                                              // fast memory is empty again */
#ifndef STROBE_LAB_MEMORY_H
#define STROBE_LAB_MEMORY_H

#include "precision.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an algorithm did. A multiply-add counts one here and two FLOP. "Others" are single additions, multiplications and
 * comparisons. The softmax scale is part of the product Q K^T, as in a BLAS call, and not counted. */
typedef struct lab_counts {
    int64_t reads, writes;           /* scalars, slow -> fast and fast -> slow */
    int64_t read_bytes, write_bytes; /* the same in bytes of the matrix's format */
    int64_t multiply_adds, exponentials, divisions, logarithms, others;
    int64_t exchanged;   /* scalars that workers of one block write for, and read from, one another */
    int64_t fast_peak;   /* scalars of fast memory in use at the same time, at most */
    int64_t extra_bytes; /* slow memory beyond Q, K, V, O and their gradients, at most */
} lab_counts;

int64_t lab_flop(const lab_counts *counts);
int64_t lab_accesses(const lab_counts *counts); /* reads + writes */
int64_t lab_traffic_bytes(const lab_counts *counts);

/* COMPUTE moves data and calculates. COUNT does neither and counts the same, so that a length of 100k costs milliseconds.
 * PROBE stops every algorithm once it has its tiles, to find how much fast memory it needs. */
typedef enum lab_mode { LAB_COMPUTE, LAB_COUNT, LAB_PROBE } lab_mode;

enum { LAB_MOST_TILES = 64, LAB_REFUSAL = 384 };

typedef struct lab_memory {
    int64_t capacity;  /* S */
    lab_type elements; /* the format of Q, K, V, S, P, O; products round their left operand to it */
    lab_type working;  /* the format of arithmetic and of everything in fast memory */
    lab_mode mode;
    lab_counts counts;
    char refusal[LAB_REFUSAL]; /* the first thing that did not fit, as a sentence; "" while all is well */

    int64_t fast_used, extra_now; /* the rest is memory.c's own */
    double *tiles[LAB_MOST_TILES];
    int tile_count;
} lab_memory;

void lab_memory_open(lab_memory *memory, int64_t capacity, lab_type elements, lab_mode mode);

/* Writes the refusal, unless there is one already. */
void lab_refuse(lab_memory *memory, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ------------------------------------------------------------------------------------------------------ slow memory -- */

typedef struct lab_matrix lab_matrix;

typedef enum lab_role {
    LAB_OPERAND, /* Q, K, V, O and their gradients: there whatever the algorithm */
    LAB_EXTRA    /* what the algorithm needs on top: scores, statistics, partial results */
} lab_role;

/* A matrix of zeros. NULL, with a refusal, when there is no memory for it. */
lab_matrix *lab_matrix_create(lab_memory *memory, const char *name, int64_t rows, int64_t cols, lab_type type,
                              lab_role role);
void lab_matrix_destroy(lab_memory *memory, lab_matrix *matrix); /* NULL is allowed */

/* From and to the world outside the machine: rounded to the matrix's format, not counted. values: [rows][cols]. */
void lab_matrix_put(lab_matrix *matrix, const double *values);
void lab_matrix_get(const lab_matrix *matrix, double *values);

/* Sets every scalar of the matrix, as "initialise O = 0 in HBM": rows x cols writes. */
void lab_matrix_fill(lab_memory *memory, lab_matrix *matrix, double value);

/* ------------------------------------------------------------------------------------------------------ fast memory -- */

/* at: [rows][cols], packed. The shape may be smaller than what was reserved: the last block of a matrix often is. */
typedef struct lab_tile {
    double *at;
    int64_t rows, cols;
    int64_t reserved; /* scalars */
    const char *name;
} lab_tile;

/* Reserves rows x cols scalars of fast memory, or refuses. */
lab_tile lab_tile_create(lab_memory *memory, const char *name, int64_t rows, int64_t cols);

/* The longest piece of a row of n scalars that fits beside `others` more scalars; 1 at least, and in a probe. */
int64_t lab_piece(const lab_memory *memory, int64_t n, int64_t others);

/* Whether all tiles so far were granted and the algorithm may go on. If not, what was granted is released. */
bool lab_fits(lab_memory *memory);

/* Empties fast memory: the end of a kernel. All tiles are gone. */
void lab_release(lab_memory *memory);

/* The tile takes the shape; its content is unknown. Refuses a shape above what was reserved. */
bool lab_shape(lab_memory *memory, lab_tile *tile, int64_t rows, int64_t cols);

/* Rows [first, first + rows that were reserved) of the matrix, as far as it goes, and all of its columns. */
void lab_load(lab_memory *memory, lab_tile *tile, const lab_matrix *matrix, int64_t first);

/* A rectangle of the matrix from (row, col), exactly rows x cols. */
void lab_load_part(lab_memory *memory, lab_tile *tile, const lab_matrix *matrix, int64_t row, int64_t col, int64_t rows,
                   int64_t cols);

/* The tile's present shape back to (row, 0) or (row, col). */
void lab_store(lab_memory *memory, const lab_tile *tile, lab_matrix *matrix, int64_t row);
void lab_store_part(lab_memory *memory, const lab_tile *tile, lab_matrix *matrix, int64_t row, int64_t col);

#endif
