/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fenced.h: memory between two pages that nobody may touch. It ends where the far page begins: a read or a write of one byte
 * past it is a fault, which cmocka reports as the failure of the test at hand. Before it lies what is left of its first
 * page, where only writes show. */
#ifndef STROBE_TESTS_UNIT_FENCED_H
#define STROBE_TESTS_UNIT_FENCED_H

#include <stdbool.h>
#include <stddef.h>

struct fenced {
    unsigned char *data; /* aligned to 64 bytes if `bytes` is a multiple of 64 */
    size_t bytes;
    unsigned char *pages;
    size_t mapped;
};

/* Filled with zeros. Of no bytes, data points at the fence. */
struct fenced fenced_make(size_t bytes);
void fenced_free(struct fenced *memory);

/* Nobody wrote before it. */
bool fenced_is_whole(const struct fenced *memory);

#endif
