/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_unpack.c: images of kernels, packed and unpacked: bytes of many kinds, alone and as what follows others; PTX whose
 * registers are renamed; which code an architecture gets; streams, tables and texts that are damaged.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/unpack.h"
#include "cuda/packed/model.h"
#include "cuda/packed/packing.h"
#include "test.h"

static struct random numbers = {1};
static unsigned next(void) { return (unsigned)(random_bits(&numbers) >> 48); }

enum kind { ZEROS, NOISE, COUNTING, INSTRUCTIONS, REPEATED, KINDS };

/* In memory of its own, so that a sanitizer sees reads past its end. */
static unsigned char *make(enum kind kind, size_t count) {
    unsigned char *to = malloc(count);
    assert_non_null(to);
    for (size_t n = 0; n < count; ++n) switch (kind) {
        case ZEROS: to[n] = 0; break;
        case NOISE: to[n] = (unsigned char)next(); break;
        case COUNTING: to[n] = (unsigned char)(n * 7); break;
        case INSTRUCTIONS: to[n] = (unsigned char)(n % 16 < 3 ? next() % 24 : n % 16 == 9 ? n / 16 : n % 16); break;
        default: to[n] = n >= 5000 && next() % 400 ? to[n - 5000] : (unsigned char)next(); break;
        }
    return to;
}

static struct packed packed_of(struct packing *p, size_t unpacked) {
    const struct bytes stream = pack_stream(p, false);
    return (struct packed){stream.at, stream.count, unpacked};
}

static void test_bytes_come_back(void **unused) {
    (void)unused;
    static const size_t counts[] = {1, 2, 3, 15, 16, 17, 300, 4095, 4096, 4097, 4500, 30000};
    for (enum kind kind = 0; kind < KINDS; ++kind)
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; ++n) {
            unsigned char *from = make(kind, counts[n]);
            struct packing *p = packing_after(NULL, from, (uint32_t)counts[n]);
            const struct packed code = packed_of(p, counts[n]);
            unsigned char *to = strobe__unpack(&code, 1, false);
            assert_non_null(to);
            assert_memory_equal(to, from, counts[n]);
            if (kind == ZEROS) assert_true(code.bytes < 100);
            if (kind == NOISE) assert_true(code.bytes < counts[n] + counts[n] / 16 + 20);
            packing_end(p), free(to), free(from), free((void *)(uintptr_t)code.stream);
        }
}

/* What follows others, of any length, is unpacked with them, and is small where it is the same. */
static void test_a_code_follows_another(void **unused) {
    (void)unused;
    enum { FIRST = 20001, SECOND = 19000 };
    unsigned char *from = make(NOISE, FIRST + SECOND);
    memcpy(from + FIRST, from + 1000, SECOND);
    struct packing *first = packing_after(NULL, from, FIRST), *second;
    struct packed codes[2] = {packed_of(first, FIRST), {0}};
    for (int again = 0; again < 2; ++again) { /* a state can be gone on from twice */
        second = packing_after(first, from, FIRST + SECOND);
        codes[1] = packed_of(second, SECOND);
        assert_true(codes[1].bytes < 200);
        unsigned char *to = strobe__unpack(codes, 2, false);
        assert_non_null(to);
        assert_memory_equal(to, from + FIRST, SECOND);
        free(to), packing_end(second), free((void *)(uintptr_t)codes[1].stream);
    }
    packing_end(first), free(from), free((void *)(uintptr_t)codes[0].stream);
}

/* A stream that is cut, changed or said to be of more bytes gives none or as many bytes as asked, and reads and writes no
 * others. */
