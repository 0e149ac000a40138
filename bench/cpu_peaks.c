/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpu_peaks.c: what one core of this machine can do at most, measured on the spot, for bench/cpu_peers.py, which compiles
 * this file with -O3 and loads it: products of bf16, on AMX tiles or of pairs; fp32 FMA; reading memory. Each function has
 * the instructions that it needs and no more, so that the others run where the processor lacks them. Each returns a rate a
 * second of one call of about a millisecond, in the thread's own CPU time. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_a_row[16];
    uint8_t rows[16];
} tiles = {.palette = 1, .bytes_a_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* FLOP/s of products of bf16 pairs from registers; 0 where the processor has none. */
__attribute__((target("avx512f,avx512bf16"))) static double pairs(int rounds) {
    enum { CHAINS = 12 };
    __m512 sum[CHAINS];
    if (!__builtin_cpu_supports("avx512bf16")) return 0;
    const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f003e80);
    for (int i = 0; i < CHAINS; ++i) sum[i] = _mm512_set1_ps((float)i);
    const double start = cpu_seconds();
    for (int n = 0; n < rounds; ++n)
        for (int i = 0; i < CHAINS; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], x, x);
    const double seconds = cpu_seconds() - start;
    volatile float kept = 0; /* the chains end somewhere, or the compiler leaves them out */
    for (int i = 0; i < CHAINS; ++i) kept = kept + _mm512_reduce_add_ps(sum[i]);
    return (double)rounds * CHAINS * 64 / seconds;
}

/* FLOP/s of bf16 products from registers: on tiles, of zeros or of the four tiles at `numbers`, or of pairs where the
 * operating system refuses tiles; 0 where there are neither. */
__attribute__((target("amx-tile,amx-bf16"))) static double products(const uint16_t *numbers, int rounds) {
    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return pairs(5 * rounds); /* ARCH_REQ_XCOMP_PERM, XTILE_DATA */
    _tile_loadconfig(&tiles);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    if (numbers) {
        _tile_loadd(4, numbers, 64);
        _tile_loadd(5, numbers + 512, 64);
        _tile_loadd(6, numbers + 1024, 64);
        _tile_loadd(7, numbers + 1536, 64);
    }
    const double start = cpu_seconds();
    for (int i = 0; i < rounds; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    const double seconds = cpu_seconds() - start;
    _tile_release();
    return 4.0 * rounds * 2 * 16 * 16 * 32 / seconds;
}

double peak_bf16(void) { return products(NULL, 40000); }

/* The same on numbers with random signs and mantissas: 2 to 14 % less on a calm machine. Where the processor holds its cores
 * back, for milliseconds to seconds at a time, it falls to 0.4, as kernels do, while products of zeros keep nine tenths. */
double peak_bf16_numbers(void) {
    static uint16_t numbers[4 * 512];
    uint32_t random = 1;
    for (int i = 0; i < 4 * 512; ++i) {
        random = random * 1664525u + 1013904223u;
        numbers[i] = (uint16_t)((random >> 16 & 0x807f) | 0x3f80); /* 1 to 2, or -1 to -2 */
    }
    return products(numbers, 10000);
}

/* double name(void): FLOP/s of fp32 FMA from registers, on vectors of so many lanes. */
#define PEAK_OF_FMA(name, lanes, vector, bits, features)                                           \
    __attribute__((target(features))) double name(void) {                                          \
        enum { ROUNDS = 200000, CHAINS = 12 };                                                     \
        vector sum[CHAINS];                                                                        \
        const vector x = _mm##bits##_set1_ps(0.5f), y = _mm##bits##_set1_ps(0.25f);                \
        for (int i = 0; i < CHAINS; ++i) sum[i] = _mm##bits##_set1_ps((float)i);                   \
        const double start = cpu_seconds();                                                        \
        for (int n = 0; n < ROUNDS; ++n)                                                           \
            for (int i = 0; i < CHAINS; ++i) sum[i] = _mm##bits##_fmadd_ps(sum[i], x, y);          \
        const double seconds = cpu_seconds() - start;                                              \
        float kept[16];                                                                            \
        volatile float end = 0; /* the chains end somewhere, or the compiler leaves them out */    \
        for (int i = 0; i < CHAINS; ++i) _mm##bits##_storeu_ps(kept, sum[i]), end = end + kept[0]; \
        return (double)ROUNDS * CHAINS * 2 * (lanes) / seconds;                                    \
    }

PEAK_OF_FMA(peak_fma, 16, __m512, 512, "avx512f")
PEAK_OF_FMA(peak_fma_of_8, 8, __m256, 256, "avx2,fma")

/* double name(data, bytes): bytes/s of reading them, in vectors of so many bits. */
#define PEAK_OF_READING(name, vector, bits, features)                                                    \
    __attribute__((target(features))) static double name(const char *data, size_t bytes) {               \
        vector seen[4] = {0};                                                                            \
        const double start = cpu_seconds();                                                              \
        for (size_t at = 0; at < bytes; at += 4 * sizeof(vector))                                        \
            for (size_t i = 0; i < 4; ++i)                                                               \
                seen[i] = _mm##bits##_or_si##bits(                                                       \
                    seen[i], _mm##bits##_load_si##bits((const void *)(data + at + sizeof(vector) * i))); \
        const double seconds = cpu_seconds() - start;                                                    \
        const vector all = _mm##bits##_or_si##bits(_mm##bits##_or_si##bits(seen[0], seen[1]),            \
                                                   _mm##bits##_or_si##bits(seen[2], seen[3]));           \
        volatile long long kept = all[0] | all[1] | all[2] | all[3];                                     \
        (void)kept;                                                                                      \
        return (double)bytes / seconds;                                                                  \
    }

PEAK_OF_READING(reading_by_512, __m512i, 512, "avx512f")
PEAK_OF_READING(reading_by_256, __m256i, 256, "avx2")

/* Bytes/s of reading data [bytes], a multiple of 256, 64-byte aligned, in the longest vectors that the processor has. */
double peak_read(const void *data, size_t bytes) {
    return __builtin_cpu_supports("avx512f") ? reading_by_512(data, bytes) : reading_by_256(data, bytes);
}
