/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c: the metered two-level memory; see memory.h. */
#include "memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lab_matrix {
    const char *name;
    int64_t rows, cols;
    lab_type type;
    lab_role role;
    double *at; /* [rows][cols]; NULL unless the memory computes */
};

int64_t lab_flop(const lab_counts *counts) {
    return 2 * counts->multiply_adds + counts->exponentials + counts->divisions + counts->logarithms + counts->others;
}

int64_t lab_accesses(const lab_counts *counts) { return counts->reads + counts->writes; }

int64_t lab_traffic_bytes(const lab_counts *counts) { return counts->read_bytes + counts->write_bytes; }

void lab_memory_open(lab_memory *memory, int64_t capacity, lab_type elements, lab_mode mode) {
    *memory = (lab_memory){.capacity = capacity, .elements = elements, .working = lab_working_type(elements), .mode = mode};
}

void lab_refuse(lab_memory *memory, const char *format, ...) {
    if (memory->refusal[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(memory->refusal, sizeof memory->refusal, format, arguments);
    va_end(arguments);
}

/* ------------------------------------------------------------------------------------------------------ slow memory -- */

lab_matrix *lab_matrix_create(lab_memory *memory, const char *name, int64_t rows, int64_t cols, lab_type type,
                              lab_role role) {
    lab_matrix *matrix = malloc(sizeof *matrix);
    double *at = memory->mode == LAB_COMPUTE ? calloc((size_t)(rows * cols) + 1, sizeof *at) : NULL;
    if (!matrix || (memory->mode == LAB_COMPUTE && !at)) {
        lab_refuse(memory, "this machine has no memory for %s of %lld x %lld scalars", name, (long long)rows,
                   (long long)cols);
        free(matrix);
        free(at);
        return NULL;
    }
    *matrix = (lab_matrix){.name = name, .rows = rows, .cols = cols, .type = type, .role = role, .at = at};
    if (role == LAB_EXTRA) {
        memory->extra_now += rows * cols * lab_type_bytes(type);
        if (memory->extra_now > memory->counts.extra_bytes) memory->counts.extra_bytes = memory->extra_now;
    }
    return matrix;
}

void lab_matrix_destroy(lab_memory *memory, lab_matrix *matrix) {
    if (!matrix) return;
    if (matrix->role == LAB_EXTRA) memory->extra_now -= matrix->rows * matrix->cols * lab_type_bytes(matrix->type);
    free(matrix->at);
    free(matrix);
}

void lab_matrix_put(lab_matrix *matrix, const double *values) {
    if (!matrix->at) return;
    for (int64_t x = 0; x < matrix->rows * matrix->cols; ++x) matrix->at[x] = lab_round(values[x], matrix->type);
}

void lab_matrix_get(const lab_matrix *matrix, double *values) {
    if (matrix->at) memcpy(values, matrix->at, (size_t)(matrix->rows * matrix->cols) * sizeof *values);
}

static void count_read(lab_memory *memory, const lab_matrix *matrix, int64_t scalars) {
    memory->counts.reads += scalars;
    memory->counts.read_bytes += scalars * lab_type_bytes(matrix->type);
}

static void count_write(lab_memory *memory, const lab_matrix *matrix, int64_t scalars) {
    memory->counts.writes += scalars;
    memory->counts.write_bytes += scalars * lab_type_bytes(matrix->type);
}

void lab_matrix_fill(lab_memory *memory, lab_matrix *matrix, double value) {
    count_write(memory, matrix, matrix->rows * matrix->cols);
    if (!matrix->at) return;
    for (int64_t x = 0; x < matrix->rows * matrix->cols; ++x) matrix->at[x] = lab_round(value, matrix->type);
}

/* ------------------------------------------------------------------------------------------------------ fast memory -- */

lab_tile lab_tile_create(lab_memory *memory, const char *name, int64_t rows, int64_t cols) {
    lab_tile tile = {.rows = rows, .cols = cols, .reserved = rows * cols, .name = name};
    if (memory->refusal[0]) return tile;
    if (memory->mode != LAB_PROBE && memory->fast_used + tile.reserved > memory->capacity) {
        lab_refuse(memory, "tile %s of %lld x %lld scalars does not fit: %lld of the %lld scalars of fast memory are taken",
                   name, (long long)rows, (long long)cols, (long long)memory->fast_used, (long long)memory->capacity);
        return tile;
    }
    memory->fast_used += tile.reserved;
    if (memory->fast_used > memory->counts.fast_peak) memory->counts.fast_peak = memory->fast_used;
    if (memory->mode != LAB_COMPUTE) return tile;
    if (memory->tile_count < LAB_MOST_TILES) tile.at = calloc((size_t)tile.reserved + 1, sizeof *tile.at);
    if (tile.at)
        memory->tiles[memory->tile_count++] = tile.at;
    else
        lab_refuse(memory, "this machine has no memory for tile %s of %lld x %lld scalars, number %d", name, (long long)rows,
                   (long long)cols, memory->tile_count + 1);
    return tile;
}

int64_t lab_piece(const lab_memory *memory, int64_t n, int64_t others) {
    const int64_t room = memory->mode == LAB_PROBE ? 1 : memory->capacity - memory->fast_used - others;
    return room < 1 ? 1 : room < n ? room : n;
}

bool lab_fits(lab_memory *memory) {
    const bool fits = !memory->refusal[0] && memory->mode != LAB_PROBE;
    if (!fits) lab_release(memory);
    return fits;
}

void lab_release(lab_memory *memory) {
    while (memory->tile_count > 0) free(memory->tiles[--memory->tile_count]);
    memory->fast_used = 0;
}

bool lab_shape(lab_memory *memory, lab_tile *tile, int64_t rows, int64_t cols) {
    if (rows * cols > tile->reserved) {
        lab_refuse(memory, "tile %s holds %lld scalars, not %lld x %lld", tile->name, (long long)tile->reserved,
                   (long long)rows, (long long)cols);
        return false;
    }
    tile->rows = rows;
    tile->cols = cols;
    return memory->mode == LAB_COMPUTE;
}

void lab_load(lab_memory *memory, lab_tile *tile, const lab_matrix *matrix, int64_t first) {
    const int64_t most = tile->reserved / matrix->cols, left = matrix->rows - first;
    lab_load_part(memory, tile, matrix, first, 0, left < most ? left : most, matrix->cols);
}

void lab_load_part(lab_memory *memory, lab_tile *tile, const lab_matrix *matrix, int64_t row, int64_t col, int64_t rows,
                   int64_t cols) {
    count_read(memory, matrix, rows * cols);
    if (!lab_shape(memory, tile, rows, cols)) return;
    for (int64_t r = 0; r < rows; ++r)
        memcpy(tile->at + r * cols, matrix->at + (row + r) * matrix->cols + col, (size_t)cols * sizeof *tile->at);
}

void lab_store(lab_memory *memory, const lab_tile *tile, lab_matrix *matrix, int64_t row) {
    lab_store_part(memory, tile, matrix, row, 0);
}

void lab_store_part(lab_memory *memory, const lab_tile *tile, lab_matrix *matrix, int64_t row, int64_t col) {
    count_write(memory, matrix, tile->rows * tile->cols);
    if (memory->mode != LAB_COMPUTE) return;
    for (int64_t r = 0; r < tile->rows; ++r)
        for (int64_t c = 0; c < tile->cols; ++c)
            matrix->at[(row + r) * matrix->cols + col + c] = lab_round(tile->at[r * tile->cols + c], matrix->type);
}
