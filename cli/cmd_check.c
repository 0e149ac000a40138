/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_check.c: `strobe check` walks the library's table of kernels and verifies each on every problem of its operation, from
 * the command line or from the grid. What "right" means is in verify.h, the allowance in compare.h. */
#include "check/grid.h"
#include "check/random_check.h"
#include "check/trial.h"
#include "check/verify.h"
#include "commands.h"
#include "io/memory.h"
#include "io/number.h"
#include "io/options.h"
#include "io/progress.h"
#include "io/table.h"
#include "io/terminal.h"
#include "problem/cuda_memory.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: strobe check [PROBLEM...] [--quick | --full | --long] [--kernel NAME] [--device cuda] [--part K/N]\n"
    "                    [--each] [-o table|json|csv|md]\n"
    "       strobe check --random SECONDS [--seed N] [--cases N] [--kernel NAME] [--device cuda] [-o FORMAT]\n"
    "\n"
    "Checks every kernel of the library on every problem, or on a built-in grid of shapes, features and dtypes:\n"
    "  --quick        the grid's small shapes (default; seconds)\n"
    "  --full         and the shapes of the flash-attn tests (minutes)\n"
    "  --long         and the largest (hours)\n"
    "  --kernel NAME  only this kernel (strobe info lists them)\n"
    "  --device cuda  every problem on the GPU, the built-in grid too\n"
    "  --part K/N     every Nth problem, from the Kth on: N processes share a grid\n"
    "  --each         a row for every case instead of one for every kernel\n"
    "  -o FORMAT      table (default), json, csv or md\n"
    "\n"
    "  --random SEC   random problems instead of the grid, on all cores, for so many seconds: whole calls with any "
    "features,\n"
    "                 sizes, strides and values; a problem that fails is made smaller and printed as one to repeat. At the\n"
    "                 end: which features each kernel ran with, which pairs never met\n"
    "  --seed N       the sequence of random problems (drawn and printed)\n"
    "  --cases N      no more than so many\n"
    "\n"
    "A case is one kernel on one problem. The result is compared with a float64 reference on the same inputs; it may be\n"
    "wrong by 2 x (with softcap 3 x) the error of standard attention in the same dtype plus 2 x the rounding of that\n"
    "dtype. Places that no row sees hold NaN; memory around the results must stay as it was; 1, 2 and 3 threads must\n"
    "give the same bits. On a GPU one call of each case has its tensors beside pages that are mapped to nothing, so that\n"
    "reading past them is an error. \"refused\" counts problems that a kernel does not take. reference_* and standard_*, "
    "which the\n"
    "others are compared with, are checked themselves where they are asked for, and by --random.\n"
    "\n"
    "Exit code: 0 all passed, 1 some failed, 2 usage, 77 nothing was checked: no kernel of this machine takes part, or all\n"
    "refused, 130 stopped by Ctrl-C.\n"
    "\n"
    "examples:\n"
    "  strobe check --full\n"
    "  strobe check --kernel cpu_forward_avx2 fwd b=2 h=8/2 sq=113 sk=203 d=64,128 bf16 causal\n"
    "  strobe check --random 60 --seed 1\n"
    "  strobe check --each -o csv bwd s=64..256*2 softcap=15 > cases.csv\n"
    "\n";

enum { MOST_SHOWN_FAILURES = 5 };

typedef struct tally {
    const char *kernel, *unavailable;
    int32_t operation, device;
    int64_t passed, failed, refused, raised, helped;
    double worst_ratio, most_raised;
    char worst[PROBLEM_TEXT + 64];
} tally;

typedef struct check {
    const char *only_kernel;
    table_format format;
    bool each;
    tally *tallies;
    int32_t kernels;
    int64_t failures_shown;
    char refusal[PROBLEM_MESSAGE]; /* the first sentence of one */
    table *cases;                  /* with each */
    progress progress;
} check;

static const table_column kernel_columns[] = {{.key = "kernel"},
                                              {.key = "cases"},
                                              {.key = "passed"},
                                              {.key = "failed"},
                                              {.key = "refused"},
                                              {.key = "worst_over_allowed", .title = "worst/allowed", .decimals = 2},
                                              {.key = "worst_case", .title = "worst case"}};
