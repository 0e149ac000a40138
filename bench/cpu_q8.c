/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpu_q8.c: decoding over a cache of eight bits, beside ggml's q8_0, which has a scale for 32 columns where strobe_append
 * writes one for a token and head: what either costs, and what either rounds away. One row of 32 heads on 8, d 128, for each
 * sequence; in turns in one process and on one thread, by the thread's own CPU time. Prints medians, and the error of each
 * output (2-norm, against float64 on the numbers before they were stored). It is built where CMake finds ggml. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-cpu.h>
#include <ggml.h>
#include <strobe/strobe_append.h>

#include "median.h"

enum { HEADS = 8, GROUP = 4, HEADS_Q = HEADS * GROUP, DIM = 128, BLOCK = 32, MOST_TURNS = 15 };

/* The same numbers in every form: [sequences][keys][HEADS][DIM]. */
struct cache {
    int64_t sequences, keys;
    float *q, *turned, *k, *v,
        *scale[2][2]; /* turned: q behind the Hadamard transform; scales: plain and transformed, k and v */
    int8_t *bytes[2][2];
    uint16_t *bf16[2];
    void *half[2], *q8_0[2]; /* ggml's */
    float *out;              /* [sequences][HEADS_Q][DIM] */
    double *truth;
};

static const strobe_parallel one = {.struct_size = sizeof one, .threads = 1};

/* Of one measurement, freed together. */
static void *kept[64];
static int kept_count;

static void *allocate(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory || kept_count == 64) fputs("there is no memory\n", stderr), exit(1);
    return kept[kept_count++] = memory;
}

static void stop(void) { fprintf(stderr, "%s\n", strobe_last_error()), exit(1); }

/* Normal numbers, `outliers` times as large in columns 5, 5 + every, ... */
static float *random_numbers(int64_t count, float outliers, int every) {
    static uint64_t state = 1;
    float *x = allocate((size_t)count * sizeof *x);
    for (int64_t n = 0; n < count; ++n) {
        double sum = -6;
        for (int i = 0; i < 12; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 40) * 0x1p-24;
        }
        x[n] = (float)sum * (n % DIM % every == 5 ? outliers : 1);
    }
    return x;
}

static strobe_attention describe(const struct cache *c) {
    strobe_attention a = {.struct_size = sizeof a, .batch = c->sequences, .seq_q = 1, .seq_k = c->keys, .dim = DIM};
    a.heads_q = HEADS_Q, a.heads_kv = HEADS, a.parallel = &one, a.q.data = c->q, a.out.data = c->out;
    return a;
}

static strobe_scales scales_of(const struct cache *c, int form) {
    strobe_scales s = {.struct_size = sizeof s, .k = c->scale[form][0], .v = c->scale[form][1], .block_k = 1};
    s.stride_k[0] = s.stride_v[0] = c->keys * HEADS;
    s.stride_k[1] = s.stride_v[1] = HEADS, s.stride_k[2] = s.stride_v[2] = 1;
    return s;
}

/* K and V in int8 by strobe_append; form 1: with a Hadamard transform of k and q. */
static void append(struct cache *c, int form) {
    strobe_attention a = describe(c);
    const strobe_scales s = scales_of(c, form);
    strobe_appender n = {.struct_size = sizeof n, .seq_new = c->keys, .hadamard = form ? STROBE_HADAMARD : 0};
    a.k.data = c->bytes[form][0], a.v.data = c->bytes[form][1], a.k.dtype = a.v.dtype = STROBE_INT8, a.scales = &s;
    n.k.data = c->k, n.v.data = c->v;
    a.q.data = form ? c->turned : NULL, n.q.data = form ? c->q : NULL;
    if (strobe_append(&a, &n, NULL)) stop();
}