static void test_damaged_streams(void **unused) {
    (void)unused;
    enum { COUNT = 6000 };
    unsigned char *from = make(INSTRUCTIONS, COUNT);
    struct packing *p = packing_after(NULL, from, COUNT);
    const struct packed code = packed_of(p, COUNT);
    int refused = 0;
    for (int n = 0; n < 3000; ++n) {
        struct packed bad = code;
        unsigned char *copy = malloc(code.bytes);
        assert_non_null(copy);
        memcpy(copy, code.stream, code.bytes);
        bad.stream = copy;
        if (n % 3 == 0) bad.bytes = next() % code.bytes;
        if (n % 3 == 1) copy[next() % code.bytes] ^= (unsigned char)(1 + next() % 255);
        if (n % 3 == 2) bad.unpacked = COUNT + 1 + next() % 100000;
        if (n % 3 == 0 && (copy = realloc(copy, bad.bytes ? bad.bytes : 1))) bad.stream = copy;
        unsigned char *to = strobe__unpack(&bad, 1, n % 2);
        refused += to == NULL;
        free(to), free(copy);
    }
    assert_true(refused > 1000);
    const struct packed nothing[] = {
        {code.stream, code.bytes, 0}, {code.stream, 3, COUNT}, {code.stream, code.bytes, (size_t)1 << 40}};
    for (int n = 0; n < 3; ++n) assert_null(strobe__unpack(&nothing[n], 1, false));
    packing_end(p), free(from), free((void *)(uintptr_t)code.stream);
}

/* ---- registers of PTX */

static char *through(const char *text) {
    const struct bytes from = {(unsigned char *)(uintptr_t)text, strlen(text), 0};
    struct bytes less = stripped(&from), packed = renamed(&less, "text");
    char *to = strobe__unpack_registers(packed.at, packed.count);
    free(less.at), free(packed.at);
    return to;
}

static void test_registers_are_renamed(void **unused) {
    (void)unused;
    static const struct {
        const char *from, *to;
    } texts[] = {
        {"", ""},
        {"// a comment\n\n\tadd.s32 \t%r7, %r9, %r7; // and more\n", "add.s32  %r0, %r1, %r0;\n"},
        {".entry a(\n.reg .b32 %r<12>;\nmov.u32 %r3, %tid.x;\nmov.b64 %rd3, {%r3,%r11};\n",
         ".entry a(\n.reg .b32 %r<12>;\nmov.u32 %r0, %tid.x;\nmov.b64 %rd0, {%r0,%r1};\n"},
        {".entry a(\n%f5 %f6\n}\n.entry b(\n%f6 %f5 %fd6 %p1 %rs2\n",
         ".entry a(\n%f0 %f1\n}\n.entry b(\n%f0 %f1 %fd0 %p0 %rs0\n"},
        {"%clock64 %r5x %r$ %envreg3 %r %\n", "%clock64 %r5x %r$ %envreg3 %r %\n"},
        {".file 1 \"a // b %r3\"\n%r4\n", ".file 1 \"a // b %r0\"\n%r1\n"},
    };
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; ++n) {
        char *to = through(texts[n].from);
        assert_non_null(to);
        assert_string_equal(to, texts[n].to);
        free(to);
    }
}

/* Of many registers each stays one, however long ago it was named. */
static void test_many_registers(void **unused) {
    (void)unused;
    enum { REGISTERS = 3000, NAMED = 20000 };
    static int given[REGISTERS];
    char *text = malloc(NAMED * 10), *at = text;
    assert_non_null(text);
    for (int n = 0; n < NAMED; ++n) at += sprintf(at, "%%r%d\n", next() % REGISTERS);
    char *to = through(text), *there = to;
    assert_non_null(to);
    for (int n = 0; n < REGISTERS; ++n) given[n] = -1;
    int names = 0;
    for (at = text; *at; at = strchr(at, '\n') + 1, there = strchr(there, '\n') + 1) {
        int *number = &given[atoi(at + 2)];
        if (*number < 0) *number = names++; /* in the order in which they are first named */
        assert_int_equal(atoi(there + 2), *number);
    }
    assert_int_equal(*there, 0);
    free(text), free(to);
}

