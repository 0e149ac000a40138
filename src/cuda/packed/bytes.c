/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bytes.c: memory of the packer, and its sentences. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/packed/packing.h"

void fail(const char *what, const char *name) {
    fprintf(stderr, "pack: %s: %s\n", name, what);
    exit(1);
}

void *memory(size_t bytes) {
    void *m = calloc(bytes ? bytes : 1, 1);
    if (!m) fail("no memory", "the packer");
    return m;
}

void put(struct bytes *b, unsigned c) {
    if (b->count == b->room) {
        b->room = 2 * b->room + 4096;
        b->at = realloc(b->at, b->room);
        if (!b->at) fail("no memory", "the packer");
    }
    b->at[b->count++] = (unsigned char)c;
}
