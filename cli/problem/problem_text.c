/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_text.c: one problem from text and to text, driven by the table in problem_words.c; see problem_text.h. */
#include "io/number.h"
#include "problem/problem_ranks.h"
#include "problem/problem_words.h"
#include "problem/score_functions.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define UNSET INT64_MIN /* below every accepted size: the value of a size that defaults to another one */

static int64_t *integer_field(problem *p, size_t field) { return (int64_t *)(void *)((char *)p + field); }

static int64_t integer_of(const problem *p, size_t field) {
    return *(const int64_t *)(const void *)((const char *)p + field);
}

static double real_of(const problem *p, size_t field) { return *(const double *)(const void *)((const char *)p + field); }

/* ---------------------------------------------------------------------------------------------------------- reading -- */

typedef struct refusal {
    char *message;
    size_t capacity;
} refusal;

static bool refuse(const refusal *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(const refusal *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->message, r->capacity, format, arguments);
    va_end(arguments);
    return false;
}

static bool read_integer(const word *w, const char *text, size_t length, int64_t *target, const refusal *r) {
    int64_t value = 0;
    if (number_integer(text, length, &value) && value >= w->least && value <= w->most) {
        *target = value;
        return true;
    }
    return refuse(r, "%s is %.*s; an integer from %lld to %lld is accepted", w->key, length ? (int)length : 7,
                  length ? text : "nothing", (long long)w->least, (long long)w->most);
}

static bool read_integer_word(const word *w, const char *value, problem *p, const refusal *r) {
    return read_integer(w, value, strlen(value), integer_field(p, w->field), r);
}

static bool read_pair(const word *w, const char *value, problem *p, const refusal *r) {
    const char *middle = strchr(value, w->separator);
    if (!middle && w->separator != '/')
        return refuse(r, "%s is %s; two integers with a %c between them are accepted", w->key, value, w->separator);
    const size_t length = middle ? (size_t)(middle - value) : strlen(value);
    const char *second = middle ? middle + 1 : value;
    if (w->implies_mask) p->mask = w->implies_mask;
    return read_integer(w, value, length, integer_field(p, w->field), r) &&
           read_integer(w, second, strlen(second), integer_field(p, w->second), r);
}

static bool read_real(const word *w, const char *value, problem *p, const refusal *r) {
    double real = 0;
    const bool any = w->above == w->below;
    if (!number_real(value, &real) || (any && real == 0))
        return refuse(r, "%s is %s; a finite number%s is accepted", w->key, value, any ? " other than 0" : "");
    if (!any && !(real > w->above && real < w->below) && !(w->zero && real == 0))
        return refuse(r, "%s is %s; a number %s %g and below %g is accepted", w->key, value, w->zero ? "from" : "above",
                      w->above, w->below);
    *(double *)(void *)((char *)p + w->field) = real;
    return true;
}

static bool read_choice(const word *w, const char *value, problem *p, const refusal *r) {
    for (const word_choice *c = w->choice; c->name; ++c) {
        if (value && strcmp(value, c->name)) continue;
        *integer_field(p, w->field) = c->value;
        return true;
    }
    char names[128] = "";
    size_t length = 0;
    for (const word_choice *c = w->choice; c->name && length < sizeof names; ++c)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", c == w->choice ? "" : ", ", c->name);
    return refuse(r, "%s is %s; accepted are %s", w->key, *value ? value : "nothing", names);
}

static bool read_flag(const word *w, const char *value, problem *p, const refusal *r) {
    if (value) return refuse(r, "%s is given the value %s; the word alone is accepted", w->key, value);
    *integer_field(p, w->field) = 1;
    return true;
}

static bool read_name(const word *w, const char *value, problem *p, const refusal *r) {
    size_t length = 0;
    while (isalnum((unsigned char)value[length]) || value[length] == '_') ++length;
    if (!length || value[length] || length >= PROBLEM_KERNEL)
        return refuse(r, "%s is %s; a name of at most %d letters, digits and underscores is accepted", w->key,
                      *value ? value : "nothing", PROBLEM_KERNEL - 1);
    memcpy((char *)p + w->field, value, length + 1);
    return true;
}

