/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cli_problem.c: the grammar of problems: what reads, what is refused and with which words, what sweeps stand for, and
 * that printing a problem and reading it back gives the same problem, for any problem. */
#include "test.h"

#include "io/number.h"
#include "problem/problem_words.h"

#include <math.h>

#include <stdio.h>
#include <string.h>

enum { ROUNDS = 20000 };

static char message[PROBLEM_MESSAGE];

/* ---------------------------------------------------------------------------------------------------------- reading -- */

static const struct canonical {
    const char *text, *printed;
} canonicals[] = {
    {"", "fwd b=1 h=1 s=128 d=64 fp32"},
    {"fwd b=2 h=32/8 s=4k d=128 bf16 causal", "fwd b=2 h=32/8 s=4096 d=128 bf16 causal"},
    {"causal=bottomright bwd", "bwd b=1 h=1 s=128 d=64 fp32 causal"},
    {"  d=96\tsq=1\nsk=8k ", "fwd b=1 h=1 sq=1 sk=8192 d=96 fp32"},
    {"sq=7 sk=7", "fwd b=1 h=1 s=7 d=64 fp32"},
    {"sk=0", "fwd b=1 h=1 sq=128 sk=0 d=64 fp32"},
    {"dv=64", "fwd b=1 h=1 s=128 d=64 fp32"},
    {"d=192 dv=128 h=6/1", "fwd b=1 h=6/1 s=128 d=192 dv=128 fp32"},
    {"window=-1,0 b=0", "fwd b=0 h=1 s=128 d=64 fp32 window=-1,0"},
    {"window_topleft=3,-1", "fwd b=1 h=1 s=128 d=64 fp32 window_topleft=3,-1"},
    {"scale=-0.125 softcap=30 dropout=0.1 seed=7", "fwd b=1 h=1 s=128 d=64 fp32 scale=-0.125 softcap=30 dropout=0.1 seed=7"},
    {"dropout=0 seed=0 layout=bshd device=cpu threads=0", "fwd b=1 h=1 s=128 d=64 fp32"},
    {"bwd bf16 dout=fp32 gradients=fp16 out=fp64", "bwd b=1 h=1 s=128 d=64 bf16 out=fp64 dout=fp32 gradients=fp16"},
    {"alibi=signed sinks=far mask shows=nothing layout=overlapping fp64",
     "fwd b=1 h=1 s=128 d=64 fp64 mask shows=nothing alibi=signed sinks=far layout=overlapping"},
    {"ranks=3:ring:zigzag s=9", "fwd b=1 h=1 s=9 d=64 fp32 ranks=3:ring:zigzag"},
    {"ranks=6/2:two_levels ", "fwd b=1 h=1 s=128 d=64 fp32 ranks=6/2:two_levels"},
    {"fp16 wide ranks=2 device=cuda", "fwd b=1 h=1 s=128 d=64 fp16 wide device=cuda ranks=2"},
    {"ranks=4:automatic:contiguous", "fwd b=1 h=1 s=128 d=64 fp32 ranks=4"},
    {"varlen=packed mask=qk bias=bhqk alibi", "fwd b=1 h=1 s=128 d=64 fp32 varlen mask bias=bhqk alibi"},
    {"bwd bias dbias sinks dsinks dlse deterministic tf32x3",
     "bwd b=1 h=1 s=128 d=64 fp32 bias sinks dlse dbias dsinks deterministic tf32x3"},
    {"block=64,32 layout=packed qstart=-3 kstart=1k",
     "fwd b=1 h=1 s=128 d=64 fp32 block=64,32 layout=packed qstart=-3 kstart=1024"},
    {"kernel=cpu_forward_avx2 threads=2 device=cuda nolse",
     "fwd b=1 h=1 s=128 d=64 fp32 nolse device=cuda threads=2 kernel=cpu_forward_avx2"},
};

static void prints_canonically(void **state) {
    const struct canonical *row = *state;
    problem p;
    char text[PROBLEM_TEXT];
    assert_true(problem_parse(row->text, &p, message, sizeof message));
    problem_print(&p, text);
    assert_string_equal(text, row->printed);
}

