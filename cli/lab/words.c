/* SPDX-License-Identifier: BSD-3-Clause
 *
 * words.c: a problem of the lab from words, with at most one sweep; see lab_command.h. */
#include "io/number.h"
#include "lab/lab_command.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char lab_words_help[] =
    "words:\n"
    "  n=1024            queries and keys; or sq= and sk=\n"
    "  d=64 dv=64        dimensions of a head\n"
    "  sram=100KiB       fast memory in bytes; or S=25600 in scalars, as in the papers\n"
    "  fp32              elements: fp64, fp32, fp16, bf16; arithmetic is fp32 (fp64 for fp64)\n"
    "  causal            or causal=topleft; blocks out of sight are skipped\n"
    "  dropout=0.1       of the algorithms that have it; seed=0\n"
    "  blocks=formula    Br, Bc: FlashAttention-1's formula at the largest S' <= S that fits; best: the least traffic;\n"
    "                    paper: the formula at S itself, which may not fit. Or br=64 bc=32; one alone: the other as\n"
    "                    large as fits\n"
    "  workers=2         of split_k, split_q; consumers of flash3\n"
    "  splits=4          of split_kv\n"
    "  stages=2          K and V blocks in flash3's ring\n"
    "  algorithms=A,B    default all: standard safe_softmax online_softmax online_softmax_v softmax_star flash1 split_k\n"
    "                    flash2 split_q split_kv flash3 standard_backward flash1_backward flash2_backward\n"
    "  FILE.safetensors  q, k, v of a file instead of random numbers; layer=layer0 for its layer0.q, layer0.k, layer0.v\n";

/* A word with a number: where it goes, and what is accepted. */
typedef struct number_word {
    const char *key;
    size_t field, second; /* offsets into lab_request; second 0: there is none */
    int64_t least, most;
} number_word;

#define AT(member) offsetof(lab_request, member)

enum { MOST_LENGTH = 1 << 24, MOST_DIM = 512 };

static const number_word number_words[] = {
    {"n", AT(problem.m), AT(problem.n), 1, MOST_LENGTH},
    {"sq", AT(problem.m), 0, 1, MOST_LENGTH},
    {"sk", AT(problem.n), 0, 1, MOST_LENGTH},
    {"d", AT(problem.d), AT(problem.dv), 1, MOST_DIM},
    {"dv", AT(problem.dv), 0, 1, MOST_DIM},
    {"sram", AT(sram_bytes), 0, 1, INT64_MAX / 8},
    {"S", AT(scalars), 0, 1, INT64_MAX / 8},
    {"br", AT(br), 0, 1, MOST_LENGTH},
    {"bc", AT(bc), 0, 1, MOST_LENGTH},
    {"workers", AT(problem.workers), 0, 1, LAB_MOST_WORKERS},
    {"splits", AT(problem.splits), 0, 1, 4096},
    {"stages", AT(problem.stages), 0, 2, LAB_MOST_STAGES},
    {"seed", AT(problem.seed), 0, 0, INT64_MAX},
};
enum { NUMBER_WORDS = sizeof number_words / sizeof *number_words };

bool lab_size(const char *text, size_t length, int64_t *value) {
    char plain[32]; /* without iB or B, and with the suffixes of number.h */
    if (length == 0 || length >= sizeof plain) return false;
    memcpy(plain, text, length);
    if (length > 3 && plain[length - 2] == 'i' && plain[length - 1] == 'B')
        length -= 2;
    else if (length > 1 && plain[length - 1] == 'B')
        length -= 1;
    if (plain[length - 1] == 'K') plain[length - 1] = 'k';
    return number_integer(plain, length, value);
}

static bool no_such_word(const char *word, char *message) {
    snprintf(message, LAB_REFUSAL, "\"%.64s\": no such word; --help lists them", word);
    return false;
}

