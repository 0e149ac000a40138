/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ranks.h: the problem of a fixture, computed by several ranks: its inputs are cut into shards, each in memory of its own
 * with guards behind it, a thread a rank calls libstrobe_dist, and the shards of results go back into the fixture. */
#ifndef STROBE_TESTS_DIST_RANKS_H
#define STROBE_TESTS_DIST_RANKS_H

#include "strobe/strobe_dist.h"
#include "unit/problem_fixture.h"

/* How many ranks do it, and how. */
struct way {
    int32_t size, layout, scheme, group;
};

/* All ranks have returned the same status, with the same sentence, or the test fails. bytes: NULL, or what all have sent. */
strobe_status ranks_run(struct fixture *f, strobe_operation operation, const struct way *way, char *sentence,
                        size_t capacity, int64_t *bytes);

/* Runs the ranks elsewhere than on threads: run calls body once for each rank that is here; share gives what one rank has to
 * all. For the whole process. */
void ranks_run_by(void (*run)(void (*body)(void *context, const strobe_transport *transport), void *context),
                  void (*share)(void *data, size_t bytes, int32_t rank));

/* Calls are of device = STROBE_CUDA, on this stream; its memory is the host's (pretend.h). For the whole process. */
void ranks_run_on_gpu(void *stream);

#endif
