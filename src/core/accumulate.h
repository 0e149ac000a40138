/* SPDX-License-Identifier: BSD-3-Clause
 *
 * accumulate.h: gradients that are added to what the caller's tensors hold (strobe_gradients.accumulate). Kernels know
 * nothing of it: whichever is chosen is given fp32 tensors of the workspace, before its own, to write to, and behind it one
 * pass of the device adds their rows to the caller's, those that a sequence has. */
#ifndef STROBE_CORE_ACCUMULATE_H
#define STROBE_CORE_ACCUMULATE_H

#include "core/problem.h"

/* A gradient that is added, as a backend's `add` is given it. */
struct addition {
    strobe_tensor to, from; /* fp32; the caller's, and the workspace's, which has the same rows */
    bool of_rows;           /* of query rows; false: of keys */
    int64_t seq, heads, columns;
};

/* Checks strobe_gradients.accumulate. */
strobe_status strobe__check_accumulate(const struct problem *problem);

/* Puts tensors of the workspace, without memory yet, into the place of the gradients that are added. */
void strobe__accumulate_divert(struct problem *problem);

/* Bytes of these tensors, a multiple of 64; and where they begin. */
size_t strobe__accumulate_bytes(const struct problem *problem);
void strobe__accumulate_place(struct problem *problem, void *workspace);

/* What is to be added; returns how many, 0 to 3. */
int strobe__additions(const struct problem *problem, struct addition all[3]);

#endif