static const number_word *number_word_named(const char *key) {
    for (const number_word *w = number_words; w < number_words + NUMBER_WORDS; ++w)
        if (strcmp(w->key, key) == 0) return w;
    return NULL;
}

bool lab_request_set(lab_request *r, const char *key, int64_t value, char *message) {
    const number_word *w = number_word_named(key);
    if (!w) return no_such_word(key, message);
    if (value < w->least || value > w->most) {
        snprintf(message, LAB_REFUSAL, "%s = %lld: %lld to %lld is accepted", key, (long long)value, (long long)w->least,
                 (long long)w->most);
        return false;
    }
    memcpy((char *)r + w->field, &value, sizeof value);
    if (w->second) memcpy((char *)r + w->second, &value, sizeof value);
    if (!strcmp(key, "sram")) r->scalars = 0;
    if (!strcmp(key, "S")) r->sram_bytes = 0;
    return true;
}

/* One item of a word's list of values: a number, or A..B*M, or A..B+S. */
static bool add_values(lab_request *r, const char *key, const char *item, size_t length, char *message) {
    const char *end = item + length, *dots = NULL, *step_at = NULL;
    const int shown = length < 64 ? (int)length : 64;
    for (const char *c = item; c + 1 < end && !dots; ++c)
        if (c[0] == '.' && c[1] == '.') dots = c;
    for (const char *c = dots; c && c < end && !step_at; ++c)
        if (*c == '*' || *c == '+') step_at = c;
    int64_t from = 0, to = 0, step = 1;
    const bool one = !dots && lab_size(item, length, &from);
    const bool range = dots && step_at && lab_size(item, (size_t)(dots - item), &from) &&
                       lab_size(dots + 2, (size_t)(step_at - dots - 2), &to) &&
                       lab_size(step_at + 1, (size_t)(end - step_at - 1), &step) && from >= 1 && from <= to &&
                       step >= (*step_at == '*' ? 2 : 1);
    if (!one && !range) {
        snprintf(message, LAB_REFUSAL, "%s = %.*s: a number such as 64, 16k, 100KiB, 1k..16k*2 or 64..256+64 is accepted",
                 key, shown, item);
        return false;
    }
    for (int64_t value = from; one || value <= to;) {
        if (r->value_count == LAB_MOST_VALUES) {
            snprintf(message, LAB_REFUSAL, "%s = %.*s: at most %d values are accepted", key, shown, item, LAB_MOST_VALUES);
            return false;
        }
        r->values[r->value_count++] = value;
        if (one ||
            (*step_at == '*' ? __builtin_mul_overflow(value, step, &value) : __builtin_add_overflow(value, step, &value)))
            break;
    }
    return true;
}

static bool read_number(lab_request *r, const char *key, const char *text, bool sweeps, char *message) {
    const int before = r->value_count;
    for (const char *item = text, *end;; item = end + 1) {
        end = item + strcspn(item, ",");
        if (!add_values(r, key, item, (size_t)(end - item), message)) return false;
        if (!*end) break;
    }
    const int count = r->value_count - before;
    if (count == 1) return lab_request_set(r, key, r->values[--r->value_count], message);
    if (!sweeps || before > 0) {
        snprintf(message, LAB_REFUSAL, "%s = %.64s: one value is accepted%s", key, text,
                 sweeps ? ", only one word is swept" : "");
        return false;
    }
    snprintf(r->swept, sizeof r->swept, "%s", key);
    for (int i = 0; i < count; ++i) { /* every value is checked now, the first one stays */
        lab_request copy = *r;
        if (!lab_request_set(i ? &copy : r, key, r->values[i], message)) return false;
    }
    return true;
}

