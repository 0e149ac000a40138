/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpuid.c: detection of the level. CPUID leaves 1 and 7 say what the processor decodes, XCR0 says which registers the
 * operating system saves, and a level needs both. The bits are from the Intel SDM, volume 2A, CPUID, and volume 1, 13.3
 * "Enabling the XSAVE feature set". Every 64-bit ARM processor that runs Linux or macOS has NEON; Linux says which have
 * products of bf16 and of bytes (Documentation/arm64/elf_hwcaps.rst), and elsewhere nobody is asked. Other architectures
 * have the baseline, which the compiler maps to the vectors that they guarantee. */
#define _DEFAULT_SOURCE /* syscall() */
#include "cpu/cpuid.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
enum { HAS_BF16 = 1 << 14 /* HWCAP2_BF16 */, HAS_BYTE_PRODUCTS = 1 << 20 /* HWCAP_ASIMDDP */ };
#endif

const char *const strobe__cpu_level_names[CPU_LEVELS] = {
    [CPU_BASELINE] = "baseline",
#if defined(__x86_64__)
    [CPU_AVX2] = "avx2",         [CPU_AVX512] = "avx512", [CPU_AVX512BF16] = "avx512bf16", [CPU_AMX] = "amx",
#elif defined(__aarch64__)
    [CPU_NEON] = "neon",
    [CPU_NEONBF16] = "neonbf16",
#endif
};

#if defined(__x86_64__)

enum {
    LEAF1_ECX_NEEDED = 1u << 12 /* FMA */ | 1u << 27 /* OSXSAVE */ | 1u << 29 /* F16C */,
    LEAF7_EBX_AVX2 = 1u << 5,
    LEAF7_EBX_AVX512 = 1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */,
    LEAF7_1_EAX_AVX512BF16 = 1u << 5,
    LEAF7_EDX_AMX = 1u << 22 /* BF16 */ | 1u << 24 /* TILE */ | 1u << 25 /* INT8 */,
    XCR0_AVX = 0x06,    /* SSE and AVX state */
    XCR0_AVX512 = 0xe6, /* the same, and opmask, upper halves, upper registers */
    XCR0_AMX = 0x600e6, /* the same, and tile configuration, tile data */
    REQUEST_STATE = 0x1023,
    TILE_DATA = 18, /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) */
};
#define LEAF7_EBX_AVX512_ALL ((unsigned)LEAF7_EBX_AVX512 | 1u << 31 /* VL */)

__attribute__((target("xsave"))) static unsigned long long saved_state(void) { return (unsigned long long)_xgetbv(0); }

static bool machine_is_amd(void) {
    unsigned eax, vendor[3];
    return __get_cpuid(0, &eax, &vendor[0], &vendor[2], &vendor[1]) && memcmp(vendor, "AuthenticAMD", sizeof vendor) == 0;
}

/* Products of pairs of bf16 at the rate of other products. Intel's processors take twice as long for one, which gains
 * nothing over fp32; AMD's (Zen 4 and later) do not. */
static bool machine_has_fast_pairs(void) {
#if defined(STROBE_AMX_EMULATED) /* so are they, in isa/dot_tiles.h */
    return true;
#else
    unsigned eax, ebx, ecx, edx;
    return machine_is_amd() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & LEAF7_1_EAX_AVX512BF16);
#endif
}

static enum cpu_level machine_level(void) {
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & LEAF1_ECX_NEEDED) != LEAF1_ECX_NEEDED) return CPU_BASELINE;
    const unsigned long long state = saved_state();
    if ((state & XCR0_AVX) != XCR0_AVX) return CPU_BASELINE;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & LEAF7_EBX_AVX2)) return CPU_BASELINE;
    if ((ebx & LEAF7_EBX_AVX512_ALL) != LEAF7_EBX_AVX512_ALL || (state & XCR0_AVX512) != XCR0_AVX512) return CPU_AVX2;
#if defined(STROBE_AMX_EMULATED) /* isa/amx_emulated.h needs no more than AVX-512 */
    return CPU_AMX;
#else
#if !defined(_WIN32) /* table.c says why not there */
    if ((edx & LEAF7_EDX_AMX) == LEAF7_EDX_AMX && (state & XCR0_AMX) == XCR0_AMX) return CPU_AMX;
#endif
    return machine_has_fast_pairs() ? CPU_AVX512BF16 : CPU_AVX512;
#endif
}

#if defined(STROBE_AMX_EMULATED)
static bool may_use_tiles(void) { return true; }
#elif defined(__linux__)
static bool may_use_tiles(void) { return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0; }
#else
static bool may_use_tiles(void) { return false; }
#endif

