/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_quantise.c: `strobe quantise` writes the q, k and v of a file in e4m3 or int8 with their scales, and says what that
 * costs the result of attention, set by set. */
#include "commands.h"
#include "io/file.h"
#include "io/memory.h"
#include "io/number.h"
#include "io/options.h"
#include "io/progress.h"
#include "io/table.h"
#include "io/terminal.h"
#include "problem/element.h"
#include "run/attention_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe_quantise.h>

static const char help[] =
    "usage: strobe quantise FILE.safetensors -o OUT.safetensors [OPTION...]\n"
    "\n"
    "Quantises tensors q [batch, seq, heads, dim], k and v, on every set of names that end so after the same prefix, and\n"
    "writes PREFIXq, PREFIXk, PREFIXv in fewer bits beside PREFIXq_scale, k_scale and v_scale [batch, blocks, heads] in "
    "F32.\n"
    "The true value is scale times stored. Prints a line a set: the relative error (2-norm) of what attention computes of\n"
    "them, without a mask, and the cosine, against the unquantised ones.\n"
    "  -o, --output FILE   where to write, the whole file or nothing\n"
    "  --dtype D           e4m3 (the default); int8_e4m3, q and k in int8 beside a v in e4m3, whose scores are three times\n"
    "                      as exact; or int8, for k and v alone: q stays as it is\n"
    "  --block ROWS        rows that share a scale (128); 0: all of them\n"
    "  --hadamard          transform q and k by random signs and a Hadamard matrix, which scores do not feel\n"
    "  --seed N            of the signs (0)\n"
    "  --subtract-mean     take the mean of k over its sequence from it, which the softmax does not feel\n"
    "\n"
    "Exit code: 0 ok, 2 usage or a file that is refused, 130 stopped by Ctrl-C: the sets until then are written.\n"
    "\n"
    "examples:\n"
    "  strobe quantise examples/data/minilm_qkv.safetensors --hadamard -o fp8.safetensors\n"
    "  strobe quantise examples/data/minilm_qkv.safetensors --hadamard --dtype int8_e4m3 -o int8.safetensors\n"
    "  strobe quantise cache.safetensors --dtype int8 --block 1 -o cache8.safetensors\n"
    "\n";

typedef struct options {
    const char *file, *output;
    int32_t dtype, of_scores; /* of v, and of q and k; with v in int8 q is not stored */
    int64_t block, seed;
    bool hadamard, subtract_mean;
} options;

/* What is written, kept until all is there. */
typedef struct results {
    array *arrays;
    size_t count;
} results;

/* A new array of a set's, whose elements are filled in later. */
static void *keep(results *kept, const char *prefix, const char *name, int32_t dtype, int64_t rank, const int64_t *shape) {
    array a = {.dtype = dtype, .rank = rank};
    snprintf(a.name, sizeof a.name, "%s%s", prefix, name);
    memcpy(a.shape, shape, (size_t)rank * sizeof *shape);
    if (!array_bytes(&a, element_bytes(dtype), &a.bytes)) return NULL;
    unsigned char *data = memory_zeroed(a.bytes + 1, 1);
    a.data = data;
    kept->arrays = memory_resized(kept->arrays, kept->count + 1, sizeof *kept->arrays);
    kept->arrays[kept->count++] = a;
    return data;
}

static int64_t blocks_of(int64_t length, int64_t block) { return block == 0 ? 1 : (length + block - 1) / block; }

/* The descriptor of the set's quantised attention. */
typedef struct quantised {
    strobe_attention attention;
    strobe_scales scales;
} quantised;

static void describe(quantised *z, const options *o, const attention_set *set, const inputs *in, results *kept) {
    static const struct { const char *bytes, *scale; } names[] = {{"q", "q_scale"}, {"k", "k_scale"}, {"v", "v_scale"}};
    const problem *p = &in->problem;
    strobe_attention *a = &z->attention;
    strobe_scales *s = &z->scales;
    strobe_tensor *tensors[] = {&a->q, &a->k, &a->v};
    const float **scales[] = {&s->q, &s->k, &s->v};
    int64_t *strides[] = {s->stride_q, s->stride_k, s->stride_v};
    a->struct_size = sizeof *a, s->struct_size = sizeof *s, a->scales = s;
    a->batch = p->batch, a->seq_q = p->seq_q, a->seq_k = p->seq_k, a->heads_q = p->heads_q, a->heads_kv = p->heads_kv;
    a->dim = p->dim, a->dim_v = p->dim_v, a->dtype = o->dtype == STROBE_INT8 ? STROBE_FP32 : o->dtype;
    s->block_q = s->block_k = o->block;
    for (int n = o->dtype == STROBE_INT8; n < 3; ++n) {
        const int64_t *extent = in->tensor[T_Q + n].extent;
        const int64_t blocks[3] = {extent[0], blocks_of(extent[1], o->block), extent[2]};
        const int32_t dtype = n < 2 ? o->of_scores : o->dtype;
        tensors[n]->data = keep(kept, set->prefix, names[n].bytes, dtype, 4, extent);
        tensors[n]->dtype = dtype;
        *scales[n] = keep(kept, set->prefix, names[n].scale, STROBE_FP32, 3, blocks);
        strides[n][0] = blocks[1] * blocks[2], strides[n][1] = blocks[2], strides[n][2] = 1;
    }
    if (o->dtype == STROBE_INT8) a->q.data = in->tensor[T_Q].data;
}

