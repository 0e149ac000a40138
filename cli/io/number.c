/* SPDX-License-Identifier: BSD-3-Clause
 *
 * number.c: numbers from text and to text; see number.h. */
#include "io/number.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool number_integer(const char *text, size_t length, int64_t *value) {
    size_t at = 0;
    const bool negative = length > 0 && text[0] == '-';
    if (negative) at = 1;
    int64_t magnitude = 0;
    const size_t first_digit = at;
    for (; at < length && isdigit((unsigned char)text[at]); ++at)
        if (__builtin_mul_overflow(magnitude, 10, &magnitude) ||
            __builtin_add_overflow(magnitude, text[at] - '0', &magnitude))
            return false;
    if (at == first_digit) return false;
    int64_t unit = 1;
    if (at < length && (text[at] == 'k' || text[at] == 'M')) unit = text[at++] == 'k' ? 1024 : 1024 * 1024;
    if (at != length || __builtin_mul_overflow(magnitude, unit, &magnitude)) return false;
    *value = negative ? -magnitude : magnitude;
    return true;
}

bool number_real(const char *text, double *value) {
    /* strtod also takes white space, "inf", "nan" and hexadecimal: none of them is a number here. */
    for (const char *c = text; *c; ++c)
        if (!isdigit((unsigned char)*c) && *c != '+' && *c != '-' && *c != '.' && *c != 'e' && *c != 'E') return false;
    char *end = NULL;
    const double read = strtod(text, &end);
    if (end == text || *end || !isfinite(read)) return false;
    *value = read;
    return true;
}

void number_print(double value, char text[NUMBER_TEXT]) {
    for (int digits = 15; digits <= 17; ++digits) {
        snprintf(text, NUMBER_TEXT, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}
