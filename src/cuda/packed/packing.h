/* SPDX-License-Identifier: BSD-3-Clause
 *
 * packing.h: the parts of pack.c: streams, and PTX as it is packed. What goes wrong at build time ends the program with a
 * sentence. */
#ifndef STROBE_CUDA_PACKED_PACKING_H
#define STROBE_CUDA_PACKED_PACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    unsigned char *at;
    size_t count, room;
};
void put(struct bytes *b, unsigned c);
_Noreturn void fail(const char *what, const char *name);
void *memory(size_t bytes); /* zeros */

/* Where packing is, so that it can go on from there more than once: from nothing (NULL) or from another state, to pack the
 * `bytes` at `from`, of which those that the other state has packed are the first. `from` must live as long as the state. */
struct packing;
struct packing *packing_after(const struct packing *before, const unsigned char *from, uint32_t bytes);
struct bytes pack_stream(struct packing *s, bool text);
void packing_end(struct packing *s);

/* PTX without what means nothing; with its registers renamed, see model.h. */
struct bytes stripped(const struct bytes *b);
struct bytes renamed(const struct bytes *b, const char *name);

#endif
