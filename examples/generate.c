/* SPDX-License-Identifier: BSD-3-Clause
 *
 * generate.c: text from the GPT that train_gpt.py trains, several prompts at a time, as an inference engine does it, on the
 * CPU or a GPU. K and V lie in pages. A step takes all the rows that there are, a whole prompt of one sequence beside the
 * last character of another, in one packed batch; a sequence that is done leaves its place and its pages to the next prompt
 * (continuous batching). Of the device the engine sees generate_device.h alone.
 *
 *     python examples/train_gpt.py --save gpt.safetensors
 *     example_generate gpt.safetensors 60 "typedef struct" "/" "Mr. Bennet"         60 characters behind each of three
 *     example_generate --device cuda --at-once 64 gpt.safetensors 60 ...            64 sequences at a time, on a GPU
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <strobe/strobe_append.h>

#include "generate_device.h"

enum { PAGE = 16, MOST_AT_ONCE = 256, LAYERS = 32 };

static const struct device *device = &on_cpu;
static void *stream;
static int at_once = 2;

void stop(const char *why, const char *what) {
    fprintf(stderr, "%s: %s\n", why, what);
    exit(1);
}

/* ------------------------------------------------------------------------------------------------------------ weights -- */

static struct layer {
    const float *norm1[2], *qkv[2], *out[2], *norm2[2], *up[2], *down[2]; /* weight and bias */
} layers[LAYERS];

static struct {
    const float *embed, *place, *norm[2], *head[2];
    const int32_t *alphabet;
    int layers, width, heads, context, characters;
} model;

/* A safetensors file: eight bytes of length, a header of JSON, {"name":{..., "data_offsets":[from,to]}, ...}, and the data.
 */
static char *header, *data;

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) stop("cannot open", path);
    const long bytes = ftell(file);
    char *all = malloc((size_t)bytes + 1);
    rewind(file);
    if (!all || fread(all, 1, (size_t)bytes, file) != (size_t)bytes) stop("cannot read", path);
    fclose(file);
    uint64_t length = 0;
    if (bytes >= 8) memcpy(&length, all, 8); /* little-endian, as this machine */
    if (bytes < 8 || length > (uint64_t)bytes - 8) stop("no safetensors file", path);
    header = malloc(length + 1);
    if (!header) stop("cannot read", path);
    memcpy(header, all + 8, length);
    header[length] = 0, data = all + 8 + length;
    return all;
}

/* The tensor of a name, and how many elements of four bytes it has. NULL where there is none. */
static const void *tensor(const char *name, int *count) {
    char key[80];
    unsigned long long from, to;
    snprintf(key, sizeof key, "\"%s\":{", name);
    const char *entry = strstr(header, key), *offsets = entry ? strstr(entry, "\"data_offsets\":[") : NULL;
    if (!offsets || sscanf(offsets, "\"data_offsets\":[%llu,%llu]", &from, &to) != 2) return NULL;
    *count = (int)((to - from) / 4);
    return data + from;
}

static const float *weight(const char *name, int *count) {
    const float *found = tensor(name, count);
    if (!found) stop("this tensor is missing", name);
    return found;
}

/* The same in the device's memory. */
static const float *weight_there(const char *name, int *count) {
    const float *here = weight(name, count);
    float *there = device->zeros((size_t)*count * sizeof *there);
    device->put(there, here, (size_t)*count * sizeof *there);
    return there;
}

static void weight_and_bias(const float *to[2], const char *name, int layer) {
    static const char *const parts[2] = {"weight", "bias"};
    for (int part = 0; part < 2; ++part) {
        char full[64];
        int count;
        const int at = layer < 0 ? 0 : snprintf(full, sizeof full, "blocks.%d.", layer);
        snprintf(full + at, sizeof full - (size_t)at, "%s.%s", name, parts[part]);
        to[part] = weight_there(full, &count);
    }
}

