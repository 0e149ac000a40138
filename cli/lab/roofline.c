/* SPDX-License-Identifier: BSD-3-Clause
 *
 * roofline.c: `strobe lab roofline`: each algorithm's FLOP a byte against a device's arithmetic and memory. */
#include "bench/peak.h"
#include "commands.h"
#include "io/options.h"
#include "lab/cost_model.h"
#include "lab/device.h"
#include "lab/lab_command.h"
#include "portable/posix.h"

#include <stdio.h>
#include <string.h>
#include <strobe/strobe.h>

static const char help[] =
    "usage: strobe lab roofline [WORD...] [--device h200|h100|a100|this] [-o table|json|csv|md]\n"
    "\n"
    "Counts every algorithm and says what the device could at most make of it: the smaller of its arithmetic and of\n"
    "FLOP/B x memory bandwidth. h100, h200, a100: dense 16-bit matrix products (elements are fp16) and S = one SM's 227 or "
    "192 KiB.\n"
    "this: fp32, multiply-adds and memory bandwidth measured now, all cores; S = the second-level cache.\n"
    "A word such as sram= or fp32 overrides.\n"
    "\n";

static const char examples[] = "\n"
                               "examples:\n"
                               "  strobe lab roofline n=4k d=128\n"
                               "  strobe lab roofline --device this n=2k d=64\n";

static const table_column columns[] = {{.key = "algorithm"},
                                       {.key = "br"},
                                       {.key = "bc"},
                                       {.key = "bytes", .title = "MB", .scale = 1e-6, .decimals = 2},
                                       {.key = "flop", .title = "MFLOP", .scale = 1e-6, .decimals = 1},
                                       {.key = "flop_per_byte", .title = "FLOP/B", .decimals = 2},
                                       {.key = "tflops", .title = "TFLOP/s", .significant = 3},
                                       {.key = "of_peak", .title = "of peak", .scale = 100, .decimals = 0, .suffix = " %"},
                                       {.key = "bound"},
                                       {.key = "us", .title = "us a head", .significant = 3}};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* The two ceilings of a device. */
typedef struct roof {
    const char *name;
    double tflops, gbps;
} roof;

static bool measure_this(roof *r, char *message) {
    strobe_device_info info = {.struct_size = sizeof info};
    if (strobe_device_at(STROBE_CPU, 0, &info) != STROBE_OK) {
        snprintf(message, LAB_REFUSAL, "%s", strobe_last_error());
        return false;
    }
    peak_meter *meter = peak_meter_create(info.threads);
    if (!meter) {
        snprintf(message, LAB_REFUSAL, "this machine has no memory or threads to measure itself");
        return false;
    }
    double flops = 0, bytes = 0;
    for (int i = 0; i < 5; ++i) { /* the best of five: what the machine can do */
        const peak p = peak_measure(meter);
        flops = p.flops > flops ? p.flops : flops;
        bytes = p.bytes > bytes ? p.bytes : bytes;
    }
    peak_meter_destroy(meter);
    *r = (roof){info.name, flops / 1e12, bytes / 1e9};
    return true;
}

/* The device's ceilings, and its defaults for what the words left open. */
static bool raise_roof(const char *device, lab_request *request, roof *r, char *message) {
    if (!strcmp(device, "this")) {
        const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
        if (!request->has_sram) request->sram_bytes = cache > 0 ? cache : 1 << 20;
        return measure_this(r, message);
    }
    const lab_device *d = lab_device_named(device);
    if (!d) {
        snprintf(message, LAB_REFUSAL, "--device is %.64s; h100, h200, a100 or this is accepted", device);
        return false;
    }
    if (!request->has_elements) request->elements = LAB_FP16;
    if (!request->has_sram) request->sram_bytes = (int64_t)d->fast_bytes;
    *r = (roof){d->name, d->tflops, d->gbps};
    return true;
}

static bool add_row(table *t, const lab_request *request, const lab_algorithm *a, const roof *r, char *message) {
    lab_problem p;
    lab_result result;
    if (!lab_request_blocks(request, a, &p, message)) return false;
    if (!lab_measure(a, &p, lab_request_capacity(request), request->elements, NULL, &result, message)) return false;
    const double flop = (double)lab_flop(&result.counts), bytes = (double)lab_traffic_bytes(&result.counts);
    const double memory = flop / bytes * r->gbps / 1e3, bound = memory < r->tflops ? memory : r->tflops;
    table_add_row(
        t, (table_cell[COLUMNS]){cell_text(a->name), lab_block_cell(a, p.br), lab_block_cell(a, p.bc),
                                 cell_integer(lab_traffic_bytes(&result.counts)), cell_integer(lab_flop(&result.counts)),
                                 cell_real(flop / bytes), cell_real(bound), cell_real(bound / r->tflops),
                                 cell_text(memory < r->tflops ? "memory" : "arithmetic"), cell_real(flop / bound / 1e6)});
    return true;
}

static int report(const lab_request *request, const roof *r, table_format format) {
    char message[LAB_REFUSAL] = "";
    table *t = table_create(columns, COLUMNS);
    bool ok = true, printed = true;
    for (int i = 0; ok && i < request->algorithm_count; ++i)
        if (request->has_algorithms || lab_request_takes(request, request->algorithms[i]))
            ok = add_row(t, request, request->algorithms[i], r, message);
    if (ok && format == TABLE_JSON) {
        cJSON *more = cJSON_CreateObject(), *device = cJSON_AddObjectToObject(more, "device");
        cJSON_AddStringToObject(device, "name", r->name);
        cJSON_AddNumberToObject(device, "tflops", r->tflops);
        cJSON_AddNumberToObject(device, "gbps", r->gbps);
        printed = lab_print_document(request, more, t);
    } else if (ok) {
        printed = table_print(t, format, stdout);
    }
    if (ok && format == TABLE_TEXT)
        printf("\n%s: %.3g TFLOP/s, %.4g GB/s, which meet at %.1f FLOP/B. S = %lld scalars of %s.\n", r->name, r->tflops,
               r->gbps, r->tflops * 1e3 / r->gbps, (long long)lab_request_capacity(request),
               lab_type_name(request->elements));
    table_destroy(t);
    if (!ok) return lab_complain("roofline", message);
    return printed ? EXIT_OK : EXIT_REFUSED;
}

int lab_roofline(int argc, char **argv) {
    enum { DEVICE = 1 };
    static const struct option options[] = {{"device", required_argument, NULL, DEVICE},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    table_format format = TABLE_TEXT;
    const char *device = "h200";
    for (int option; (option = next_option("lab roofline", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), fputs(lab_words_help, stdout), fputs(examples, stdout), EXIT_OK;
        if (option == DEVICE)
            device = optarg;
        else if (option != 'o' || !lab_format("roofline", optarg, &format))
            return EXIT_REFUSED;
    }
    char message[LAB_REFUSAL] = "";
    lab_request request;
    roof r;
    if (!lab_request_read(&request, argc - optind, argv + optind, false, message) ||
        !raise_roof(device, &request, &r, message))
        return lab_complain("roofline", message);
    if (request.file) return lab_complain("roofline", "counts only: a file's numbers are not needed");
    return report(&request, &r, format);
}
