/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_files.c: the readers of .npy and safetensors on good files, on files wrong in one place, on every prefix of a
 * good file and on good files with bytes changed; the safetensors writer; sets of q, k and v. */
#include "fenced.h"
#include "test.h"

#include "io/file.h"
#include "io/npy.h"
#include "portable/posix.h"
#include "problem/element.h"
#include "run/attention_set.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char message[PROBLEM_MESSAGE];

/* ------------------------------------------------------------------------------------------------------------- .npy -- */

/* A file of version 1 with this header text, padded as NumPy does, and this many bytes of data. */
static unsigned char *make_npy(const char *header, size_t data_bytes, size_t *size) {
    const size_t length = (10 + strlen(header) + 1 + 63) / 64 * 64 - 10;
    *size = 10 + length + data_bytes;
    unsigned char *bytes = calloc(*size, 1);
    memcpy(bytes, "\x93NUMPY\x01\x00", 8);
    bytes[8] = (unsigned char)length, bytes[9] = (unsigned char)(length >> 8);
    memset(bytes + 10, ' ', length);
    memcpy(bytes + 10, header, strlen(header));
    bytes[10 + length - 1] = '\n';
    return bytes;
}

static const struct npy {
    const char *header;
    size_t data_bytes;
    const char *sentence; /* NULL: good */
    int64_t rank, last;
} npys[] = {
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 4), }", 96, NULL, 3, 4},
    {"{\"shape\": (5,), \"descr\": \"<f2\", \"fortran_order\": False}", 10, NULL, 1, 5},
    {"{'descr': '<f8', 'fortran_order': False, 'shape': (), }", 8, NULL, 0, 0},
    {"{'descr': '<f8', 'fortran_order': False, 'shape': (0, 7), }", 0, NULL, 2, 7},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 23, "just as many bytes", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 25, "just as many bytes", 0, 0},
    {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4, "type is >f4; <f2, <f4 and <f8", 0, 0},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", 4, "type is <i4;", 0, 0},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4, "header is not", 0, 0},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", 4, "Fortran order", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False}", 4, "header is not", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), }", 4, "header is not", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 4, "header is not", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 4, "header is not", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", 0, "just as many bytes", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", 4, "header is not", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", 4, "header is not", 0, 0}, /* all of it but the brace */
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), ", 4, "header is not", 0, 0},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,),", 4, "header is not", 0, 0},
    {"{'descr': '<f4", 4, "header is not", 0, 0},
    {"", 4, "header is not", 0, 0},
};

static void reads_npy(void **state) {
    const struct npy *row = *state;
    size_t size = 0;
    unsigned char *bytes = make_npy(row->header, row->data_bytes, &size);
    array a;
    const bool ok = npy_parse(bytes, size, &a, message, sizeof message);
    assert_int_equal(ok, row->sentence == NULL);
    if (ok) {
        assert_int_equal(a.rank, row->rank);
        assert_int_equal(a.bytes, row->data_bytes);
        assert_true(row->data_bytes ? a.data == bytes + size - row->data_bytes : a.data == NULL);
        if (row->rank) assert_int_equal(a.shape[row->rank - 1], row->last);
    } else if (!strstr(message, row->sentence))
        fail_msg("\"%s\" is refused with \"%s\"", row->header, message);
    free(bytes);
}

/* A header without a space after it that ends before its brace: because its length says so, or because the file does. */
static void refuses_headers_without_their_brace(void **state) {
    (void)state;
    static const char text[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (0,),}";
    const size_t whole = sizeof text - 1;
    for (size_t end = 0; end <= whole; ++end)
        for (int by_length = 0; by_length < 2; ++by_length) {
            struct fenced file = fenced_make(10 + end);
            array a;
            memcpy(file.data, "\x93NUMPY\x01\x00", 8);
            file.data[8] = (unsigned char)(by_length ? end : whole), file.data[9] = 0;
            memcpy(file.data + 10, text, end);
            assert_int_equal(npy_parse(file.data, file.bytes, &a, message, sizeof message), end == whole);
            fenced_free(&file);
        }
}

/* ------------------------------------------------------------------------------------------------------ safetensors -- */

static unsigned char *make_safetensors(const char *header, size_t data_bytes, size_t *size) {
    const size_t length = strlen(header);
    *size = 8 + length + data_bytes;
    unsigned char *bytes = calloc(*size + 1, 1);
    bytes[0] = (unsigned char)length, bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    return bytes;
}