static const struct refused {
    const char *text, *sentence;
} refusals[] = {
    {"s=x", "s is x; an integer from 0 to 1073741824 is accepted"},
    {"b=", "b is nothing; an integer from 0 to 1048576 is accepted"},
    {"b=-1", "b is -1;"},
    {"h=0", "h is 0;"},
    {"h=4/3", "h is 4/3; a number of K/V heads that divides"},
    {"h=4/", "h is nothing;"},
    {"d=0", "d is 0;"},
    {"s=99999999999999999999", "an integer from 0 to"},
    {"s=8192M", "an integer from 0 to"},
    {"seed=18446744073709551616", "seed is 18446744073709551616;"},
    {"softcap=0", "softcap is 0; a number above 0"},
    {"softcap=nan", "softcap is nan;"},
    {"scale=0", "scale is 0; a finite number other than 0"},
    {"scale=0x1p3", "scale is 0x1p3;"},
    {"dropout=1", "dropout is 1; a number from 0 and below 1"},
    {"window=5", "window is 5; two integers with a , between them"},
    {"window=-2,0", "window is -2;"},
    {"block=0,8", "block is 0;"},
    {"causal=left", "causal is left; accepted are bottomright, topleft"},
    {"varlen=", "varlen is nothing; accepted are packed, used"},
    {"mask=kq", "mask is kq; accepted are qk, k"},
    {"layout=nhwc", "layout is nhwc; accepted are bshd"},
    {"alibi=1", "alibi is 1; accepted are heads, batch"},
    {"kernel=a-b", "kernel is a-b; a name"},
    {"ranks=0", "ranks is 0; N, or N/GROUP with a GROUP that divides N, of 1 to 4096 ranks"},
    {"ranks=4/3", "ranks is 4/3; N, or N/GROUP"},
    {"ranks=4:rings", "ranks is 4:rings; N, or N/GROUP"},
    {"ranks=4:ring:zig", "ranks is 4:ring:zig; N, or N/GROUP"},
    {"ranks=4:", "ranks is 4:; N, or N/GROUP"},
    {"ranks=4:two_levels", "ranks is 4:two_levels; N/GROUP with two_levels is accepted"},
    {"ranks=4/2:ring", "ranks is 4/2:ring; a GROUP with two_levels or automatic is accepted"},
    {"kernel", "kernel stands without a value"},
    {"e5m2", "\"e5m2\" is not a word of a problem"},
    {"bwd fp8", "fp8 is given with bwd; fwd is accepted"},
    {"s 4", "s stands without a value"},
    {"causal window=1,1", "window=1,1 is given beside another word for the same thing"},
    {"s=1 sq=2", "sq=2 is given beside another word for the same thing"},
    {"d=1 d=1", "d is given again"},
    {"fp16 bf16", "is given again with bf16"},
    {"fwd dlse", "dlse is given without bwd"},
    {"bwd dbias", "dbias is given without bias"},
    {"bwd nolse", "nolse is given without fwd"},
    {"fwd dout=fp16", "dout is given without bwd"},
    {"fwd gradients=fp16", "gradients is given without bwd"},
    {"out=fp16 wide", "out beside wide is given without bwd"},
    {"bwd out=fp16 ranks=2", "out, dout or gradients beside ranks is given without one process"},
    {"layout=overlapping append=2", "append is given with fp64, layout=shared or overlapping"},
    {"layout=overlapping paged=2", "paged is given with layout=packed, shared or overlapping"},
    {"kv=fp64", "kv is fp64; accepted are same, fp32, fp16, bf16, int8, fp8"},
    {"layout=packed fp8", "layout is packed with fp8; the other layouts are accepted"},
    {"layout=packed kv=int8", "layout is packed with a kv of its own"},
    {"layout=packed sq=1 sk=2", "equal lengths are accepted"},
    {"layout=packed varlen=packed_q", "layout is packed with varlen=packed_q"},
};

static void refuses_with_a_sentence(void **state) {
    const struct refused *row = *state;
    problem p;
    assert_false(problem_parse(row->text, &p, message, sizeof message));
    if (!strstr(message, row->sentence)) fail_msg("\"%s\" is refused with \"%s\"", row->text, message);
}

/* ----------------------------------------------------------------------------------------------------------- sweeps -- */

static const struct sweep {
    const char *words, *printed; /* the problems' texts without what all share, joined; NULL: refused */
} sweeps[] = {
    {"s=512..8k*2", "s=512 s=1024 s=2048 s=4096 s=8192"},
    {"s=512..8000*2", "s=512 s=1024 s=2048 s=4096"},
    {"s=1..9+4", "s=1 s=5 s=9"},
    {"s=64,128,256", "s=64 s=128 s=256"},
    {"s=1,4..8+2", "s=1 s=4 s=6 s=8"},
    {"s=4..4*2", "s=4"},
    {"s=1..2", NULL},
    {"s=0..4*2", NULL},
    {"s=4..1+1", NULL},
    {"s=1..4*1", NULL},
    {"s=1..4+0", NULL},
    {"s=1..2..3*2", NULL},
    {"s=1,,2", NULL},
    {"s=1..99999+1", NULL},
};

