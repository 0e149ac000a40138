/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cost.h: the cost model, which chooses among schemes. */
#ifndef STROBE_DIST_COST_H
#define STROBE_DIST_COST_H

#include "dist.h"

/* Predicted seconds of a call, and what they are made of: calls of attention alone, by the rank that has most; and what was
 * not hidden behind them. host: what the host takes until the call returns, on a GPU. apart: an all-gather whose own
 * block is computed on by itself, while messages travel, since that takes less. */
struct cost {
    double seconds, compute, exposed, host;
    bool apart;
};

/* False where memory has run out. The scheme takes the problem. */
bool strobe__dist_cost(const struct whole *w, int32_t scheme, struct cost *cost);

/* The caller's scheme, or for automatic the cheapest that takes the problem. Fails with a sentence. */
strobe_status strobe__dist_choose(const struct whole *w, int32_t *scheme);

#endif
