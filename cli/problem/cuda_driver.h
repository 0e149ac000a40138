/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_driver.h: the calls of the CUDA driver that the command makes, declared as the driver's manual has them and opened
 * when first asked for: the command needs no CUDA header and no CUDA library. Every call returns 0 or an error. */
#ifndef STROBE_CLI_CUDA_DRIVER_H
#define STROBE_CLI_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

typedef unsigned long long device_address; /* CUdeviceptr */

/* Attributes of a device, by the driver's numbers. */
enum { DEVICE_CLOCK_KHZ = 13, DEVICE_MULTIPROCESSORS = 16, DEVICE_L2_BYTES = 38, DEVICE_MAJOR = 75, DEVICE_MINOR = 76 };

/* CUmemLocation, CUmemAllocationProp and CUmemAccessDesc, with the driver's numbers for memory of a device. */
typedef struct memory_location {
    int is_device, device;
} memory_location;
typedef struct memory_kind {
    int pinned, handles;
    memory_location location;
    void *win32;
    unsigned char flags[8];
} memory_kind;
typedef struct memory_access {
    memory_location location;
    int read_and_write;
} memory_access;

typedef struct cuda_driver {
    int (*init)(unsigned flags);
    int (*count_devices)(int *count);
    int (*get_device)(int *device, int ordinal);
    int (*get_attribute)(int *value, int attribute, int device);
    int (*get_bus_id)(char *text, int capacity, int device);
    int (*retain_context)(void **context, int device);
    int (*set_context)(void *context);
    int (*get_context)(void **context);
    int (*allocate)(device_address *memory, size_t bytes);
    int (*release)(device_address memory);
    int (*to_device)(device_address to, const void *from, size_t bytes);
    int (*to_host)(void *to, device_address from, size_t bytes);
    int (*copy_async)(device_address to, device_address from, size_t bytes, void *stream);
    int (*fill)(device_address to, unsigned char byte, size_t bytes);
    int (*fill_async)(device_address to, unsigned char byte, size_t bytes, void *stream);
    int (*wait)(void);
    int (*error_name)(int error, const char **name);
    int (*load_module)(void **module, const void *image);
    int (*get_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void *stream, void **arguments, void **extra);
    int (*create_event)(void **event, unsigned flags);
    int (*record_event)(void *event, void *stream);
    int (*wait_event)(void *event);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*elapsed)(float *milliseconds, void *from, void *to);
    int (*destroy_event)(void *event);
    int (*create_stream)(void **stream, unsigned flags);
    int (*wait_stream)(void *stream);
    int (*destroy_stream)(void *stream);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **runnable, void *graph, unsigned long long flags);
    int (*launch_graph)(void *runnable, void *stream);
    int (*destroy_runnable)(void *runnable);
    int (*destroy_graph)(void *graph);
    /* Pages that are mapped to addresses; NULL where a driver has none. */
    int (*page_size)(size_t *bytes, const memory_kind *kind, int option);
    int (*reserve)(device_address *range, size_t bytes, size_t alignment, device_address at, unsigned long long flags);
    int (*create_pages)(unsigned long long *pages, size_t bytes, const memory_kind *kind, unsigned long long flags);
    int (*release_pages)(unsigned long long pages);
    int (*map)(device_address at, size_t bytes, size_t offset, unsigned long long pages, unsigned long long flags);
    int (*set_access)(device_address at, size_t bytes, const memory_access *access, size_t count);
} cuda_driver;

/* The driver, with its first device current. NULL, with a sentence, if there is none. */
const cuda_driver *cuda_driver_open(char *message, size_t capacity);

/* Makes that device current on another thread, too. */
bool cuda_driver_enter(void);

/* How many devices there are, and any of them current on the calling thread; 0 is that of cuda_driver_open. */
int cuda_driver_devices(void);
bool cuda_driver_use(int ordinal);

/* An attribute of that device, 0 if unknown. */
int cuda_driver_attribute(int attribute);

/* Its address on the PCI bus. False if it cannot be had. */
bool cuda_driver_bus_id(char *text, int capacity);

/* The address of a function of a library, as POSIX wants it. False if there is none. */
bool cuda_driver_find(void *library, void *function, const char *name);

#endif
