/* SPDX-License-Identifier: BSD-3-Clause
 *
 * describe.h: a call of a schedule as the core library wants it. */
#ifndef STROBE_DIST_DESCRIBE_H
#define STROBE_DIST_DESCRIBE_H

#include "tensor.h"

/* The descriptor and the structures that it points at. out and lse are the shard's, as a backward wants them. */
struct described {
    strobe_attention a;
    strobe_varlen varlen;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_alibi alibi;
    strobe_dropout dropout;
};
void strobe__dist_describe(const struct shard *s, const struct call *c, const struct block *block, struct described *d);
/* Of the same call `count` K/V heads alone, from `first` on, with their query heads. */
void strobe__dist_take_heads(struct described *d, int64_t first, int64_t count);

#endif
