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
    "its operation and device, whether it runs here (on which devices, where they differ), in how many variants\n"
    "it was compiled (json and csv: their names), and what it is.\n"
    "  --support  instead, which kernel takes which feature, as table or md; `strobe info --support -o md` is\n"
    "             docs/support.md\n"
    "  -o FORMAT  table (default), json, csv or md; csv holds the kernels only\n"
    "\n"
    "The environment variable STROBE_ISA=baseline, avx2, avx512, avx512bf16 or amx lowers the level of the CPU; on ARM\n"
    "baseline, neon or neonbf16.\n"
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

/* "yes", or what each device that cannot run the kernel lacks; devices of one kind differ where a machine has several. */
static void print_here(int32_t kernel, const strobe_kernel_info *any, char *text, size_t capacity) {
    strobe_kernel_info on = {.struct_size = sizeof on};
    strobe_device_info device = {.struct_size = sizeof device};
    const char *runs = any->chosen_by_name ? "by name only" : "yes";
    size_t length = 0;
    int32_t index = 0, lacking = 0;
    text[0] = 0;
    for (; strobe_device_at(any->device, index, &device) == STROBE_OK; ++index) {
        if (strobe_kernel_on(kernel, index, &on) != STROBE_OK || !on.unavailable || length >= capacity) continue;
        length += (size_t)snprintf(text + length, capacity - length, "%s%s %d: %s", length ? "; " : "",
                                   device_names[any->device], index, on.unavailable);
        ++lacking;
    }
    if (lacking == 0 || lacking == index) snprintf(text, capacity, "%s", any->unavailable ? any->unavailable : runs);
}

static int64_t count_variants(const strobe_kernel_info *info) {
    int64_t count = info->variants ? 0 : 1;
    for (const char *c = info->variants; c && *c; ++c) count += *c == ' ';
    return count;
}

/* The names alone, for programs; people get their number. */
static table *make_kernels(table_format format) {
    static const table_column columns[] = {{.key = "kernel"}, {.key = "operation"}, {.key = "device"},
                                           {.key = "here"},   {.key = "variants"},  {.key = "summary"}};
    const bool names = format == TABLE_JSON || format == TABLE_CSV;
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    strobe_kernel_info info = {.struct_size = sizeof info};
    for (int32_t i = 0; strobe_kernel_at(i, &info) == STROBE_OK; ++i) {
        char here[1024];
        print_here(i, &info, here, sizeof here);
        const char *variants = info.variants && *info.variants ? info.variants + 1 : info.name;
        table_add_row(t, (table_cell[]){cell_text(info.name), cell_text(operation_names[info.operation]),
                                        cell_text(device_names[info.device]), cell_text(here),
                                        names ? cell_text(variants) : cell_integer(count_variants(&info)),
                                        cell_text(info.summary)});
    }
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
    table *devices = make_devices(), *kernels = make_kernels(format);
    const bool ok = print(devices, kernels, format);
    table_destroy(devices);
    table_destroy(kernels);
    return ok ? EXIT_OK : EXIT_REFUSED;
}
