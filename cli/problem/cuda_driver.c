/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_driver.c: opens the CUDA driver; see cuda_driver.h. */
#include "problem/cuda_driver.h"

#include "portable/posix.h"

#include <stdio.h>
#include <string.h>

static cuda_driver driver;
static int device;
static void *context;
enum { MOST_DEVICES = 64 };
static void *contexts[MOST_DEVICES]; /* of the others, once they were asked for */

bool cuda_driver_find(void *library, void *function, const char *name) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

/* All of them or none. Always true: who asks for pages looks whether there are any. */
static bool find_pages(void *library) {
    if (cuda_driver_find(library, &driver.reserve, "cuMemAddressReserve") &&
        cuda_driver_find(library, &driver.create_pages, "cuMemCreate") &&
        cuda_driver_find(library, &driver.release_pages, "cuMemRelease") &&
        cuda_driver_find(library, &driver.map, "cuMemMap") &&
        cuda_driver_find(library, &driver.set_access, "cuMemSetAccess"))
        cuda_driver_find(library, &driver.page_size, "cuMemGetAllocationGranularity");
    return true;
}

static bool find_all(void *library) {
    const struct {
        void *function;
        const char *name;
    } wanted[] = {{&driver.init, "cuInit"},
                  {&driver.count_devices, "cuDeviceGetCount"},
                  {&driver.get_device, "cuDeviceGet"},
                  {&driver.get_attribute, "cuDeviceGetAttribute"},
                  {&driver.get_bus_id, "cuDeviceGetPCIBusId"},
                  {&driver.retain_context, "cuDevicePrimaryCtxRetain"},
                  {&driver.set_context, "cuCtxSetCurrent"},
                  {&driver.get_context, "cuCtxGetCurrent"},
                  {&driver.allocate, "cuMemAlloc_v2"},
                  {&driver.release, "cuMemFree_v2"},
                  {&driver.to_device, "cuMemcpyHtoD_v2"},
                  {&driver.to_host, "cuMemcpyDtoH_v2"},
                  {&driver.copy_async, "cuMemcpyAsync"},
                  {&driver.fill, "cuMemsetD8_v2"},
                  {&driver.fill_async, "cuMemsetD8Async"},
                  {&driver.wait, "cuCtxSynchronize"},
                  {&driver.error_name, "cuGetErrorName"},
                  {&driver.load_module, "cuModuleLoadData"},
                  {&driver.get_function, "cuModuleGetFunction"},
                  {&driver.launch, "cuLaunchKernel"},
                  {&driver.create_event, "cuEventCreate"},
                  {&driver.record_event, "cuEventRecord"},
                  {&driver.wait_event, "cuEventSynchronize"},
                  {&driver.stream_wait_event, "cuStreamWaitEvent"},
                  {&driver.elapsed, "cuEventElapsedTime"},
                  {&driver.destroy_event, "cuEventDestroy_v2"},
                  {&driver.create_stream, "cuStreamCreate"},
                  {&driver.wait_stream, "cuStreamSynchronize"},
                  {&driver.destroy_stream, "cuStreamDestroy_v2"},
                  {&driver.begin_capture, "cuStreamBeginCapture_v2"},
                  {&driver.end_capture, "cuStreamEndCapture"},
                  {&driver.instantiate, "cuGraphInstantiateWithFlags"},
                  {&driver.launch_graph, "cuGraphLaunch"},
                  {&driver.destroy_runnable, "cuGraphExecDestroy"},
                  {&driver.destroy_graph, "cuGraphDestroy"}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i)
        if (!cuda_driver_find(library, wanted[i].function, wanted[i].name)) return false;
    return find_pages(library);
}

const cuda_driver *cuda_driver_open(char *message, size_t capacity) {
    static bool is_open;
    if (is_open) return &driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || !find_all(library))
        snprintf(message, capacity, "there is no NVIDIA driver here");
    else if (driver.init(0) || driver.get_device(&device, 0) || driver.retain_context(&context, device) ||
             driver.set_context(context))
        snprintf(message, capacity, "the NVIDIA driver finds no GPU");
    else
        is_open = true;
    return is_open ? &driver : NULL;
}

bool cuda_driver_enter(void) { return context && !driver.set_context(context); }

int cuda_driver_devices(void) {
    int count = 0;
    if (!context || driver.count_devices(&count)) return 0;
    return count < MOST_DEVICES ? count : MOST_DEVICES;
}

bool cuda_driver_use(int ordinal) {
    int other;
    if (ordinal == 0) return cuda_driver_enter();
    if (ordinal < 0 || ordinal >= cuda_driver_devices()) return false;
    if (!contexts[ordinal] && (driver.get_device(&other, ordinal) || driver.retain_context(&contexts[ordinal], other)))
        return false;
    return !driver.set_context(contexts[ordinal]);
}

int cuda_driver_attribute(int attribute) {
    int value = 0;
    return driver.get_attribute && !driver.get_attribute(&value, attribute, device) ? value : 0;
}

bool cuda_driver_bus_id(char *text, int capacity) {
    return driver.get_bus_id && driver.get_bus_id(text, capacity, device) == 0;
}
