/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_score_text.c: the C that the library writes of a score function, which a GPU's compiler is given, computes what the
 * function is: random expressions are written, compiled by this machine's C compiler, and compared with the evaluation of
 * their graphs in fp32: the score, its slope, what each element's gradient gets, and the score from its relative value where
 * it has one. Skipped where there is no compiler. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/score/relative.h"
#include "core/score/text.h"
#include "cuda/device/score_values.h"
#include "test.h"

enum { FUNCTIONS = 60, PLACES = 200, HEADS = 3, WIDTH = 64 };

struct place {
    int b, h, hkv, i, j, seq_q, seq_k;
};

typedef float (*score_function)(const struct score_values *, const struct place *, float);
typedef float (*relative_function)(const struct score_values *, const struct place *, int);
typedef float (*joined_function)(const struct score_values *, const struct place *, float, float);
typedef void (*gradient_function)(const struct score_values *, const struct place *, float, float);

/* ------------------------------------------------------------------------------------------------------- expressions -- */

static void append(char *text, const char *more) { strncat(text, more, SCORE_MOST_TEXT - 1 - strlen(text)); }

static void add_integer(struct random *r, char *text, int depth) {
    static const char *const leaves[] = {"i", "j", "h", "b", "hkv", "seq_q", "seq_k", "c", "7", "kind[j]", "kind[i%60]"};
    static const char *const binary[] = {"+", "-", "*", "/", "%"};
    if (depth == 0 || random_bits(r) % 4 == 0) {
        append(text, leaves[random_bits(r) % COUNT(leaves)]);
        return;
    }
    switch (random_bits(r) % 4) {
    case 0:
        append(text, random_bits(r) % 2 ? "min(" : "max(");
        add_integer(r, text, depth - 1), append(text, ","), add_integer(r, text, depth - 1), append(text, ")");
        break;
    case 1: append(text, "abs("), add_integer(r, text, depth - 1), append(text, ")"); break;
    default:
        append(text, "("), add_integer(r, text, depth - 1);
        append(text, binary[random_bits(r) % COUNT(binary)]);
        add_integer(r, text, depth - 1), append(text, ")");
    }
}

static void add_float(struct random *r, char *text, int depth) {
    static const char *const leaves[] = {
        "score", "score", "w", "0.25", "table[h][i-j+31]", "half[j%9]", "table[h][kind[j]]"};
    static const char *const binary[] = {"+", "-", "*"};
    static const char *const curves[] = {"tanh(", "exp(-abs(", "sqrt(1.5+abs(", "log(1.5+abs(", "floor(", "abs("};
    if (depth == 0) {
        append(text, leaves[random_bits(r) % COUNT(leaves)]);
        return;
    }
    switch (random_bits(r) % 5) {
    case 0: {
        const char *curve = curves[random_bits(r) % COUNT(curves)];
        append(text, curve), add_float(r, text, depth - 1);
        append(text, strstr(curve, "abs(") && curve[0] != 'a' ? "))" : ")");
        break;
    }
    case 1:
        append(text, "(("), add_integer(r, text, 1), append(text, ")%3<1?"), add_float(r, text, depth - 1);
        append(text, ":"), add_float(r, text, depth - 1), append(text, ")");
        break;
    case 2: append(text, "0.125*(0.0+"), add_integer(r, text, 2), append(text, ")"); break;
    default:
        append(text, "("), add_float(r, text, depth - 1);
        append(text, binary[random_bits(r) % COUNT(binary)]);
        add_float(r, text, depth - 1), append(text, ")");
    }
}

/* Functions that have a relative value, and one that meets positions beside it, come first. */
static const char *const with_relative[] = {"score + table[h][i - j + 31]", "0.25 * score - abs(i - j) * w",
                                            "(score + table[h][31 + (i - j)]) * tanh(score) - half[h]",
                                            "score * tanh(table[h][i + 31 - j] - 0.5 * max(j - i, c)) + table[h][kind[3]]",
                                            "score - (i < j ? 0.5 : 0.25) * w"};
static const char *const without_relative[] = {"score + table[h][i - j + 31] * half[j % 9]", "score - 0.1 * (i + j)",
                                               "i < j ? score : 0.5 * score"};

