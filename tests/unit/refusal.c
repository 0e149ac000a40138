/* SPDX-License-Identifier: BSD-3-Clause
 *
 * refusal.c: see refusal.h. */
#include "refusal.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/score/score.h"
#include "test.h"

struct call call;
struct strobe_score score_function, visible_function;
_Alignas(64) float input[ARENA];

/* Every output lies here. */
static _Alignas(64) float output[8][ARENA];
enum { MARK = 0xa5 };

static struct strobe_score make_function(const char *score, const char *visible) {
    static const strobe_score_scalar c = {"c", 3, 1, 0};
    static const strobe_score_array table = {"table", 2, STROBE_FP32};
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = score,
                                        .visible = visible,
                                        .scalars = &c,
                                        .arrays = &table,
                                        .scalar_count = 1,
                                        .array_count = 1};
    strobe_score *function = NULL;
    if (strobe_score_create(&source, &function)) fail_msg("%s", strobe_last_error());
    const struct strobe_score copy = *function;
    strobe_score_destroy(function);
    return copy;
}

void reset_call(void) {
    if (score_function.node_count == 0) score_function = make_function("score + table[h][i - j + 4] / c", NULL);
    if (visible_function.node_count == 0) visible_function = make_function(NULL, "j <= i");

    static const int64_t cu_q[] = {0, 4, 6}, cu_k[] = {0, 5, 7}, used_q[] = {4, 2}, used_k[] = {5, 2};
    for (int n = 0; n < ARENA; ++n) input[n] = (float)(n % 7) / 8;
    memset(output, MARK, sizeof output);
    call = (struct call){
        .a = {.struct_size = sizeof call.a, .batch = 2, .seq_q = 4, .seq_k = 5, .heads_q = 4, .heads_kv = 2, .dim = 8},
        .g = {.struct_size = sizeof call.g},
        .varlen = {.struct_size = sizeof call.varlen, .index_bits = 64},
        .paged = {.struct_size = sizeof call.paged, .page_table = call.page_table, .page_size = 2, .pages = 5},
        .bias = {.struct_size = sizeof call.bias, .data = input, .stride = {80, 20, 5}},
        .dbias = {.struct_size = sizeof call.dbias, .data = output[5], .stride = {80, 20, 5}},
        .bool_mask = {.struct_size = sizeof call.bool_mask, .data = (const uint8_t *)input, .stride = {80, 20, 5}},
        .block_mask = {.struct_size = sizeof call.block_mask, .data = (const uint8_t *)input, .block_q = 2, .block_k = 2},
        .alibi = {.struct_size = sizeof call.alibi, .slopes = input},
        .sinks = {.struct_size = sizeof call.sinks, .data = input},
        .dsinks = {.struct_size = sizeof call.dsinks, .data = output[6]},
        .dropout = {.struct_size = sizeof call.dropout, .p = 0.5},
        .scales = {.struct_size = sizeof call.scales},
        .parallel = {.struct_size = sizeof call.parallel},
        .tuning = {.struct_size = sizeof call.tuning},
        .score = {.struct_size = sizeof call.score,
                  .function = &score_function,
                  .scalars = &call.scalar,
                  .arrays = &call.elements,
                  .scalar_count = 1,
                  .array_count = 1},
        .dscore = {.struct_size = sizeof call.dscore, .arrays = &call.delements, .array_count = 1},
        .mask_lists = {.struct_size = sizeof call.mask_lists,
                       .made = STROBE_LISTS_FORWARD | STROBE_LISTS_BACKWARD,
                       .batch = 2,
                       .heads_q = 4,
                       .seq_q = 4,
                       .seq_k = 5,
                       .axes = 1 | 2 | 4 | 8},
        .elements = {.data = input, .extent = {4, 9}},
        .delements = {.data = output[7], .extent = {4, 9}},
        .scalar = 3,
    };
    call.a.q.data = call.a.k.data = call.a.v.data = call.g.dout.data = call.g.dlse.data = input;
    call.a.out.data = output[0], call.a.lse.data = output[1];
    call.g.dq.data = output[2], call.g.dk.data = output[3], call.g.dv.data = output[4];
    memcpy(call.cu_q, cu_q, sizeof cu_q), memcpy(call.cu_k, cu_k, sizeof cu_k);
    memcpy(call.used_q, used_q, sizeof used_q), memcpy(call.used_k, used_k, sizeof used_k);
}

