/* SPDX-License-Identifier: BSD-3-Clause
 *
 * philox.c: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#include "philox.h"

#include <math.h>

enum { ROUNDS = 10 };

static void philox(uint64_t key, uint64_t high, uint64_t low, uint32_t word[4]) {
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t c[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};
    for (int round = 0; round < ROUNDS; ++round) {
        const uint64_t even = (uint64_t)0xD2511F53u * c[0], odd = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(odd >> 32) ^ c[1] ^ k[0];
        c[1] = (uint32_t)odd;
        c[2] = (uint32_t)(even >> 32) ^ c[3] ^ k[1];
        c[3] = (uint32_t)even;
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; ++i) word[i] = c[i];
}

bool lab_dropout_keeps(const lab_problem *problem, int64_t i, int64_t j) {
    uint32_t word[4];
    philox(problem->seed, (uint64_t)(i * lab_ceil_div(problem->n, 4) + j / 4), 0, word);
    return (double)word[j % 4] >= problem->dropout * 0x1p32;
}
