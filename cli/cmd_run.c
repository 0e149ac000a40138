/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_run.c: `strobe run` computes attention on q, k and v from a file and says on one page what happened: which kernel, how
 * fast, how exact, beside standard attention, which stores the matrix of scores. */
#include "check/compare.h"
#include "commands.h"
#include "io/file.h"
#include "io/memory.h"
#include "io/npy.h"
#include "io/options.h"
#include "io/progress.h"
#include "problem/element.h"
#include "problem/problem_words.h"
#include "run/attention_set.h"
#include "run/run_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: strobe run FILE.safetensors [--prefix P] [-o OUT.safetensors] [WORD...]\n"
    "       strobe run --q Q.npy --k K.npy --v V.npy [-o OUT.safetensors] [WORD...]\n"
    "\n"
    "Computes attention on tensors q [batch, seq, heads, dim], k and v of a file, or [seq, heads, dim]; in a safetensors\n"
    "file, on every set of names that end in q, k and v after the same prefix, or on that of --prefix. A tensor PREFIXout,\n"
    "if there is one, is compared with the result. Prints the kernel, its time, and its largest error against float64,\n"
    "beside those of standard attention. WORDs are those of a problem that do not come from the file or from chance:\n"
    "causal, window=, window_topleft=, scale=, softcap=, alibi, dropout=, seed=, qstart=, kstart=, layout=, threads=,\n"
    "kernel=, device=; a dtype (bf16) rounds q, k and v to it.\n"
    "  --prefix P   only this set\n"
    "  -o FILE      write PREFIXout and PREFIXlse there, the whole file or nothing\n"
    "\n"
    "Exit code: 0 ok, 1 a result is wrong (strobe check --help says when), 2 usage or a file or problem that is refused,\n"
    "130 stopped by Ctrl-C: the sets until then are printed, and written.\n"
    "\n"
    "examples:\n"
    "  strobe run examples/data/minilm_qkv.safetensors\n"
    "  strobe run examples/data/minilm_qkv.safetensors --prefix layer5. bf16 causal -o out.safetensors\n"
    "  strobe run --q q.npy --k k.npy --v v.npy softcap=30\n"
    "\n";

typedef struct options {
    const char *prefix, *output, *npy[3]; /* q, k, v */
    const char *file;
    problem words;
    bool keep_dtype;
} options;

/* What is written with -o: the outputs of every set, kept until all are there. */
typedef struct results {
    array *arrays;
    size_t count;
} results;

/* Results are stored contiguously, whatever the layout in memory was. */
static void keep(results *kept, const char *prefix, const inputs *in, tensor_id id, const buffer *b) {
    array a = {.dtype = b->dtype, .rank = id == T_LSE ? 3 : 4};
    snprintf(a.name, sizeof a.name, "%s%s", prefix, tensor_name(id));
    const int64_t shape[4] = {b->extent[0], id == T_LSE ? b->extent[2] : b->extent[1],
                              id == T_LSE ? b->extent[1] : b->extent[2], b->extent[3]};
    memcpy(a.shape, shape, sizeof shape);
    const size_t element = element_bytes(b->dtype), row_bytes = (size_t)b->extent[3] * element;
    if (!array_bytes(&a, element, &a.bytes)) return;
    unsigned char *data = memory_zeroed(a.bytes, 1);
    for (rows r = rows_of(in, id, b); rows_next(&r);) {
        const int64_t lse_place = (r.batch * shape[1] + r.head) * shape[2] + r.row;
        const int64_t place = (r.batch * shape[1] + r.row) * shape[2] + r.head;
        memcpy(data + (size_t)(id == T_LSE ? lse_place : place) * row_bytes, rows_at(&r, b), row_bytes);
    }
    a.data = data;
    kept->arrays = memory_resized(kept->arrays, kept->count + 1, sizeof *kept->arrays);
    kept->arrays[kept->count++] = a;
}

static void free_results(results *kept) {
    for (size_t i = 0; i < kept->count; ++i) free((void *)(uintptr_t)kept->arrays[i].data);
    free(kept->arrays);
}

/* One set: computes, reports, keeps. Returns an exit code. */
static int run_set(const options *o, const attention_set *set, results *kept) {
    char message[PROBLEM_MESSAGE];
    problem p = o->words;
    inputs in = {0};
    outputs out = {0};
    int code = EXIT_REFUSED;
    const bool ready = attention_set_problem(set, &p, o->keep_dtype, message, sizeof message) &&
                       attention_set_inputs(set, &p, &in, message, sizeof message) &&
                       outputs_create(&out, &in, message, sizeof message);
    if (ready) code = run_report(set, &in, &out, message, sizeof message);
    if (code == EXIT_REFUSED) fprintf(stderr, "strobe run: %s%s\n", *set->prefix ? set->prefix : "", message);
    if (code == EXIT_OK && o->output) {
        keep(kept, set->prefix, &in, T_OUT, &out.tensor[T_OUT]);
        keep(kept, set->prefix, &in, T_LSE, &out.tensor[T_LSE]);
    }
    outputs_free(&out);
    inputs_free(&in);
    return code;
}