static bool read_expression(const word *w, const char *value, problem *p, const refusal *r) {
    if (!*value || strlen(value) >= PROBLEM_EXPRESSION)
        return refuse(r, "%s has %zu characters; 1 to %d are accepted", w->key, strlen(value), PROBLEM_EXPRESSION - 1);
    char *const field = (char *)p + w->field;
    memcpy(field, value, strlen(value) + 1);
    const problem one = {0};
    problem alone = one;
    memcpy((char *)&alone + w->field, value, strlen(value) + 1);
    return score_function_of(&alone) != NULL || refuse(r, "%s", strobe_last_error());
}

static bool read_ranks(const word *w, const char *value, problem *p, const refusal *r) {
    (void)w;
    return problem_ranks_read(value, p, r->message, r->capacity);
}

static bool read_word(const char *text, problem *p, uint64_t *seen, int *set, const refusal *r) {
    static bool (*const read[])(const word *, const char *, problem *,
                                const refusal *) = {[WORD_BARE] = read_choice,
                                                    [WORD_FLAG] = read_flag,
                                                    [WORD_INTEGER] = read_integer_word,
                                                    [WORD_PAIR] = read_pair,
                                                    [WORD_REAL] = read_real,
                                                    [WORD_CHOICE] = read_choice,
                                                    [WORD_NAME] = read_name,
                                                    [WORD_EXPRESSION] = read_expression,
                                                    [WORD_RANKS] = read_ranks};
    const char *value = NULL;
    const word *w = problem_word_find(text, &value);
    if (!w) return refuse(r, "\"%s\" is not a word of a problem; see the words under strobe bench --help", text);
    if (w->kind == WORD_BARE) value = text;
    if (!value && w->kind != WORD_FLAG && w->kind != WORD_CHOICE)
        return refuse(r, "%s stands without a value; %s=VALUE is accepted", w->key, w->key);
    const uint64_t bit = (uint64_t)1 << (w - problem_words);
    if (*seen & bit) return refuse(r, "%s is given again with %s; once is accepted", w->key, text);
    if (*set & w->sets)
        return refuse(r, "%s is given beside another word for the same thing; one of them is accepted", text);
    *seen |= bit;
    *set |= w->sets;
    if (!read[w->kind](w, value, p, r)) return false;
    if (w->sets == (SETS_SEQ_Q | SETS_SEQ_K)) p->seq_k = p->seq_q;
    return true;
}

/* What the words of caches say together. */
static bool is_cache_consistent(const problem *p, const refusal *r) {
    const bool shared = p->layout == LAYOUT_SHARED || p->layout == LAYOUT_OVERLAPPING;
    if (p->page_size && (p->layout == LAYOUT_PACKED || shared))
        return refuse(r, "paged is given with layout=packed, shared or overlapping; the other layouts are accepted");
    if (p->page_size && p->varlen & VARLEN_CU_K)
        return refuse(r, "paged is given with packed keys; varlen=used, used_k or packed_q is accepted");
    if (p->page_size && (p->scales == SCALES_ROWS || p->scales == SCALES_BLOCKS))
        return refuse(r, "paged is given with scales of several rows; scales=token, sequence or tensor is accepted");
    if (p->v_in_k && (p->dim_v > p->dim || p->layout == LAYOUT_PACKED || p->scales))
        return refuse(r, "v_in_k is given with %s; without it is accepted",
                      p->dim_v > p->dim ? "a dv above d"
                      : p->scales       ? "scales"
                                        : "layout=packed");
    if (p->append && (p->dtype == STROBE_FP64 || shared))
        return refuse(r, "append is given with fp64, layout=shared or overlapping; other types and layouts are accepted");
    if (p->qk_dtype && (p->append || p->v_in_k))
        return refuse(r, "qk is given with %s; without it is accepted", p->append ? "append" : "v_in_k");
    if (p->append && problem_is_quantised(problem_kv_dtype(p)) && (p->scales == SCALES_ROWS || p->scales == SCALES_BLOCKS))
        return refuse(r, "append is given with scales of several rows; scales=token, sequence or tensor is accepted");
    return true;
}