static void read_model(const char *path) {
    int count;
    read_file(path);
    model.alphabet = (const void *)weight("alphabet", &model.characters);
    model.heads = *(const int32_t *)(const void *)weight("heads", &count);
    model.embed = weight_there("embed.weight", &count), model.width = count / model.characters;
    model.place = weight_there("place.weight", &count), model.context = count / model.width;
    model.head[0] = weight_there("head.weight", &count); /* without a bias */
    weight_and_bias(model.norm, "norm", -1);
    for (char name[64]; snprintf(name, sizeof name, "blocks.%d.qkv.bias", model.layers), tensor(name, &count);) {
        if (model.layers == LAYERS) stop("too many layers", path);
        struct layer *l = &layers[model.layers];
        weight_and_bias(l->norm1, "norm1", model.layers), weight_and_bias(l->qkv, "qkv", model.layers);
        weight_and_bias(l->out, "out", model.layers), weight_and_bias(l->norm2, "norm2", model.layers);
        weight_and_bias(l->up, "feed.0", model.layers), weight_and_bias(l->down, "feed.2", model.layers);
        ++model.layers;
    }
    if (model.width % 16 || model.width % model.heads) stop("the width is not a multiple of 16 and of the heads", path);
}

/* ---------------------------------------------------------------------------------------------- sequences and the cache --
 */

struct sequence {
    int32_t *ids;                     /* [context]; NULL: the place is free */
    int number, length, cached, last; /* which prompt, characters so far, those in the cache, where it ends */
};

static struct sequence running[MOST_AT_ONCE];
static float *k_pages, *v_pages; /* [layers][pages][PAGE][heads][dim], the device's */
static int32_t *free_pages;
static int pages, pages_each, pages_free;

/* What a step is told in numbers, here and on the device: cu[at_once + 1], used[at_once]: rows of each sequence in the
 * batch, keys that it has with them; last[at_once]: its last row; table[at_once][pages_each]; ids and places of the rows. */
static struct numbers { int32_t *cu, *used, *last, *table, *ids, *places; } here, there;
static size_t numbers_bytes;
static float *x, *y, *wide, *logits; /* rows of the model: [rows][width], [rows][4 width], [at_once][characters] */
static int32_t *chosen;              /* [at_once], the likeliest characters */

static struct numbers numbers_in(int32_t *all, size_t rows) {
    const size_t n = (size_t)at_once;
    struct numbers to = {.cu = all, .used = all + n + 1, .last = all + 2 * n + 1, .table = all + 3 * n + 1};
    to.ids = to.table + n * (size_t)pages_each, to.places = to.ids + rows;
    return to;
}

static void make_cache(void) {
    pages_each = (model.context + PAGE - 1) / PAGE, pages = at_once * pages_each;
    const size_t count = (size_t)model.layers * (size_t)pages * PAGE * (size_t)model.width;
    const size_t rows = (size_t)at_once * (size_t)model.context, row = (size_t)model.width * sizeof *x;
    k_pages = device->zeros(count * sizeof *k_pages), v_pages = device->zeros(count * sizeof *v_pages);
    x = device->zeros(rows * row), y = device->zeros(rows * row), wide = device->zeros(rows * 4 * row);
    logits = device->zeros((size_t)(at_once * model.characters) * sizeof *logits);
    chosen = device->zeros((size_t)at_once * sizeof *chosen);
    numbers_bytes = (3 * (size_t)at_once + 1 + (size_t)pages + 2 * rows) * sizeof *here.cu;
    here = numbers_in(on_cpu.zeros(numbers_bytes), rows), there = numbers_in(device->zeros(numbers_bytes), rows);
    free_pages = on_cpu.zeros((size_t)pages * sizeof *free_pages);
    while (pages_free < pages) free_pages[pages_free] = pages_free, ++pages_free;
}

