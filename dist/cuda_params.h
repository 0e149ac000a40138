/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_params.h: what cuda_memory.c hands to the kernels of cuda_memory.cu, by value. Valid as C and as CUDA C. */
#ifndef STROBE_DIST_CUDA_PARAMS_H
#define STROBE_DIST_CUDA_PARAMS_H

#include <stdint.h>

/* Rows [entries][rows][heads][units] with strides in bytes; units lie side by side. */
struct move_params {
    unsigned char *to;
    const unsigned char *from;
    int64_t entries, rows, to_stride[3], from_stride[3]; /* from entry to entry, row to row, head to head */
    uint32_t units, inner;                               /* of a head; of all heads */
    int32_t unit_bytes;                                  /* 2, 4, 8 or 16 */
    int32_t adds;                                        /* units are of floats, and are added to what is there */
};

/* Several such copies, in chunks of MOVED_CHUNK units, which are numbered through. None has 2^32 units. */
enum { MOVED_TOGETHER = 32, MOVED_CHUNK = 2048 };
struct moves_params {
    uint32_t count, chunks;
    uint32_t first_chunk[MOVED_TOGETHER];
    struct move_params move[MOVED_TOGETHER];
};

/* Rows of fp32, or the sums of two, rounded to the type of `to`; strides in elements. */
enum { ROUNDED_FP32, ROUNDED_FP16, ROUNDED_BF16, ROUNDED_AT_ONCE = 4 /* units of a thread */ };
struct round_params {
    unsigned char *to;
    const float *from, *more; /* more: NULL, or what is added */
    int64_t entries, rows, to_stride[3], from_stride[3], more_stride[3];
    uint32_t units, inner; /* of a head; of all heads */
    int32_t type, wide;    /* wide: units are of eight elements, else of one */
};

/* Pieces of memory, each copied from one place to another, in chunks of COPIED_CHUNK bytes, which are numbered through. */
enum { COPIED_PIECES = 128, COPIED_CHUNK = 16384 };
struct copied_piece {
    unsigned char *to;
    const unsigned char *from;
    uint32_t bytes, first_chunk;
};
struct copy_params {
    uint32_t count, chunks;
    struct copied_piece piece[COPIED_PIECES];
};

/* Of each row and head: a number less the sum of the products of two rows. Strides in elements: entries, rows, heads. */
struct product_params {
    float *to;
    const void *a, *b;
    const float *less_from; /* NULL: 0 */
    int64_t entries, rows;
    int64_t to_stride[3], a_stride[3], b_stride[3], from_stride[3];
    uint32_t heads, dim;
    int32_t a_type, b_type; /* as above */
    int32_t wide;           /* every head of every row begins at a multiple of 16 bytes, and dim is one of 8 */
};

/* An exchange of messages through slots in one launch: the first CTAs fill those of others, the others empty this rank's,
 * each half a step after the other. Of a step: a value that is waited for until it is 1, pieces that are copied, and a value
 * that is then set to 1 when the first has been set to 0. Chunks are numbered through a step. */
enum { EXCHANGED_STEPS = 40, EXCHANGED_CHUNK = 32768, EXCHANGED_THREADS = 512 };
struct exchange_step {
    uint32_t *before, *after;
    uint16_t first_piece, pieces;
    uint32_t chunks;
};
struct exchange_params {
    uint64_t *may_go;        /* [EXCHANGED_STEPS]: a step's value was seen, by the first CTA alone; 0 between launches */
    uint32_t *done;          /* [EXCHANGED_STEPS]: CTAs that are done with a step; 0 between launches */
    uint32_t fills, empties; /* steps: first those that fill */
    uint32_t fillers, piece_count; /* fillers: CTAs */
    struct exchange_step step[EXCHANGED_STEPS];
    struct copied_piece piece[COPIED_PIECES];
};

/* Sums of rows of fp32, each of one source or more, added in their order, in fp32; `to` may be the first source. Pieces are
 * summed in chunks of SUMMED_CHUNK elements, which are numbered through. */
#if !defined(STROBE_SUMMED_SOURCES) /* fewer on a GPU that the host plays, so that small problems take several launches */
#define STROBE_SUMMED_SOURCES 256
#endif
enum { SUMMED_PIECES = 32, SUMMED_SOURCES = STROBE_SUMMED_SOURCES, SUMMED_CHUNK = 2048 };
struct summed_piece {
    void *to;
    uint32_t elements, first_chunk;
    int16_t type; /* of `to`, as above */
    int16_t wide; /* all begin at multiples of 16 bytes, and there are eight elements, or a multiple of it */
    uint16_t first_source, sources;
};
struct summed_rows {
    uint32_t count, chunks, source_count;
    struct summed_piece piece[SUMMED_PIECES];
    const float *source[SUMMED_SOURCES];
};

/* Words that travel in the parameters themselves, so that a captured graph keeps them. */
enum { UPLOADED_WORDS = 448 };
struct upload_params {
    int64_t *to;
    int32_t count;
    int64_t word[UPLOADED_WORDS];
};

#endif
