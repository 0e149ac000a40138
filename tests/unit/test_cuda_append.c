/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cuda_append.c: on a GPU, strobe_append leaves the bytes that it leaves on the CPU, in the cache, its scales and q,
 * and between them: for any layout of cache and tokens, by lengths, pages and slots that are none among them, with rotary
 * embedding of each kind, Hadamard, every dtype. Numbers that only the device knows and that lead out of the cache change
 * nothing outside of it. A captured graph reads the lengths that are there when it runs. Skipped without a GPU. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "append_image.h"
#include "problem/cuda_driver.h"
#include "problem/element.h"
#include "strobe/strobe_append.h"
#include "with_gpu.h"

static strobe_status append(const struct way *w, const struct image *m, unsigned char *base, int32_t device, void *stream) {
    struct call c;
    append_describe(w, m, base, device, &c);
    return strobe_append(&c.a, &c.w, stream);
}

/* --------------------------------------------------------------------------------------------------------- comparison -- */

/* Every NaN of a tensor becomes one NaN: which one a computation gives is the machine's affair. */
static void unite_nans(unsigned char *from, const unsigned char *end, int32_t dtype) {
    const size_t bytes = element_bytes(dtype);
    for (; from + bytes <= end; from += bytes)
        if (isnan(element_load(from, dtype))) memset(from, 0xff, bytes);
}

static void unite_all(const struct way *w, const struct image *m, unsigned char *base) {
    if (!append_is_byte(w->q_target)) unite_nans(base + m->q_to, base + m->k_to - GAP, w->q_target);
    if (w->in_place) unite_nans(base + m->q, base + m->k - GAP, w->q_target);
    if (append_is_byte(w->target)) return;
    unite_nans(base + m->k_to, base + m->v_to - GAP, w->target),
        unite_nans(base + m->v_to, base + m->q_scale - GAP, w->target);
}

static void assert_same(const struct way *w, const struct image *m, unsigned char *gpu, unsigned char *cpu) {
    if (w->special) unite_all(w, m, gpu), unite_all(w, m, cpu);
    for (size_t n = 0; n < m->size; ++n)
        if (gpu[n] != cpu[n])
            fail_msg(
                "byte %zu is 0x%02x on the GPU and 0x%02x on the CPU (q %zu k %zu v %zu, scales %zu): where %d, tokens %d, "
                "named %d, rotary %d of %d, dims %d %d, heads %d x %d, most %d, longest %d, page %d, dtypes %d %d %d, "
                "block %d, interleaved %d, positions %d, at_length %d, hadamard %d, odd %d, in_place %d, special %d, wide "
                "%d, missing %d",
                n, gpu[n], cpu[n], m->q_to, m->k_to, m->v_to, m->q_scale, w->where, w->tokens, w->named, w->rotary,
                (int)w->rotary_dim, (int)w->dim, (int)w->dim_v, (int)w->heads, (int)w->group, (int)w->most, (int)w->longest,
                (int)w->page, w->source, w->target, w->q_target, w->block, w->interleaved, w->positions, w->at_length,
                w->hadamard, w->odd, w->in_place, w->special, w->wide, w->missing);
}

static unsigned char *there_of(const struct image *m) {
    unsigned char *there = cuda_memory_copied(m->bytes, m->size);
    assert_non_null(there);
    return there;
}

/* What is in device memory, as a block of the host's. */
static unsigned char *brought_back(const struct image *m, const unsigned char *there) {
    char message[256];
    unsigned char *back = malloc(m->size);
    assert_non_null(back);
    if (!cuda_memory_wait(message, sizeof message)) fail_msg("%s", message);
    assert_true(cuda_memory_copy_back(back, there, m->size));
    return back;
}

/* The image is freed. */
static void compare_image(const struct way *w, struct image *m) {
    unsigned char *there = there_of(m);
    if (append(w, m, m->bytes, STROBE_CPU, NULL)) fail_msg("on the CPU: %s", strobe_last_error());
    if (append(w, m, there, STROBE_CUDA, NULL)) fail_msg("on the GPU: %s", strobe_last_error());
    unsigned char *back = brought_back(m, there);
    assert_same(w, m, back, m->bytes);
    free(back), cuda_memory_free(there), free(m->bytes);
}

/* Of calls that are not too large. */
static void compare(const struct way *w, uint64_t seed) {
    struct image m;
    if (append_image_make(w, &m, seed)) compare_image(w, &m);
}

/* -------------------------------------------------------------------------------------------------------------- tests -- */