static void apply(const struct poke *poke) {
    char *field = (char *)&call + poke->at;
    const int32_t narrow = (int32_t)poke->integer;
    if (poke->bytes == 0)
        memcpy(field, &poke->real, sizeof poke->real);
    else if (poke->pointer)
        memcpy(field, &poke->pointer, sizeof poke->pointer);
    else if (poke->bytes == sizeof narrow)
        memcpy(field, &narrow, sizeof narrow);
    else
        memcpy(field, &poke->integer, sizeof poke->integer);
}

void apply_pokes(const struct poke *poke, size_t count) {
    for (size_t n = 0; n < count && (poke[n].bytes || poke[n].at); ++n) apply(&poke[n]);
}

static bool outputs_are_untouched(void) {
    const unsigned char *bytes = (const unsigned char *)output;
    for (size_t n = 0; n < sizeof output; ++n)
        if (bytes[n] != MARK) return false;
    return true;
}

static void expect(const char *function, strobe_status found, strobe_status status, const char *sentence) {
    if (found != status)
        fail_msg("%s: %s, not %s: %s", function, strobe_status_name(found), strobe_status_name(status), sentence);
    if (status && strcmp(strobe_last_error(), sentence) != 0)
        fail_msg("%s says\n    %s\ninstead of\n    %s", function, strobe_last_error(), sentence);
}

static void check_row(const struct refusal *row, const char *sentence) {
    const strobe_status status = row->flags & UNSUPPORTED ? STROBE_UNSUPPORTED : STROBE_INVALID_ARGUMENT;
    const strobe_status query = row->flags & DATA ? STROBE_OK : status;
    const strobe_gradients *g = row->flags & BACKWARD ? &call.g : NULL;
    size_t bytes = 12345;
    const char *kernel = "none";
    char text[4096];
    expect("strobe_workspace", strobe_workspace(&call.a, g, &bytes), query, sentence);
    expect("strobe_select", strobe_select(&call.a, g, &kernel), query, sentence);
    expect("strobe_explain", strobe_explain(&call.a, g, text, sizeof text, NULL), query, sentence);
    expect("strobe_check", strobe_check(&call.a, g), status, sentence);
    if (query && (bytes != 12345 || strcmp(kernel, "none") != 0)) fail_msg("a query refused and wrote: %s", sentence);
    if (g)
        expect("strobe_backward", strobe_backward(&call.a, g, NULL, 0, NULL), status, sentence);
    else
        expect("strobe_forward", strobe_forward(&call.a, NULL, 0, NULL), status, sentence);
    if (!outputs_are_untouched()) fail_msg("outputs were written, and then: %s", sentence);
}

void check_refusals(const struct refusal *rows, size_t count) {
    for (size_t n = 0; n < count; ++n) {
        char sentence[512];
        const void *pointer = NULL;
        reset_call();
        apply_pokes(rows[n].poke, COUNT(rows[n].poke));
        for (size_t p = 0; p < COUNT(rows[n].poke); ++p)
            if (rows[n].poke[p].bytes || rows[n].poke[p].at) pointer = rows[n].poke[p].pointer;
        const char *mark = strstr(rows[n].sentence, "%p");
        if (mark)
            snprintf(sentence, sizeof sentence, "%.*s%p%s", (int)(mark - rows[n].sentence), rows[n].sentence, pointer,
                     mark + 2);
        else
            snprintf(sentence, sizeof sentence, "%s", rows[n].sentence);
        check_row(&rows[n], sentence);
    }
}
