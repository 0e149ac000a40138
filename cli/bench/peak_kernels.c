/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peak_kernels.c: the loops behind peak.c. One text for every vector width: twelve independent chains of a = a * x + y, more
 * than latency (4 cycles) times throughput (2 a cycle) of the processors of the day, fewer than the registers that AVX2 has.
 * ARM's largest processors start four a cycle and have 32 registers: 24 chains.
 * Built with -ffp-contract=fast, so that the compiler makes one instruction of the two operations where the level has it.
 * The loops of bf16: AMX multiplies four tiles of sums from two by two of operands, as a product of matrices has them;
 * AVX-512 has chains of products of pairs, ARM of products of 2 x 4 by 4 x 2. */
#include "bench/peak.h"

#include <string.h>
#include <strobe/strobe.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(__clang__) /* whose headers have no functions for one function's instructions */
#include <arm_neon.h>
#define HAS_MATRICES 1
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define TWELVE(STEP) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) STEP(11)
#if defined(__aarch64__)
#define MORE(STEP) \
    STEP(12) STEP(13) STEP(14) STEP(15) STEP(16) STEP(17) STEP(18) STEP(19) STEP(20) STEP(21) STEP(22) STEP(23)
#define CHAINS(STEP) TWELVE(STEP) MORE(STEP)
enum { CHAIN_COUNT = 24 };
#else
#define CHAINS TWELVE
enum { CHAIN_COUNT = 12 };
#endif

#define BEGIN(n)   lanes a##n = x * (float)(n + 1); /* different, or the compiler keeps one chain for all */
#define ADVANCE(n) a##n = a##n * x + y;
#define COLLECT(n) y += a##n;

#define PEAK_LOOP(name, width, attributes)                                                              \
    attributes static int64_t name(int64_t rounds, float *result) {                                     \
        typedef float lanes __attribute__((vector_size(4 * width)));                                    \
        volatile float opaque[2] = {0.999f, 1e-3f}; /* the compiler must not know what is multiplied */ \
        lanes x = opaque[0] - (lanes){0}, y = opaque[1] - (lanes){0};                                   \
        CHAINS(BEGIN)                                                                                   \
        for (int64_t round = 0; round < rounds; ++round) {                                              \
            CHAINS(ADVANCE)                                                                             \
        }                                                                                               \
        CHAINS(COLLECT)                                                                                 \
        memcpy(result, &y, sizeof *result);                                                             \
        return rounds * CHAIN_COUNT * width * 2;                                                        \
    }

PEAK_LOOP(run_baseline, 4, )
#if defined(__x86_64__)
PEAK_LOOP(run_avx2, 8, __attribute__((target("avx2,fma"))))
PEAK_LOOP(run_avx512, 16, __attribute__((target("avx512f"))))
#endif

#if defined(__linux__) && defined(__x86_64__)
__attribute__((target("amx-tile,amx-bf16"))) static int64_t run_tiles(int64_t rounds, float *result) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_a_row[16];
        uint8_t rows[16];
    } tiles = {.palette = 1, .bytes_a_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    float sums[16 * 16];
    _tile_loadconfig(&tiles);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t round = 0; round < rounds; ++round) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_release();
    *result = sums[0];
    return rounds * 4 * 2 * 16 * 16 * 32;
}
#endif

#if defined(__x86_64__)
#define BEGIN_PAIRS(n)   __m512 a##n = _mm512_set1_ps((float)(n));
#define ADVANCE_PAIRS(n) a##n = _mm512_dpbf16_ps(a##n, x, x);
#define COLLECT_PAIRS(n) a0 = _mm512_add_ps(a0, a##n);
__attribute__((target("avx512f,avx512bf16"))) static int64_t run_pairs(int64_t rounds, float *result) {
    volatile short opaque = 0x3000;
    const __m512bh x = (__m512bh)_mm512_set1_epi16(opaque);
    CHAINS(BEGIN_PAIRS)
    for (int64_t round = 0; round < rounds; ++round) {
        CHAINS(ADVANCE_PAIRS)
    }
    CHAINS(COLLECT_PAIRS)
    *result = _mm512_cvtss_f32(a0);
    return rounds * CHAIN_COUNT * 16 * 4;
}
#endif

#if defined(HAS_MATRICES)
#define BEGIN_MATRICES(n)   float32x4_t a##n = vdupq_n_f32((float)(n));
#define ADVANCE_MATRICES(n) a##n = vbfmmlaq_f32(a##n, x, x);
#define COLLECT_MATRICES(n) a0 = vaddq_f32(a0, a##n);
__attribute__((target("arch=armv8.2-a+bf16"))) static int64_t run_matrices(int64_t rounds, float *result) {
    volatile uint16_t opaque = 0x3000;
    const bfloat16x8_t x = vreinterpretq_bf16_u16(vdupq_n_u16(opaque));
    CHAINS(BEGIN_MATRICES)
    for (int64_t round = 0; round < rounds; ++round) {
        CHAINS(ADVANCE_MATRICES)
    }
    CHAINS(COLLECT_MATRICES)
    *result = vgetq_lane_f32(a0, 0);
    return rounds * CHAIN_COUNT * 2 * 2 * 4 * 2;
}
#endif

peak_loop peak_bf16_loop(void) {
    strobe_device_info device = {.struct_size = sizeof device};
    if (strobe_device_at(STROBE_CPU, 0, &device)) return (peak_loop){0};
#if defined(HAS_MATRICES)
    if (!strcmp(device.level, "neonbf16")) return (peak_loop){"neonbf16", run_matrices};
#elif defined(__x86_64__)
#if defined(__linux__)
    const long request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM: a process asks before it uses tiles */
    if (!strcmp(device.level, "amx") && !syscall(SYS_arch_prctl, request, tile_data)) return (peak_loop){"amx", run_tiles};
#endif
    if (!strcmp(device.level, "avx512bf16")) return (peak_loop){"avx512bf16", run_pairs};
#endif
    return (peak_loop){0};
}

peak_loop peak_fastest_loop(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (peak_loop){"avx512", run_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (peak_loop){"avx2", run_avx2};
#endif
#if defined(__aarch64__)
    return (peak_loop){"neon", run_baseline}; /* the same, as compiled there */
#else
    return (peak_loop){"baseline", run_baseline};
#endif
}

uint64_t peak_read(const uint64_t *words, size_t count) {
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= count; i += 8)
        for (size_t lane = 0; lane < 8; ++lane) sum[lane] += words[i + lane];
    for (size_t lane = 1; lane < 8; ++lane) sum[0] += sum[lane];
    return sum[0];
}
