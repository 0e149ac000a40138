/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cmd_info.c: `strobe info`: version, build, devices, kernels; and the matrix of what each kernel supports. */
#include "commands.h"
#include "io/json.h"
#include "io/options.h"
#include "io/table.h"
#include "support.h"

#include <stdio.h>
#include <strobe/strobe.h>

static const char help[] =
    "usage: strobe info [--support] [-o table|json|csv|md]\n"
    "\n"
    "Prints version and build of the library, the devices of this machine with their level, and every kernel:\n"
    "its operation and device, whether it runs here, and what it is.\n"
    "  --support  instead, which kernel takes which feature, as table or md; `strobe info --support -o md` is\n"
    "             docs/support.md\n"
    "  -o FORMAT  table (default), json, csv or md; csv holds the kernels only\n"
    "\n"
    "The environment variable STROBE_ISA=baseline, avx2, avx512 or amx lowers the level of the CPU.\n"
    "Exit code: 0 ok, 2 usage.\n"
    "\n"
    "examples:\n"
    "  strobe info\n"
    "  STROBE_ISA=avx2 strobe info\n"
    "  strobe info --support\n";

static const char *const device_names[] = {[STROBE_CPU] = "cpu", [STROBE_CUDA] = "cuda"};
static const char *const operation_names[] = {[STROBE_FORWARD] = "forward", [STROBE_BACKWARD] = "backward"};

static table *make_devices(void) {
    static const table_column columns[] = {
        {.key = "device"},  {.key = "index"},
        {.key = "name"},    {.key = "level"},
        {.key = "threads"}, {.key = "memory_bytes", .title = "memory", .scale = 0x1p-30, .decimals = 1, .suffix = " GiB"}};
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (int32_t device = STROBE_CPU; device <= STROBE_CUDA; ++device) {
        strobe_device_info info = {.struct_size = sizeof info};
        for (int32_t index = 0; strobe_device_at(device, index, &info) == STROBE_OK; ++index)
            table_add_row(t, (table_cell[]){cell_text(device_names[device]), cell_integer(index), cell_text(info.name),
                                            info.level ? cell_text(info.level) : cell_none(), cell_integer(info.threads),
                                            cell_integer(info.memory_bytes)});
    }
    return t;
}

static table *make_kernels(void) {
    static const table_column columns[] = {
        {.key = "kernel"}, {.key = "operation"}, {.key = "device"}, {.key = "here"}, {.key = "summary"}};
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t i = 0; strobe_kernel_at(i, &info) == STROBE_OK; ++i)
        table_add_row(t, (table_cell[]){cell_text(info.name), cell_text(operation_names[info.operation]),
                                        cell_text(device_names[info.device]),
                                        cell_text(info.unavailable      ? info.unavailable
                                                  : info.chosen_by_name ? "by name only"
                                                                        : "yes"),
                                        cell_text(info.summary)});
    return t;
}

static bool print_json(const table *devices, const table *kernels) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "version", strobe_version());
    cJSON_AddStringToObject(document, "build", strobe_build_info());
    cJSON_AddItemToObject(document, "devices", table_to_json(devices));
    cJSON_AddItemToObject(document, "kernels", table_to_json(kernels));
    const bool ok = json_print(document, stdout);
    cJSON_Delete(document);
    return ok;
}

static bool print(const table *devices, const table *kernels, table_format format) {
    if (format == TABLE_JSON) return print_json(devices, kernels);
    if (format == TABLE_CSV) return table_print(kernels, format, stdout);
    printf("strobe %s\n%s\n\n", strobe_version(), strobe_build_info());
    table_print(devices, format, stdout);
    fputs("\n", stdout);
    return table_print(kernels, format, stdout);
}

int cmd_info(int argc, char **argv) {
    static const struct option options[] = {{"support", no_argument, NULL, 's'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    table_format format = TABLE_TEXT;
    bool support = false;
    for (int option; (option = next_option("info", argc, argv, "o:h", options)) != -1;) {
        if (option == 'h') return fputs(help, stdout), EXIT_OK;
        if (option == '?') return EXIT_REFUSED;
        support |= option == 's';
        if (option == 'o' && !table_format_named(optarg, &format))
            return fprintf(stderr, "strobe info: -o is %s; table, json, csv or md is accepted\n", optarg), EXIT_REFUSED;
    }
    if (optind < argc) return fprintf(stderr, "strobe info: %s is one word too many\n", argv[optind]), EXIT_REFUSED;
    if (support && format != TABLE_TEXT && format != TABLE_MARKDOWN)
        return fputs("strobe info: --support is given with -o json or csv; table or md is accepted\n", stderr), EXIT_REFUSED;
    if (support) return support_print(format) ? EXIT_OK : EXIT_REFUSED;
    table *devices = make_devices(), *kernels = make_kernels();
    const bool ok = print(devices, kernels, format);
    table_destroy(devices);
    table_destroy(kernels);
    return ok ? EXIT_OK : EXIT_REFUSED;
}
