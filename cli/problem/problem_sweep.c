/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_sweep.c: from words with sweeps to a list of problems. Expansion is textual: a word such as s=1k..4k*2 becomes the
 * words s=1024, s=2048, s=4096, and every combination of such words is read as a problem by problem_parse. */
#include "io/memory.h"
#include "io/number.h"
#include "problem/problem_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 64, MOST_VALUES = 4096, MOST_PROBLEMS = 1 << 16 };

/* The texts that one word or one part of a value stands for. */
typedef struct texts {
    char **items;
    size_t count;
} texts;

static void texts_add(texts *list, const char *prefix, const char *text) {
    const size_t bytes = strlen(prefix) + strlen(text) + 1;
    list->items = memory_resized(list->items, list->count + 1, sizeof *list->items);
    char *item = memory_zeroed(bytes, 1);
    snprintf(item, bytes, "%s%s", prefix, text);
    list->items[list->count++] = item;
}

static void texts_free(texts *list) {
    for (size_t i = 0; i < list->count; ++i) free(list->items[i]);
    free(list->items);
    *list = (texts){0};
}

/* A..B*M or A..B+S. */
static bool add_range(const char *part, const char *dots, texts *out, char *message, size_t capacity) {
    const char *step_at = strpbrk(dots + 2, "*+");
    const bool multiplies = step_at && *step_at == '*';
    int64_t from = 0, to = 0, step = 0;
    const bool reads = step_at && number_integer(part, (size_t)(dots - part), &from) &&
                       number_integer(dots + 2, (size_t)(step_at - dots - 2), &to) &&
                       number_integer(step_at + 1, strlen(step_at + 1), &step);
    if (!reads || from > to || (multiplies ? step < 2 || from < 1 : step < 1)) {
        snprintf(message, capacity,
                 "a sweep is %s; A..B*M with 1 <= A <= B and M >= 2, or A..B+S with A <= B and S >= 1, is accepted", part);
        return false;
    }
    size_t values = 0;
    for (int64_t value = from; value <= to;) {
        char number[NUMBER_TEXT];
        snprintf(number, sizeof number, "%lld", (long long)value);
        texts_add(out, "", number);
        if (++values > MOST_VALUES) {
            snprintf(message, capacity, "the sweep %s has more than %d values", part, MOST_VALUES);
            return false;
        }
        const bool overflow = multiplies ? __builtin_mul_overflow(value, step, &value)
                                         : __builtin_add_overflow(value, step, &value);
        if (overflow) break;
    }
    return true;
}

static bool add_part(const char *part, bool may_range, texts *out, char *message, size_t capacity) {
    const char *dots = may_range ? strstr(part, "..") : NULL;
    if (dots) return add_range(part, dots, out, message, capacity);
    texts_add(out, "", part);
    return true;
}

/* One item of a list: a value, or a pair whose both sides may be ranges. Consumes the text. */
static bool add_item(const word *w, const char *prefix, char *item, texts *out, char *message, size_t capacity) {
    const bool ranges = w->kind == WORD_INTEGER || w->kind == WORD_PAIR;
    char *separator = w->kind == WORD_PAIR ? strchr(item, w->separator) : NULL;
    texts first = {0}, second = {0};
    if (separator) *separator = 0;
    bool ok = add_part(item, ranges, &first, message, capacity);
    if (ok && separator) ok = add_part(separator + 1, ranges, &second, message, capacity);
    for (size_t i = 0; ok && i < first.count; ++i) {
        if (!separator) texts_add(out, prefix, first.items[i]);
        for (size_t j = 0; j < second.count; ++j) {
            char pair[2 * PROBLEM_TEXT + 2];
            snprintf(pair, sizeof pair, "%s%c%s", first.items[i], w->separator, second.items[j]);
            texts_add(out, prefix, pair);
        }
    }
    texts_free(&first);
    texts_free(&second);
    return ok;
}

/* All words that one word stands for. A word that the table does not know stands for itself; problem_parse refuses it. */
static bool expand_word(const char *text, texts *out, char *message, size_t capacity) {
    char first[PROBLEM_TEXT], copy[PROBLEM_TEXT], prefix[PROBLEM_TEXT] = "";
    const char *value = NULL;
    snprintf(first, sizeof first, "%s", text);
    if (!strchr(text, '=')) first[strcspn(first, ",")] = 0; /* fp32,bf16: the kind of the first is that of all */
    const word *w = problem_word_find(first, &value);
    if (!w || (!value && w->kind != WORD_BARE) || w->kind == WORD_EXPRESSION) {
        texts_add(out, "", text);
        return true;
    }
    if (value) snprintf(prefix, sizeof prefix, "%.*s", (int)(value - first), text);
    snprintf(copy, sizeof copy, "%s", text + strlen(prefix));
    const bool lists = w->kind != WORD_PAIR || w->separator != ',';
    char *item = copy;
    for (;;) {
        char *comma = lists ? strchr(item, ',') : NULL;
        if (comma) *comma = 0;
        if (!add_item(w, prefix, item, out, message, capacity)) return false;
        if (!comma) return true;
        item = comma + 1;
    }
}

