/* SPDX-License-Identifier: BSD-3-Clause
 *
 * options.h: the options of a command, read one by one; what is wrong with one is said in a sentence. */
#ifndef STROBE_CLI_OPTIONS_H
#define STROBE_CLI_OPTIONS_H

#include <getopt.h>

/* As getopt_long. command: its words after "strobe", such as "lab traffic". '?' where an option is unknown, or its value is
 * missing or not taken: the sentence stands on stderr then. */
int next_option(const char *command, int argc, char **argv, const char *letters, const struct option *options);

#endif
