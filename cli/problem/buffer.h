/* SPDX-License-Identifier: BSD-3-Clause
 *
 * buffer.h: the memory of a tensor [batch, rows, heads, columns], in any layout, between two guard bands. All of it starts
 * as bytes 0xFF, which is a NaN in every type: what nobody fills is poison to read, and a written byte outside the elements
 * shows. Columns are contiguous. */
#ifndef STROBE_CLI_BUFFER_H
#define STROBE_CLI_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct buffer {
    unsigned char *bytes; /* the whole allocation; NULL: the elements lie in another buffer, or nowhere */
    size_t size;          /* bytes of it */
    unsigned char *data;  /* element [0, 0, 0, 0]; NULL where there is none */
    int64_t extent[4];    /* batch, rows, heads, columns */
    int64_t stride[3];    /* elements from one batch entry, row and head to the next */
    int64_t lead;         /* unused elements before the first, which is else a multiple of 64 bytes */
    int64_t dtype;        /* a strobe_dtype */
} buffer;

/* Bytes that buffer_allocate would take; -1 if they are beyond counting. Needs extent, stride and dtype. */
int64_t buffer_bytes(const buffer *b);

/* Allocates for the extent, stride and dtype set by the caller. False if memory is short. */
bool buffer_allocate(buffer *b);
void buffer_free(buffer *b);

/* The first column of a row of a head. */
static inline unsigned char *buffer_at(const buffer *b, int64_t batch, int64_t row, int64_t head, size_t element_bytes) {
    return b->data + (batch * b->stride[0] + row * b->stride[1] + head * b->stride[2]) * (int64_t)element_bytes;
}

/* Everything back to 0xFF, and whether everything is 0xFF. Both look at allocations only, not at borrowed elements. */
void buffer_wipe(buffer *b);
bool buffer_is_wiped(const buffer *b);

#endif