static void make(struct cache *c, int64_t sequences, int64_t keys, float outliers, int every) {
    const int64_t count = sequences * keys * HEADS * DIM, rows = sequences * HEADS_Q;
    *c = (struct cache){.sequences = sequences, .keys = keys};
    c->q = random_numbers(rows * DIM, 1, DIM), c->turned = allocate((size_t)(rows * DIM) * 4);
    c->k = random_numbers(count, outliers, every), c->v = random_numbers(count, 1, DIM);
    c->out = allocate((size_t)(rows * DIM) * 4), c->truth = allocate((size_t)(rows * DIM) * 8);
    for (int which = 0; which < 2; ++which) {
        const float *from = which ? c->v : c->k;
        c->bf16[which] = allocate((size_t)count * 2), c->half[which] = allocate((size_t)count * 2);
        c->q8_0[which] = allocate(ggml_row_size(GGML_TYPE_Q8_0, count));
        for (int form = 0; form < 2; ++form) {
            c->bytes[form][which] = allocate((size_t)count);
            c->scale[form][which] = allocate((size_t)(count / DIM) * 4);
        }
        ggml_fp32_to_bf16_row(from, (ggml_bf16_t *)c->bf16[which], count);
        ggml_fp32_to_fp16_row(from, c->half[which], count);
        ggml_quantize_chunk(GGML_TYPE_Q8_0, from, c->q8_0[which], 0, count / DIM, DIM, NULL);
    }
    for (int form = 0; form < 2; ++form) append(c, form);
    double *weight = allocate((size_t)keys * sizeof *weight);
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t b = r / HEADS_Q, h = r % HEADS_Q / GROUP;
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
            const float *k = c->k + ((b * keys + j) * HEADS + h) * DIM;
            weight[j] = 0;
            for (int x = 0; x < DIM; ++x) weight[j] += (double)c->q[r * DIM + x] * (double)k[x];
            weight[j] /= sqrt(DIM), most = fmax(most, weight[j]);
        }
        for (int64_t j = 0; j < keys; ++j) sum += weight[j] = exp(weight[j] - most);
        for (int x = 0; x < DIM; ++x) c->truth[r * DIM + x] = 0;
        for (int64_t j = 0; j < keys; ++j)
            for (int x = 0; x < DIM; ++x)
                c->truth[r * DIM + x] += weight[j] / sum * (double)c->v[((b * keys + j) * HEADS + h) * DIM + x];
    }
}

/* ------------------------------------------------------------------------------------------------------ the contestants --
 */

static void ours(const struct cache *c, const void *k, const void *v, int32_t dtype, int form) {
    strobe_attention a = describe(c);
    const strobe_scales s = scales_of(c, form);
    a.k.data = (void *)(uintptr_t)k, a.v.data = (void *)(uintptr_t)v, a.k.dtype = a.v.dtype = dtype;
    if (dtype == STROBE_INT8) a.scales = &s;
    if (form) a.q.data = c->turned;
    if (strobe_forward(&a, NULL, 0, NULL)) stop();
}

static void ours_int8(const struct cache *c) { ours(c, c->bytes[0][0], c->bytes[0][1], STROBE_INT8, 0); }
static void ours_hadamard(const struct cache *c) { ours(c, c->bytes[1][0], c->bytes[1][1], STROBE_INT8, 1); }
static void ours_bf16(const struct cache *c) { ours(c, c->bf16[0], c->bf16[1], STROBE_BF16, 0); }

/* ggml's operator over views [DIM, keys, HEADS, sequences] of the same memory layout; its graph is made outside of the time.
 */
static struct ggml_context *context;
static struct ggml_cgraph *graph[2];
static struct ggml_cplan plan[2];

static struct ggml_tensor *view(const struct cache *c, enum ggml_type type, void *data) {
    struct ggml_tensor *t = ggml_new_tensor_4d(context, type, DIM, HEADS, c->keys, c->sequences);
    t->data = data;
    return ggml_permute(context, t, 0, 2, 1, 3);
}