static void expands(void **state) {
    const struct sweep *row = *state;
    problem_list list = {0};
    char joined[512] = "";
    const bool ok = problem_list_add(&list, row->words, message, sizeof message);
    for (size_t i = 0; i < list.count && i < 16; ++i) {
        const size_t length = strlen(joined);
        snprintf(joined + length, sizeof joined - length, "%ss=%lld", i ? " " : "", (long long)list.items[i].seq_q);
    }
    problem_list_free(&list);
    assert_int_equal(ok, row->printed != NULL);
    if (ok) assert_string_equal(joined, row->printed);
}

static void combines_with_the_last_word_fastest(void **state) {
    (void)state;
    static const char *const expected[] = {
        "fwd b=1 h=8/2 s=128 d=64 fp32 window=1,0", "fwd b=1 h=8/2 s=128 d=64 bf16 window=1,0",
        "fwd b=1 h=8/2 s=128 d=64 fp32 window=2,0", "fwd b=1 h=8/2 s=128 d=64 bf16 window=2,0",
        "fwd b=1 h=8/4 s=128 d=64 fp32 window=1,0", "fwd b=1 h=8/4 s=128 d=64 bf16 window=1,0",
        "fwd b=1 h=8/4 s=128 d=64 fp32 window=2,0", "fwd b=1 h=8/4 s=128 d=64 bf16 window=2,0"};
    problem_list list = {0};
    char text[PROBLEM_TEXT];
    assert_true(problem_list_add(&list, "h=8/2..4*2 window=1..2+1,0 fp32,bf16", message, sizeof message));
    assert_int_equal(list.count, COUNT(expected));
    for (size_t i = 0; i < list.count; ++i) {
        problem_print(&list.items[i], text);
        assert_string_equal(text, expected[i]);
    }
    problem_list_free(&list);
}

static void every_operation_begins_a_problem(void **state) {
    (void)state;
    char *const words[] = {"s=8", "fp16 fwd", "d=8", "fwd,bwd kernel=a,b", "bwd"};
    problem_list list = {0};
    assert_true(problem_list_read(&list, COUNT(words), words, message, sizeof message));
    assert_int_equal(list.count, 1 + 1 + 4 + 1);
    assert_int_equal(list.items[0].dtype, STROBE_FP16);
    assert_int_equal(list.items[1].dim, 8);
    assert_string_equal(list.items[5].kernel, "b");
    assert_int_equal(list.items[4].operation, STROBE_BACKWARD);
    assert_int_equal(list.items[6].seq_q, 128);
    problem_list_free(&list);
}

/* ------------------------------------------------------------------------------------------------------- round trip -- */

/* A random value of a word of the table, as text. */
static void print_random_word(struct random *r, const word *w, char *text, size_t capacity) {
    int choices = 0;
    while (w->choice && w->choice[choices].name) ++choices;
    const char *choice = choices ? w->choice[random_below(r, choices)].name : "";
    const int64_t most = w->most > 4 && random_below(r, 4) ? 4 : w->most;
    const int64_t values = most > w->least ? most - w->least : 1;
    const int64_t first = w->least + random_below(r, values), second = w->least + random_below(r, values);
    char number[NUMBER_TEXT];
    number_print(ldexp(1, -(int)random_below(r, 60)) * (double)(1 + random_below(r, 9)) / 10, number);
    switch (w->kind) {
    case WORD_BARE: snprintf(text, capacity, "%s", choice); break;
    case WORD_FLAG: snprintf(text, capacity, "%s", w->key); break;
    case WORD_INTEGER: snprintf(text, capacity, "%s=%lld", w->key, (long long)first); break;
    case WORD_PAIR:
        snprintf(text, capacity, "%s=%lld%c%lld", w->key, (long long)first, w->separator, (long long)second);
        break;
    case WORD_REAL: snprintf(text, capacity, "%s=%s", w->key, number); break;
    case WORD_CHOICE: snprintf(text, capacity, "%s=%s", w->key, choice); break;
    case WORD_EXPRESSION: snprintf(text, capacity, "%s=i<%lld", w->key, (long long)(first % 100)); break;
    case WORD_RANKS: snprintf(text, capacity, "%s=%lld/2:automatic:striped", w->key, (long long)(2 + first % 2 * 4)); break;
    case WORD_NAME: snprintf(text, capacity, "%s=kernel_%lld", w->key, (long long)first); break;
    }
}

static void assert_reads_back(const problem *p) {
    problem again;
    char text[PROBLEM_TEXT], second[PROBLEM_TEXT];
    problem_print(p, text);
    if (!problem_parse(text, &again, message, sizeof message))
        fail_msg("\"%s\" was printed and is refused: %s", text, message);
    problem_print(&again, second);
    assert_string_equal(text, second);
    assert_memory_equal(p, &again, sizeof again);
}