static strobe_score *make_function(struct random *r, char *text, int number) {
    const strobe_score_scalar scalars[] = {{"w", 0.75, 0, 0}, {"c", -7, 1, 0}};
    const strobe_score_array arrays[] = {
        {"table", 2, STROBE_FP32}, {"kind", 1, STROBE_INT32}, {"half", 1, STROBE_BF16}, {"unused", 1, STROBE_UINT8}};
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = text,
                                        .scalars = scalars,
                                        .arrays = arrays,
                                        .scalar_count = 2,
                                        .array_count = 4};
    strobe_score *f = NULL;
    const int fixed = number - (int)COUNT(with_relative);
    text[0] = 0;
    if (fixed < 0)
        append(text, with_relative[number]);
    else if (fixed < (int)COUNT(without_relative))
        append(text, without_relative[fixed]);
    else
        add_float(r, text, 4);
    return strobe_score_create(&source, &f) ? NULL : f;
}

/* ---------------------------------------------------------------------------------------------------------- compiling -- */

/* What the includer of the text has on a GPU, in C. */
static const char prelude[] =
    "#include <string.h>\n#include \"math/float16.h\"\n#include \"math/score_arithmetic.h\"\n"
    "#include \"cuda/device/score_values.h\"\n"
    "struct score_place { int b, h, hkv, i, j, seq_q, seq_k; };\n"
    "#define SCORE_INLINE\n"
    "#define SCORE_LOAD(dtype, data, at) SCORE_LOAD_##dtype(data, at)\n"
    "#define SCORE_LOAD_FURTHER(dtype, data, at, further) SCORE_LOAD_##dtype(data, (at) + (further))\n"
    "#define SCORE_LOAD_FP32(data, at) ((const float *)(data))[at]\n"
    "#define SCORE_LOAD_BF16(data, at) bf16_to_float(((const uint16_t *)(data))[at])\n"
    "#define SCORE_LOAD_INT32(data, at) ((const int32_t *)(data))[at]\n"
    "#define SCORE_ADD(sums, at, value) ((sums)[at] += (value))\n"
    "static inline float SCORE_FLOAT(uint32_t bits) { float x; memcpy(&x, &bits, sizeof x); return x; }\n";

static void *compile(const char *text) {
    char folder[] = "/tmp/strobe_text_XXXXXX", path[64], command[512];
    if (!mkdtemp(folder)) return NULL;
    snprintf(path, sizeof path, "%s/text", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    snprintf(command, sizeof command, "cc -std=gnu11 -O1 -x c -ffp-contract=off -shared -fPIC -I%s/src -o %s/f.so %s -lm",
             STROBE_SOURCE_DIR, folder, path);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/f.so", folder);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    return library;
}

static void *find(void *library, const char *name, int n) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s_%d", name, n);
    return dlsym(library, symbol);
}

/* ---------------------------------------------------------------------------------------------------------- comparing -- */

static float table[HEADS][WIDTH];
static int32_t kind[WIDTH];
static uint16_t half[9];
static uint8_t unused[1];
static float dtable[HEADS][WIDTH], dhalf[9];

static struct score_call call_of(const strobe_score *f) {
    struct score_call c = {.function = f, .scalar = {0.75, -7}};
    for (int n = 0; n < HEADS * WIDTH; ++n) table[n / WIDTH][n % WIDTH] = (float)(n * 37 % 101 - 50) / 32;
    for (int n = 0; n < WIDTH; ++n) kind[n] = n * 5 % 13;
    for (int n = 0; n < 9; ++n) half[n] = (uint16_t)(0x3f00 + 32 * n);
    c.array[0] = (strobe_score_elements){
        .data = table, .extent = {HEADS, WIDTH, 1, 1}, .stride = {WIDTH, 1}, .dtype = STROBE_FP32};
    c.array[1] = (strobe_score_elements){.data = kind, .extent = {WIDTH, 1, 1, 1}, .stride = {1}, .dtype = STROBE_INT32};
    c.array[2] = (strobe_score_elements){.data = half, .extent = {9, 1, 1, 1}, .stride = {1}, .dtype = STROBE_BF16};
    c.array[3] = (strobe_score_elements){.data = unused, .extent = {1, 1, 1, 1}, .stride = {1}, .dtype = STROBE_UINT8};
    return c;
}