static void make_graph(const struct cache *c, int which, enum ggml_type type, void *const cached[2]) {
    struct ggml_tensor *q = ggml_new_tensor_4d(context, GGML_TYPE_F32, DIM, 1, HEADS_Q, c->sequences);
    q->data = c->q;
    struct ggml_tensor *k = view(c, type, cached[0]), *v = view(c, type, cached[1]);
    struct ggml_tensor *out = ggml_flash_attn_ext(context, q, k, v, NULL, 1 / sqrtf(DIM), 0, 0);
    out->data = c->out; /* [sequences][1][HEADS_Q][DIM] */
    graph[which] = ggml_new_graph(context);
    ggml_build_forward_expand(graph[which], out);
    plan[which] = ggml_graph_plan(graph[which], 1, NULL);
    plan[which].work_data = allocate(plan[which].work_size + 64);
}

static void run_graph(int which) {
    if (ggml_graph_compute(graph[which], &plan[which])) fputs("ggml failed\n", stderr), exit(1);
}

static void ggml_q8_0(const struct cache *c) { (void)c, run_graph(0); }
static void ggml_f16(const struct cache *c) { (void)c, run_graph(1); }

static const struct contestant {
    const char *name;
    void (*run)(const struct cache *c);
    double bits; /* of a number, with its scale's share */
} contestants[] = {
    {"Strobe int8, a scale a token and head", ours_int8, 8 + 32.0 / DIM},
    {"the same behind a Hadamard transform", ours_hadamard, 8 + 32.0 / DIM},
    {"Strobe bf16", ours_bf16, 16},
    {"ggml q8_0, a scale for 32 columns", ggml_q8_0, 8 + 16.0 / BLOCK},
    {"ggml f16", ggml_f16, 16},
};
enum { COUNT = sizeof contestants / sizeof contestants[0] };

static void measure(int64_t sequences, int64_t keys, float outliers, int every, int turns) {
    struct cache c;
    double times[COUNT][MOST_TURNS], error[COUNT];
    make(&c, sequences, keys, outliers, every);
    context = ggml_init((struct ggml_init_params){.mem_size = 16 << 20, .no_alloc = true});
    make_graph(&c, 0, GGML_TYPE_Q8_0, c.q8_0), make_graph(&c, 1, GGML_TYPE_F16, c.half);
    for (int turn = -1; turn < turns; ++turn)
        for (int n = 0; n < COUNT; ++n) {
            const double start = seconds_by(CLOCK_THREAD_CPUTIME_ID);
            contestants[n].run(&c);
            times[n][turn < 0 ? 0 : turn] = seconds_by(CLOCK_THREAD_CPUTIME_ID) - start;
            double difference = 0, size = 0;
            for (int64_t e = 0; e < sequences * HEADS_Q * DIM; ++e) {
                const double d = (double)c.out[e] - c.truth[e];
                difference += d * d, size += c.truth[e] * c.truth[e];
            }
            error[n] = sqrt(difference / size);
        }
    for (int n = 0; n < COUNT; ++n) {
        const double bytes = 2 * (double)(sequences * keys * HEADS * DIM) * contestants[n].bits / 8,
                     ms = 1e3 * median(times[n], turns);
        printf("| %lld x %lld | %g in %d of %d | %s | %.2f | %.1f | %.1e |\n", (long long)sequences, (long long)keys,
               (double)outliers, DIM / every, DIM, contestants[n].name, ms, bytes / ms * 1e-6, error[n]);
    }
    ggml_free(context);
    while (kept_count > 0) free(kept[--kept_count]);
}

int main(void) {
    ggml_cpu_init();
    puts("| sequences x keys | K's outliers | cache | ms | GB/s | error |\n|---|---|---|---|---|---|");
    measure(1, 2048, 1, DIM, 15), measure(1, 8192, 1, DIM, 15), measure(4, 8192, 1, DIM, 7);
    for (int every = BLOCK; every <= DIM; every *= 4) measure(1, 2048, 8, every, 5), measure(1, 2048, 32, every, 5);
    return 0;
}