#define ONE(dtype, shape, offsets) "{\"q\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
static const char good_header[] = "{\"__metadata__\":{\"model\":\"tiny\",\"n\":3},"
                                  "\"q\":{\"dtype\":\"F32\",\"shape\":[1,2,1,2],\"data_offsets\":[0,16]},"
                                  "\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[16,24]},"
                                  "\"h\":{\"dtype\":\"BF16\",\"shape\":[0,9],\"data_offsets\":[24,24]}}   ";

static const struct bad_header {
    const char *header, *sentence;
} bad_headers[] = {
    {"", "not valid JSON"},
    {"[]", "not a JSON object"},
    {"7", "not a JSON object"},
    {"{}x", "followed by something"},
    {"{\"q\":1}", "tensor q does not have"},
    {"{\"q\":{}}", "tensor q does not have"},
    {"{\"q\":[{},{}]}", "tensor q does not have"},
    {ONE("4", "[4]", "[0,16]"), "tensor q does not have"},
    {ONE("\"F32\"", "[4]", "[0]"), "tensor q does not have"},
    {ONE("\"F32\"", "[4]", "\"ab\""), "tensor q does not have"},
    {ONE("\"F32\"", "[4.5]", "[0,16]"), "tensor q does not have"},
    {ONE("\"F32\"", "[-4]", "[0,16]"), "tensor q does not have"},
    {ONE("\"F32\"", "[1e300]", "[0,16]"), "tensor q does not have"},
    {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), "tensor q does not have"},
    {ONE("\"F32\"", "[4]", "[0,20]"), "which is not what its shape takes"},
    {ONE("\"F32\"", "[4]", "[16,0]"), "lies at bytes 16 to 0"},
    {ONE("\"F32\"", "[4]", "[16,32]"), "lies at bytes 16 to 32 of 24"},
    {ONE("\"F32\"", "[4503599627370496,4503599627370496,4]", "[0,16]"), "which is not what its shape takes"},
    {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nests more than 16"},
    {"{\"q\":{\"dtype\":\"F32\"", "not valid JSON"},
};

static void reads_safetensors(void **state) {
    (void)state;
    size_t size = 0;
    unsigned char *bytes = make_safetensors(good_header, 24, &size);
    safetensors file;
    assert_true(safetensors_parse(bytes, size, &file, message, sizeof message));
    assert_int_equal(file.count, 3);
    assert_int_equal(file.note_count, 1); /* the spec has text only */
    assert_string_equal(file.notes[0].value, "tiny");
    const array *q = safetensors_find(&file, "q"), *ids = safetensors_find(&file, "ids"), *h = safetensors_find(&file, "h");
    assert_true(q->dtype == STROBE_FP32 && q->rank == 4 && q->bytes == 16 && q->data == bytes + size - 24);
    assert_true(ids->dtype == STROBE_DTYPE_DEFAULT && ids->bytes == 8);
    assert_true(h->dtype == STROBE_BF16 && h->data == NULL);
    assert_null(safetensors_find(&file, "Q"));
    safetensors_free(&file);
    free(bytes);
}

static void refuses_safetensors(void **state) {
    const struct bad_header *row = *state;
    size_t size = 0;
    unsigned char *bytes = make_safetensors(row->header, 24, &size);
    safetensors file;
    assert_false(safetensors_parse(bytes, size, &file, message, sizeof message));
    if (!strstr(message, row->sentence)) fail_msg("\"%s\" is refused with \"%s\"", row->header, message);
    safetensors_free(&file);
    free(bytes);
}