static struct way drawn(struct random *r) {
    static const int64_t dims[] = {64, 128, 256, 80, 96, 1, 7, 40, 192, 576, 8, 32, 100, 512}, pages[] = {1, 7, 16, 64};
    static const int32_t floats[] = {STROBE_BF16, STROBE_FP16, STROBE_FP32, STROBE_BF16};
    static const int32_t targets[] = {STROBE_BF16, STROBE_FP16, STROBE_FP32, STROBE_FP8_E4M3, STROBE_INT8};
    struct way w = {
        .dim = dims[random_below(r, COUNT(dims))], .heads = 1 + random_below(r, 3), .group = 1 + random_below(r, 3)};
    w.dim_v = random_below(r, 2) && w.dim <= 512 ? w.dim : dims[random_below(r, 9)];
    w.source = floats[random_below(r, 4)];
    w.target = random_below(r, 3) ? targets[random_below(r, 5)] : w.source;
    w.q_target = random_below(r, 3) ? w.source : targets[random_below(r, 5)];
    w.where = (enum where)random_below(r, 4), w.tokens = (enum tokens)random_below(r, 3);
    w.named = (enum named)random_below(r, 3), w.rotary = (enum rotary)random_below(r, 3);
    if (w.dim < 2) w.rotary = NO_ROTARY;
    w.rotary_dim = random_below(r, 2) ? w.dim / 2 * 2 : 2 + random_below(r, w.dim > 1 ? w.dim / 2 : 1) * 2;
    if (w.rotary_dim > w.dim) w.rotary_dim = w.dim / 2 * 2;
    w.page = pages[random_below(r, 4)], w.most = 1 + random_below(r, 40);
    if (random_below(r, 12) == 0 && w.dim <= 128 && w.dim_v <= 128) w.most = 1500; /* several rows a group of lanes */
    w.longest = w.most + 3 + random_below(r, 100), w.block = (int)random_below(r, 2);
    w.interleaved = random_below(r, 2), w.positions = random_below(r, 3) == 0, w.at_length = random_below(r, 4) == 0;
    w.hadamard = w.dim <= 256 && random_below(r, 3) == 0, w.odd = random_below(r, 4) == 0;
    w.in_place = w.q_target == w.source && random_below(r, 2), w.special = random_below(r, 3) == 0;
    w.wide = random_below(r, 2), w.missing = random_below(r, 2);
    /* scales of a token lie as its rows do: packed q has none of a sequence's own rows here */
    if (w.tokens == PACKED && append_is_byte(w.q_target)) w.q_target = w.source, w.in_place = false;
    if (w.where == HEADS_OUTSIDE) w.odd = false;
    return w;
}

static void bytes_of_the_cpu(void **state) {
    (void)state;
    struct random r = {.state = 21};
    const char *wanted = getenv("STROBE_APPEND_CASES"); /* fewer than 400 on a GPU that the host plays */
    const int cases = wanted ? atoi(wanted) : 400;
    assert_true(cases > 0);
    for (int n = 0; n < cases; ++n) {
        const struct way w = drawn(&r);
        compare(&w, (uint64_t)n);
    }
}

/* What engines ask for most: whole rows of 64, 128 and 256 columns, a step, a prompt, and one that goes in runs of tokens.
 */
static void usual_calls(void **state) {
    (void)state;
    static const int32_t targets[] = {STROBE_BF16, STROBE_FP8_E4M3, STROBE_INT8};
    static const int64_t most[] = {1, 300, 900}, dims[] = {128, 64, 128, 256, 128};
    for (int n = 0; n < 3 * 9; ++n) {
        struct way w = {.where = IN_PAGES, .tokens = n % 4 == 1 ? PACKED : ALL, .named = n % 4 == 3 ? BY_SLOTS : BY_LENGTHS};
        w.dim = w.dim_v = dims[n % 5], w.heads = w.dim == 256 || n % 7 == 3 ? 4 : 8, w.group = n % 7 == 3 ? 2 : 1;
        w.source = w.q_target = n % 8 == 5 ? STROBE_FP16 : STROBE_BF16;
        w.target = targets[n % 3] == STROBE_BF16 ? w.source : targets[n % 3];
        w.rotary = (enum rotary)(n / 3 % 3), w.rotary_dim = w.dim, w.interleaved = n % 7 == 6, w.hadamard = n % 4 == 2;
        w.block = n % 4 != 2, w.special = n % 11 == 10, w.most = most[n / 9], w.longest = w.most + 100, w.page = 16;
        struct image m;
        assert_true(append_image_make(&w, &m, 1000 + (uint64_t)n)); /* it is not too large */
        compare_image(&w, &m);
    }
}

