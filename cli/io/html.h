/* SPDX-License-Identifier: BSD-3-Clause
 *
 * html.h: a page that stands alone: no file and no host beside it. Its style follows the reader's choice of light or dark,
 * its tables sort by a click on a heading. */
#ifndef STROBE_CLI_HTML_H
#define STROBE_CLI_HTML_H

#include <stdio.h>

/* The text as HTML has it, in an attribute too. */
void html_text(const char *text, FILE *stream);

/* Everything before the first section, with the title as heading; everything behind the last. */
void html_begin(const char *title, FILE *stream);
void html_end(FILE *stream);

/* A line of a list of facts, between <dl> and </dl>. */
void html_fact(const char *name, const char *value, FILE *stream);

#endif
