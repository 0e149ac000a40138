/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_nvrtc.c: the kernels' text, linked in as the library has it, compiles with functions of a score, by NVRTC, for Ampere
 * and for Hopper, which takes no GPU; what does not compile is said; and compiled code comes back from the disk as it was.
 * Skipped where NVRTC is not found (STROBE_NVRTC may name its file). */
#define _DEFAULT_SOURCE /* mkdtemp, setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/score/text.h"
#include "cuda/host/disk_cache.h"
#include "cuda/host/nvrtc.h"
#include "test.h"

#define FORWARD_90                                                                                                         \
    {                                                                                                                      \
        "KERNEL=strobe__score", "ELEMENT_BF16", "HEAD_DIM=128", "KEYS=128", "GROUPS=2", "STAGES=2", "Q_SLOTS=4", "CTAS=1", \
            "FEATURE_CLASS=FEATURES_NONE"                                                                                  \
    }
#define BACKWARD_90                                                                                           \
    {                                                                                                         \
        "KERNEL=strobe__score", "ELEMENT_FP16", "HEAD_DIM=128", "COLUMNS=128", "ROWS=64", "PARTS=1", "LAG=1", \
            "FEATURE_CLASS=FEATURES_NONE"                                                                     \
    }
#define FORWARD_80                                                                                                        \
    {                                                                                                                     \
        "KERNEL=strobe__score", "ELEMENT_BF16", "DIM=64", "DIM_V=64", "M_TILES=1", "N_TILES=8", "WARPS_M=4", "WARPS_N=1", \
            "STAGES=2", "BLOCKS=3", "FEATURES=1", "CACHE=0"                                                               \
    }

enum { MOST = 12 };

static const struct {
    const char *source;
    int architecture;
    bool is_own, wants_gradients;
    const char *score;
    const char *options[MOST];
} jobs[] = {
    {"cuda/sm90/forward/forward.cu", 90, true, false, "score + table[h][i - j + 99]", FORWARD_90},
    {"cuda/sm90/backward/backward.cu", 90, true, true, "score + table[h][i - j + 99]", BACKWARD_90},
    {"cuda/sm80/forward.cu", 80, false, false, "score + table[h][i - j + 99]", FORWARD_80},
};

static strobe_score *function_of(const char *text) {
    const strobe_score_array table = {"table", 2, STROBE_FP32};
    const strobe_score_source source = {.struct_size = sizeof source, .score = text, .arrays = &table, .array_count = 1};
    strobe_score *f;
    if (strobe_score_create(&source, &f)) fail_msg("%s: %s", text, strobe_last_error());
    return f;
}

/* Compiles job n with this text of a function. */
static strobe_status compile(size_t n, const char *text, void **code, size_t *bytes) {
    char options[MOST][64];
    const char *list[MOST];
    int count = 0;
    for (; count < MOST && jobs[n].options[count]; ++count) {
        snprintf(options[count], sizeof options[count], "-D%s", jobs[n].options[count]);
        list[count] = options[count];
    }
    const struct nvrtc_job job = {.source = jobs[n].source,
                                  .text = text,
                                  .architecture = jobs[n].architecture,
                                  .is_own = jobs[n].is_own,
                                  .options = list,
                                  .option_count = count};
    return strobe__nvrtc_compile(&job, code, bytes);
}

static void skip_without_nvrtc(void) {
    const char *lacks = strobe__nvrtc_lacks();
    if (!lacks) return;
    printf("%s\n", lacks);
    skip();
}

static bool holds(const char *code, size_t bytes, const char *word) {
    for (size_t at = 0; at + strlen(word) <= bytes; ++at)
        if (memcmp(code + at, word, strlen(word)) == 0) return true;
    return false;
}

/* On disk, and back. */
static void check_disk(const char *key, const void *code, size_t bytes) {
    void *again = NULL;
    size_t length = 0;
    strobe__disk_cache_write(key, code, bytes);
    assert_true(strobe__disk_cache_read(key, &again, &length));
    assert_int_equal(length, bytes);
    assert_memory_equal(again, code, bytes);
    free(again);
}

static void test_kernels(void **state) {
    (void)state;
    char folder[] = "/tmp/strobe_nvrtc_XXXXXX", command[64];
    skip_without_nvrtc();
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    for (size_t n = 0; n < COUNT(jobs); ++n) {
        struct score_text text = {.text = NULL};
        strobe_score *f = function_of(jobs[n].score);
        void *code = NULL;
        size_t bytes = 0;
        strobe__score_print(&text, "#define SCORE_WANTS_GRADIENTS %d\n", jobs[n].wants_gradients);
        strobe__score_write(&text, f, n % 2 ? 0 : 1);
        if (compile(n, text.text, &code, &bytes)) fail_msg("%s, %s: %s", jobs[n].source, jobs[n].score, strobe_last_error());
        assert_true(bytes > 4 && memcmp(code, "\177ELF", 4) == 0 && holds(code, bytes, "strobe__score"));
        check_disk(text.text, code, bytes);
        free(code), free(text.text);
        strobe_score_destroy(f);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_what_does_not_compile(void **state) {
    (void)state;
    void *code = NULL;
    size_t bytes = 0;
    skip_without_nvrtc();
    assert_int_equal(compile(0, "no C at all\n", &code, &bytes), STROBE_DEVICE_ERROR);
    assert_null(code);
    assert_non_null(strstr(strobe_last_error(), "cuda/sm90/forward/forward.cu with a score function could not be compiled"));
    assert_non_null(strstr(strobe_last_error(), "score_text.h"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_what_does_not_compile)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return !failed && strobe__nvrtc_lacks() ? 77 : failed;
}