static bool quantise(const options *o, const quantised *z, const inputs *in) {
    const strobe_attention *a = &z->attention;
    strobe_quantiser q = {.struct_size = sizeof q, .dtype = STROBE_FP32, .seed = (uint64_t)o->seed};
    q.hadamard = o->hadamard ? STROBE_HADAMARD : 0;
    if (o->dtype != STROBE_INT8) q.q.data = in->tensor[T_Q].data;
    q.k.data = in->tensor[T_K].data, q.v.data = in->tensor[T_V].data;
    float *mean = memory_zeroed((size_t)(a->batch * a->heads_kv * a->dim) + 1, sizeof *mean);
    if (o->subtract_mean) q.k_mean = mean;
    const bool ok = strobe_quantise(a, &q, NULL) == STROBE_OK;
    free(mean);
    return ok;
}

/* Attention of what is stored, against that of the given tensors by the float64 reference. */
static bool compare(quantised *z, const inputs *in, double *relative, double *cosine) {
    strobe_attention *a = &z->attention, exact = *a;
    const strobe_tuning reference = {.struct_size = sizeof reference, .kernel = "reference_forward"};
    const size_t count = (size_t)(a->batch * a->seq_q * a->heads_q * a->dim_v);
    float *out = memory_zeroed(count + 1, sizeof *out), *truth = memory_zeroed(count + 1, sizeof *truth);
    a->out.data = out, a->out.dtype = STROBE_FP32;
    exact.q = (strobe_tensor){.data = in->tensor[T_Q].data}, exact.k = (strobe_tensor){.data = in->tensor[T_K].data};
    exact.v = (strobe_tensor){.data = in->tensor[T_V].data}, exact.out = (strobe_tensor){.data = truth};
    exact.dtype = STROBE_FP32, exact.scales = NULL, exact.tuning = &reference;
    bool ok = strobe_forward(a, NULL, 0, NULL) == STROBE_OK && strobe_forward(&exact, NULL, 0, NULL) == STROBE_OK;
    double difference = 0, own = 0, true_ = 0, product = 0;
    for (size_t n = 0; n < count; ++n) {
        const double x = (double)out[n], y = (double)truth[n];
        difference += (x - y) * (x - y), own += x * x, true_ += y * y, product += x * y;
    }
    *relative = sqrt(difference / true_), *cosine = product / sqrt(own * true_);
    free(out), free(truth);
    return ok;
}

static bool quantise_set(const options *o, const attention_set *set, results *kept, table *t, char *message,
                         size_t capacity) {
    problem p;
    inputs in = {0};
    quantised z = {{0}, {0}};
    double relative, cosine;
    bool ok = problem_parse("fwd fp32", &p, message, capacity) && attention_set_problem(set, &p, true, message, capacity) &&
              attention_set_inputs(set, &p, &in, message, capacity);
    if (ok) {
        describe(&z, o, set, &in, kept);
        ok = quantise(o, &z, &in) && compare(&z, &in, &relative, &cosine);
        if (!ok) snprintf(message, capacity, "%s", strobe_last_error());
    }
    if (ok)
        table_add_row(t,
                      (table_cell[]){cell_text(set->prefix), cell_integer(p.seq_q), cell_integer(p.seq_k),
                                     cell_integer(p.heads_q), cell_integer(p.dim), cell_real(relative), cell_real(cosine)});
    inputs_free(&in);
    return ok;
}