static void start(struct sequence *s, int number, const char *prompt, int count) {
    *s = (struct sequence){.ids = on_cpu.zeros((size_t)model.context * sizeof *s->ids), .number = number};
    for (; *prompt; ++prompt)
        for (int c = 0; c < model.characters; ++c)
            if (model.alphabet[c] == (unsigned char)*prompt && s->length < model.context) s->ids[s->length++] = c;
    if (s->length == 0) stop("a prompt has no character that the model knows", prompt);
    s->last = s->length + count < model.context ? s->length + count : model.context;
}

static void finish(struct sequence *s, const int32_t *row) {
    printf("%d: ", s->number);
    for (int i = 0; i < s->length; ++i) putchar(model.alphabet[s->ids[i]]);
    putchar('\n');
    for (int page = 0; page * PAGE < s->cached; ++page) free_pages[pages_free++] = row[page];
    free(s->ids);
    s->ids = NULL;
}

/* --------------------------------------------------------------------------------------------------------------- a step --
 */

/* What the library is told of a step: the same for each layer but for the pages. */
static struct step {
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_attention attention;
    strobe_appender appender;
    void *workspace;
    size_t workspace_bytes;
} step;

static void check(strobe_status status) {
    if (status) stop(strobe_status_name(status), strobe_last_error());
}

static void describe(int rows, int longest) {
    const int width = model.width, dim = width / model.heads;
    struct step *s = &step;
    s->varlen = (strobe_varlen){.struct_size = sizeof s->varlen, .cu_seqlens_q = there.cu, .used_k = there.used};
    s->varlen.total_q = rows; /* offsets that lie on a GPU are read there alone */
    s->paged = (strobe_paged){.struct_size = sizeof s->paged, .page_table = there.table, .table_stride = pages_each};
    s->paged.page_size = PAGE, s->paged.pages = pages;
    strobe_attention *a = &s->attention;
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = at_once, .seq_q = longest, .seq_k = pages_each * PAGE};
    a->heads_q = model.heads, a->dim = dim, a->mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, a->device = device->kind;
    a->varlen = &s->varlen, a->paged = &s->paged;
    a->q = (strobe_tensor){.data = wide, .stride = {0, 3 * width, dim}}; /* [rows][3][heads][dim], read where it lies */
    a->out.data = y;
    strobe_appender *n = &s->appender;
    *n = (strobe_appender){.struct_size = sizeof *n, .seq_new = longest, .total_new = rows, .cu_seqlens_new = there.cu};
    n->k = n->v = a->q, n->k.data = wide + width, n->v.data = wide + 2 * width;
    size_t bytes;
    check(strobe_workspace(a, NULL, &bytes));
    if (bytes > s->workspace_bytes) /* the ones before stay: graphs have them */
        s->workspace = device->zeros(bytes), s->workspace_bytes = bytes;
}

/* The new keys and values into the layer's pages, and attention of the new rows over them: all that an engine calls. */
static void attend(int layer) {
    const size_t at = (size_t)layer * (size_t)pages * PAGE * (size_t)model.width;
    strobe_attention *a = &step.attention;
    strobe_tensor q = a->q;
    a->k.data = k_pages + at, a->v.data = v_pages + at;
    a->q.data = NULL; /* this model turns no q */
    check(strobe_append(a, &step.appender, stream));
    a->q = q;
    check(strobe_forward(a, step.workspace, step.workspace_bytes, stream));
}

/* The characters that are not in the cache, for which pages are found; how many, and the most of a sequence. */
static int gather(int *longest) {
    int rows = 0;
    *longest = 0;
    for (int b = 0; b < at_once; ++b) {
        const struct sequence *s = &running[b];
        for (int i = s->cached; s->ids && i < s->length; ++i, ++rows) {
            if (i % PAGE == 0) here.table[b * pages_each + i / PAGE] = free_pages[--pages_free];
            here.ids[rows] = s->ids[i], here.places[rows] = i;
        }
        here.cu[b + 1] = rows, here.used[b] = s->ids ? s->length : 0, here.last[b] = rows ? rows - 1 : 0;
        if (rows - here.cu[b] > *longest) *longest = rows - here.cu[b];
    }
    device->put(there.cu, here.cu, numbers_bytes);
    return rows;
}

