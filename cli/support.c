/* SPDX-License-Identifier: BSD-3-Clause
 *
 * support.c: the matrix of kernels and features; see support.h. A new feature is one line of the table of probes. */
#include "support.h"

#include "io/memory.h"
#include "problem/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KERNELS = 64, MOST_NOTES = 256, LARGEST_DIM = 512 };

typedef struct probe {
    const char *feature, *words;
    void (*amend)(call *c); /* what the grammar of problems has no word for */
    bool backward_only;
} probe;

static void amend_fp8(call *c) {
    c->attention.dtype = STROBE_FP8_E4M3;
    c->attention.q.dtype = c->attention.k.dtype = c->attention.v.dtype = STROBE_FP8_E4M3;
    c->attention.out.dtype = STROBE_BF16;
}

static void amend_paged(call *c) {
    static const int32_t pages[1];
    static const strobe_paged paged = {
        .struct_size = sizeof paged, .page_table = pages, .table_stride = 1, .page_size = 64, .pages = 1};
    c->attention.paged = &paged;
}

static void amend_split(call *c) { c->tuning.split_keys = 256; }

static const probe probes[] = {
    {.feature = "fp32", .words = "fp32"},
    {.feature = "fp16", .words = "fp16"},
    {.feature = "bf16", .words = "bf16"},
    {.feature = "fp64", .words = "fp64"},
    {.feature = "fp8 e4m3 inputs", .words = "", .amend = amend_fp8},
    {.feature = "int8 k and v with scales", .words = "kv=int8"},
    {.feature = "k and v narrower than q", .words = "fp32 kv=bf16"},
    {.feature = "dim_v other than dim", .words = "d=192 dv=128"},
    {.feature = "grouped heads (GQA, MQA)", .words = "h=8/2"},
    {.feature = "one query row (decoding)", .words = "sq=1"},
    {.feature = "causal, bottom-right", .words = "causal"},
    {.feature = "causal, top-left", .words = "causal=topleft"},
    {.feature = "sliding window, bottom-right", .words = "window=16,8"},
    {.feature = "sliding window, top-left", .words = "window_topleft=16,8"},
    {.feature = "boolean mask", .words = "mask=bhqk"},
    {.feature = "block mask", .words = "block=64,64"},
    {.feature = "q_start, k_start", .words = "causal qstart=8 kstart=4"},
    {.feature = "softcap", .words = "softcap=30"},
    {.feature = "additive bias", .words = "bias=bhqk"},
    {.feature = "additive bias, broadcast", .words = "bias=hk"},
    {.feature = "gradient of the bias", .words = "bias=hqk dbias", .backward_only = true},
    {.feature = "ALiBi", .words = "alibi"},
    {.feature = "attention sinks", .words = "sinks"},
    {.feature = "gradient of the sinks", .words = "sinks dsinks", .backward_only = true},
    {.feature = "dropout", .words = "dropout=0.1"},
    {.feature = "gradient through lse", .words = "dlse", .backward_only = true},
    {.feature = "deterministic", .words = "deterministic", .backward_only = true},
    {.feature = "packed sequences (cu_seqlens)", .words = "varlen"},
    {.feature = "padded sequences (used lengths)", .words = "varlen=used"},
    {.feature = "64-bit lengths", .words = "varlen=packed64"},
    {.feature = "paged k and v", .words = "", .amend = amend_paged},
    {.feature = "split_keys", .words = "", .amend = amend_split},
    {.feature = "[batch, heads, seq, dim] views", .words = "layout=bhsd"},
    {.feature = "packed qkv views", .words = "layout=packed"},
    {.feature = "negative strides", .words = "layout=reversed"},
};

/* Reasons, each said once. */
typedef struct notes {
    char *text[MOST_NOTES];
    int count;
} notes;

static int note_number(notes *n, const char *sentence) {
    for (int i = 0; i < n->count; ++i)
        if (strcmp(n->text[i], sentence) == 0) return i + 1;
    if (n->count < MOST_NOTES) n->text[n->count++] = memory_text(sentence);
    return n->count;
}

