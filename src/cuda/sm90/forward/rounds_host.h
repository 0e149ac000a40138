/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rounds_host.h: the host's part of how tiles fall into rounds, one for each CTA: of which heads they are at a time, whether
 * two CTAs share the last ones, so that all end together (relay.h), and whether two can share K and V (tile.h). */
#ifndef STROBE_CUDA_SM90_FORWARD_ROUNDS_HOST_H
#define STROBE_CUDA_SM90_FORWARD_ROUNDS_HOST_H

#include "core/kernel.h"

/* row_tiles: of a head; ctas: at a time; dim, keys: columns and keys of a block that the variant is compiled for; visible:
 * keys that a row may see. */
struct sm90_rounds {
    int64_t row_tiles, ctas, dim, keys, visible;
    bool alike; /* all tiles have the same length */
};

/* Heads of a section. */
int64_t strobe__sm90_section_heads(const struct problem *problem, struct sm90_rounds rounds);

bool strobe__sm90_relay_pays(const struct problem *problem, struct sm90_rounds rounds);

/* Whether two CTAs that are neighbours always have neighbouring tiles of a head, over the same blocks of keys. */
bool strobe__sm90_has_pairs(struct sm90_rounds rounds);

#endif
