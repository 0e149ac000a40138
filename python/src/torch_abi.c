/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch_abi.c: finds the functions of PyTorch's stable C ABI in the process. */
#define _GNU_SOURCE /* RTLD_NOLOAD */

#include "torch_abi.h"

#include <dlfcn.h>
#include <string.h>

struct torch_abi torch_abi; /* written once, before any kernel is registered */

#define AT(member) offsetof(struct torch_abi, member)

static const struct {
    size_t member;
    const char *name;
} functions[] = {
    {AT(version), "aoti_torch_abi_version"},
    {AT(library_new), "aoti_torch_library_init_impl"},
    {AT(library_impl), "torch_library_impl"},
    {AT(library_delete), "aoti_torch_delete_library_object"},
    {AT(call), "torch_call_dispatcher"},
    {AT(is_defined), "aoti_torch_is_defined"},
    {AT(dim), "aoti_torch_get_dim"},
    {AT(sizes), "aoti_torch_get_sizes"},
    {AT(strides), "aoti_torch_get_strides"},
    {AT(dtype), "aoti_torch_get_dtype"},
    {AT(device_type), "aoti_torch_get_device_type"},
    {AT(device_index), "aoti_torch_get_device_index"},
    {AT(read_data), "torch_get_const_data_ptr"},
    {AT(write_data), "torch_get_mutable_data_ptr"},
    {AT(empty), "aoti_torch_empty_strided"},
    {AT(undefined), "aoti_torch_new_uninitialized_tensor"},
    {AT(copy), "aoti_torch_copy_"},
    {AT(fill), "aoti_torch_aten_fill__Scalar"},
    {AT(tensor_delete), "aoti_torch_delete_tensor_object"},
    {AT(list_item), "torch_list_get_item"},
    {AT(list_delete), "torch_delete_list"},
    {AT(grad_mode), "aoti_torch_grad_mode_is_enabled"},
    {AT(check), "aoti_torch_check"},
    {AT(cpu), "aoti_torch_device_type_cpu"},
    {AT(cuda), "aoti_torch_device_type_cuda"},
    {AT(float32), "aoti_torch_dtype_float32"},
    {AT(float16), "aoti_torch_dtype_float16"},
    {AT(bfloat16), "aoti_torch_dtype_bfloat16"},
    {AT(float64), "aoti_torch_dtype_float64"},
    {AT(boolean), "aoti_torch_dtype_bool"},
    {AT(uint8), "aoti_torch_dtype_uint8"},
    {AT(int64), "aoti_torch_dtype_int64"},
    {AT(uint64), "aoti_torch_dtype_uint64"},
};

/* Objects and functions are converted as POSIX has it. */
static bool find(void *library, const char *name, void *function) {
    void *const found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static torch_error (*delete_stable_value)(stable_value *value);
static void delete_by_torch(stable_value *value) { (void)delete_stable_value(value); }

static bool find_delete(void *library, struct torch_abi *abi) {
    if (find(library, "torch_delete_stable_ivalue", &delete_stable_value)) {
        abi->value_delete = delete_by_torch;
        return true;
    }
    return find(library, "_ZdlPv", &abi->value_delete); /* operator delete(void *), as the library itself finds it */
}

/* C++'s THPVariable_Wrap(const at::TensorBase &), or before that by value: both take the tensor's address. */
static void find_wrap(const char *path, struct torch_abi *abi) {
    static const char cpu[] = "libtorch_cpu.so", python[] = "libtorch_python.so";
    char other[4096];
    const size_t length = strlen(path), end = sizeof cpu - 1;
    if (length < end || length + sizeof python > sizeof other || strcmp(path + length - end, cpu) != 0) return;
    memcpy(other, path, length - end);
    memcpy(other + length - end, python, sizeof python);
    void *library = dlopen(other, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return;
    if (!find(library, "_Z16THPVariable_WrapRKN2at10TensorBaseE", &abi->wrap))
        find(library, "_Z16THPVariable_WrapN2at10TensorBaseE", &abi->wrap);
}

static void find_dispatches(void *library, struct torch_abi *abi) {
    static const char *const names[SEEN_BY] = {
        "_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE", "_ZN2at6native6is_negERKNS_6TensorE",
        "_ZN2at6native14_is_zerotensorERKNS_6TensorE", "_ZN2at17functionalization4impl18isFunctionalTensorERKNS_6TensorE"};
    bool all = find(library, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb", &abi->modes) && /* of a library below */
               find(library, "_ZN5torch3jit6tracer15getTracingStateEv", &abi->tracing) &&
               find(library, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", &abi->casts);
    for (int n = 0; n < SEEN_BY; ++n) all = find(library, names[n], &abi->dispatches[n]) && all;
    if (!all) memset(abi->dispatches, 0, sizeof abi->dispatches);
}

/* The ABI is promised for all of 2; 2.10 is the first with every function and conversion that the kernels need. */
static bool is_known(uint64_t version) { return version >> 56 == 2 && version >= TORCH_ABI; }

bool torch_abi_open(const char *path) {
    if (torch_abi.version) return true;
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    return false; /* a bool is read out of the first byte */
#endif
    struct torch_abi found = {0};
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return false;
    for (size_t n = 0; n < sizeof functions / sizeof functions[0]; ++n)
        if (!find(library, functions[n].name, (char *)&found + functions[n].member)) return false;
    if (!find_delete(library, &found) || !is_known(found.version())) return false;
    find(library, "torch_exception_get_what_without_backtrace", &found.last_error);
    find_wrap(path, &found);
    find_dispatches(library, &found);
    torch_abi = found; /* the library stays open */
    return true;
}

static bool find_driver(struct torch_abi *abi) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY); /* stays open, as PyTorch leaves it */
    return driver && find(driver, "cuStreamIsCapturing", &abi->is_capturing) &&
           find(driver, "cuMemsetD32Async", &abi->set_words) && find(driver, "cuCtxGetDevice", &abi->current_device);
}

bool torch_abi_open_cuda(const char *path) {
    struct torch_abi found = torch_abi;
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library || !torch_abi.version) return false;
    if (!find(library, "aoti_torch_get_current_cuda_stream", &found.current_stream) || !find_driver(&found) ||
        !find(library, "_ZN2at13globalContextEv", &found.settings) || /* of libtorch_cpu.so, which this one needs */
        !find(library, "_ZNK2at7Context23deterministicAlgorithmsEv", &found.deterministic))
        return false;
    torch_abi = found;
    return true;
}
