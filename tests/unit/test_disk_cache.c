/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_disk_cache.c: compiled kernels on disk: an entry comes back; one that is damaged, cut, or another's is ignored and
 * written anew; processes that write the same entry at the same time leave a whole one; the environment turns all of it off.
 */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/host/disk_cache.h"
#include "test.h"

enum { BYTES = 5000 };

static char folder[64] = "/tmp/strobe_cache_XXXXXX";

static const unsigned char *code_of(int number) {
    static unsigned char code[BYTES];
    for (int n = 0; n < BYTES; ++n) code[n] = (unsigned char)(n * 7 + number);
    return code;
}

static bool reads(const char *key, int number) {
    void *code = NULL;
    size_t bytes = 0;
    if (!strobe__disk_cache_read(key, &code, &bytes)) return false;
    const bool same = bytes == BYTES && memcmp(code, code_of(number), BYTES) == 0;
    free(code);
    assert_true(same);
    return true;
}

/* The path of the only entry there is; how many files there are beside it. */
static int entry_path(char path[300]) {
    char inside[96];
    int others = -1;
    snprintf(inside, sizeof inside, "%s/strobe", folder);
    DIR *all = opendir(inside);
    assert_non_null(all);
    for (const struct dirent *e; (e = readdir(all)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        ++others;
        if (strlen(e->d_name) == 39) snprintf(path, 300, "%s/%.100s", inside, e->d_name);
    }
    closedir(all);
    return others;
}

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return 1;
    return setenv("XDG_CACHE_HOME", folder, 1) || unsetenv("STROBE_DISK_CACHE");
}

static int tear_down(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void test_comes_back(void **state) {
    (void)state;
    assert_false(reads("a key", 1));
    strobe__disk_cache_write("a key", code_of(1), BYTES);
    assert_true(reads("a key", 1));
    assert_false(reads("another key", 1));
    strobe__disk_cache_write("a key", code_of(2), BYTES);
    assert_true(reads("a key", 2));
}

/* One byte in each place of the file, which the key or the check number must find. */
static void test_damaged(void **state) {
    char path[300];
    (void)state;
    strobe__disk_cache_write("a key", code_of(3), BYTES);
    assert_int_equal(entry_path(path), 0);
    for (long at = 0; at < BYTES + 37; at += at < 48 ? 1 : 97) {
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        fseek(file, at, SEEK_SET);
        const int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 0x10, file);
        fclose(file);
        if (reads("a key", 3)) fail_msg("byte %ld was changed, and nobody noticed", at);
        strobe__disk_cache_write("a key", code_of(3), BYTES);
        assert_true(reads("a key", 3));
    }
    assert_int_equal(truncate(path, BYTES), 0);
    assert_false(reads("a key", 3));
    strobe__disk_cache_write("a key", code_of(3), BYTES);
    assert_true(reads("a key", 3));
}

/* The file of one key in the place of another's. */
static void test_foreign(void **state) {
    char path[300], other[310], command[700];
    (void)state;
    strobe__disk_cache_write("a key", code_of(4), BYTES);
    assert_int_equal(entry_path(path), 0);
    snprintf(other, sizeof other, "%s.kept", path);
    assert_int_equal(rename(path, other), 0);
    strobe__disk_cache_write("b key", code_of(5), BYTES);
    assert_int_equal(entry_path(path), 1);
    snprintf(command, sizeof command, "mv %s %s", other, path);
    assert_int_equal(system(command), 0);
    assert_false(reads("b key", 5));
    strobe__disk_cache_write("b key", code_of(5), BYTES);
    assert_true(reads("b key", 5));
}

static void test_race(void **state) {
    char path[300];
    (void)state;
    pid_t children[4];
    strobe__disk_cache_write("b key", code_of(6), BYTES);
    for (int n = 0; n < 4; ++n) {
        children[n] = fork();
        if (children[n] == 0) {
            for (int again = 0; again < 200; ++again) strobe__disk_cache_write("b key", code_of(6), BYTES);
            _exit(0);
        }
    }
    for (int n = 0; n < 500; ++n) assert_true(reads("b key", 6));
    for (int n = 0; n < 4; ++n) waitpid(children[n], NULL, 0);
    assert_int_equal(entry_path(path), 0); /* no file is left beside it */
}

static void test_off(void **state) {
    (void)state;
    assert_int_equal(setenv("STROBE_DISK_CACHE", "0", 1), 0);
    assert_false(reads("b key", 6));
    assert_int_equal(unsetenv("STROBE_DISK_CACHE"), 0);
    assert_true(reads("b key", 6));
    assert_int_equal(setenv("XDG_CACHE_HOME", "/proc/nowhere", 1), 0);
    strobe__disk_cache_write("b key", code_of(6), BYTES);
    assert_false(reads("b key", 6));
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_comes_back), cmocka_unit_test(test_damaged),
                                       cmocka_unit_test(test_foreign), cmocka_unit_test(test_race),
                                       cmocka_unit_test(test_off)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