static const table_column case_columns[] = {{.key = "problem"},
                                            {.key = "kernel"},
                                            {.key = "verdict"},
                                            {.key = "tensor"},
                                            {.key = "error", .significant = 3},
                                            {.key = "allowed", .significant = 3},
                                            {.key = "relative", .title = "row relative", .significant = 3},
                                            {.key = "note"}};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void find_kernels(check *c) {
    c->kernels = strobe_kernel_count();
    c->tallies = memory_zeroed((size_t)c->kernels, sizeof *c->tallies);
    for (int32_t i = 0; i < c->kernels; ++i) {
        strobe_kernel_info info = {.struct_size = sizeof info};
        if (strobe_kernel_at(i, &info)) continue;
        c->tallies[i].kernel = info.name;
        c->tallies[i].unavailable = info.unavailable;
        c->tallies[i].operation = info.operation;
        c->tallies[i].device = info.device;
    }
}

static bool takes_part(const check *c, const tally *t, const problem *p) {
    const char *only = c->only_kernel ? c->only_kernel : p->kernel;
    if (!t->kernel || t->operation != p->operation || t->device != p->device) return false;
    if (p->kernel[0] && strcmp(t->kernel, p->kernel)) return false;
    /* the two kernels by which the others are judged are not judged themselves unless asked for */
    return *only ? strcmp(t->kernel, only) == 0 : !trial_is_yardstick(t->kernel);
}

static void add_case(check *c, const tally *t, const char *text, const verification *v) {
    static const char *const verdicts[] = {
        [VERDICT_PASSED] = "passed", [VERDICT_FAILED] = "FAILED", [VERDICT_REFUSED] = "refused"};
    const bool measured = v->verdict != VERDICT_REFUSED;
    table_add_row(c->cases, (table_cell[]){cell_text(text), cell_text(t->kernel), cell_text(verdicts[v->verdict]),
                                           measured ? cell_text(tensor_name(v->worst)) : cell_none(),
                                           measured ? cell_real(v->error) : cell_none(),
                                           measured ? cell_real(v->allowance) : cell_none(),
                                           measured ? cell_real(v->relative) : cell_none(), cell_text(v->sentence)});
}

static void count_case(check *c, tally *t, const problem *p, const verification *v) {
    char text[PROBLEM_TEXT];
    problem_print(p, text);
    if (c->each) add_case(c, t, text, v);
    if (v->verdict == VERDICT_REFUSED) {
        ++t->refused;
        if (!c->refusal[0]) snprintf(c->refusal, sizeof c->refusal, "%s", v->sentence);
        return;
    }
    *(v->verdict == VERDICT_PASSED ? &t->passed : &t->failed) += 1;
    if (v->raised > 0) ++t->raised, t->most_raised = v->raised > t->most_raised ? v->raised : t->most_raised;
    t->helped += v->helper[0] != 0;
    if (v->ratio > t->worst_ratio) {
        t->worst_ratio = v->ratio;
        snprintf(t->worst, sizeof t->worst, "%s of %s", tensor_name(v->worst), text);
    }
    if (v->verdict == VERDICT_PASSED || c->failures_shown++ >= MOST_SHOWN_FAILURES) return;
    terminal_progress_end();
    fprintf(stderr, "FAILED: strobe check --kernel %s %s\n        %s\n", t->kernel, text, v->sentence);
}

/* False, with a sentence, if the problem cannot be posed at all. */
static bool check_problem(check *c, const problem *p, char *message, size_t capacity) {
    bool any = false;
    for (int32_t i = 0; i < c->kernels; ++i) any = any || (takes_part(c, &c->tallies[i], p) && !c->tallies[i].unavailable);
    if (!any) return true;
    inputs in;
    oracle o = {0};
    bool ok = inputs_create(&in, p, message, capacity) && oracle_create(&o, &in, message, capacity);
    if (ok) inputs_poison(&in);
    for (int32_t i = 0; ok && i < c->kernels; ++i) {
        tally *t = &c->tallies[i];
        if (!takes_part(c, t, p) || t->unavailable || cuda_memory_is_lost()) continue;
        const verification v = verify_kernel(&in, &o, t->kernel);
        count_case(c, t, p, &v);
    }
    oracle_free(&o);
    inputs_free(&in);
    return ok;
}

static void print_totals(const check *c, const tally *sum) {
    printf("\n%lld cases run: %lld passed, %lld failed; %lld refused", (long long)(sum->passed + sum->failed),
           (long long)sum->passed, (long long)sum->failed, (long long)sum->refused);
    if (sum->passed + sum->failed)
        printf("; worst error %.2f of its allowance, %s with %s", sum->worst_ratio, sum->worst, sum->kernel);
    fputs("\n", stdout);
    if (sum->raised)
        printf(
            "allowances raised after a miss, to what other seeds show of standard attention: in %lld cases, %.2f times at "
            "most\n",
            (long long)sum->raised, sum->most_raised);
    if (sum->helped)
        printf("answered by another kernel, for numbers that the checked one does not compute: %lld cases\n",
               (long long)sum->helped);
    for (int32_t i = 0; i < c->kernels; ++i)
        if (c->tallies[i].unavailable) printf("not run: %s: %s\n", c->tallies[i].kernel, c->tallies[i].unavailable);
}