/* Lengths and tables that the host does not see: what leads out of the cache goes nowhere, as a slot that is none does. */
static void wild_numbers(void **state) {
    (void)state;
    static const int64_t wild[] = {INT64_MIN, -1, INT64_MAX, INT32_MIN, INT32_MAX, 5, 1 << 20, -(1 << 20), INT64_MAX - 3};
    struct random r = {.state = 4};
    for (int n = 0; n < 60; ++n) {
        struct way w = {.where = (enum where)(n % 4), .tokens = n % 3 ? ALL : PACKED, .named = BY_LENGTHS, .wide = true};
        w.dim = w.dim_v = 64, w.heads = 2, w.group = 1, w.most = 9, w.longest = 40, w.page = 4, w.missing = true;
        w.source = w.q_target = STROBE_BF16, w.target = n % 5 ? STROBE_BF16 : STROBE_INT8, w.block = 1;
        w.rotary = n % 2 ? TABLES : NO_ROTARY, w.rotary_dim = 64;
        struct image m;
        assert_true(append_image_make(&w, &m, (uint64_t)n));
        for (int b = 0; b < BATCH; ++b) append_put(&w, m.bytes + m.lengths, b, wild[random_below(&r, COUNT(wild))]);
        if (n > 20)
            for (int b = 0; b <= BATCH; ++b) append_put(&w, m.bytes + m.new_ends, b, wild[random_below(&r, COUNT(wild))]);
        if (n > 40)
            for (int b = 0; b <= BATCH; ++b) append_put(&w, m.bytes + m.cache_ends, b, wild[random_below(&r, COUNT(wild))]);
        unsigned char *there = there_of(&m);
        if (append(&w, &m, there, STROBE_CUDA, NULL)) fail_msg("%s", strobe_last_error());
        unsigned char *back = brought_back(&m, there);
        const size_t outputs[][2] = {{m.q_to, m.k_to - GAP},
                                     {m.k_to, m.v_to - GAP},
                                     {m.v_to, m.q_scale - GAP},
                                     {m.k_scale, m.v_scale - GAP},
                                     {m.v_scale, m.cos - GAP}};
        for (size_t i = 0, at = 0; i <= COUNT(outputs); ++i) { /* all between them is as it was */
            const size_t end = i < COUNT(outputs) ? outputs[i][0] : m.size;
            assert_memory_equal(back + at, m.bytes + at, end - at);
            if (i < COUNT(outputs)) at = outputs[i][1];
        }
        free(back), cuda_memory_free(there), free(m.bytes);
    }
}

/* Lengths that are out of range beside sound ones: what is written is what slots would say. */
static void sound_beside_wild(void **state) {
    (void)state;
    struct way w = {
        .where = CONTIGUOUS, .tokens = ALL, .named = BY_LENGTHS, .dim = 128, .dim_v = 128, .heads = 4, .group = 1};
    w.most = 6, w.longest = 20, w.page = 4, w.source = w.target = w.q_target = STROBE_BF16;
    struct image m;
    assert_true(append_image_make(&w, &m, 3));
    static const int64_t lengths[BATCH] = {-2, 17, 4}; /* no key, three keys, all keys of it have a place */
    unsigned char *there;
    for (int b = 0; b < BATCH; ++b) {
        append_put(&w, m.bytes + m.lengths, b, lengths[b]);
        for (int64_t i = 0; i < w.most; ++i) {
            const int64_t key = lengths[b] + i, slot = lengths[b] < 0 || key >= w.longest ? -1 : b * w.longest + key;
            memcpy(m.bytes + m.slots + 8 * (b * w.most + i), &slot, 8);
        }
    }
    there = there_of(&m);
    assert_int_equal(append(&w, &m, there, STROBE_CUDA, NULL), STROBE_OK);
    w.named = BY_SLOTS;
    assert_int_equal(append(&w, &m, m.bytes, STROBE_CPU, NULL), STROBE_OK);
    unsigned char *back = brought_back(&m, there);
    assert_same(&w, &m, back, m.bytes);
    free(back), cuda_memory_free(there), free(m.bytes);
}

