/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.h: allocation for what is small and cannot be done without. Running out ends the program with one sentence, so that
 * callers need no error path. Tensors, and anything sized by input, are not allocated here: see buffer.h. */
#ifndef STROBE_CLI_MEMORY_H
#define STROBE_CLI_MEMORY_H

#include <stddef.h>

/* count elements of size bytes, zeroed; never NULL. */
void *memory_zeroed(size_t count, size_t size);

/* The block resized to count elements of size bytes; never NULL. */
void *memory_resized(void *block, size_t count, size_t size);

/* A copy of the text; never NULL. */
char *memory_text(const char *text);

#endif