static int report(const check *c) {
    table *t = table_create(kernel_columns, COUNT(kernel_columns));
    tally sum = {.kernel = ""};
    for (int32_t i = 0; i < c->kernels; ++i) {
        const tally *k = &c->tallies[i];
        if (!(k->passed + k->failed + k->refused)) continue;
        table_add_row(t, (table_cell[]){cell_text(k->kernel), cell_integer(k->passed + k->failed), cell_integer(k->passed),
                                        cell_integer(k->failed), cell_integer(k->refused), cell_real(k->worst_ratio),
                                        cell_text(k->worst)});
        sum.passed += k->passed, sum.failed += k->failed, sum.refused += k->refused;
        sum.raised += k->raised, sum.helped += k->helped;
        if (k->most_raised > sum.most_raised) sum.most_raised = k->most_raised;
        if (k->worst_ratio <= sum.worst_ratio) continue;
        sum.worst_ratio = k->worst_ratio;
        sum.kernel = k->kernel;
        memcpy(sum.worst, k->worst, sizeof sum.worst);
    }
    const bool printed = table_print(c->each ? c->cases : t, c->format, stdout);
    if (c->format == TABLE_TEXT) print_totals(c, &sum);
    table_destroy(t);
    if (!printed) return EXIT_REFUSED;
    if (sum.passed + sum.failed == 0 && !progress_stopped()) {
        if (sum.refused)
            fprintf(stderr, "strobe check: nothing was checked: %s\n", c->refusal);
        else
            fputs("strobe check: no kernel of this machine takes part in these problems\n", stderr);
        return EXIT_SKIPPED;
    }
    return progress_code(&c->progress, "problems", sum.failed ? EXIT_WRONG : EXIT_OK);
}

static bool is_checked(const check *c, const char *kernel) {
    for (int32_t i = 0; i < c->kernels; ++i)
        if (c->tallies[i].kernel && strcmp(c->tallies[i].kernel, kernel) == 0) return true;
    return false;
}

/* Every kernel that is asked for is one that is checked. */
static bool kernels_are_checked(const check *c, const problem_list *list) {
    for (size_t i = 0; i < list->count; ++i) {
        const char *kernel = c->only_kernel ? c->only_kernel : list->items[i].kernel;
        if (!*kernel || is_checked(c, kernel)) continue;
        fprintf(stderr, "strobe check: kernel is %s; a kernel that strobe info lists is accepted\n", kernel);
        return false;
    }
    return true;
}

static bool check_problems(check *c, const problem_list *list) {
    char message[PROBLEM_MESSAGE], text[PROBLEM_TEXT];
    double guessed = 0;
    bool ok = true;
    for (size_t i = 0; i < list->count; ++i) guessed += oracle_seconds(&list->items[i]);
    c->progress = progress_begin((int64_t)list->count, guessed);
    for (size_t i = 0; ok && i < list->count && !progress_stopped() && !cuda_memory_is_lost(); ++i) {
        problem_print(&list->items[i], text);
        progress_show(&c->progress, "%s", text);
        ok = check_problem(c, &list->items[i], message, sizeof message);
        progress_add(&c->progress, oracle_seconds(&list->items[i]), true);
    }
    terminal_progress_end();
    if (cuda_memory_is_lost())
        fprintf(
            stderr,
            "strobe check: this process has lost the GPU by the case that failed last; problems behind %s were not run\n",
            text);
    if (!ok) fprintf(stderr, "strobe check: %s: %s\n", text, message);
    return ok;
}

static int run(check *c, const problem_list *list) {
    find_kernels(c);
    c->cases = table_create(case_columns, COUNT(case_columns));
    const int code = kernels_are_checked(c, list) && check_problems(c, list) ? report(c) : EXIT_REFUSED;
    table_destroy(c->cases);
    free(c->tallies);
    return code;
}

typedef struct arguments {
    check check;
    grid_tier tier;
    int64_t part, parts; /* of the problems, part from 1 on */
    bool on_gpu, help;
    random_request random; /* seconds 0: not asked for */
} arguments;

static bool refuse_option(const char *name, const char *accepted) {
    fprintf(stderr, "strobe check: %s is %s; %s is accepted\n", name, optarg, accepted);
    return false;
}

static bool read_count(const char *name, int64_t least, int64_t *count) {
    if (number_integer(optarg, strlen(optarg), count) && *count >= least) return true;
    return refuse_option(name, least ? "an integer from 1 on" : "an integer from 0 on");
}