/* Whether the kernel takes the problem; if not, its own sentence about it. */
static bool ask(const strobe_kernel_info *kernel, problem *p, void (*amend)(call *), char *sentence, size_t capacity) {
    call c;
    snprintf(p->kernel, sizeof p->kernel, "%s", kernel->name);
    p->device = kernel->device;
    call_describe(&c, p);
    if (amend) amend(&c);
    char text[4096] = "";
    const strobe_status status = strobe_explain(&c.attention, call_gradients(&c), text, sizeof text, NULL);
    if (status == STROBE_OK) return true;
    snprintf(sentence, capacity, "%s", strobe_last_error());
    const size_t length = strlen(kernel->name);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, kernel->name, length) == 0 && line[length] == ':')
            snprintf(sentence, capacity, "%.*s", (int)strcspn(line + length + 2, "\n"), line + length + 2);
    return false;
}

/* What a feature is tried with. A kernel for one dtype, for few rows or for an int8 cache shall not answer every question
 * with that. */
static const char *const bases[] = {"", "bf16", "fp16", "s=8", "bf16 s=8", "fp16 s=8", "s=8 kv=int8"};
enum { BASES = sizeof bases / sizeof bases[0] };

static bool ask_with(const strobe_kernel_info *kernel, const char *base, const char *words, void (*amend)(call *),
                     char *sentence, size_t capacity) {
    char text[PROBLEM_TEXT];
    problem p;
    snprintf(text, sizeof text, "%s %s %s", kernel->operation == STROBE_BACKWARD ? "bwd" : "fwd", base, words);
    return problem_parse(text, &p, sentence, capacity) && ask(kernel, &p, amend, sentence, capacity);
}

/* The first base that the kernel takes by itself. */
static const char *base_of(const strobe_kernel_info *kernel) {
    char sentence[PROBLEM_MESSAGE];
    for (int b = 0; b < BASES; ++b)
        if (ask_with(kernel, bases[b], "", NULL, sentence, sizeof sentence)) return bases[b];
    return bases[0];
}

/* Whether the kernel takes the feature with any base. If not, the sentence is the one with its own base, or without any
 * where the words say what the base says. */
static bool ask_words(const strobe_kernel_info *kernel, const char *words, void (*amend)(call *), char *sentence,
                      size_t capacity) {
    char text[PROBLEM_TEXT], other[PROBLEM_MESSAGE];
    problem p;
    for (int b = 0; b < BASES; ++b)
        if (ask_with(kernel, bases[b], words, amend, other, sizeof other)) return true;
    snprintf(text, sizeof text, "%s %s %s", kernel->operation == STROBE_BACKWARD ? "bwd" : "fwd", base_of(kernel), words);
    const bool own = problem_parse(text, &p, other, sizeof other);
    return ask_with(kernel, own ? base_of(kernel) : "", words, amend, sentence, capacity);
}

/* Which head dims the kernel takes; the first and the last of them, 0 if none. */
static void find_dims(const strobe_kernel_info *kernel, bool *takes, int *first, int *last) {
    char words[32], sentence[PROBLEM_MESSAGE];
    const char *base = base_of(kernel);
    *first = *last = 0;
    for (int dim = 1; dim <= LARGEST_DIM; ++dim) {
        snprintf(words, sizeof words, "d=%d", dim);
        takes[dim] = ask_with(kernel, base, words, NULL, sentence, sizeof sentence);
        if (!takes[dim]) continue;
        *last = dim;
        if (!*first) *first = dim;
    }
}

