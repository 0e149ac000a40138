/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c: allocation that ends the program when there is none; see memory.h. */
#include "io/memory.h"

#include "commands.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *or_exit(void *block) {
    if (block) return block;
    fputs("strobe: out of memory\n", stderr);
    exit(EXIT_REFUSED);
}

void *memory_zeroed(size_t count, size_t size) { return or_exit(calloc(count ? count : 1, size ? size : 1)); }

void *memory_resized(void *block, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) return or_exit(NULL);
    const size_t bytes = count * size;
    return or_exit(realloc(block, bytes ? bytes : 1));
}

char *memory_text(const char *text) {
    const size_t bytes = strlen(text) + 1;
    return memcpy(memory_zeroed(bytes, 1), text, bytes);
}