static int quantise_file(const options *o, const safetensors *file) {
    static const table_column columns[] = {{.key = "set"},
                                           {.key = "rows"},
                                           {.key = "keys"},
                                           {.key = "heads"},
                                           {.key = "dim"},
                                           {.key = "error", .significant = 3},
                                           {.key = "cosine", .decimals = 6}};
    char message[PROBLEM_MESSAGE] = "";
    results kept = {0};
    attention_set set;
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    bool ok = true;
    int64_t sets = 0;
    for (size_t at = 0; attention_set_next(file, NULL, &at, &set);) ++sets;
    progress p = progress_begin(sets, (double)sets);
    for (size_t at = 0; ok && !progress_stopped() && attention_set_next(file, NULL, &at, &set); progress_add(&p, 1, true)) {
        progress_show(&p, "%s", set.prefix);
        ok = quantise_set(o, &set, &kept, t, message, sizeof message);
    }
    terminal_progress_end();
    if (ok && kept.count == 0) {
        snprintf(message, sizeof message, "%s has no tensors named ...q, ...k and ...v", o->file);
        ok = false;
    }
    ok = ok && safetensors_write(o->output, kept.arrays, kept.count, message, sizeof message);
    if (ok) {
        table_print(t, TABLE_TEXT, stdout);
        printf("written to %s: %zu tensors\n", o->output, kept.count);
    } else
        fprintf(stderr, "strobe quantise: %s\n", message);
    table_destroy(t);
    for (size_t i = 0; i < kept.count; ++i) free((void *)(uintptr_t)kept.arrays[i].data);
    free(kept.arrays);
    return progress_code(&p, "sets", ok ? EXIT_OK : EXIT_REFUSED);
}

static bool refuse(const char *option, const char *value, const char *accepted) {
    fprintf(stderr, "strobe quantise: %s is %s; %s\n", option, value, accepted);
    return false;
}

static bool read_options(options *o, int argc, char **argv, bool *wants_help) {
    enum { DTYPE, BLOCK, HADAMARD, SEED, SUBTRACT_MEAN };
    static const struct option long_options[] = {
        {"output", required_argument, NULL, 'o'},  {"dtype", required_argument, NULL, DTYPE},
        {"block", required_argument, NULL, BLOCK}, {"hadamard", no_argument, NULL, HADAMARD},
        {"seed", required_argument, NULL, SEED},   {"subtract-mean", no_argument, NULL, SUBTRACT_MEAN},
        {"help", no_argument, NULL, 'h'},          {0}};
    for (int option; (option = next_option("quantise", argc, argv, "o:h", long_options)) != -1;) {
        switch (option) {
        case 'h': *wants_help = true; return true;
        case 'o': o->output = optarg; break;
        case DTYPE:
            o->dtype = strcmp(optarg, "int8") == 0 ? STROBE_INT8 : STROBE_FP8_E4M3;
            o->of_scores = strcmp(optarg, "e4m3") == 0 ? STROBE_FP8_E4M3 : STROBE_INT8;
            if (o->dtype == STROBE_FP8_E4M3 && strcmp(optarg, "e4m3") != 0 && strcmp(optarg, "int8_e4m3") != 0)
                return refuse("--dtype", optarg, "e4m3, int8_e4m3 or int8 is accepted");
            break;
        case BLOCK:
            if (!number_integer(optarg, strlen(optarg), &o->block) || o->block < 0)
                return refuse("--block", optarg, "a number of rows, or 0 for all, is accepted");
            break;
        case SEED:
            if (!number_integer(optarg, strlen(optarg), &o->seed) || o->seed < 0)
                return refuse("--seed", optarg, "an integer from 0 on is accepted");
            break;
        case HADAMARD: o->hadamard = true; break;
        case SUBTRACT_MEAN: o->subtract_mean = true; break;
        default: return false;
        }
    }
    if (optind + 1 != argc || !o->output) {
        fputs("strobe quantise: one safetensors file and -o are needed; strobe quantise --help shows how\n", stderr);
        return false;
    }
    if (o->dtype == STROBE_INT8 && o->hadamard)
        return refuse("--hadamard", "given with --dtype int8", "without it int8 is accepted, since q stays as it is");
    o->file = argv[optind];
    return true;
}

int cmd_quantise(int argc, char **argv) {
    options o = {.dtype = STROBE_FP8_E4M3, .of_scores = STROBE_FP8_E4M3, .block = 128};
    bool wants_help = false;
    if (!read_options(&o, argc, argv, &wants_help)) return EXIT_REFUSED;
    if (wants_help) return fputs(help, stdout), EXIT_OK;
    unsigned char *bytes = NULL;
    size_t size = 0;
    char message[PROBLEM_MESSAGE];
    safetensors file = {0};
    int code = EXIT_REFUSED;
    if (file_read(o.file, &bytes, &size, message, sizeof message) &&
        safetensors_parse(bytes, size, &file, message, sizeof message))
        code = quantise_file(&o, &file);
    else
        fprintf(stderr, "strobe quantise: %s: %s\n", o.file, message);
    safetensors_free(&file);
    free(bytes);
    return code;
}
