/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel.h: EMULATED_REGISTER(kernel, CTAs of a cluster) after a kernel's text tells the machine of it. */
#ifndef STROBE_CUDA_EMULATED_KERNEL_H
#define STROBE_CUDA_EMULATED_KERNEL_H

#include <utility>

#include "cuda/emulated/machine.h"

/* From a function's type: how it is called with pointers to its arguments, and the bytes that they take. */
template <typename function_type> struct emulated_signature;
template <typename... arguments> struct emulated_signature<void (*)(arguments...)> {
    static_assert(sizeof...(arguments) <= EMULATED_MOST_ARGUMENTS, "as many as the machine keeps");
    template <void (*function)(arguments...), size_t... number>
    static void call_with(void *const *given, std::index_sequence<number...>) {
        function(*static_cast<const arguments *>(given[number])...);
    }
    template <void (*function)(arguments...)> static void call(void *const *given) {
        call_with<function>(given, std::index_sequence_for<arguments...>());
    }
    static emulated_kernel kernel(void (*function)(arguments...), void (*call)(void *const *), const char *name,
                                  unsigned cluster) {
        return {
            (const void *)function, call, {sizeof(arguments)...}, sizeof...(arguments), cluster, name, 48 * 1024, nullptr};
    }
};

#define EMULATED_REGISTER(function, cluster) EMULATED_REGISTER_NAMED(function, cluster)
#define EMULATED_REGISTER_NAMED(function, cluster)                                                    \
    static const struct registration_of_##function {                                                  \
        emulated_kernel kernel = emulated_signature<decltype(&function)>::kernel(                     \
            &function, emulated_signature<decltype(&function)>::call<&function>, #function, cluster); \
        registration_of_##function() { emulated_register(&kernel); }                                  \
    } registration_here_of_##function;

#endif