static bool read_algorithms(lab_request *r, const char *text, char *message) {
    r->algorithm_count = 0;
    r->has_algorithms = true;
    for (const char *item = text, *end;; item = end + 1) {
        end = item + strcspn(item, ",");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(end - item), item);
        const lab_algorithm *algorithm = lab_algorithm_named(name);
        if (!algorithm || r->algorithm_count == LAB_MOST_ALGORITHMS) {
            snprintf(message, LAB_REFUSAL, "algorithms = %s: the names that strobe lab --help lists are accepted", name);
            return false;
        }
        r->algorithms[r->algorithm_count++] = algorithm;
        if (!*end) return true;
    }
}

/* One of the names, or a sentence. */
static bool choose(const char *key, const char *value, const char *const *names, int count, int *choice, char *message) {
    for (*choice = 0; *choice < count; ++*choice)
        if (!strcmp(names[*choice], value)) return true;
    int length = snprintf(message, LAB_REFUSAL, "%s = %.64s: accepted are", key, value);
    for (int i = 0; i < count; ++i)
        length += snprintf(message + length, LAB_REFUSAL - (size_t)length, "%s %s", i ? "," : "", names[i]);
    return false;
}

static bool read_choice(lab_request *r, const char *key, const char *value, char *message) {
    static const char *const rules[] = {
        [LAB_BLOCKS_FORMULA] = "formula", [LAB_BLOCKS_PAPER] = "paper", [LAB_BLOCKS_BEST] = "best"};
    static const char *const corners[] = {"bottomright", "topleft"};
    int choice = 0;
    if (!strcmp(key, "blocks")) {
        if (!choose(key, value, rules, 3, &choice, message)) return false;
        r->rule = (lab_block_rule)choice;
        r->has_rule = true;
        return true;
    }
    if (!choose(key, value, corners, 2, &choice, message)) return false;
    r->problem.mask = choice ? STROBE_MASK_CAUSAL_TOP_LEFT : STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    return true;
}

static bool read_word(lab_request *r, const char *word, bool sweeps, char *message) {
    const size_t length = strlen(word), extension = strlen(".safetensors");
    const char *equals = strchr(word, '=');
    char key[LAB_KEY];
    if (length > extension && !strcmp(word + length - extension, ".safetensors")) {
        r->file = word;
        return true;
    }
    if (!equals) {
        if (!strcmp(word, "causal")) return read_choice(r, "causal", "bottomright", message);
        r->has_elements = lab_type_named(word, &r->elements) && r->elements != LAB_E4M3;
        return r->has_elements || no_such_word(word, message);
    }
    snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
    if (!strcmp(key, "blocks") || !strcmp(key, "causal")) return read_choice(r, key, equals + 1, message);
    if (!strcmp(key, "algorithms")) return read_algorithms(r, equals + 1, message);
    if (!strcmp(key, "layer")) {
        r->layer = equals + 1;
        return true;
    }
    if (!strcmp(key, "dropout")) {
        const bool reads = number_real(equals + 1, &r->problem.dropout);
        if (reads && r->problem.dropout >= 0 && r->problem.dropout < 1) return true;
        snprintf(message, LAB_REFUSAL, "dropout = %.64s: at least 0 and less than 1 is accepted", equals + 1);
        return false;
    }
    if (!number_word_named(key)) return no_such_word(word, message);
    if (!strcmp(key, "sram") || !strcmp(key, "S")) r->has_sram = true;
    return read_number(r, key, equals + 1, sweeps, message);
}

bool lab_request_read(lab_request *r, int count, char *const *words, bool sweeps, char *message) {
    *r = (lab_request){.problem = {.m = 1024, .n = 1024, .d = 64, .dv = 64, .workers = 2, .splits = 4, .stages = 2},
                       .elements = LAB_FP32,
                       .sram_bytes = 100 * 1024};
    for (r->algorithm_count = 0; lab_algorithm_at(r->algorithm_count); ++r->algorithm_count)
        r->algorithms[r->algorithm_count] = lab_algorithm_at(r->algorithm_count);
    for (int i = 0; i < count; ++i)
        if (!read_word(r, words[i], sweeps, message)) return false;
    return true;
}