static void list_append(problem_list *list, const problem *p) {
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 16;
        list->items = memory_resized(list->items, list->capacity, sizeof *list->items);
    }
    list->items[list->count++] = *p;
}

/* Reads every combination of the words' texts; the last word varies fastest. */
static bool add_combinations(problem_list *list, const texts *words, size_t count, char *message, size_t capacity) {
    size_t at[MOST_WORDS] = {0};
    for (size_t n = 0;; ++n) {
        if (n == MOST_PROBLEMS) {
            snprintf(message, capacity, "the sweeps make more than %d problems", MOST_PROBLEMS);
            return false;
        }
        char text[4 * PROBLEM_TEXT];
        size_t length = 0;
        text[0] = 0;
        for (size_t i = 0; i < count && length < sizeof text; ++i)
            length += (size_t)snprintf(text + length, sizeof text - length, " %s", words[i].items[at[i]]);
        problem p;
        if (length >= sizeof text) {
            snprintf(message, capacity, "a problem of more than %zu bytes begins with %.20s", sizeof text, text);
            return false;
        }
        if (!problem_parse(text, &p, message, capacity)) return false;
        list_append(list, &p);
        size_t turning = count;
        while (turning > 0 && ++at[turning - 1] == words[turning - 1].count) at[--turning] = 0;
        if (turning == 0) return true;
    }
}

/* An expression has no blanks within a problem: those between quotes are left out, and the quotes. */
static void squeeze(char *text) {
    bool quoted = false;
    char *to = text;
    for (const char *from = text; *from; ++from) {
        if (*from == '"')
            quoted = !quoted;
        else if (!quoted || !strchr(" \t\r\n", *from))
            *to++ = *from;
    }
    *to = 0;
}

static bool add_squeezed(problem_list *list, const char *text, char *message, size_t capacity) {
    texts words[MOST_WORDS] = {{0}};
    size_t count = 0;
    bool ok = true;
    for (;;) {
        text += strspn(text, " \t\r\n");
        const size_t length = strcspn(text, " \t\r\n");
        if (!length || !ok) break;
        char one[PROBLEM_TEXT];
        if (length >= sizeof one || count == MOST_WORDS) {
            snprintf(message, capacity, "a problem has more than %d words, or one of more than %zu bytes", MOST_WORDS,
                     sizeof one - 1);
            ok = false;
            break;
        }
        memcpy(one, text, length);
        one[length] = 0;
        ok = expand_word(one, &words[count++], message, capacity);
        text += length;
    }
    if (ok) ok = add_combinations(list, words, count, message, capacity);
    for (size_t i = 0; i < count; ++i) texts_free(&words[i]);
    return ok;
}

bool problem_list_add(problem_list *list, const char *text, char *message, size_t capacity) {
    char *copy = memory_zeroed(strlen(text) + 1, 1);
    squeeze(strcpy(copy, text));
    const bool ok = add_squeezed(list, copy, message, capacity);
    free(copy);
    return ok;
}

/* A shell has taken the quotes from a word of a command line that is an expression. */
static bool lacks_quotes(const char *argument) {
    return (strncmp(argument, "score=", 6) == 0 || strncmp(argument, "visible=", 8) == 0) && !strchr(argument, '"');
}

/* Whether the word at text is an operation, or a list of operations. */
static bool begins_problem(const char *text) {
    return (strncmp(text, "fwd", 3) == 0 || strncmp(text, "bwd", 3) == 0) && strchr(" \t\r\n,", text[3]);
}

bool problem_list_read(problem_list *list, int count, char *const *words, char *message, size_t capacity) {
    size_t bytes = 1;
    for (int i = 0; i < count; ++i) bytes += strlen(words[i]) + 3;
    char *line = memory_zeroed(bytes, 1);
    for (int i = 0; i < count; ++i) {
        const char *const quote = lacks_quotes(words[i]) ? "\"" : "";
        strcat(strcat(strcat(strcat(line, quote), words[i]), quote), " ");
    }
    squeeze(line);
    bool ok = true;
    for (char *at = line + strspn(line, " \t\r\n"); ok && *at;) {
        char *next = at;
        do { /* to the next word that begins a problem */
            next += strcspn(next, " \t\r\n");
            next += strspn(next, " \t\r\n");
        } while (*next && !begins_problem(next));
        const char saved = *next;
        *next = 0;
        ok = problem_list_add(list, at, message, capacity);
        *next = saved;
        at = next;
    }
    free(line);
    return ok;
}

void problem_list_free(problem_list *list) {
    free(list->items);
    *list = (problem_list){0};
}