static void run_layers(int rows) {
    const int width = model.width;
    device->look_up(x, model.embed, model.place, there.ids, there.places, rows, width);
    for (int n = 0; n < model.layers; ++n) {
        const struct layer *l = &layers[n];
        device->norm(y, x, NULL, l->norm1, rows, width);
        device->linear(wide, y, l->qkv, rows, width, 3 * width, 0);
        attend(n);
        device->linear(x, y, l->out, rows, width, width, 1);
        device->norm(y, x, NULL, l->norm2, rows, width);
        device->linear(wide, y, l->up, rows, width, 4 * width, 0);
        device->gelu(wide, 4 * (size_t)rows * (size_t)width);
        device->linear(x, wide, l->down, rows, 4 * width, width, 1);
    }
    device->norm(y, x, there.last, model.norm, at_once, width);
    device->linear(logits, y, model.head, at_once, width, model.characters, 0);
    device->largest(chosen, logits, at_once, model.characters);
}

static int run_step(void) {
    static int32_t next[MOST_AT_ONCE];
    int longest, made = 0;
    const int rows = gather(&longest);
    const bool again = longest == 1 && device->replay; /* a row a sequence: what differs from step to step is in `there` */
    if (!again || !device->replay(rows)) {
        describe(rows, longest);
        if (again) device->record(rows);
        run_layers(rows);
        if (again) device->end_record();
    }
    device->get(next, chosen, (size_t)at_once * sizeof *next);
    for (int b = 0; b < at_once; ++b) {
        struct sequence *s = &running[b];
        if (!s->ids) continue;
        s->cached = s->length;
        if (s->length < s->last) s->ids[s->length++] = next[b], ++made;
        if (s->length == s->last) finish(s, here.table + b * pages_each);
    }
    return made;
}

/* The options, which come first; the number of words that they take. */
static int read_options(int count, char **words) {
    int at = 1;
    for (; at + 1 < count && strncmp(words[at], "--", 2) == 0; at += 2)
        if (strcmp(words[at], "--at-once") == 0) {
            at_once = atoi(words[at + 1]);
            if (at_once < 1 || at_once > MOST_AT_ONCE) stop("--at-once takes 1 to 256, not", words[at + 1]);
        } else if (strcmp(words[at], "--device") == 0 && strcmp(words[at + 1], "cpu") == 0) {
            device = &on_cpu;
#if defined(WITH_CUDA)
        } else if (strcmp(words[at], "--device") == 0 && strcmp(words[at + 1], "cuda") == 0) {
            device = &on_cuda;
#endif
        } else {
            stop("this build does not know the option", words[at]);
        }
    return at;
}

int main(int count, char **words) {
    const int first = read_options(count, words);
    if (count < first + 3)
        stop("usage", "example_generate [--device cpu|cuda] [--at-once N] WEIGHTS.safetensors CHARACTERS PROMPT...");
    stream = device->open();
    read_model(words[first]);
    make_cache();
    struct timespec from, to;
    timespec_get(&from, TIME_UTC);
    int made = 0;
    for (int prompt = first + 2, busy = 1; busy;) {
        busy = 0;
        for (int b = 0; b < at_once; ++b) {
            if (!running[b].ids && prompt < count)
                start(&running[b], prompt - first - 1, words[prompt], atoi(words[first + 1])), ++prompt;
            busy |= running[b].ids != NULL;
        }
        if (busy) made += run_step();
    }
    timespec_get(&to, TIME_UTC);
    const double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    fprintf(stderr, "%d characters, %.0f a second\n", made, made / seconds);
    return 0;
}
