/* SPDX-License-Identifier: BSD-3-Clause
 *
 * create.c: strobe_score_create: the source is read and checked, its texts are parsed, derivatives and programs are made. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/float_mode.h"
#include "core/problem.h"
#include "core/score/create.h"

static bool is_reserved(const char *name) {
    static const char *const reserved[] = {"score", "b",    "h",    "hkv",   "i",   "j",   "seq_q",
                                           "seq_k", "inf",  "min",  "max",   "abs", "exp", "exp2",
                                           "log",   "tanh", "sqrt", "floor", "pow", "int", "float"};
    for (size_t n = 0; n < sizeof reserved / sizeof reserved[0]; ++n)
        if (strcmp(name, reserved[n]) == 0) return true;
    return false;
}

static bool copy_name(struct score_name *to, const char *name, const char *kind, int index, struct score_error *error) {
    if (!name) return strobe__score_fail(error, "%s[%d].name is NULL; a name is accepted", kind, index);
    size_t length = 0;
    for (; name[length] && length <= SCORE_MOST_NAME; ++length) {
        const char c = name[length];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !(length > 0 && c >= '0' && c <= '9'))
            return strobe__score_fail(error,
                                      "%s[%d].name has a character other than letters, digits and _ at %zu; such a "
                                      "name, with a letter first, is accepted",
                                      kind, index, length);
    }
    if (length == 0 || length > SCORE_MOST_NAME)
        return strobe__score_fail(error, "%s[%d].name has %s characters; 1 to %d are accepted", kind, index,
                                  length ? "more than 31" : "no", SCORE_MOST_NAME);
    if (is_reserved(name))
        return strobe__score_fail(error, "%s[%d].name is \"%s\", which every function has; another name is accepted", kind,
                                  index, name);
    memcpy(to->text, name, length + 1);
    return true;
}

static bool is_taken(const struct strobe_score *f, const struct score_name *name) {
    int count = 0;
    for (int n = 0; n < f->scalar_count; ++n) count += strcmp(f->scalar_name[n].text, name->text) == 0;
    for (int n = 0; n < f->array_count; ++n) count += strcmp(f->array_name[n].text, name->text) == 0;
    return count > 1;
}

/* A whole number of 32 bits where the scalar is an integer; elsewhere anything. */
bool strobe__score_check_scalar(const struct strobe_score *f, int n, double value, const char *kind,
                                struct score_error *error) {
    if (!f->scalar_is_integer[n] || (value >= -2147483648.0 && value <= 2147483647.0 && value == floor(value))) return true;
    return strobe__score_fail(error, "%s[%d] (%s) is %g; a whole number from -2147483648 to 2147483647 is accepted", kind, n,
                              f->scalar_name[n].text, value);
}

static bool read_scalars(struct strobe_score *f, const strobe_score_source *s, struct score_error *error) {
    if (s->scalar_count < 0 || s->scalar_count > SCORE_MOST_SCALARS || (s->scalar_count > 0 && !s->scalars))
        return strobe__score_fail(error, "source.scalar_count is %d%s; 0 to %d is accepted", s->scalar_count,
                                  s->scalars ? "" : " and scalars NULL", SCORE_MOST_SCALARS);
    for (int n = 0; n < s->scalar_count; ++n) {
        f->scalar_count = (uint8_t)(n + 1);
        f->scalar_value[n] = s->scalars[n].value;
        f->scalar_is_integer[n] = s->scalars[n].integer != 0;
        if (!copy_name(&f->scalar_name[n], s->scalars[n].name, "source.scalars", n, error)) return false;
        if (s->scalars[n].reserved)
            return strobe__score_fail(error, "source.scalars[%d].reserved is %d; 0 is accepted", n, s->scalars[n].reserved);
        if (!strobe__score_check_scalar(f, n, s->scalars[n].value, "source.scalars", error)) return false;
        if (is_taken(f, &f->scalar_name[n]))
            return strobe__score_fail(error, "source.scalars[%d].name is \"%s\" a second time; another name is accepted", n,
                                      f->scalar_name[n].text);
    }
    return true;
}

