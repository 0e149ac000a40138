/* SPDX-License-Identifier: BSD-3-Clause
 *
 * request.c: what a problem of the lab means once its words are read: S, block sizes, JSON; see lab_command.h. */
#include "commands.h"
#include "io/json.h"
#include "lab/lab_command.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t lab_request_capacity(const lab_request *r) {
    return r->scalars ? r->scalars : r->sram_bytes / lab_type_bytes(r->elements);
}

static bool goes_by_keys(const lab_algorithm *algorithm) { return algorithm == lab_algorithm_named("online_softmax_v"); }

table_cell lab_block_cell(const lab_algorithm *algorithm, int64_t size) {
    return goes_by_keys(algorithm) ? cell_none() : cell_integer(size);
}

bool lab_request_takes(const lab_request *r, const lab_algorithm *algorithm) {
    if (goes_by_keys(algorithm) && (double)r->problem.m * (double)r->problem.n > 0x1p25) return false;
    return r->problem.dropout == 0 || algorithm->takes & LAB_TAKES_DROPOUT;
}

bool lab_request_blocks(const lab_request *r, const lab_algorithm *algorithm, lab_problem *p, char *message) {
    *p = r->problem;
    p->scale = 1 / sqrt((double)p->d);
    p->br = r->br < p->m ? r->br : p->m;
    p->bc = r->bc < p->n ? r->bc : p->n;
    const int64_t capacity = lab_request_capacity(r);
    if (p->br && p->bc) return true; /* the algorithm itself refuses what does not fit */
    if (p->br || p->bc) return lab_complete_blocks(algorithm, p, capacity, message);
    return lab_choose_blocks(algorithm, p, capacity, r->rule, message);
}

int lab_complain(const char *name, const char *message) {
    fprintf(stderr, "strobe lab %s: %s\n", name, message);
    return EXIT_REFUSED;
}

bool lab_format(const char *name, const char *argument, table_format *format) {
    if (table_format_named(argument, format)) return true;
    char message[LAB_REFUSAL];
    snprintf(message, sizeof message, "-o is %.64s; table, json, csv or md is accepted", argument);
    lab_complain(name, message);
    return false;
}

bool lab_read_field(void *record, const lab_field *fields, int count, const char *word, char *message) {
    const char *equals = strchr(word, '=');
    for (int i = 0; equals && i < count; ++i) {
        const lab_field *f = &fields[i];
        int64_t value = 0;
        if (strncmp(f->key, word, (size_t)(equals - word)) != 0 || f->key[equals - word]) continue;
        if (lab_size(equals + 1, strlen(equals + 1), &value) && value >= f->least && value <= f->most) {
            memcpy((char *)record + f->offset, &value, sizeof value);
            return true;
        }
        snprintf(message, LAB_REFUSAL, "%s = %.64s: %lld to %lld is accepted", f->key, equals + 1, (long long)f->least,
                 (long long)f->most);
        return false;
    }
    snprintf(message, LAB_REFUSAL, "\"%.64s\": no such word; --help lists them", word);
    return false;
}

cJSON *lab_request_json(const lab_request *r) {
    const lab_problem *p = &r->problem;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "m", (double)p->m);
    cJSON_AddNumberToObject(json, "n", (double)p->n);
    cJSON_AddNumberToObject(json, "d", (double)p->d);
    cJSON_AddNumberToObject(json, "dv", (double)p->dv);
    cJSON_AddStringToObject(json, "elements", lab_type_name(r->elements));
    cJSON_AddNumberToObject(json, "scalars", (double)lab_request_capacity(r));
    cJSON_AddBoolToObject(json, "causal", p->mask != STROBE_MASK_NONE);
    cJSON_AddNumberToObject(json, "dropout", p->dropout);
    if (r->swept[0]) cJSON_AddStringToObject(json, "swept", r->swept);
    if (r->file) cJSON_AddStringToObject(json, "file", r->file);
    return json;
}

bool lab_print_document(const lab_request *r, cJSON *more, const table *rows) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddItemToObject(document, "problem", lab_request_json(r));
    for (cJSON *next; more && more->child;) {
        next = cJSON_DetachItemViaPointer(more, more->child);
        cJSON_AddItemToObject(document, next->string, next);
    }
    cJSON_AddItemToObject(document, "rows", table_to_json(rows));
    const bool printed = json_print(document, stdout);
    cJSON_Delete(document);
    cJSON_Delete(more);
    return printed;
}
