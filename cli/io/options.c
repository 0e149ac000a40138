/* SPDX-License-Identifier: BSD-3-Clause
 *
 * options.c: getopt_long with sentences of our own; see options.h. */
#include "io/options.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* "--name=value" of an option that is there. */
static bool has_value(const char *word, const struct option *options) {
    const size_t length = strcspn(word, "=");
    for (const struct option *o = options; o->name && word[length]; ++o)
        if (strlen(o->name) + 2 == length && strncmp(word + 2, o->name, length - 2) == 0) return true;
    return false;
}

int next_option(const char *command, int argc, char **argv, const char *letters, const struct option *options) {
    char quiet[16]; /* a colon in front: getopt_long says nothing itself, and ':' where a value is missing */
    snprintf(quiet, sizeof quiet, ":%s", letters);
    const int option = getopt_long(argc, argv, quiet, options, NULL);
    if (option != '?' && option != ':') return option;
    const char letter[] = {'-', (char)optopt, 0}, *word = argv[optind - 1], *fault = "is given without its value";
    if (option == '?') {
        const bool known = has_value(word, options);
        if (!known && optopt) word = letter; /* perhaps not the only one of its word */
        fault = known ? "takes no value" : "is not an option";
    }
    fprintf(stderr, "strobe %s: %s %s; strobe %s --help lists the options\n", command, word, fault, command);
    return '?';
}
