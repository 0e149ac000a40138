/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fp8.c: `strobe lab fp8`: FA3's table of errors on its outlier distribution, or on a file's numbers. */
#include "lab/fp8.h"
#include "commands.h"
#include "io/options.h"
#include "io/progress.h"
#include "io/terminal.h"
#include "lab/lab_command.h"
#include "lab/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strobe lab fp8 [n=4096] [d=128] [heads=4] [rows=256] [block=128] [seed=1] [normal | FILE [layer=NAME]]\n"
    "                      [-o table|json|csv|md]\n"
    "\n"
    "The root mean square error of attention against float64 in FP16 and in FP8 (e4m3): a scale for the whole tensor, a "
    "head\n"
    "or a block of rows; with and without incoherent processing (random signs, then a Hadamard matrix, on Q and K).\n"
    "Inputs: N(0, 1) + N(0, 100) Bernoulli(0.001), the FlashAttention-3 paper's; normal: N(0, 1); or a safetensors file.\n"
    "n keys, `rows` queries a head. d has to be a power of two. published: the paper's Table 3. The last rows are not\n"
    "simulated: strobe_quantise with blocks and incoherent processing, and the kernel named, bf16 out; of _int8 q and k "
    "are\n"
    "int8.\n"
    "\n"
    "examples:\n"
    "  strobe lab fp8\n"
    "  strobe lab fp8 n=8k d=64 seed=2 -o md\n"
    "  strobe lab fp8 examples/data/minilm_qkv.safetensors layer=layer5 block=64\n";

static const table_column columns[] = {{.key = "variant"},
                                       {.key = "summary", .title = "what"},
                                       {.key = "rmse", .title = "RMSE", .significant = 3},
                                       {.key = "published", .significant = 2},
                                       {.key = "largest", .title = "largest error", .significant = 2},
                                       {.key = "scale_q", .title = "largest scale of Q", .significant = 3},
                                       {.key = "bytes", .title = "MB", .scale = 1e-6, .decimals = 1}};
enum { COLUMNS = sizeof columns / sizeof *columns };

typedef struct fp8_request {
    int64_t n, d, heads, rows, block, seed;
    bool normal;
    const char *file, *layer;
} fp8_request;

static bool read_word(fp8_request *r, const char *word, char *message) {
    static const lab_field fields[] = {
        {"n", offsetof(fp8_request, n), 1, 1 << 20},         {"d", offsetof(fp8_request, d), 1, 512},
        {"heads", offsetof(fp8_request, heads), 1, 1024},    {"rows", offsetof(fp8_request, rows), 1, 1 << 20},
        {"block", offsetof(fp8_request, block), 1, 1 << 20}, {"seed", offsetof(fp8_request, seed), 0, INT64_MAX}};
    if (!strcmp(word, "normal")) return r->normal = true;
    if (!strncmp(word, "layer=", 6)) return r->layer = word + 6, true;
    if (!strchr(word, '=') && strstr(word, ".safetensors")) return r->file = word, true;
    return lab_read_field(r, fields, sizeof fields / sizeof *fields, word, message);
}

/* The inputs, made or read. values: Q, K, V of all heads, in one allocation. */
static double *make_inputs(const fp8_request *r, lab_fp8_input *in, char *message) {
    const int64_t q = r->heads * r->rows * r->d, k = r->heads * r->n * r->d;
    double *values = calloc((size_t)(q + 2 * k), sizeof *values);
    if (!values) {
        snprintf(message, LAB_REFUSAL, "this machine has no memory for %lld heads of %lld keys", (long long)r->heads,
                 (long long)r->n);
        return NULL;
    }
    lab_random random = {.state = (uint64_t)r->seed};
    (r->normal ? lab_normals : lab_outliers)(&random, values, q + 2 * k);
    *in = (lab_fp8_input){.heads = r->heads,
                          .m = r->rows,
                          .n = r->n,
                          .d = r->d,
                          .block = r->block,
                          .q = values,
                          .k = values + q,
                          .v = values + q + k,
                          .seed = (uint64_t)r->seed};
    return values;
}

static bool is_power_of_two(int64_t d) { return (d & (d - 1)) == 0; }

int lab_fp8_steps(void) {
    int variants = 0;
    while (lab_fp8_variant_at(variants)) ++variants;
    return variants + 5; /* the oracle, the variants, the library in two ways on two devices */
}

