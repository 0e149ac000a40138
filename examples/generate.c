/* SPDX-License-Identifier: BSD-3-Clause
 *
 * generate.c: text from the GPT that train_gpt.py trains, several prompts at a time, as an inference engine does it. K and V
 * lie in pages. A step takes all the rows that there are, a whole prompt of one sequence beside the last character of
 * another, in one packed batch; a sequence that is done leaves its place and its pages to the next prompt (continuous
 * batching).
 *
 *     python examples/train_gpt.py --save gpt.safetensors
 *     example_generate gpt.safetensors 60 "typedef struct" "/" "Mr. Bennet"         60 characters behind each of three
 * prompts
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <strobe/strobe_append.h>

enum { PAGE = 16, AT_ONCE = 2, LAYERS = 32 };

static void stop(const char *why, const char *what) {
    fprintf(stderr, "%s: %s\n", why, what);
    exit(1);
}

/* ------------------------------------------------------------------------------------------------------------ weights -- */

static struct layer {
    const float *norm1[2], *qkv[2], *out[2], *norm2[2], *up[2], *down[2]; /* weight and bias */
} layers[LAYERS];

static struct {
    const float *embed, *place, *norm[2], *head;
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

static void weight_and_bias(const float *to[2], const char *name, int layer) {
    static const char *const parts[2] = {"weight", "bias"};
    for (int part = 0; part < 2; ++part) {
        char full[64];
        int count;
        const int at = layer < 0 ? 0 : snprintf(full, sizeof full, "blocks.%d.", layer);
        snprintf(full + at, sizeof full - (size_t)at, "%s.%s", name, parts[part]);
        to[part] = weight(full, &count);
    }
}

static void read_model(const char *path) {
    int count;
    read_file(path);
    model.alphabet = (const void *)weight("alphabet", &model.characters);
    model.heads = *(const int32_t *)(const void *)weight("heads", &count);
    model.embed = weight("embed.weight", &count), model.width = count / model.characters;
    model.place = weight("place.weight", &count), model.context = count / model.width;
    model.head = weight("head.weight", &count);
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

/* ------------------------------------------------------------------------------------- the model, but for its attention --
 */

static float dot(const float *x, const float *y, int n) { /* sixteen sums, which compilers keep in vectors */
    float sums[16] = {0}, sum = 0;
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += x[i + j] * y[i + j];
    for (int j = 0; j < 16; ++j) sum += sums[j];
    return sum;
}

/* to[rows][outs] = x[rows][ins] weight^T + bias; added: to += */
static void linear(float *to, const float *x, const float *const weight_bias[2], int rows, int ins, int outs, int added) {
    for (int o = 0; o < outs; ++o) /* a row of the weight serves all rows */
        for (int r = 0; r < rows; ++r) {
            float *y = to + r * outs + o;
            *y = dot(x + r * ins, weight_bias[0] + o * ins, ins) + weight_bias[1][o] + (added ? *y : 0);
        }
}

static void norm(float *to, const float *x, const float *const weight_bias[2], int rows) {
    const int n = model.width;
    for (int r = 0; r < rows; ++r, x += n, to += n) {
        double mean = 0, square = 0;
        for (int i = 0; i < n; ++i) mean += x[i];
        mean /= n;
        for (int i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
        const double scale = 1 / sqrt(square / n + 1e-5);
        for (int i = 0; i < n; ++i) to[i] = (float)((x[i] - mean) * scale) * weight_bias[0][i] + weight_bias[1][i];
    }
}

static void gelu(float *x, size_t count) {
    for (size_t i = 0; i < count; ++i) x[i] *= 0.5f * (1 + erff(x[i] * 0.70710678f));
}

/* ---------------------------------------------------------------------------------------------- sequences and the cache --
 */

struct sequence {
    int32_t *ids;                     /* [context]; NULL: the place is free */
    int number, length, cached, last; /* which prompt, characters so far, those in the cache, where it ends */
};

static struct sequence running[AT_ONCE];
static float *k_pages, *v_pages; /* [layers][pages][PAGE][heads][dim] */
static int32_t *table;           /* [AT_ONCE][pages a sequence] */
static int32_t *free_pages;
static int pages, pages_each, pages_free;

static void *array(size_t count, size_t size) {
    void *made = calloc(count ? count : 1, size);
    if (!made) stop("out of memory", "calloc");
    return made;
}

static void make_cache(void) {
    pages_each = (model.context + PAGE - 1) / PAGE, pages = AT_ONCE * pages_each;
    const size_t count = (size_t)model.layers * (size_t)pages * PAGE * (size_t)model.width;
    k_pages = array(count, sizeof *k_pages), v_pages = array(count, sizeof *v_pages);
    table = array((size_t)pages, sizeof *table), free_pages = array((size_t)pages, sizeof *free_pages);
    while (pages_free < pages) free_pages[pages_free] = pages_free, ++pages_free;
}

static void start(struct sequence *s, int number, const char *prompt, int count) {
    *s = (struct sequence){.ids = array((size_t)model.context, sizeof *s->ids), .number = number};
    for (; *prompt; ++prompt)
        for (int c = 0; c < model.characters; ++c)
            if (model.alphabet[c] == (unsigned char)*prompt && s->length < model.context) s->ids[s->length++] = c;
    if (s->length == 0) stop("a prompt has no character that the model knows", prompt);
    s->last = s->length + count < model.context ? s->length + count : model.context;
}

static void finish(struct sequence *s, int32_t *row) {
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
    int32_t cu[AT_ONCE + 1], used[AT_ONCE]; /* rows of each sequence in the batch; keys that it has with them */
    strobe_varlen varlen;
    strobe_paged paged;
    strobe_attention attention;
    strobe_appender appender;
} step;

static void describe(float *qkv, float *out, int longest) {
    const int width = model.width, dim = width / model.heads;
    struct step *s = &step;
    s->varlen = (strobe_varlen){.struct_size = sizeof s->varlen, .cu_seqlens_q = s->cu, .used_k = s->used};
    s->paged = (strobe_paged){.struct_size = sizeof s->paged, .page_table = table, .table_stride = pages_each};
    s->paged.page_size = PAGE, s->paged.pages = pages;
    strobe_attention *a = &s->attention;
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = AT_ONCE, .seq_q = longest, .seq_k = pages_each * PAGE};
    a->heads_q = model.heads, a->dim = dim, a->mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    a->varlen = &s->varlen, a->paged = &s->paged;
    a->q = (strobe_tensor){.data = qkv, .stride = {0, 3 * width, dim}}; /* [rows][3][heads][dim], read where it lies */
    a->out.data = out;
    strobe_appender *n = &s->appender;
    *n = (strobe_appender){.struct_size = sizeof *n, .seq_new = longest, .cu_seqlens_new = s->cu};
    n->k = n->v = a->q, n->k.data = qkv + width, n->v.data = qkv + 2 * width;
}

/* The new keys and values into the layer's pages, and attention of the new rows over them: all that an engine calls. */
static void attend(int layer) {
    const size_t at = (size_t)layer * (size_t)pages * PAGE * (size_t)model.width;
    strobe_attention *a = &step.attention;
    strobe_tensor q = a->q;
    a->k.data = k_pages + at, a->v.data = v_pages + at;
    a->q.data = NULL; /* this model turns no q */
    strobe_status status = strobe_append(a, &step.appender, NULL);
    a->q = q;
    if (!status) status = strobe_forward(a, NULL, 0, NULL);
    if (status) stop(strobe_status_name(status), strobe_last_error());
}

/* x[rows][width]: what embeds the characters that are not in the cache, for which pages are found; returns the rows. */
static int gather(float *x, int *longest) {
    int rows = 0;
    *longest = 0;
    for (int b = 0; b < AT_ONCE; ++b) {
        struct sequence *s = &running[b];
        for (int i = s->cached; s->ids && i < s->length; ++i, ++rows) {
            if (i % PAGE == 0) table[b * pages_each + i / PAGE] = free_pages[--pages_free];
            for (int c = 0; c < model.width; ++c)
                x[rows * model.width + c] = model.embed[s->ids[i] * model.width + c] + model.place[i * model.width + c];
        }
        step.cu[b + 1] = rows, step.used[b] = s->ids ? s->length : 0;
        if (rows - step.cu[b] > *longest) *longest = rows - step.cu[b];
    }
    return rows;
}

/* The likeliest character behind a row. */
static int32_t next(const float *x) {
    int32_t best = 0;
    float most = -INFINITY;
    for (int32_t c = 0; c < model.characters; ++c) {
        const float logit = dot(x, model.head + c * model.width, model.width);
        if (logit > most) most = logit, best = c;
    }
    return best;
}

static int run_step(void) {
    static float *x, *y, *wide;
    const int width = model.width;
    const size_t most = (size_t)AT_ONCE * (size_t)model.context * (size_t)width;
    if (!x) x = array(most, sizeof *x), y = array(most, sizeof *y), wide = array(4 * most, sizeof *wide);
    int longest;
    const int rows = gather(x, &longest);
    describe(wide, y, longest);
    for (int n = 0; n < model.layers; ++n) {
        const struct layer *l = &layers[n];
        norm(y, x, l->norm1, rows);
        linear(wide, y, l->qkv, rows, width, 3 * width, 0);
        attend(n);
        linear(x, y, l->out, rows, width, width, 1);
        norm(y, x, l->norm2, rows);
        linear(wide, y, l->up, rows, width, 4 * width, 0);
        gelu(wide, 4 * (size_t)rows * (size_t)width);
        linear(x, wide, l->down, rows, 4 * width, width, 1);
    }
    norm(y, x, model.norm, rows);
    int made = 0;
    for (int b = 0; b < AT_ONCE; ++b) {
        struct sequence *s = &running[b];
        if (!s->ids) continue;
        s->cached = s->length;
        if (s->length < s->last) s->ids[s->length++] = next(y + (step.cu[b + 1] - 1) * width), ++made;
        if (s->length == s->last) finish(s, table + b * pages_each);
    }
    return made;
}

int main(int count, char **words) {
    if (count < 4) stop("usage", "example_generate WEIGHTS.safetensors CHARACTERS PROMPT...");
    read_model(words[1]);
    make_cache();
    struct timespec from, to;
    timespec_get(&from, TIME_UTC);
    int made = 0;
    for (int prompt = 3, busy = 1; busy;) {
        busy = 0;
        for (int b = 0; b < AT_ONCE; ++b) {
            if (!running[b].ids && prompt < count) start(&running[b], prompt - 2, words[prompt], atoi(words[2])), ++prompt;
            busy |= running[b].ids != NULL;
        }
        if (busy) made += run_step();
    }
    timespec_get(&to, TIME_UTC);
    const double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    fprintf(stderr, "%d characters, %.0f a second\n", made, made / seconds);
    return 0;
}