/* What words say together. */
static bool is_consistent(const problem *p, const refusal *r) {
    const bool backward = p->operation == STROBE_BACKWARD;
    if (p->heads_q % p->heads_kv)
        return refuse(r, "h is %lld/%lld; a number of K/V heads that divides the query heads is accepted",
                      (long long)p->heads_q, (long long)p->heads_kv);
    if (p->layout == LAYOUT_PACKED && p->seq_q != p->seq_k)
        return refuse(r, "layout is packed with sq=%lld and sk=%lld; equal lengths are accepted", (long long)p->seq_q,
                      (long long)p->seq_k);
    if (p->layout == LAYOUT_PACKED && p->kv_dtype)
        return refuse(r, "layout is packed with a kv of its own; q, k and v side by side have one dtype");
    if (p->layout == LAYOUT_PACKED && p->wide > WIDE_ALL)
        return refuse(r, "layout is packed with wide of some gradients; dq, dk and dv side by side have one dtype");
    if (p->layout == LAYOUT_PACKED && p->dtype == STROBE_FP8_E4M3) /* the oracle's q is fp64 beside k and v of fp8 */
        return refuse(r, "layout is packed with fp8; the other layouts are accepted");
    if (backward && p->dtype == STROBE_FP8_E4M3) return refuse(r, "fp8 is given with bwd; fwd is accepted");
    const int64_t cu = p->varlen & (VARLEN_CU_Q | VARLEN_CU_K);
    if (p->layout == LAYOUT_PACKED && (cu == VARLEN_CU_Q || cu == VARLEN_CU_K))
        return refuse(r, "layout is packed with varlen=packed_q; q, k and v side by side have the same rows");
    if (p->layout == LAYOUT_PACKED && p->varlen && (p->lengths == LENGTHS_NO_KEYS || p->lengths == LENGTHS_NO_ROWS))
        return refuse(r, "layout is packed with rows or keys alone; q, k and v side by side have the same rows");
    const struct {
        const char *name;
        int64_t given, needed;
        const char *need;
    } needs[] = {{"dlse", p->dlse, backward, "bwd"},
                 {"added", p->added, backward && problem_has_fp32_gradients(p), "bwd with fp32 gradients"},
                 {"added beside ranks", p->added && p->ranks, false, "one process"},
                 {"wide of some gradients", p->wide > WIDE_ALL, backward, "bwd"},
                 {"out beside wide", p->out_dtype && p->wide, backward, "bwd"},
                 {"out, dout or gradients beside ranks", (p->out_dtype || p->dout_dtype || p->gradients_dtype) && p->ranks,
                  false, "one process"},
                 {"dout", p->dout_dtype, backward, "bwd"},
                 {"gradients", p->gradients_dtype, backward, "bwd"},
                 {"qk", p->qk_dtype, p->dtype == STROBE_FP8_E4M3, "fp8"},
                 {"missing", p->missing, p->page_size, "paged"},
                 {"append", p->append, !backward, "fwd"},
                 {"v_in_k", p->v_in_k, !backward, "fwd"},
                 {"leftpad", p->leftpad, !backward, "fwd"},
                 {"dbias", p->dbias, backward, "bwd"},
                 {"dsinks", p->dsinks, backward, "bwd"},
                 {"dbias", p->dbias, p->bias, "bias"},
                 {"dsinks", p->dsinks, p->sinks, "sinks"},
                 {"dscore", p->dscore, backward, "bwd"},
                 {"dscore", p->dscore, strstr(p->score, "table") != NULL, "a table in score"},
                 {"nolse", p->no_lse, !backward, "fwd"},
                 {"bias_dtype", p->bias_dtype, p->bias, "bias"},
                 {"bias_hides", p->bias_hides, p->bias, "bias"},
                 {"block_axes", p->block_axes, p->block_q, "block"},
                 {"shows", p->shows, p->bool_mask || p->block_q, "mask or block"},
                 {"lengths", p->lengths, p->varlen, "varlen"},
                 {"shard", p->shard, p->dropout > 0, "dropout"}};
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; ++i)
        if (needs[i].given && !needs[i].needed)
            return refuse(r, "%s is given without %s; both are accepted together", needs[i].name, needs[i].need);
    return is_cache_consistent(p, r);
}

static void default_to(int64_t *field, int64_t value) {
    if (*field == UNSET) *field = value;
}