/* NULL with a sentence. */
static table *measure_all(const fp8_request *r, const lab_fp8_input *in, progress *pace, double seconds, char *message) {
    progress_show(pace, "float64");
    double *oracle = calloc((size_t)(in->heads * in->m * in->d), sizeof *oracle);
    snprintf(message, LAB_REFUSAL, "this machine has no memory for the result");
    bool ok = oracle && lab_fp8_oracle(in, oracle, message);
    table *t = table_create(columns, COLUMNS);
    const bool papers = !r->file && !r->normal;
    progress_add(pace, seconds, true);
    for (int i = 0; ok && lab_fp8_variant_at(i) && !progress_stopped(); ++i, progress_add(pace, seconds, true)) {
        const lab_fp8_variant *v = lab_fp8_variant_at(i);
        lab_fp8_result result;
        progress_show(pace, "%s", v->name);
        ok = lab_fp8_measure(v, in, oracle, &result, message);
        if (ok)
            table_add_row(t, (table_cell[COLUMNS]){cell_text(v->name), cell_text(v->summary), cell_real(result.rmse),
                                                   papers && v->published > 0 ? cell_real(v->published) : cell_none(),
                                                   cell_real(result.largest_error),
                                                   v->fp8 ? cell_real(result.scale_q) : cell_none(),
                                                   cell_integer(lab_traffic_bytes(&result.counts))});
    }
    static const char *const library[] = {"strobe_cpu", "strobe_cpu_int8", "strobe_cuda", "strobe_cuda_int8"};
    for (int way = 0; ok && way < 4 && !progress_stopped(); ++way, progress_add(pace, seconds, true)) {
        lab_fp8_result result;
        const char *kernel;
        progress_show(pace, "%s", library[way]);
        if (!lab_fp8_library(in, way / 2, way % 2, oracle, &kernel, &result)) continue; /* no GPU with such a kernel */
        table_add_row(t,
                      (table_cell[COLUMNS]){cell_text(library[way]), cell_text(kernel), cell_real(result.rmse), cell_none(),
                                            cell_real(result.largest_error), cell_real(result.scale_q), cell_none()});
    }
    free(oracle);
    if (ok) return t;
    table_destroy(t);
    return NULL;
}

static const fp8_request defaults = {.n = 4096, .d = 128, .heads = 4, .rows = 256, .block = 128, .seed = 1};

table *lab_fp8_table(progress *pace, double seconds, char *message) {
    lab_fp8_input in;
    double *values = progress_stopped() ? NULL : make_inputs(&defaults, &in, message);
    table *t = values ? measure_all(&defaults, &in, pace, seconds, message) : NULL;
    free(values);
    return t;
}

static int report(const fp8_request *r, const lab_fp8_input *in, table_format format) {
    char message[LAB_REFUSAL];
    if (!is_power_of_two(in->d)) {
        snprintf(message, sizeof message, "d = %lld: the Hadamard transform takes a power of two", (long long)in->d);
        return lab_complain("fp8", message);
    }
    progress pace = progress_begin(lab_fp8_steps(), lab_fp8_steps());
    table *t = measure_all(r, in, &pace, 1, message);
    terminal_progress_end();
    if (!t) return lab_complain("fp8", message);
    const bool printed = table_print(t, format, stdout);
    table_destroy(t);
    return progress_code(&pace, "rows", printed ? EXIT_OK : EXIT_REFUSED);
}

int lab_fp8_command(int argc, char **argv) {
    static const struct option options[] = {{"output", required_argument, NULL, 'o'}, {"help", no_argument, NULL, 'h'}, {0}};
    table_format format = TABLE_TEXT;
    for (int option; (option = next_option("lab fp8", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), EXIT_OK;
        if (option != 'o' || !lab_format("fp8", optarg, &format)) return EXIT_REFUSED;
    }
    char message[LAB_REFUSAL] = "";
    fp8_request r = defaults;
    for (int i = optind; i < argc; ++i)
        if (!read_word(&r, argv[i], message)) return lab_complain("fp8", message);
    lab_fp8_input in;
    lab_file file = {0};
    double *values = NULL;
    if (r.file) {
        if (!lab_file_read(&file, r.file, r.layer, message)) return lab_complain("fp8", message);
        if (file.d != file.dv) {
            lab_file_free(&file);
            return lab_complain("fp8", "K and V of the file have different dimensions");
        }
        in = (lab_fp8_input){.heads = file.heads,
                             .m = file.m,
                             .n = file.n,
                             .d = file.d,
                             .block = r.block,
                             .q = file.q,
                             .k = file.k,
                             .v = file.v,
                             .seed = (uint64_t)r.seed};
    } else {
        values = make_inputs(&r, &in, message);
        if (!values) return lab_complain("fp8", message);
    }
    const int code = report(&r, &in, format);
    free(values);
    lab_file_free(&file);
    return code;
}