static struct score_values values_of(const struct score_call *c) {
    struct score_values v = {.number = {0.75f}, .integer = {0, -7}};
    for (int n = 0; n < c->function->array_count; ++n) {
        v.data[n] = c->array[n].data;
        for (int axis = 0; axis < SCORE_AXES; ++axis) {
            v.stride[n][axis] = (int32_t)c->array[n].stride[axis];
            v.last[n][axis] = (int32_t)c->array[n].extent[axis] - 1;
        }
    }
    v.gradient[0] = &dtable[0][0], v.gradient[2] = dhalf;
    return v;
}

static bool is_near(double x, double y) { return x == y || (x != x && y != y) || fabs(x - y) <= 1e-5 * (fabs(x) + 1e-3); }

/* What a gradient gets of one pair: from the graph, an element at a time. */
static bool gradients_agree(const struct score_call *c, const double value[SCORE_MOST_NODES], float ds) {
    static double expected[HEADS][WIDTH], expected_half[9];
    const struct strobe_score *f = c->function;
    memset(expected, 0, sizeof expected), memset(expected_half, 0, sizeof expected_half);
    for (int n = 0; n < f->load_count; ++n) {
        if (f->adjoint[n] == NO_NODE) continue;
        const double add = strobe__score_apply(OP_F_CHAIN, ds, value[f->adjoint[n]], 0);
        const int first = (int)value[f->load[n].index[0]];
        if (f->load[n].array == 0) expected[first][(int)value[f->load[n].index[1]]] += add;
        if (f->load[n].array == 2) expected_half[first] += add;
    }
    bool ok = true;
    for (int n = 0; n < HEADS * WIDTH; ++n) ok = ok && is_near(expected[n / WIDTH][n % WIDTH], dtable[n / WIDTH][n % WIDTH]);
    for (int n = 0; n < 9; ++n) ok = ok && is_near(expected_half[n], dhalf[n]);
    return ok;
}

/* The score from its relative value, as the pair `further` rows below another has it. */
static void compare_joined(const struct score_call *c, const struct score_values *v, void *library, int n,
                           const struct place *at, float score, double expected, const char *text) {
    const bool has_relative = strobe__score_relative(c->function) != NO_NODE;
    void *const found[2] = {find(library, "score_relative", n), find(library, "score_joined", n)};
    assert_true(has_relative == (found[0] && found[1]));
    if (n < (int)COUNT(with_relative)) assert_true(has_relative);
    if (n >= (int)COUNT(with_relative) && n < (int)(COUNT(with_relative) + COUNT(without_relative)))
        assert_false(has_relative);
    if (!has_relative) return;
    relative_function relative_of;
    joined_function joined;
    memcpy(&relative_of, &found[0], sizeof relative_of), memcpy(&joined, &found[1], sizeof joined);
    for (int further = -8; further <= 8; further += 4) {
        struct place from = *at, other = *at;
        from.i -= further, other.i += 100, other.j += 77;
        const float relative = relative_of(v, &from, further);
        if (!is_near(expected, (double)joined(v, &other, score, relative)))
            fail_msg("%s at i %d, j %d of %g: %.9g, from its relative value %.9g", text, at->i, at->j, (double)score,
                     expected, (double)joined(v, &other, score, relative));
    }
}