static void long_names_are_refused(void **state) {
    (void)state;
    char header[400];
    size_t size = 0;
    safetensors file;
    snprintf(header, sizeof header, "{\"%0200d\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 7);
    unsigned char *bytes = make_safetensors(header, 24, &size);
    assert_false(safetensors_parse(bytes, size, &file, message, sizeof message));
    assert_non_null(strstr(message, "longer than 127 bytes"));
    safetensors_free(&file);
    free(bytes);
}

/* Copies that end where nobody may read on. */
static void parse_copy(const unsigned char *bytes, size_t size) {
    struct fenced fence = fenced_make(size);
    unsigned char *copy = fence.data;
    memcpy(copy, bytes, size);
    safetensors file;
    array a;
    message[0] = 0;
    if (!safetensors_parse(copy, size, &file, message, sizeof message)) assert_true(message[0] != 0);
    safetensors_free(&file);
    message[0] = 0;
    if (!npy_parse(copy, size, &a, message, sizeof message)) assert_true(message[0] != 0);
    fenced_free(&fence);
}

static void any_bytes_are_read_or_refused(void **state) {
    (void)state;
    size_t size[2];
    unsigned char *files[2] = {make_safetensors(good_header, 24, &size[0]),
                               make_npy(npys[0].header, npys[0].data_bytes, &size[1])};
    struct random r = {4};
    for (int kind = 0; kind < 2; ++kind) {
        for (size_t prefix = 0; prefix <= size[kind]; ++prefix) parse_copy(files[kind], prefix);
        for (int round = 0; round < 5000; ++round) {
            const size_t at = (size_t)random_below(&r, (int64_t)size[kind]);
            const unsigned char saved = files[kind][at];
            files[kind][at] = (unsigned char)random_bits(&r);
            parse_copy(files[kind], size[kind]);
            if (round % 16) files[kind][at] = saved; /* some changes stay */
        }
        free(files[kind]);
    }
}

/* ---------------------------------------------------------------------------------------------------------- writing -- */

static void writes_what_it_reads(void **state) {
    (void)state;
    char folder[] = "/tmp/strobe-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    const float values[6] = {1, 2, 3, 4, 5, 6};
    const array arrays[] = {{"layer.out", STROBE_FP32, 3, {1, 2, 3}, (const unsigned char *)values, sizeof values},
                            {"none", STROBE_FP16, 1, {0}, NULL, 0}};
    assert_true(safetensors_write(path, arrays, COUNT(arrays), message, sizeof message));
    assert_true(safetensors_write(path, arrays, COUNT(arrays), message, sizeof message)); /* over the old one */
    unsigned char *bytes = NULL;
    size_t size = 0;
    safetensors file;
    assert_true(file_read(path, &bytes, &size, message, sizeof message));
    assert_true(safetensors_parse(bytes, size, &file, message, sizeof message));
    assert_int_equal(file.count, 2);
    const array *a = safetensors_find(&file, "layer.out");
    assert_true(a && a->rank == 3 && a->shape[2] == 3 && (size_t)(a->data - bytes) % 8 == 0);
    assert_memory_equal(a->data, values, sizeof values);
    safetensors_free(&file);
    free(bytes);
    unlink(path);
    assert_int_equal(rmdir(folder), 0); /* no temporary file is left */
    assert_false(safetensors_write(path, arrays, COUNT(arrays), message, sizeof message));
    assert_non_null(strstr(message, "could not be written"));
    assert_false(file_read(path, &bytes, &size, message, sizeof message));
    assert_non_null(strstr(message, "could not be read"));
    assert_false(file_read("/tmp", &bytes, &size, message, sizeof message));
}

/* What stands at the path and is no file stays what it is: a pipe, as a device, is written to, and a link leads to the file.
 */
static void writes_to_pipes_and_through_links(void **state) {
    (void)state;
#if defined(_WIN32) /* which has neither */
    skip();
#else
    char folder[] = "/tmp/strobe-test-XXXXXX", path[64], alias[64], fifo[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    snprintf(alias, sizeof alias, "%s/link", folder);
    snprintf(fifo, sizeof fifo, "%s/pipe", folder);
    const float value = 1;
    const array arrays[] = {{"out", STROBE_FP32, 1, {1}, (const unsigned char *)&value, sizeof value}};
    struct stat found;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const int reader = open(fifo, O_RDWR | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_true(safetensors_write(fifo, arrays, COUNT(arrays), message, sizeof message));
    assert_true(lstat(fifo, &found) == 0 && S_ISFIFO(found.st_mode));
    char bytes[256];
    assert_true(read(reader, bytes, sizeof bytes) > 8);
    close(reader);
    assert_true(safetensors_write(path, arrays, COUNT(arrays), message, sizeof message));
    assert_int_equal(symlink(path, alias), 0);
    assert_true(safetensors_write(alias, arrays, COUNT(arrays), message, sizeof message));
    assert_true(lstat(alias, &found) == 0 && S_ISLNK(found.st_mode));
    assert_true(lstat(path, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > (off_t)sizeof value);
    unlink(alias), unlink(path), unlink(fifo);
    assert_int_equal(rmdir(folder), 0);
#endif
}

/* ------------------------------------------------------------------------------------------------------------- sets -- */

static array shaped(const char *name, int64_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    array result = {.dtype = STROBE_FP32, .rank = rank, .shape = {a, b, c, d}};
    snprintf(result.name, sizeof result.name, "%s", name);
    return result;
}

static void finds_sets_by_prefix(void **state) {
    (void)state;
    array arrays[] = {shaped("a.v", 4, 1, 5, 2, 8),  shaped("a.q", 4, 1, 3, 4, 16), shaped("a.k", 4, 1, 5, 2, 16),
                      shaped("b.q", 3, 3, 4, 16, 0), shaped("q", 3, 3, 4, 16, 0),   shaped("k", 3, 5, 4, 16, 0),
                      shaped("v", 3, 5, 4, 16, 0),   shaped("out", 3, 3, 4, 16, 0), shaped("seq", 1, 3, 0, 0, 0)};
    const safetensors file = {.arrays = arrays, .count = COUNT(arrays)};
    attention_set set;
    size_t at = 0;
    problem p;
    assert_true(problem_parse("", &p, message, sizeof message));
    assert_true(attention_set_next(&file, NULL, &at, &set));
    assert_string_equal(set.prefix, "a.");
    assert_true(attention_set_problem(&set, &p, false, message, sizeof message));
    assert_true(p.seq_q == 3 && p.seq_k == 5 && p.heads_q == 4 && p.heads_kv == 2 && p.dim == 16 && p.dim_v == 8);
    assert_null(attention_set_expected(&set, &p));
    assert_true(attention_set_next(&file, NULL, &at, &set)); /* b. has no k */
    assert_string_equal(set.prefix, "");
    assert_true(attention_set_problem(&set, &p, false, message, sizeof message));
    assert_ptr_equal(attention_set_expected(&set, &p), &arrays[7]);
    arrays[7].rank = 8;
    assert_null(attention_set_expected(&set, &p));
    assert_false(attention_set_next(&file, NULL, &at, &set));
    at = 0;
    assert_false(attention_set_next(&file, "c.", &at, &set));
}

static void sets_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        int64_t q[4], k[4], v[4];
        const char *sentence;
    } bad_sets[] = {
        {{1, 3, 4, 8}, {2, 5, 4, 8}, {1, 5, 4, 8}, "do not belong together"},
        {{1, 3, 4, 8}, {1, 5, 4, 8}, {1, 6, 4, 8}, "do not belong together"},
        {{1, 3, 4, 8}, {1, 5, 3, 8}, {1, 5, 3, 8}, "do not belong together"},
        {{1, 3, 4, 8}, {1, 5, 4, 9}, {1, 5, 4, 8}, "do not belong together"},
        {{1, 3, 4, 8}, {1, 5, 0, 8}, {1, 5, 0, 8}, "do not belong together"},
        {{0, 3, 4, 0}, {0, 5, 4, 0}, {0, 5, 4, 8}, "d is 0;"},
        {{(int64_t)1 << 53, 3, 4, 8}, {(int64_t)1 << 53, 5, 4, 8}, {(int64_t)1 << 53, 5, 4, 8}, "b is 9007199254740992;"}};
    for (size_t i = 0; i < COUNT(bad_sets); ++i) {
        const array arrays[] = {shaped("q", 4, bad_sets[i].q[0], bad_sets[i].q[1], bad_sets[i].q[2], bad_sets[i].q[3]),
                                shaped("k", 4, bad_sets[i].k[0], bad_sets[i].k[1], bad_sets[i].k[2], bad_sets[i].k[3]),
                                shaped("v", 4, bad_sets[i].v[0], bad_sets[i].v[1], bad_sets[i].v[2], bad_sets[i].v[3])};
        const attention_set set = {"", &arrays[0], &arrays[1], &arrays[2], NULL};
        problem p;
        assert_true(problem_parse("", &p, message, sizeof message));
        assert_false(attention_set_problem(&set, &p, false, message, sizeof message));
        if (!strstr(message, bad_sets[i].sentence)) fail_msg("row %zu is refused with \"%s\"", i, message);
    }
}

int main(void) {
    struct CMUnitTest tests[COUNT(npys) + COUNT(bad_headers) + 8];
    size_t count = 0;
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(refuses_headers_without_their_brace);
    for (size_t i = 0; i < COUNT(npys); ++i) tests[count++] = test_of_row(npys[i].header, reads_npy, &npys[i]);
    for (size_t i = 0; i < COUNT(bad_headers); ++i)
        tests[count++] = test_of_row(bad_headers[i].header, refuses_safetensors, &bad_headers[i]);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(reads_safetensors);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(long_names_are_refused);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(any_bytes_are_read_or_refused);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(writes_what_it_reads);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(writes_to_pipes_and_through_links);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(finds_sets_by_prefix);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(sets_that_do_not_fit_are_refused);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
