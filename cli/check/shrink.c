/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shrink.c: greedy: each step that leaves a failing problem is kept, until no step does; see shrink.h. First features are
 * left out, then sizes are halved and made one less, with the inputs' seed as it was. */
#include "check/shrink.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LIMIT_SECONDS = 60, ALL_SECONDS = 90, MOST_FIELDS = 5 };

/* Fields that are set to 0 together: none of the feature. */
typedef struct step {
    size_t fields[MOST_FIELDS]; /* ends with 0, which is the operation's offset */
} step;

#define F(name) offsetof(problem, name)

static const step features[] = {
    {{F(varlen), F(lengths)}},
    {{F(lengths)}},
    {{F(layout)}},
    {{F(page_size), F(missing)}},
    {{F(missing)}},
    {{F(append)}},
    {{F(v_in_k)}},
    {{F(leftpad)}},
    {{F(dropout), F(shard)}},
    {{F(shard)}},
    {{F(bool_mask), F(block_q), F(block_k), F(block_axes), F(shows)}},
    {{F(bool_mask)}},
    {{F(block_q), F(block_k), F(block_axes)}},
    {{F(shows)}},
    {{F(block_axes)}},
    {{F(bias), F(bias_dtype), F(bias_hides), F(dbias)}},
    {{F(dbias)}},
    {{F(bias_hides)}},
    {{F(bias_dtype)}},
    {{F(dscore)}},
    {{F(alibi)}},
    {{F(sinks), F(dsinks)}},
    {{F(dsinks)}},
    {{F(softcap)}},
    {{F(mask), F(window_left), F(window_right)}},
    {{F(q_start), F(k_start)}},
    {{F(q_start)}},
    {{F(k_start)}},
    {{F(qk_dtype)}},
    {{F(out_dtype)}},
    {{F(dout_dtype)}},
    {{F(gradients_dtype), F(added)}},
    {{F(kv_dtype), F(scales), F(q_scales)}},
    {{F(q_scales)}},
    {{F(scales)}},
    {{F(values)}},
    {{F(hidden)}},
    {{F(nan)}},
    {{F(scale)}},
    {{F(dlse)}},
    {{F(no_lse)}},
    {{F(deterministic)}},
    {{F(tf32x3)}},
    {{F(split_keys)}},
    {{F(added)}},
    {{F(wide), F(added)}},
    {{F(ranks), F(rank_group), F(rank_scheme), F(rank_layout)}},
    {{F(rank_layout)}},
    {{F(threads)}},
    {{F(seed)}},
};
static const size_t sizes[] = {F(ranks),   F(batch),   F(seq_q),       F(seq_k),        F(dim),       F(dim_v), F(seed),
                               F(block_q), F(block_k), F(window_left), F(window_right), F(page_size), F(append)};

static int64_t *field_of(problem *p, size_t field) { return (int64_t *)(void *)((char *)p + field); }

static bool is_same(const problem *a, const problem *b) { return memcmp(a, b, sizeof *a) == 0; }

typedef struct search {
    isolated *runner;
    problem *best;
    outcome how;
    char *sentence;
    time_t end;
} search;

/* Keeps the candidate if it can be written, differs, and fails as well. */
static bool keep(search *s, const problem *candidate) {
    char text[PROBLEM_TEXT], message[PROBLEM_MESSAGE];
    problem read;
    if (is_same(candidate, s->best) || time(NULL) > s->end) return false;
    problem_print(candidate, text);
    if (!problem_parse(text, &read, message, sizeof message)) return false;
    const problem *one = candidate;
    if (isolated_check(s->runner, &one, 1, LIMIT_SECONDS, message) != s->how) return false;
    *s->best = *candidate;
    snprintf(s->sentence, PROBLEM_MESSAGE, "%s", message);
    return true;
}

static bool leave_out(search *s) {
    bool any = false;
    problem without_score = *s->best;
    memset(without_score.score, 0, sizeof without_score.score), without_score.dscore = 0;
    any |= keep(s, &without_score);
    problem without_visible = *s->best;
    memset(without_visible.visible, 0, sizeof without_visible.visible);
    any |= keep(s, &without_visible);
    for (const step *f = features; f < features + sizeof features / sizeof features[0]; ++f) {
        problem smaller = *s->best;
        for (int n = 0; n < MOST_FIELDS && f->fields[n]; ++n) *field_of(&smaller, f->fields[n]) = 0;
        any |= keep(s, &smaller);
    }
    return any;
}

static bool make_smaller(search *s) {
    bool any = false;
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; ++n)
        for (int64_t part = 2;; part *= 2) { /* less by all but one, by half, a quarter, ... */
            problem smaller = *s->best;
            int64_t *size = field_of(&smaller, sizes[n]);
            const int64_t less = part == 2 ? *size - 1 : *size * 2 / part;
            if (*size <= 1 || less < 1) break;
            *size -= less;
            while (keep(s, &smaller)) any = true, *size -= less, *size = *size < 1 ? 1 : *size;
        }
    return any;
}

static bool have_fewer_heads(search *s) {
    problem one = *s->best, alike = *s->best, group = *s->best;
    one.heads_q = one.heads_kv = 1;
    alike.heads_q = alike.heads_kv;
    group.heads_q /= group.heads_kv, group.heads_kv = 1;
    return keep(s, &one) || keep(s, &alike) || keep(s, &group);
}

void shrink_problem(isolated *runner, problem *p, outcome how, char sentence[PROBLEM_MESSAGE]) {
    search s = {runner, p, how, sentence, time(NULL) + ALL_SECONDS};
    for (bool any = true; any;) {
        any = leave_out(&s);
        any |= have_fewer_heads(&s);
        problem same_dims = *p;
        same_dims.dim_v = same_dims.dim;
        any |= keep(&s, &same_dims);
        any |= make_smaller(&s);
    }
}
