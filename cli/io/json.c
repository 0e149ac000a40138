/* SPDX-License-Identifier: BSD-3-Clause
 *
 * json.c: parsing within limits, exact integers, printing; see json.h. */
#include "io/json.h"

/* The deepest nesting of brackets outside strings. The text may be malformed: then cJSON says so afterwards. */
static int depth_of(const char *text, size_t length) {
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; ++i) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') ++i;
            if (c == '"') in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if ((c == '{' || c == '[') && ++depth > deepest) deepest = depth;
        if (c == '}' || c == ']') --depth;
    }
    return deepest;
}

cJSON *json_parse(const char *text, size_t length, char *message, size_t capacity) {
    if (depth_of(text, length) > JSON_DEPTH) {
        snprintf(message, capacity, "the JSON nests more than %d levels deep", JSON_DEPTH);
        return NULL;
    }
    const char *end = NULL;
    cJSON *value = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    if (!value) {
        snprintf(message, capacity, "not valid JSON at byte %zu", end ? (size_t)(end - text) : (size_t)0);
        return NULL;
    }
    for (; end < text + length; ++end) {
        if (*end == ' ' || *end == '\t' || *end == '\n' || *end == '\r') continue;
        snprintf(message, capacity, "the JSON value is followed by something at byte %zu", (size_t)(end - text));
        cJSON_Delete(value);
        return NULL;
    }
    return value;
}

bool json_integer(const cJSON *value, int64_t *integer) {
    if (!cJSON_IsNumber(value)) return false;
    const double number = value->valuedouble;
    if (!(number >= 0 && number <= 9007199254740992.0) || number != (double)(int64_t)number) return false;
    *integer = (int64_t)number;
    return true;
}

bool json_print(const cJSON *value, FILE *stream) {
    char *text = cJSON_Print(value);
    if (!text) return false;
    const bool ok = fputs(text, stream) >= 0 && fputc('\n', stream) != EOF;
    cJSON_free(text);
    return ok;
}
