/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpu_pages.c: how much slower attention over K and V in pages is than over the same K and V one after the other: decoding
 * and a chunk of prefill, for several kernels, dtypes and sizes of pages, in turns in one process and on one thread, by the
 * thread's own CPU time. Prints the time over that of contiguous K and V, median of the turns. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe.h>

#include "median.h"

enum { HEADS = 8, GROUP = 4, DIM = 128, SIZES = 5, TURNS = 15 };
static const int64_t sizes[SIZES] = {0, 1, 16, 64, 256}; /* 0: contiguous */

struct problem {
    const char *kernel;
    int32_t dtype;
    int64_t rows, keys;
};

static const struct problem problems[] = {
    {"cpu_decode_avx512", STROBE_BF16, 1, 8192},        {"cpu_decode_avx512", STROBE_FP32, 1, 8192},
    {"cpu_decode_avx2", STROBE_BF16, 1, 8192},          {"cpu_decode_avx2", STROBE_FP32, 1, 8192},
    {"cpu_forward_avx512bf16", STROBE_BF16, 128, 2048}, {"cpu_forward_avx512", STROBE_FP32, 128, 2048},
    {"cpu_forward_avx2", STROBE_BF16, 128, 2048},       {"cpu_forward_avx2", STROBE_FP32, 128, 2048},
};

/* Pages in an order that is not that of the keys: a step that is a prime larger than any number of pages has in common. */
static void shuffle(int32_t *table, int64_t pages) {
    for (int64_t n = 0; n < pages; ++n) table[n] = (int32_t)(pages % 7919 ? n * 7919 % pages : n);
}

static double time_of(const struct problem *p, int64_t size, void *const memory[4]) {
    static int32_t table[1 << 16];
    strobe_parallel one = {.struct_size = sizeof one, .threads = 1};
    strobe_tuning tuning = {.struct_size = sizeof tuning, .kernel = p->kernel};
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = p->rows, .seq_k = p->keys, .dim = DIM};
    strobe_paged paged = {.struct_size = sizeof paged, .page_table = table, .page_size = size};
    a.heads_q = HEADS * GROUP, a.heads_kv = HEADS, a.dtype = p->dtype, a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    a.q.data = memory[0], a.k.data = memory[1], a.v.data = memory[2], a.out.data = memory[3];
    a.parallel = &one, a.tuning = &tuning;
    if (size) paged.pages = p->keys / size, a.paged = &paged, shuffle(table, paged.pages);
    const double start = seconds_by(CLOCK_THREAD_CPUTIME_ID);
    if (strobe_forward(&a, NULL, 0, NULL)) fprintf(stderr, "%s\n", strobe_last_error()), exit(1);
    return seconds_by(CLOCK_THREAD_CPUTIME_ID) - start;
}

static void measure(const struct problem *p, void *const memory[4]) {
    double times[SIZES][TURNS];
    for (int turn = -1; turn < TURNS; ++turn)
        for (int n = 0; n < SIZES; ++n) times[n][turn < 0 ? 0 : turn] = time_of(p, sizes[n], memory);
    const double contiguous = median(times[0], TURNS);
    printf("| %s | %s | %.3f |", p->kernel, p->dtype == STROBE_BF16 ? "bf16" : "fp32", 1e3 * contiguous);
    for (int n = 1; n < SIZES; ++n) printf(" %.2f |", median(times[n], TURNS) / contiguous);
    puts("");
}

int main(int count, char **words) {
    const size_t bytes = (size_t)8192 * HEADS * GROUP * DIM * sizeof(float);
    void *memory[4];
    for (int n = 0; n < 4; ++n) {
        memory[n] = aligned_alloc(64, bytes);
        if (!memory[n]) return 1;
        for (size_t i = 0; i < bytes / 2; ++i) ((uint16_t *)memory[n])[i] = (uint16_t)(0x3c00 + i * 2654435761u % 1024);
    }
    puts("| kernel | dtype | contiguous, ms | pages of 1 | 16 | 64 | 256 |\n|---|---|---|---|---|---|---|");
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; ++n)
        if (count < 2 || strstr(problems[n].kernel, words[1])) measure(&problems[n], memory);
    for (int n = 0; n < 4; ++n) free(memory[n]);
    return 0;
}