static void test_damaged_texts(void **unused) {
    (void)unused;
    static const unsigned char bad[][5] = {{FIRST_PREFIX},
                                           {FIRST_PREFIX, 1},
                                           {FIRST_PREFIX + PREFIXES, 0},
                                           {FIRST_PREFIX, FAR_RANK, 0},
                                           {FIRST_PREFIX, 0, FIRST_PREFIX, 2}};
    static const size_t counts[] = {1, 2, 2, 3, 4};
    for (int n = 0; n < 5; ++n) assert_null(strobe__unpack_registers(bad[n], counts[n]));
    unsigned char *many = malloc(2 * (MOST_REGISTERS + 1));
    assert_non_null(many);
    for (int n = 0; n <= MOST_REGISTERS; ++n) many[2 * n] = FIRST_PREFIX, many[2 * n + 1] = 0;
    char *to = strobe__unpack_registers(many, 2 * MOST_REGISTERS);
    assert_non_null(to);
    assert_null(strobe__unpack_registers(many, 2 * (MOST_REGISTERS + 1)));
    free(to), free(many);
}

/* ---- images: bytes that say which code they are */

static struct packed_image image_of(const int *labels, int count) {
    struct bytes table = {0}, streams = {0};
    put(&table, (unsigned)count), put(&table, 0), put(&table, 0), put(&table, 0);
    for (int n = 0; n < count; ++n) {
        unsigned char *code = make(ZEROS, 8);
        snprintf((char *)code, 8, "%d", labels[n]);
        struct packing *p = packing_after(NULL, code, 8);
        struct bytes stream = pack_stream(p, labels[n] >= TEXT_CODE);
        const size_t entry[] = {(size_t)labels[n], stream.count, 8};
        for (int k = 0; k < 12; ++k) put(&table, (unsigned)(entry[k / 4] >> 8 * (k % 4)) & 255);
        for (size_t k = 0; k < stream.count; ++k) put(&streams, stream.at[k]);
        packing_end(p), free(code), free(stream.at);
    }
    for (size_t k = 0; k < streams.count; ++k) put(&table, streams.at[k]);
    free(streams.at);
    return (struct packed_image){table.at, table.count};
}

static void test_an_architecture_gets_its_code(void **unused) {
    (void)unused;
    static const int all[] = {80, 86, 90, TEXT_CODE + 80, TEXT_CODE + 100}, some[] = {TEXT_CODE + 90, 90};
    static const struct {
        int architecture, of_all, of_some; /* 0: none */
    } cases[] = {{75, 0, 0},
                 {80, 80, 0},
                 {86, 86, 0},
                 {89, 86, 0},
                 {90, 90, 90},
                 {100, TEXT_CODE + 100, TEXT_CODE + 90},
                 {120, TEXT_CODE + 100, TEXT_CODE + 90}};
    const struct packed_image images[] = {image_of(all, 5), image_of(some, 2)};
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; ++n)
        for (int which = 0; which < 2; ++which) {
            char *code = strobe__unpack_image(&images[which], NULL, cases[n].architecture);
            const int wanted = which ? cases[n].of_some : cases[n].of_all;
            assert_int_equal(code != NULL, wanted != 0);
            if (code) assert_int_equal(atoi(code), wanted);
            free(code);
        }
    /* cut anywhere, it is refused or whole; a base with other code does not fit */
    for (size_t bytes = 0; bytes < images[0].bytes; ++bytes) {
        unsigned char *copy = malloc(bytes ? bytes : 1);
        assert_non_null(copy);
        memcpy(copy, images[0].at, bytes);
        const struct packed_image cut = {copy, bytes};
        assert_null(strobe__unpack_image(&cut, NULL, 90));
        free(copy);
    }
    assert_null(strobe__unpack_image(&images[0], &images[1], 100));
    free((void *)(uintptr_t)images[0].at), free((void *)(uintptr_t)images[1].at);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_back),
        cmocka_unit_test(test_a_code_follows_another),
        cmocka_unit_test(test_damaged_streams),
        cmocka_unit_test(test_registers_are_renamed),
        cmocka_unit_test(test_many_registers),
        cmocka_unit_test(test_damaged_texts),
        cmocka_unit_test(test_an_architecture_gets_its_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