/* One graph for all steps: it reads lengths, positions and pages when it runs. */
static void in_a_graph(void **state) {
    (void)state;
    enum { THREAD_LOCAL = 1 };
    char message[256];
    const cuda_driver *driver = cuda_driver_open(message, sizeof message);
    struct way w = {.where = IN_PAGES, .tokens = ALL, .named = BY_LENGTHS, .rotary = TABLES, .rotary_dim = 128};
    w.dim = w.dim_v = 128, w.heads = 2, w.group = 2, w.most = 1, w.longest = 40, w.page = 16, w.block = 1;
    w.source = w.q_target = STROBE_BF16, w.target = STROBE_INT8;
    struct image m;
    assert_true(append_image_make(&w, &m, 6));
    unsigned char *there = there_of(&m);
    void *stream = NULL, *graph = NULL, *runnable = NULL;
    assert_int_equal(driver->create_stream(&stream, 0), 0);
    assert_int_equal(driver->begin_capture(stream, THREAD_LOCAL), 0);
    const strobe_status status = append(&w, &m, there, STROBE_CUDA, stream);
    assert_int_equal(driver->end_capture(stream, &graph), 0);
    if (status) fail_msg("%s", strobe_last_error());
    assert_int_equal(driver->instantiate(&runnable, graph, 0), 0);
    for (int step = 0; step < 5; ++step) {
        for (int b = 0; b < BATCH; ++b) append_put(&w, m.bytes + m.lengths, b, 7 * b + step);
        const device_address lengths = (device_address)(uintptr_t)(there + m.lengths);
        assert_int_equal(driver->to_device(lengths, m.bytes + m.lengths, BATCH * 4), 0);
        assert_int_equal(driver->launch_graph(runnable, stream), 0);
        assert_int_equal(driver->wait_stream(stream), 0);
        assert_int_equal(append(&w, &m, m.bytes, STROBE_CPU, NULL), STROBE_OK);
    }
    unsigned char *back = brought_back(&m, there);
    assert_same(&w, &m, back, m.bytes);
    driver->destroy_runnable(runnable), driver->destroy_graph(graph), driver->destroy_stream(stream);
    free(back), cuda_memory_free(there), free(m.bytes);
}

struct errand {
    const struct way *way;
    const struct image *image;
    unsigned char *there;
    strobe_status status;
};

static void *run_errand(void *context) {
    struct errand *e = context;
    e->status = append(e->way, e->image, e->there, STROBE_CUDA, NULL);
    return NULL;
}

static void from_a_fresh_thread(void **state) {
    (void)state;
    struct random r = {.state = 8};
    const struct way w = drawn(&r);
    struct image m;
    assert_true(append_image_make(&w, &m, 9));
    struct errand e = {.way = &w, .image = &m, .there = there_of(&m)};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_errand, &e), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(e.status, STROBE_OK);
    assert_int_equal(append(&w, &m, m.bytes, STROBE_CPU, NULL), STROBE_OK);
    unsigned char *back = brought_back(&m, e.there);
    assert_same(&w, &m, back, m.bytes);
    free(back), cuda_memory_free(e.there), free(m.bytes);
}

static void memory_of_the_host_is_refused(void **state) {
    (void)state;
    struct way w = {.where = IN_PAGES, .tokens = USED, .named = BY_SLOTS, .rotary = TABLES, .rotary_dim = 64, .dim = 64};
    w.dim_v = 64, w.heads = w.group = 1, w.most = 2, w.longest = 8, w.page = 4, w.block = 1;
    w.source = w.q_target = STROBE_BF16, w.target = STROBE_INT8;
    struct image m;
    assert_true(append_image_make(&w, &m, 2));
    unsigned char *there = there_of(&m);
    for (int n = 0; n < 10; ++n) {
        struct call c;
        append_describe(&w, &m, there, STROBE_CUDA, &c);
        const struct {
            const char *name;
            void *pointer;
            size_t at;
        } of[] = {{"appender.q", &c.w.q.data, m.q},
                  {"appender.k", &c.w.k.data, m.k},
                  {"k", &c.a.k.data, m.k_to},
                  {"v", &c.a.v.data, m.v_to},
                  {"scales.k", &c.s.k, m.k_scale},
                  {"appender.used_new", &c.w.used_new, m.new_used},
                  {"appender.lengths", &c.w.lengths, m.lengths},
                  {"appender.slots", &c.w.slots, m.slots},
                  {"rotary.cos", &c.r.cos, m.cos},
                  {"rotary.sin", &c.r.sin, m.sin}};
        const unsigned char *host = m.bytes + of[n].at;
        memcpy(of[n].pointer, &host, sizeof host);
        assert_int_equal(strobe_append(&c.a, &c.w, NULL), STROBE_INVALID_ARGUMENT);
        assert_int_equal(strncmp(strobe_last_error(), of[n].name, strlen(of[n].name)), 0);
        assert_non_null(strstr(strobe_last_error(), "memory of the host"));
    }
    cuda_memory_free(there), free(m.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_of_the_cpu),
                                       cmocka_unit_test(usual_calls),
                                       cmocka_unit_test(wild_numbers),
                                       cmocka_unit_test(sound_beside_wild),
                                       cmocka_unit_test(in_a_graph),
                                       cmocka_unit_test(from_a_fresh_thread),
                                       cmocka_unit_test(memory_of_the_host_is_refused)};
    return RUN_WITH_GPU(tests);
}
