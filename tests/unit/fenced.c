/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fenced.c: see fenced.h. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include "fenced.h"

#include <stdlib.h>
#include <string.h>

#include "portable/posix.h"

enum { BEFORE = 0xa5 };

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

struct fenced fenced_make(size_t bytes) {
    const size_t page = page_bytes(), inside = (bytes + page - 1) / page * page;
    struct fenced m = {.bytes = bytes, .mapped = inside + 2 * page};
    void *pages = mmap(NULL, m.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) abort();
    m.pages = pages;
    if (inside > 0 && mprotect(m.pages + page, inside, PROT_READ | PROT_WRITE)) abort();
    m.data = m.pages + page + inside - bytes;
    memset(m.pages + page, BEFORE, inside - bytes);
    return m;
}

void fenced_free(struct fenced *m) {
    if (m->pages) munmap(m->pages, m->mapped);
    *m = (struct fenced){.data = NULL};
}

bool fenced_is_whole(const struct fenced *m) {
    for (const unsigned char *at = m->pages + page_bytes(); at < m->data; ++at)
        if (*at != BEFORE) return false;
    return true;
}
