/* SPDX-License-Identifier: BSD-3-Clause
 *
 * check_alone.c: `strobe check` as a program of its own. It needs no library but libc and OpenMP's, so that it can be linked
 * for a processor whose other libraries are not installed here. */
#include "commands.h"

int main(int argc, char **argv) { return cmd_check(argc, argv); }