static void any_problem_reads_back(void **state) {
    (void)state;
    struct random r = {1};
    int accepted = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        char text[PROBLEM_TEXT] = "";
        for (int64_t words = random_below(&r, 6); words > 0; --words) {
            char one[128];
            print_random_word(&r, &problem_words[random_below(&r, (int64_t)problem_word_count)], one, sizeof one);
            strcat(strcat(text, " "), one);
        }
        problem p;
        if (!problem_parse(text, &p, message, sizeof message)) continue;
        ++accepted;
        assert_reads_back(&p);
    }
    assert_true(accepted > ROUNDS / 4);
}

/* Pieces of the grammar in any order: a list of problems that read back, or a sentence; never anything else. */
static void any_text_is_read_or_refused(void **state) {
    (void)state;
    static const char *const pieces[] = {"fwd",  "bwd",    " ",      "=",      ",",       "..",  "*2",   "+1",   "/",
                                         "-1",   "1",      "8k",     "s",      "sq",      "d",   "h",    "b",    "1M",
                                         "fp32", "bf16",   "mask",   "qk",     "dropout", "0.5", "x",    "\xff", "\t",
                                         "9999", "window", "kernel", "causal", "scale",   "1e9", "..8*2"};
    struct random r = {2};
    for (int round = 0; round < ROUNDS; ++round) {
        char text[256] = "";
        for (int64_t n = random_below(&r, 12); n > 0; --n) strcat(text, pieces[random_below(&r, COUNT(pieces))]);
        problem_list list = {0};
        message[0] = 0;
        if (problem_list_add(&list, text, message, sizeof message))
            for (size_t i = 0; i < list.count && i < 8; ++i) assert_reads_back(&list.items[i]);
        else
            assert_true(message[0] != 0);
        problem_list_free(&list);
    }
}

static void long_words_are_refused(void **state) {
    (void)state;
    static char text[8 * PROBLEM_TEXT];
    problem_list list = {0};
    problem p;
    memset(text, '7', sizeof text - 1);
    memcpy(text, "s=", 2);
    assert_false(problem_parse(text, &p, message, sizeof message));
    assert_false(problem_list_add(&list, text, message, sizeof message));
    memset(text, ' ', sizeof text - 1);
    for (size_t i = 0; i + 2 < sizeof text; i += 2) text[i] = 'x';
    assert_false(problem_list_add(&list, text, message, sizeof message));
    problem_list_free(&list);
}

/* Blanks of an expression are left out, between quotes or where the shell has taken them. */
static void expressions_have_no_blanks(void **state) {
    (void)state;
    char *const one[] = {"fwd s=8 score=\"score - 0.5 * abs(i - j)\" visible=\"j <= i\" h=2"};
    char *const words[] = {"fwd", "s=8", "score=score - 0.5 * abs(i - j)", "visible=j <= i", "h=2"};
    char *const wrong[] = {"fwd", "score=score - q"};
    char text[PROBLEM_TEXT];
    problem_list list = {0};
    assert_true(problem_list_read(&list, 1, one, message, sizeof message));
    assert_true(problem_list_read(&list, 5, words, message, sizeof message));
    assert_int_equal(list.count, 2);
    assert_memory_equal(&list.items[0], &list.items[1], sizeof(problem));
    problem_print(&list.items[0], text);
    assert_string_equal(text, "fwd b=1 h=2 s=8 d=64 fp32 score=score-0.5*abs(i-j) visible=j<=i");
    assert_false(problem_list_read(&list, 2, wrong, message, sizeof message));
    assert_non_null(strstr(message, "score has \"q\" at column 7"));
    problem_list_free(&list);
}

int main(void) {
    struct CMUnitTest tests[COUNT(canonicals) + COUNT(refusals) + COUNT(sweeps) + 6];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(canonicals); ++i)
        tests[count++] = test_of_row(canonicals[i].text, prints_canonically, &canonicals[i]);
    for (size_t i = 0; i < COUNT(refusals); ++i)
        tests[count++] = test_of_row(refusals[i].text, refuses_with_a_sentence, &refusals[i]);
    for (size_t i = 0; i < COUNT(sweeps); ++i) tests[count++] = test_of_row(sweeps[i].words, expands, &sweeps[i]);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(combines_with_the_last_word_fastest);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(expressions_have_no_blanks);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(every_operation_begins_a_problem);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(any_problem_reads_back);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(any_text_is_read_or_refused);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(long_words_are_refused);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
