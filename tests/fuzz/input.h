/* SPDX-License-Identifier: BSD-3-Clause
 *
 * input.h: the fuzzer's bytes as a stream of decisions. Past the end everything reads as zero, which is every field's
 * default. */
#ifndef STROBE_TESTS_FUZZ_INPUT_H
#define STROBE_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* An assertion in any build: the fuzzer sees abort(). */
#define REQUIRE(condition) ((condition) ? (void)0 : abort())

struct input {
    const uint8_t *at, *end;
};

/* bytes of the stream into *target. */
static inline void take(struct input *in, void *target, size_t bytes) {
    const size_t left = (size_t)(in->end - in->at), given = bytes < left ? bytes : left;
    memset(target, 0, bytes);
    if (given > 0) memcpy(target, in->at, given);
    in->at += given;
}

/* A number in [0, count), count at most 256. */
static inline int32_t choose(struct input *in, int32_t count) {
    uint8_t byte;
    take(in, &byte, 1);
    return byte % count;
}

#endif