static void compare(const strobe_score *f, void *library, int n, const char *text, struct random *r) {
    const struct score_call c = call_of(f);
    const struct score_values v = values_of(&c);
    void *const found[3] = {find(library, "score_value", n), find(library, "score_slope", n),
                            find(library, "score_gradients", n)};
    score_function value_of, slope_of;
    gradient_function add;
    memcpy(&value_of, &found[0], sizeof value_of), memcpy(&slope_of, &found[1], sizeof slope_of);
    memcpy(&add, &found[2], sizeof add);
    for (int e = 0; e < PLACES; ++e) {
        const struct place at = {.b = (int)(random_bits(r) % 4),
                                 .h = (int)(random_bits(r) % HEADS),
                                 .hkv = 1,
                                 .i = (int)(random_bits(r) % 32),
                                 .j = (int)(random_bits(r) % 32),
                                 .seq_q = 32,
                                 .seq_k = 32};
        const struct score_place place = {.b = at.b, .h = at.h, .hkv = 1, .i = at.i, .j = at.j, .seq_q = 32, .seq_k = 32};
        const float score = (float)(random_bits(r) % 4096) / 512 - 4, ds = (float)(random_bits(r) % 64) / 32 - 1;
        double value[SCORE_MOST_NODES], gradient[SCORE_MOST_NODES];
        strobe__score_evaluate(&c, &f->of_score, &place, score, true, value);
        strobe__score_evaluate(&c, &f->of_gradients, &place, score, true, gradient);
        memset(dtable, 0, sizeof dtable), memset(dhalf, 0, sizeof dhalf);
        add(&v, &at, score, ds);
        if (!is_near(value[f->score], (double)value_of(&v, &at, score)) ||
            !is_near(gradient[f->slope], (double)slope_of(&v, &at, score)) || !gradients_agree(&c, gradient, ds))
            fail_msg("%s at i %d, j %d of %g: %.9g and slope %.9g, compiled %.9g and %.9g", text, at.i, at.j, (double)score,
                     value[f->score], gradient[f->slope], (double)value_of(&v, &at, score),
                     (double)slope_of(&v, &at, score));
        compare_joined(&c, &v, library, n, &at, score, value[f->score], text);
    }
}

static void test_text(void **state) {
    (void)state;
    struct random r = {11};
    static char texts[FUNCTIONS][SCORE_MOST_TEXT];
    strobe_score *functions[FUNCTIONS];
    struct score_text all = {.text = NULL};
    if (system("cc --version > /dev/null 2>&1")) skip();
    strobe__score_print(&all, "%s", prelude);
    for (int n = 0; n < FUNCTIONS; ++n) {
        do functions[n] = make_function(&r, texts[n], n);
        while (!functions[n]); /* too many operations */
        strobe__score_print(&all,
                            "#define score_value score_value_%d\n#define score_slope score_slope_%d\n"
                            "#define score_gradients score_gradients_%d\n#define score_relative score_relative_%d\n"
                            "#define score_joined score_joined_%d\n",
                            n, n, n, n, n);
        strobe__score_write(&all, functions[n], n % 2 ? 0xf : 0);
        strobe__score_print(&all, "#undef score_value\n#undef score_slope\n#undef score_gradients\n#undef score_relative\n"
                                  "#undef score_joined\n#undef SCORE_HAS_RELATIVE\n"
                                  "#undef SCORE_SLOPE_IS_ONE\n#undef SCORE_NEEDS_INPUT\n#undef SCORE_READS_ARRAYS\n");
    }
    assert_false(all.full);
    void *library = compile(all.text);
    assert_non_null(library);
    for (int n = 0; n < FUNCTIONS; ++n) {
        compare(functions[n], library, n, texts[n], &r);
        strobe_score_destroy(functions[n]);
    }
    dlclose(library);
    free(all.text);
}

/* No name and no number of the user's stands in it. */
static void test_nothing_of_the_user(void **state) {
    (void)state;
    const strobe_score_scalar scalar = {"secret", 123456, 0, 0};
    const strobe_score_array array = {"hidden_name", 1, STROBE_FP32};
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = "score * secret + hidden_name[j]",
                                        .scalars = &scalar,
                                        .arrays = &array,
                                        .scalar_count = 1,
                                        .array_count = 1};
    strobe_score *f;
    struct score_text text = {.text = NULL};
    assert_int_equal(strobe_score_create(&source, &f), STROBE_OK);
    strobe__score_write(&text, f, 1);
    assert_null(strstr(text.text, "secret"));
    assert_null(strstr(text.text, "hidden_name"));
    assert_null(strstr(text.text, "123456"));
    assert_non_null(strstr(text.text, "#define SCORE_NEEDS_INPUT 0"));
    free(text.text);
    strobe_score_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_nothing_of_the_user)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