/* The head dims that the kernel takes: "1 to 512", "multiples of 8 to 256", or each range. */
static void print_dims(const strobe_kernel_info *kernel, char *cell, size_t capacity) {
    bool takes[LARGEST_DIM + 2] = {false}, regular = true;
    int first, last;
    find_dims(kernel, takes, &first, &last);
    for (int dim = 1; dim <= last; ++dim) regular = regular && takes[dim] == (dim % first == 0);
    if (!first) snprintf(cell, capacity, "none");
    if (regular && first > 1) snprintf(cell, capacity, "multiples of %d to %d", first, last);
    if (!first || (regular && first > 1)) return;
    size_t length = 0;
    for (int dim = first, start = first; dim <= last && length < capacity; ++dim) {
        if (takes[dim] && !takes[dim - 1]) start = dim;
        if (!takes[dim] || takes[dim + 1]) continue;
        length += (size_t)snprintf(cell + length, capacity - length, start == dim ? "%s%d" : "%s%d to %d",
                                   length ? ", " : "", start, dim);
    }
}

typedef struct matrix {
    strobe_kernel_info kernels[MOST_KERNELS];
    table_column columns[MOST_KERNELS + 1];
    size_t count;
    table *rows;
    notes notes;
} matrix;

static void find_kernels(matrix *m, int32_t operation) {
    m->columns[0] = (table_column){.key = "feature"};
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t i = 0; m->count < MOST_KERNELS && strobe_kernel_at(i, &info) == STROBE_OK; ++i) {
        if (info.operation != operation) continue;
        m->kernels[m->count++] = info;
        m->columns[m->count] = (table_column){.key = info.name};
    }
}

static void add_row(matrix *m, const char *feature, char (*texts)[64]) {
    table_cell cells[MOST_KERNELS + 1] = {cell_text(feature)};
    for (size_t k = 0; k < m->count; ++k) cells[k + 1] = cell_text(texts[k]);
    table_add_row(m->rows, cells);
}

static void fill(matrix *m, int32_t operation) {
    char texts[MOST_KERNELS][64], sentence[PROBLEM_MESSAGE];
    for (size_t k = 0; k < m->count; ++k) print_dims(&m->kernels[k], texts[k], sizeof texts[k]);
    add_row(m, "head dims", texts);
    for (const probe *p = probes; p < probes + sizeof probes / sizeof probes[0]; ++p) {
        if (p->backward_only && operation != STROBE_BACKWARD) continue;
        for (size_t k = 0; k < m->count; ++k) {
            const bool takes = ask_words(&m->kernels[k], p->words, p->amend, sentence, sizeof sentence);
            if (takes)
                snprintf(texts[k], sizeof texts[k], "yes");
            else
                snprintf(texts[k], sizeof texts[k], "no (%d)", note_number(&m->notes, sentence));
        }
        add_row(m, p->feature, texts);
    }
}

static bool print_operation(int32_t operation, const char *title, table_format format, notes *said) {
    matrix *m = memory_zeroed(1, sizeof *m);
    m->notes = *said;
    find_kernels(m, operation);
    m->rows = table_create(m->columns, m->count + 1);
    fill(m, operation);
    printf("%s%s\n\n", format == TABLE_MARKDOWN ? "## " : "", title);
    const bool ok = table_print(m->rows, format, stdout);
    fputs("\n", stdout);
    *said = m->notes;
    table_destroy(m->rows);
    free(m);
    return ok;
}

bool support_print(table_format format) {
    notes said = {0};
    if (format == TABLE_MARKDOWN)
        puts("<!-- SPDX-License-Identifier: BSD-3-Clause. Generated by `strobe info --support -o md`; not edited by hand. "
             "-->\n"
             "# What each kernel supports\n\n"
             "Asked of the library, small problems with each feature, on the machine that printed this. Kernels stand best "
             "first; of\n"
             "those that take a problem the first one is chosen, except standard_*, which are only chosen by name.\n");
    bool ok = print_operation(STROBE_FORWARD, "Forward", format, &said);
    ok = print_operation(STROBE_BACKWARD, "Backward", format, &said) && ok;
    for (int i = 0; i < said.count; ++i) {
        printf(format == TABLE_MARKDOWN ? "%d. %s\n" : "(%d) %s\n", i + 1, said.text[i]);
        free(said.text[i]);
    }
    return ok && fflush(stdout) == 0;
}