static bool read_arrays(struct strobe_score *f, const strobe_score_source *s, struct score_error *error) {
    if (s->array_count < 0 || s->array_count > SCORE_MOST_ARRAYS || (s->array_count > 0 && !s->arrays))
        return strobe__score_fail(error, "source.array_count is %d%s; 0 to %d is accepted", s->array_count,
                                  s->arrays ? "" : " and arrays NULL", SCORE_MOST_ARRAYS);
    for (int n = 0; n < s->array_count; ++n) {
        const strobe_score_array *a = &s->arrays[n];
        f->array_count = (uint8_t)(n + 1);
        if (!copy_name(&f->array_name[n], a->name, "source.arrays", n, error)) return false;
        if (a->rank < 1 || a->rank > SCORE_MOST_RANK)
            return strobe__score_fail(error, "source.arrays[%d].rank is %d; 1 to 4 is accepted", n, a->rank);
        if (a->dtype != STROBE_FP32 && a->dtype != STROBE_FP16 && a->dtype != STROBE_BF16 && a->dtype != STROBE_INT32 &&
            a->dtype != STROBE_UINT8)
            return strobe__score_fail(error,
                                      "source.arrays[%d].dtype is %d; STROBE_FP32, STROBE_FP16, STROBE_BF16, STROBE_INT32 "
                                      "or STROBE_UINT8 is accepted",
                                      n, a->dtype);
        f->array_rank[n] = (uint8_t)a->rank;
        f->array_dtype[n] = (uint8_t)a->dtype;
        if (is_taken(f, &f->array_name[n]))
            return strobe__score_fail(error, "source.arrays[%d].name is \"%s\" a second time; another name is accepted", n,
                                      f->array_name[n].text);
    }
    return true;
}

static bool build(struct strobe_score *f, const strobe_score_source *s, struct score_error *error) {
    if (!s->score && !s->visible)
        return strobe__score_fail(error, "source.score and source.visible are NULL; one of both or both are accepted");
    if (!read_scalars(f, s, error) || !read_arrays(f, s, error)) return false;
    f->has_visible = s->visible, f->has_score = s->score;
    if (s->visible && (f->visible = strobe__score_parse(f, s->visible, true, error)) == NO_NODE) return false;
    if (s->score && (f->score = strobe__score_parse(f, s->score, false, error)) == NO_NODE) return false;
    if (s->score && !strobe__score_derive(f))
        return strobe__score_fail(error, "score has more operations than are accepted, %d with those of its derivative",
                                  SCORE_MOST_NODES);
    strobe__score_programs(f);
    return true;
}

strobe_status strobe_score_create(const strobe_score_source *source, strobe_score **function) {
    if (!function)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "function is NULL; a pointer to a strobe_score * is accepted");
    if (!source) return strobe__fail(STROBE_INVALID_ARGUMENT, "source is NULL; a strobe_score_source is accepted");
    strobe_score_source s;
    const strobe_status status = strobe__struct_copy(&s, sizeof s, source, "source");
    if (status) return status;
    struct strobe_score *f = calloc(1, sizeof *f);
    if (!f) return strobe__fail(STROBE_OUT_OF_MEMORY, "%zu bytes for a score function could not be allocated", sizeof *f);
    static _Atomic uint64_t functions;
    f->serial = ++functions;
    struct score_error error = {.sentence = ""};
    const float_mode mode = float_mode_enter(); /* constants are worked out, also 1.0 / 0.0 */
    const bool is_built = build(f, &s, &error);
    float_mode_set(mode);
    if (!is_built) {
        free(f);
        return strobe__fail(STROBE_INVALID_ARGUMENT, "%s", error.sentence);
    }
    *function = f;
    return STROBE_OK;
}

void strobe_score_destroy(strobe_score *function) { free(function); }
