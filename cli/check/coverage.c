/* SPDX-License-Identifier: BSD-3-Clause
 *
 * coverage.c: counts of kernels and features; see coverage.h. */
#include "check/coverage.h"

#include "check/trial.h"

#include <stdio.h>
#include <string.h>

enum { MOST_SHOWN_PAIRS = 24 };

void kernel_list_find(kernel_list *list, int64_t device) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    list->count = 0;
    for (int32_t i = 0; list->count < MOST_KERNELS && strobe_kernel_at(i, &info) == STROBE_OK; ++i) {
        const bool reference = info.device == STROBE_CPU && trial_is_yardstick(info.name);
        if (info.device != device || (reference && info.chosen_by_name))
            continue; /* allowances are standard attention's own */
        kernel_name *k = &list->items[list->count++];
        *k = (kernel_name){.operation = info.operation, .runs = !info.unavailable, .by_name_only = info.chosen_by_name != 0};
        snprintf(k->name, sizeof k->name, "%s", info.name);
    }
}

int kernel_list_index(const kernel_list *list, const char *name) {
    for (int i = 0; i < list->count; ++i)
        if (strcmp(list->items[i].name, name) == 0) return i;
    return -1;
}

static void add(uint32_t *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

void coverage_count_case(coverage *c, int kernel, const problem *p) {
    const feature_set s = features_of(p);
    for (int one = 0; one < features_count(); ++one) {
        if (!features_has(&s, one)) continue;
        add(&c->ran[kernel][one]);
        for (int other = 0; other < features_count(); ++other)
            if (features_has(&s, other)) add(&c->pairs[one][other]);
    }
}

void coverage_count_refusal(coverage *c, int kernel, const problem *p) {
    const feature_set s = features_of(p);
    add(&c->refusals[kernel]);
    for (int n = 0; n < features_count(); ++n)
        if (features_has(&s, n)) add(&c->refused[kernel][n]);
}

static bool could_have(const kernel_list *kernels, int kernel, int feature) {
    const int operation = feature_operation(feature);
    return operation < 0 || operation == kernels->items[kernel].operation;
}

int coverage_features(const coverage *c, const kernel_list *kernels, int kernel, int *of) {
    int ran = 0;
    *of = 0;
    for (int n = 0; n < features_count(); ++n)
        if (could_have(kernels, kernel, n)) ran += c->ran[kernel][n] > 0, ++*of;
    return ran;
}

/* The names of a kernel's features that have not run: those that were refused each time, or those that were never drawn. */
static void print_missing(const coverage *c, const kernel_list *kernels, int kernel, bool refused, const char *title) {
    int shown = 0;
    for (int n = 0; n < features_count(); ++n) {
        if (!could_have(kernels, kernel, n) || c->ran[kernel][n] || (c->refused[kernel][n] > 0) != refused) continue;
        printf("%s%s", shown++ ? ", " : title, feature_name(n));
    }
    if (shown) putchar('\n');
}

static void print_pairs(const coverage *c) {
    int64_t ran = 0, possible = 0;
    for (int one = 0; one < features_count(); ++one)
        for (int other = one + 1; other < features_count(); ++other)
            if (!features_exclude(one, other)) ++possible, ran += c->pairs[one][other] > 0;
    printf("pairs of features: %lld of %lld", (long long)ran, (long long)possible);
    int shown = 0;
    for (int one = 0; one < features_count() && shown < MOST_SHOWN_PAIRS; ++one)
        for (int other = one + 1; other < features_count() && shown < MOST_SHOWN_PAIRS; ++other)
            if (!features_exclude(one, other) && !c->pairs[one][other])
                printf("%s%s + %s", shown++ ? "; " : "; never together, of these: ", feature_name(one), feature_name(other));
    putchar('\n');
}

void coverage_print(const coverage *c, const kernel_list *kernels) {
    for (int k = 0; k < kernels->count; ++k) {
        if (!kernels->items[k].runs) continue;
        char title[PROBLEM_KERNEL + 32];
        snprintf(title, sizeof title, "%s refused each time: ", kernels->items[k].name);
        print_missing(c, kernels, k, true, title);
        snprintf(title, sizeof title, "%s was never given: ", kernels->items[k].name);
        print_missing(c, kernels, k, false, title);
    }
    print_pairs(c);
}