static int run_file(const options *o, const safetensors *file, const char *name) {
    results kept = {0};
    attention_set set;
    char message[PROBLEM_MESSAGE];
    int code = EXIT_OK;
    size_t at = 0;
    int64_t found = 0;
    while (attention_set_next(file, o->prefix, &at, &set)) ++found;
    progress p = progress_begin(found, (double)found);
    for (at = 0; code == EXIT_OK && !progress_stopped() && attention_set_next(file, o->prefix, &at, &set);
         progress_add(&p, 1, true)) {
        progress_show(&p, "%s", set.prefix);
        code = run_set(o, &set, &kept);
    }
    if (!found) {
        fprintf(stderr, "strobe run: %s has no tensors named %sq, %sk and %sv\n", name, o->prefix ? o->prefix : "...",
                o->prefix ? o->prefix : "...", o->prefix ? o->prefix : "...");
        code = EXIT_REFUSED;
    }
    if (code == EXIT_OK && o->output && !safetensors_write(o->output, kept.arrays, kept.count, message, sizeof message)) {
        fprintf(stderr, "strobe run: %s\n", message);
        code = EXIT_REFUSED;
    } else if (code == EXIT_OK && o->output)
        printf("written to %s: %zu tensors\n", o->output, kept.count);
    free_results(&kept);
    return progress_code(&p, "sets", code);
}

static int run_safetensors(const options *o) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    char message[PROBLEM_MESSAGE];
    safetensors file = {0};
    int code = EXIT_REFUSED;
    if (file_read(o->file, &bytes, &size, message, sizeof message) &&
        safetensors_parse(bytes, size, &file, message, sizeof message)) {
        printf("%s\n", o->file);
        for (size_t i = 0; i < file.note_count; ++i) printf("  %s: %s\n", file.notes[i].key, file.notes[i].value);
        fputs("\n", stdout);
        code = run_file(o, &file, o->file);
    } else
        fprintf(stderr, "strobe run: %s: %s\n", o->file, message);
    safetensors_free(&file);
    free(bytes);
    return code;
}

static int run_npy(const options *o) {
    static const char *const names[] = {"q", "k", "v"};
    unsigned char *bytes[3] = {NULL};
    array arrays[3] = {{{0}, 0, 0, {0}, NULL, 0}};
    char message[PROBLEM_MESSAGE];
    bool ok = true;
    for (int i = 0; ok && i < 3; ++i) {
        size_t size = 0;
        ok = file_read(o->npy[i], &bytes[i], &size, message, sizeof message) &&
             npy_parse(bytes[i], size, &arrays[i], message, sizeof message);
        if (!ok) fprintf(stderr, "strobe run: %s: %s\n", o->npy[i], message);
        snprintf(arrays[i].name, sizeof arrays[i].name, "%s", names[i]);
    }
    const safetensors file = {.arrays = arrays, .count = 3};
    const int code = ok ? run_file(o, &file, o->npy[0]) : EXIT_REFUSED;
    for (int i = 0; i < 3; ++i) free(bytes[i]);
    return code;
}

/* Reads the words after the file. Sizes are the file's, and random masks or biases would mean nothing here. */
static bool read_words(options *o, int count, char *const *words, char *message, size_t capacity) {
    static const size_t accepted[] = {offsetof(problem, dtype),   offsetof(problem, mask),    offsetof(problem, window_left),
                                      offsetof(problem, scale),   offsetof(problem, softcap), offsetof(problem, dropout),
                                      offsetof(problem, seed),    offsetof(problem, alibi),   offsetof(problem, q_start),
                                      offsetof(problem, k_start), offsetof(problem, layout),  offsetof(problem, threads),
                                      offsetof(problem, kernel),  offsetof(problem, device)};
    char text[PROBLEM_TEXT] = "";
    for (int i = 0; i < count; ++i) {
        const char *value = NULL;
        const word *w = problem_word_find(words[i], &value);
        bool known = false;
        for (size_t f = 0; w && f < sizeof accepted / sizeof accepted[0]; ++f) known |= w->field == accepted[f];
        if (!known) {
            snprintf(message, capacity, "%s is not a word that run takes; strobe run --help lists them", words[i]);
            return false;
        }
        o->keep_dtype |= w->field == offsetof(problem, dtype);
        const size_t length = strlen(text);
        if ((size_t)snprintf(text + length, sizeof text - length, " %s", words[i]) < sizeof text - length) continue;
        snprintf(message, capacity, "the words are longer than %zu bytes together", sizeof text - 1);
        return false;
    }
    return problem_parse(text, &o->words, message, capacity);
}

int cmd_run(int argc, char **argv) {
    enum { Q, K, V, PREFIX };
    static const struct option long_options[] = {{"q", required_argument, NULL, Q},
                                                 {"k", required_argument, NULL, K},
                                                 {"v", required_argument, NULL, V},
                                                 {"prefix", required_argument, NULL, PREFIX},
                                                 {"output", required_argument, NULL, 'o'},
                                                 {"help", no_argument, NULL, 'h'},
                                                 {0}};
    options o = {0};
    for (int option; (option = next_option("run", argc, argv, "o:h", long_options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), EXIT_OK;
        if (option == '?') return EXIT_REFUSED;
        if (option == 'o')
            o.output = optarg;
        else if (option == PREFIX)
            o.prefix = optarg;
        else
            o.npy[option] = optarg;
    }
    const bool any = o.npy[Q] || o.npy[K] || o.npy[V], all = o.npy[Q] && o.npy[K] && o.npy[V];
    if (any != all || (!any && optind == argc)) {
        fputs("strobe run: a safetensors file, or all of --q, --k and --v, is needed; strobe run --help shows how\n",
              stderr);
        return EXIT_REFUSED;
    }
    if (!any) o.file = argv[optind++];
    char message[PROBLEM_MESSAGE];
    if (!read_words(&o, argc - optind, argv + optind, message, sizeof message)) {
        fprintf(stderr, "strobe run: %s\n", message);
        return EXIT_REFUSED;
    }
    return any ? run_npy(&o) : run_safetensors(&o);
}
