/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_fence.c: pieces of GPU memory beside pages that are mapped to nothing (cli/problem/cuda_fence.h), with a driver
 * whose pages the host has: what is not mapped is what the kernel does not read for us. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "problem/cuda_driver.h"
#include "problem/cuda_fence.h"
#include "test.h"

enum { PAGE = 2 << 20, POISON = 0xFF };

static size_t pages_left; /* bytes that the driver still has */
static size_t created;

static int page_size(size_t *bytes, const memory_kind *kind, int option) {
    *bytes = PAGE;
    return kind->pinned != 1 || kind->location.is_device != 1 || option != 0;
}
static int reserve(device_address *range, size_t bytes, size_t alignment, device_address at, unsigned long long flags) {
    assert_true(bytes % PAGE == 0 && alignment == 0 && at == 0 && flags == 0);
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *range = (uintptr_t)memory;
    return memory == MAP_FAILED;
}
static int create_pages(unsigned long long *pages, size_t bytes, const memory_kind *kind, unsigned long long flags) {
    assert_true(bytes % PAGE == 0 && kind->pinned == 1 && flags == 0);
    if (bytes > pages_left) return 2;
    pages_left -= bytes;
    *pages = ++created;
    return 0;
}
static int release_pages(unsigned long long pages) { return pages != created; }
static int map(device_address at, size_t bytes, size_t offset, unsigned long long pages, unsigned long long flags) {
    assert_true(at && bytes % PAGE == 0 && offset == 0 && pages == created && flags == 0);
    return 0;
}
static int set_access(device_address at, size_t bytes, const memory_access *access, size_t count) {
    assert_true(access->location.is_device == 1 && access->read_and_write == 3 && count == 1);
    return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE);
}
static int to_device(device_address to, const void *from, size_t bytes) {
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}
static int fill(device_address to, unsigned char byte, size_t bytes) {
    memset((void *)(uintptr_t)to, byte, bytes);
    return 0;
}

static cuda_driver driver = {.to_device = to_device,
                             .fill = fill,
                             .reserve = reserve,
                             .create_pages = create_pages,
                             .release_pages = release_pages,
                             .map = map,
                             .set_access = set_access};

const cuda_driver *cuda_driver_open(char *message, size_t capacity) {
    (void)message, (void)capacity;
    return &driver;
}

/* The system refuses to read for us what is not mapped. */
static bool is_mapped(const unsigned char *at) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const bool mapped = write(ends[1], at, 1) == 1;
    if (!mapped) assert_int_equal(errno, EFAULT);
    close(ends[0]);
    close(ends[1]);
    return mapped;
}

static int start(void **state) {
    (void)state;
    driver.page_size = page_size;
    pages_left = (size_t)1 << 30;
    cuda_fence_reuse();
    return 0;
}

static unsigned char text[3 * PAGE];

static void test_behind(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 2, 15, 16, 17, 4096, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 5};
    for (size_t n = 0; n < COUNT(text); ++n) text[n] = (unsigned char)(n % 251);
    for (int round = 0; round < 2; ++round) {
        cuda_fence_reuse();
        for (size_t n = 0; n < COUNT(sizes); ++n)
            for (uintptr_t address = 0; address < 16; address += 2) {
                unsigned char *piece = cuda_fence_copied(text, sizes[n], FENCE_BEHIND, 64 + address, 16);
                if (address == 14) cuda_fence_reuse();
                assert_non_null(piece);
                assert_int_equal((uintptr_t)piece % 16, address);
                assert_memory_equal(piece, text, sizes[n]);
                const unsigned char *end = piece + sizes[n];
                size_t mapped = 0;
                while (mapped < 16 && is_mapped(end + mapped)) assert_int_equal(end[mapped++], POISON);
                assert_true(mapped < 16);
            }
    }
}

static void test_before(void **state) {
    (void)state;
    for (uintptr_t address = 0; address < 16; address += 2) {
        unsigned char *piece = cuda_fence_copied(text, 1000, FENCE_BEFORE, address, 16);
        assert_non_null(piece);
        assert_int_equal((uintptr_t)piece % 16, address);
        assert_memory_equal(piece, text, 1000);
        for (uintptr_t n = 1; n <= address; ++n) assert_int_equal(piece[-(intptr_t)n], POISON);
        assert_false(is_mapped(piece - address - 1));
    }
}

static void test_pieces_do_not_touch(void **state) {
    (void)state;
    unsigned char *a = cuda_fence_copied(text, 100, FENCE_BEHIND, 0, 16),
                  *b = cuda_fence_copied(NULL, 100, FENCE_BEHIND, 0, 16);
    assert_true(a && b && a != b);
    assert_memory_equal(a, text, 100);
    for (int n = 0; n < 100; ++n) assert_int_equal(b[n], POISON);
    cuda_fence_reuse();
    assert_ptr_equal(cuda_fence_copied(text, 100, FENCE_BEHIND, 0, 16), a);
}

static void test_nothing_has_a_place_too(void **state) {
    (void)state;
    unsigned char *piece = cuda_fence_copied(text, 0, FENCE_BEHIND, 0, 16);
    assert_non_null(piece);
    assert_false(is_mapped(piece));
}

static void test_what_cannot_be_had(void **state) {
    (void)state;
    assert_null(cuda_fence_copied(text, (size_t)1 << 40, FENCE_BEHIND, 0, 16));
    pages_left = 0;
    assert_null(cuda_fence_copied(NULL, 40 * (size_t)PAGE, FENCE_BEHIND, 0, 16));
    assert_non_null(cuda_fence_copied(text, 100, FENCE_BEHIND, 0, 16)); /* in pages that there are */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_behind, start), cmocka_unit_test_setup(test_before, start),
        cmocka_unit_test_setup(test_pieces_do_not_touch, start), cmocka_unit_test_setup(test_nothing_has_a_place_too, start),
        cmocka_unit_test_setup(test_what_cannot_be_had, start)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
