/* SPDX-License-Identifier: BSD-3-Clause
 *
 * model.h: what the packer of kernels (pack.c, at build time) and the library (host/unpack.c) agree on. A stream is what a
 * binary range coder makes of steps: a byte by itself, or a copy of what came before, from a new distance or one of the four
 * last. Each bit has a probability of its own, learned as the stream goes, chosen by where the bit is in the step, by what
 * the steps before were and, in machine code, by the place of the byte in its instruction of 16 bytes; in PTX by the byte
 * before.
 *
 * An image is 32-bit numbers, lowest byte first: how many codes; of each its architecture such as 90, of PTX that of the
 * least GPU and TEXT_CODE, the bytes of its stream, and the bytes that it was packed from; then the streams in this order.
 */
#ifndef STROBE_CUDA_PACKED_MODEL_H
#define STROBE_CUDA_PACKED_MODEL_H

#include <stdint.h>

enum {
    PROBABILITY_BITS = 12, /* probabilities that a bit is 0 are of 2^12 */
    LEARNING_SHIFT = 4,    /* a bit moves its probability by a 16th of what is missing */
    POSITIONS = 16,        /* in an instruction */
    PASTS = 6,             /* of the last two steps: byte or copy, and what kind of copy came last */
    SHORTEST = 2,          /* bytes of a copy */
    NEAR_LENGTHS = 8,
    FAR_LENGTHS = 256,
    LONGEST = SHORTEST + 2 * NEAR_LENGTHS + FAR_LENGTHS - 1,
    LENGTH_CLASSES = 4, /* of a copy, for its distance */
    CLASS_BITS = 6,     /* a distance's class: the place of its highest bit, and the bit below */
    NEAR_CLASSES = 14,  /* whose lower bits are all learned */
    LOW_BITS = 4,       /* of the other distances, the lowest, which are learned */
    REPEATS = 4,        /* last distances */
    MOST_UNPACKED = 1 << 28
};

enum { TEXT_CODE = 1000, MOST_CODES = 64, CODE_NUMBERS = 3 };

typedef uint16_t probability;

struct lengths {
    probability near_or_more[POSITIONS], middle_or_far[POSITIONS], near[POSITIONS][NEAR_LENGTHS],
        middle[POSITIONS][NEAR_LENGTHS], far[FAR_LENGTHS];
};

/* Trees of bits: node 1 is the first bit, the children of node n are 2n and 2n + 1. */
struct model {
    probability copy[PASTS][POSITIONS], repeat[PASTS], repeat_first[PASTS], repeat_one_byte[PASTS][POSITIONS],
        repeat_second[PASTS], repeat_third[PASTS];
    probability byte[256][256],
        differing[POSITIONS][2][256]; /* by context; where a copy has just ended, of a byte that follows it */
    struct lengths lengths[2];        /* of copies from new distances, from repeated ones */
    probability distance_class[LENGTH_CLASSES][1 << CLASS_BITS], middle_bits[NEAR_CLASSES][32], low_bits[1 << LOW_BITS];
};

/* The past after a step. */
enum step { STEP_BYTE, STEP_COPY, STEP_REPEAT };
static inline int past_after(int past, enum step step) {
    static const unsigned char next[PASTS][3] = {{0, 3, 4}, {0, 3, 4}, {1, 3, 4}, {2, 5, 5}, {2, 5, 5}, {2, 5, 5}};
    return next[past][step];
}
/* Whether the last step was a copy. */
static inline int past_copied(int past) { return past >= 3; }

static inline int length_class(unsigned length) {
    const unsigned class = length - SHORTEST;
    return class < LENGTH_CLASSES ? (int)class : LENGTH_CLASSES - 1;
}

/* What a byte's tree is chosen by: the byte before, or its place. */
static inline int byte_context(int text, uint32_t at, unsigned char before) { return text ? before : (int)(at % POSITIONS); }
static inline int place_of(int text, uint32_t at) { return text ? 0 : (int)(at % POSITIONS); }

static inline void model_begin(struct model *m) {
    probability *all = (probability *)m;
    for (unsigned n = 0; n < sizeof *m / sizeof *all; ++n) all[n] = 1 << (PROBABILITY_BITS - 1);
}

/* PTX is packed with its registers renamed: text of register n, such as %rd17, becomes a byte for the prefix and how many
 * other registers of that prefix have been named since it was, 0 for a new one; so code that is repeated with other
 * registers is the same text. Ranks from FAR_RANK on take two more bytes. Each kernel begins anew, at ".entry". */
static const char *const register_prefixes[] = {"%p", "%r", "%rs", "%rd", "%f", "%fd", "%rh", "%h"};
enum {
    PREFIXES = sizeof register_prefixes / sizeof register_prefixes[0],
    FIRST_PREFIX = 0x80, /* bytes that no PTX text has */
    FAR_RANK = 0xc0,
    MOST_REGISTERS = 1 << 15
};

#endif
