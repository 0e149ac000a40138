/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lab_command.h: what the subcommands of `strobe lab` share: the words of a problem, block sizes, and the head that it runs
 * on.
 */
#ifndef STROBE_CLI_CMD_LAB_H
#define STROBE_CLI_CMD_LAB_H

#include "io/table.h"
#include "lab/blocks.h"
#include "lab/experiment.h"
#include "lab/fp8.h"

#include <cjson/cJSON.h>

/* The subcommands: argv[0] is their own name. They return an exit code. */
int lab_traffic(int argc, char **argv);
int lab_sweep(int argc, char **argv);
int lab_roofline(int argc, char **argv);
int lab_schedule_command(int argc, char **argv);
int lab_fp8_command(int argc, char **argv);
int lab_plot(int argc, char **argv);
int lab_report(int argc, char **argv);

enum { LAB_MOST_ALGORITHMS = 32, LAB_MOST_VALUES = 256, LAB_KEY = 16 };

/* A problem of the lab, as words give it. */
typedef struct lab_request {
    lab_problem problem; /* without block sizes */
    int64_t br, bc;      /* as given; 0: by the rule */
    lab_block_rule rule;
    lab_type elements;
    int64_t sram_bytes, scalars; /* fast memory: one of the two is given, the other 0 */
    bool has_rule, has_elements, has_sram;
    const lab_algorithm *algorithms[LAB_MOST_ALGORITHMS];
    int algorithm_count;
    bool has_algorithms; /* named by the user, who then hears why one cannot run */
    const char *file;    /* NULL: random numbers */
    const char *layer;   /* tensors LAYER.q, LAYER.k, LAYER.v of the file */
    char swept[LAB_KEY]; /* the word with several values, "" if none */
    int64_t values[LAB_MOST_VALUES];
    int value_count;
} lab_request;

/* The words, for --help. */
extern const char lab_words_help[];

/* Reads words such as n=1024 sram=100KiB causal. sweeps: one of the words may have several values. False with a sentence. */
bool lab_request_read(lab_request *request, int count, char *const *words, bool sweeps, char *message);

/* Sets the swept word to a value. */
bool lab_request_set(lab_request *request, const char *key, int64_t value, char *message);

/* S of the request, in scalars of its elements. */
int64_t lab_request_capacity(const lab_request *request);

/* The problem with the algorithm's block sizes. */
bool lab_request_blocks(const lab_request *request, const lab_algorithm *algorithm, lab_problem *problem, char *message);

/* Whether the algorithm is run when nobody names it: it takes the problem's features, and does not go key by key through
 * more than 2^25 scores, which even counting does not do in a second. */
bool lab_request_takes(const lab_request *request, const lab_algorithm *algorithm);

/* Br or Bc for a table: nothing for the algorithm that has no blocks. */
table_cell lab_block_cell(const lab_algorithm *algorithm, int64_t size);

/* Reads the integer in text[0..length): 64, 16k, 2M, 100KiB, 1MiB, 512B. */
bool lab_size(const char *text, size_t length, int64_t *value);

/* Words of the commands that have a few of their own: key=number, into an int64_t of a record. */
typedef struct lab_field {
    const char *key;
    size_t offset; /* into the record */
    int64_t least, most;
} lab_field;

/* False, with a sentence, if the word is none of them or its number is not accepted. */
bool lab_read_field(void *record, const lab_field *fields, int count, const char *word, char *message);

/* The heads of a file: each [rows][dim]. Sets m, n, d, dv of the problem. False with a sentence. */
typedef struct lab_file {
    int64_t heads, m, n, d, dv;
    double *q, *k, *v; /* [heads][rows][dim] */
} lab_file;
bool lab_file_read(lab_file *file, const char *path, const char *layer, char *message);
void lab_file_free(lab_file *file);

/* Reads the argument of -o. False, having complained. */
bool lab_format(const char *name, const char *argument, table_format *format);

/* "strobe lab NAME: sentence" on stderr; the exit code of a refusal. */
int lab_complain(const char *name, const char *message);

/* The library's own FP8 attention of these numbers, by strobe_quantise and the kernel that it chooses; int8_scores: q
 * and k in int8. False where the device is not there, or has no kernel for them. */
bool lab_fp8_library(const lab_fp8_input *input, bool on_gpu, bool int8_scores, const double *oracle, const char **kernel,
                     lab_fp8_result *result);

/* What `strobe lab schedule` says of each way to overlap. NULL: memory is short. The caller destroys it. */
struct lab_schedule;
table *lab_schedule_table(const struct lab_schedule *schedule);

/* What `strobe lab fp8` says without words; each of its lab_fp8_steps() steps is guessed to take so many seconds, and is
 * added to the progress. NULL with a sentence. The caller destroys it. */
struct progress;
int lab_fp8_steps(void);
table *lab_fp8_table(struct progress *progress, double seconds, char *message);

/* {"name": value, ...} of the problem, for JSON documents. */
cJSON *lab_request_json(const lab_request *request);

/* Prints {"problem": ..., members of `more`, "rows": [...]}; takes `more`, which may be NULL. */
bool lab_print_document(const lab_request *request, cJSON *more, const table *rows);

#endif