bool problem_parse(const char *text, problem *p, char *message, size_t capacity) {
    const refusal r = {message, capacity};
    const problem defaults = {.dtype = STROBE_FP32,
                              .batch = 1,
                              .heads_q = 1,
                              .heads_kv = 1,
                              .seq_q = 128,
                              .seq_k = 128,
                              .dim = 64,
                              .dim_v = UNSET};
    *p = defaults;
    uint64_t seen = 0;
    int set = 0;
    for (;;) {
        text += strspn(text, " \t\r\n");
        const size_t length = strcspn(text, " \t\r\n");
        if (!length) break;
        char one[PROBLEM_TEXT];
        if (length >= sizeof one)
            return refuse(&r, "a word of %zu bytes begins with %.20s; fewer than %zu are accepted", length, text,
                          sizeof one);
        memcpy(one, text, length);
        one[length] = 0;
        if (!read_word(one, p, &seen, &set, &r)) return false;
        text += length;
    }
    default_to(&p->dim_v, p->dim);
    return is_consistent(p, &r);
}

/* --------------------------------------------------------------------------------------------------------- printing -- */

typedef struct printer {
    char *text;
    size_t length;
} printer;

static void add(printer *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(printer *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(out->text + out->length, PROBLEM_TEXT - out->length, format, arguments);
    va_end(arguments);
    if (written > 0 && out->length + (size_t)written < PROBLEM_TEXT) out->length += (size_t)written;
}

static const char *choice_name(const word *w, int64_t value) {
    for (const word_choice *c = w->choice; c->name; ++c)
        if (c->value == value) return c->name;
    return NULL;
}

static void print_number(printer *out, const word *w, double value) {
    char number[NUMBER_TEXT];
    number_print(value, number);
    if (value != 0) add(out, " %s=%s", w->key, number);
}

static void print_integer(printer *out, const word *w, const problem *p) {
    const int64_t value = integer_of(p, w->field);
    const bool same_lengths = p->seq_q == p->seq_k;
    bool wanted = value != 0 || w->always;
    if (w->sets & (SETS_SEQ_Q | SETS_SEQ_K)) wanted = same_lengths == (w->sets == (SETS_SEQ_Q | SETS_SEQ_K));
    if (w->field == offsetof(problem, dim_v)) wanted = p->dim != p->dim_v;
    if (wanted) add(out, " %s=%lld", w->key, (long long)value);
}

static void print_pair(printer *out, const word *w, const problem *p) {
    const int64_t first = integer_of(p, w->field), second = integer_of(p, w->second);
    if (w->implies_mask ? p->mask != w->implies_mask : first == 0) return;
    add(out, " %s=%lld", w->key, (long long)first);
    if (first != second || w->separator != '/') add(out, "%c%lld", w->separator, (long long)second);
}

/* The first choice is what the word alone means; a field that is 0 is the default, which has no word unless the table gives
 * it one. */
static void print_choice(printer *out, const word *w, int64_t value) {
    const char *name = choice_name(w, value);
    if (!name || (value == 0 && w->kind == WORD_CHOICE)) return;
    if (w->kind == WORD_BARE)
        add(out, "%s%s", out->length ? " " : "", name);
    else if (w->choice->value == value && value != 0)
        add(out, " %s", w->key);
    else
        add(out, " %s=%s", w->key, name);
}

static void add_ranks(printer *out, const problem *p) {
    char text[64];
    if (problem_ranks_print(p, text, sizeof text)) add(out, "%s", text);
}

void problem_print(const problem *p, char text[PROBLEM_TEXT]) {
    printer out = {text, 0};
    text[0] = 0;
    for (const word *w = problem_words; w < problem_words + problem_word_count; ++w) {
        if (w->kind == WORD_INTEGER) print_integer(&out, w, p);
        if (w->kind == WORD_PAIR) print_pair(&out, w, p);
        if (w->kind == WORD_REAL) print_number(&out, w, real_of(p, w->field));
        if (w->kind == WORD_BARE || w->kind == WORD_CHOICE) print_choice(&out, w, integer_of(p, w->field));
        if (w->kind == WORD_FLAG && integer_of(p, w->field)) add(&out, " %s", w->key);
        if (w->kind == WORD_RANKS) add_ranks(&out, p);
        if ((w->kind == WORD_NAME || w->kind == WORD_EXPRESSION) && *((const char *)p + w->field))
            add(&out, " %s=%s", w->key, (const char *)p + w->field);
    }
}

const char *problem_dtype_name(int64_t dtype) {
    for (const word *w = problem_words; w < problem_words + problem_word_count; ++w)
        if (w->kind == WORD_BARE && w->field == offsetof(problem, dtype)) return choice_name(w, dtype);
    return NULL;
}