/* Reads the brand string, leaves 0x80000002 to 0x80000004. */
static void read_name(char name[49]) {
    unsigned words[12] = {0};
    for (unsigned leaf = 0; leaf < 3; ++leaf)
        if (!__get_cpuid(0x80000002u + leaf, &words[4 * leaf], &words[4 * leaf + 1], &words[4 * leaf + 2],
                         &words[4 * leaf + 3]))
            return;
    memcpy(name, words, sizeof words);
}

#else

static bool machine_is_amd(void) { return false; }
static bool machine_has_fast_pairs(void) { return false; }
static enum cpu_level machine_level(void) {
#if defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP2) & HAS_BF16 ? CPU_NEONBF16 : CPU_NEON;
#elif defined(__aarch64__)
    return CPU_NEON;
#else
    return CPU_BASELINE;
#endif
}
static bool may_use_tiles(void) { return false; }
static void read_name(char name[49]) { strcpy(name, "CPU"); }

#endif

/* What `machine_has` says of this machine, which does not change; `known` is -1 at first. Two threads that both come first
 * find the same answer. */
static bool known_once(_Atomic int *known, bool (*machine_has)(void)) {
    int answer = atomic_load_explicit(known, memory_order_relaxed);
    if (answer < 0) {
        answer = machine_has();
        atomic_store_explicit(known, answer, memory_order_relaxed);
    }
    return answer;
}

static bool has_fast_pairs(void) {
    static _Atomic int known = -1;
    return known_once(&known, machine_has_fast_pairs);
}

bool strobe__cpu_prefetches_into_l2(void) {
    static _Atomic int known = -1;
    return known_once(&known, machine_is_amd);
}

static enum cpu_level allowed_level(void) {
    const enum cpu_level best = machine_level();
    const char *wanted = getenv("STROBE_ISA");
    if (wanted)
        for (int level = 0; level < (int)best; ++level)
            if (strobe__cpu_level_names[level] && strcmp(wanted, strobe__cpu_level_names[level]) == 0)
                return level == CPU_AVX512BF16 && !has_fast_pairs() ? CPU_AVX512 : (enum cpu_level)level;
    return best;
}

enum cpu_level strobe__cpu_level(void) {
    static _Atomic int known = -1; /* two threads that both come first find the same answer */
    int level = atomic_load_explicit(&known, memory_order_relaxed);
    if (level < 0) {
        level = (int)allowed_level();
        atomic_store_explicit(&known, level, memory_order_relaxed);
    }
    return (enum cpu_level)level;
}

const char *strobe__cpu_lacks(enum cpu_level level) {
    static const char *const sentences[CPU_LEVELS] = {
        [CPU_NEON] = "STROBE_ISA forbids NEON",
        [CPU_NEONBF16] = "this machine has no matrix products of bf16 (FEAT_BF16), or STROBE_ISA forbids them",
        [CPU_AVX2] = "this machine has no AVX2 with FMA and F16C, or STROBE_ISA forbids it",
        [CPU_AVX512] = "this machine has no AVX-512 with DQ, BW and VL, or STROBE_ISA forbids it",
        [CPU_AVX512BF16] = "this machine has no AVX512_BF16 at the rate of fp32 products, or STROBE_ISA forbids it",
        [CPU_AMX] = "this machine has no AMX tiles with bf16 and int8, or STROBE_ISA forbids it",
    };
    const bool slow = level == CPU_AVX512BF16 && !has_fast_pairs(); /* where there is AMX there may be none */
    return level <= strobe__cpu_level() && !slow ? NULL : sentences[level];
}

const char *strobe__cpu_refuses_tiles(void) {
    static _Atomic int known = -1; /* two threads that both come first may both ask */
    int granted = atomic_load_explicit(&known, memory_order_relaxed);
    if (granted < 0) {
        granted = may_use_tiles();
        atomic_store_explicit(&known, granted, memory_order_relaxed);
    }
    return granted ? NULL : "the operating system refused this process the use of AMX tiles";
}

const char *strobe__cpu_lacks_byte_products(void) {
#if defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HAS_BYTE_PRODUCTS) return NULL;
#endif
    return "this machine has no products of bytes (FEAT_DotProd)";
}

static char brand[49]; /* of the process, since callers keep the pointer */
static void read_brand(void) { read_name(brand); }

const char *strobe__cpu_name(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_brand);
    return brand[0] ? brand : "CPU";
}