static bool read_part(arguments *a) {
    const char *slash = strchr(optarg, '/');
    if (slash && number_integer(optarg, (size_t)(slash - optarg), &a->part) &&
        number_integer(slash + 1, strlen(slash + 1), &a->parts) && 1 <= a->part && a->part <= a->parts)
        return true;
    return refuse_option("--part", "K/N with K from 1 to N");
}

static bool read_arguments(arguments *a, int argc, char **argv) {
    enum { QUICK = GRID_QUICK, FULL = GRID_FULL, LONG = GRID_LONG, KERNEL, EACH, DEVICE, PART, RANDOM, SEED, CASES };
    static const struct option options[] = {{"quick", no_argument, NULL, QUICK},
                                            {"full", no_argument, NULL, FULL},
                                            {"long", no_argument, NULL, LONG},
                                            {"kernel", required_argument, NULL, KERNEL},
                                            {"each", no_argument, NULL, EACH},
                                            {"device", required_argument, NULL, DEVICE},
                                            {"part", required_argument, NULL, PART},
                                            {"random", required_argument, NULL, RANDOM},
                                            {"seed", required_argument, NULL, SEED},
                                            {"cases", required_argument, NULL, CASES},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    int64_t seed = 0;
    for (int option; (option = next_option("check", argc, argv, "o:h", options)) != -1;) {
        bool ok = true;
        switch (option) {
        case QUICK:
        case FULL:
        case LONG: a->tier = (grid_tier)option; break;
        case KERNEL: a->check.only_kernel = optarg; break;
        case EACH: a->check.each = true; break;
        case DEVICE:
            a->on_gpu = true;
            ok = !strcmp(optarg, "cuda") || refuse_option("--device", "cuda");
            break;
        case PART: ok = read_part(a); break;
        case RANDOM:
            ok = (number_real(optarg, &a->random.seconds) && a->random.seconds > 0) ||
                 refuse_option("--random", "a number of seconds above 0");
            break;
        case SEED: ok = read_count("--seed", 0, &seed), a->random.draw.seed = (uint64_t)seed; break;
        case CASES: ok = read_count("--cases", 1, &a->random.most_cases); break;
        case 'h': a->help = true; break;
        case 'o': ok = table_format_named(optarg, &a->check.format) || refuse_option("-o", "table, json, csv or md"); break;
        default: ok = false;
        }
        if (!ok) return false;
    }
    return true;
}

#if defined(_WIN32)
static int check_random(arguments *a) {
    (void)a;
    fputs("strobe check: --random runs its cases in forked processes, which Windows does not have\n", stderr);
    return EXIT_REFUSED;
}
#else
static int check_random(arguments *a) {
    a->random.draw.device = a->on_gpu ? STROBE_CUDA : STROBE_CPU;
    a->random.draw.only_kernel = a->check.only_kernel;
    a->random.format = a->check.format;
    return random_check(&a->random);
}
#endif

static void keep_part(problem_list *list, int64_t part, int64_t parts) {
    size_t kept = 0;
    for (size_t i = (size_t)part - 1; i < list->count; i += (size_t)parts) list->items[kept++] = list->items[i];
    list->count = kept;
}

static int check_list(arguments *a, int count, char **words) {
    char message[PROBLEM_MESSAGE];
    problem_list list = {0};
    int code = EXIT_REFUSED;
    if (count == 0) grid_add(&list, a->tier, a->on_gpu);
    if (problem_list_read(&list, count, words, message, sizeof message)) {
        keep_part(&list, a->part, a->parts);
        for (size_t i = 0; a->on_gpu && i < list.count; ++i) list.items[i].device = STROBE_CUDA;
        code = run(&a->check, &list);
    } else
        fprintf(stderr, "strobe check: %s\n", message);
    problem_list_free(&list);
    return code;
}

int cmd_check(int argc, char **argv) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    arguments a = {.check = {.format = TABLE_TEXT}, .tier = GRID_QUICK, .part = 1, .parts = 1};
    a.random.arguments = argv;
    a.random.draw.seed = (uint64_t)(t.tv_sec * 1000 + t.tv_nsec / 1000000); /* another one each time, short enough to type */
    if (!read_arguments(&a, argc, argv)) return EXIT_REFUSED;
    if (a.help) return fputs(help, stdout), problem_print_help(stdout), EXIT_OK;
    if (a.random.seconds == 0) return check_list(&a, argc - optind, argv + optind);
    if (optind == argc && a.parts == 1) return check_random(&a);
    fprintf(stderr, "strobe check: --random is given with %s%s; one of them is accepted\n",
            optind == argc ? "--part" : "the problem ", optind == argc ? "" : argv[optind]);
    return EXIT_REFUSED;
}
