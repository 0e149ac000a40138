/* SPDX-License-Identifier: BSD-3-Clause
 *
 * support.h: what each kernel takes, as its record declares it; tests/unit/test_features.c shows that a kernel takes just
 * that. docs/support.md is this, printed; it is never written by hand. */
#ifndef STROBE_CLI_SUPPORT_H
#define STROBE_CLI_SUPPORT_H

#include "io/table.h"

/* Prints the matrix of features and kernels with headings and footnotes, as TABLE_TEXT or TABLE_MARKDOWN. False if stdout
 * reports an error. */
bool support_print(table_format format);

#endif
