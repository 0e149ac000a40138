/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_words.h: the table of words that a problem is made of, shared by its reader and printer (problem_text.c) and by
 * the expansion of sweeps (problem_sweep.c). A new word is one line of the table in problem_words.c. */
#ifndef STROBE_CLI_PROBLEM_WORDS_H
#define STROBE_CLI_PROBLEM_WORDS_H

#include "problem/problem_text.h"

typedef enum word_kind {
    WORD_BARE,       /* no key: the word itself is one of the choices */
    WORD_FLAG,       /* no value: present or not */
    WORD_INTEGER,    /* key=integer */
    WORD_PAIR,       /* key=integer<separator>integer */
    WORD_REAL,       /* key=real */
    WORD_CHOICE,     /* key=choice, or key alone for the first choice */
    WORD_NAME,       /* key=text */
    WORD_EXPRESSION, /* key=an expression of strobe_score.h, in quotes where it has blanks */
    WORD_RANKS       /* problem_ranks.h */
} word_kind;

typedef struct word_choice {
    const char *name;
    int64_t value;
} word_choice;

/* Words that set the same thing share a bit, and only one of them may be given. */
enum { SETS_OTHER = 0, SETS_SEQ_Q = 1, SETS_SEQ_K = 2, SETS_MASK = 4 };

typedef struct word {
    const char *key;
    word_kind kind;
    char separator;            /* of a pair; a pair with '/' may leave out the second, which is then the first */
    int sets;                  /* SETS_ bits */
    size_t field, second;      /* offsets into problem */
    int64_t least, most;       /* integers: what is accepted */
    double above, below;       /* reals: what is accepted, exclusive; above == below: any */
    bool zero;                 /* reals: 0 is accepted too */
    bool always;               /* integers: printed even when 0 */
    const word_choice *choice; /* ends with a NULL name */
    int64_t implies_mask;      /* strobe_mask_kind that the word stands for */
} word;

extern const word problem_words[];
extern const size_t problem_word_count;

/* The word of a text such as "s=4" or "causal"; *value is what stands behind "=", or NULL. NULL if there is none. */
const word *problem_word_find(const char *text, const char **value);

#endif
