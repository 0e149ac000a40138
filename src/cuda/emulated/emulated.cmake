# SPDX-License-Identifier: BSD-3-Clause
# A GPU that the host plays, for tests without one: kernels are compiled as C++, with the functions of emulated/include/ in
# place of instructions, and linked with a libcuda.so.1 of the same folder. CUDA's headers are needed, nvcc and a driver are
# not. See docs/kernels/emulator.md.
find_program(STROBE_CXX NAMES g++ c++ clang++ REQUIRED)
find_path(STROBE_CUDA_INCLUDE cuda_runtime_api.h PATHS /usr/local/cuda/include REQUIRED)
set(emulated_root ${CMAKE_CURRENT_SOURCE_DIR} CACHE INTERNAL "") # both for libstrobe_dist, too
set(emulated_options -std=gnu++17 -O1 -g1 -march=native -fPIC -fvisibility=hidden -fno-exceptions -fno-strict-aliasing
  -Wno-unknown-pragmas -Wno-attributes -Wno-enum-compare -Wno-psabi -I${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/include -I${CMAKE_CURRENT_SOURCE_DIR}
  -I${PROJECT_SOURCE_DIR}/include -isystem ${STROBE_CUDA_INCLUDE} CACHE INTERNAL "")

add_library(strobe_emulated_gpu SHARED cuda/emulated/barriers.c cuda/emulated/coroutines.c cuda/emulated/driver.c
  cuda/emulated/events.c cuda/emulated/machine.c cuda/emulated/modules.c cuda/emulated/peers.c cuda/emulated/runtime.c cuda/emulated/streams.c)
set_target_properties(strobe_emulated_gpu PROPERTIES OUTPUT_NAME cuda SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}) # where the loader looks for libraries of this build
target_include_directories(strobe_emulated_gpu PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(strobe_emulated_gpu SYSTEM PRIVATE ${STROBE_CUDA_INCLUDE})
target_compile_definitions(strobe_emulated_gpu PRIVATE _GNU_SOURCE)
target_compile_options(strobe_emulated_gpu PRIVATE -march=native -ftls-model=initial-exec)
target_link_libraries(strobe_emulated_gpu PRIVATE pthread ${CMAKE_DL_LIBS})

# emulated_kernels(VARIABLE text): what registers the kernels of src/<text> and of the headers beside it.
function(emulated_kernels result text)
  get_filename_component(folder ${emulated_root}/${text} DIRECTORY)
  file(GLOB files ${folder}/*.h)
  set(registered)
  foreach(file IN LISTS files ITEMS ${emulated_root}/${text})
    file(READ ${file} lines)
    string(REGEX MATCHALL "__global__ void[^{]*{" heads "${lines}")
    foreach(head IN LISTS heads)
      string(REGEX MATCH "(strobe__[a-z0-9_]+|KERNEL|[A-Z]+\\(KERNEL\\))\\(" name "${head}")
      set(name ${CMAKE_MATCH_1})
      set(cluster 1)
      if(head MATCHES "(__cluster_dims__|CLUSTER_DIMS)\\(([A-Za-z0-9_]+)")
        set(cluster ${CMAKE_MATCH_2})
      endif()
      list(APPEND registered "EMULATED_REGISTER(${name}, ${cluster})")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES registered) # of two kernels of a name one is compiled
  list(JOIN registered " " registered)
  set(${result} "${registered}" PARENT_SCOPE)
endfunction()

# emulated_command(VARIABLE object text kernel defines...): what compiles src/<text>, KERNEL being `kernel`.
function(emulated_command result object text kernel)
  emulated_kernels(registered ${text})
  set(${result} ${STROBE_CXX} ${emulated_options} -DKERNEL=strobe__${kernel} "-DEMULATED_TEXT=\"${text}\""
    "-DEMULATED_KERNELS=${registered}" ${ARGN} -MD -MF ${object}.d -c
    ${emulated_root}/cuda/emulated/kernel.cpp -o ${object} PARENT_SCOPE)
endfunction()

# What compiles users' functions at run time: libnvrtc.so.13, found where libcuda.so.1 is.
set(compiler_texts)
file(GLOB_RECURSE texts RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/cuda cuda/sm80/*.cu cuda/sm90/*.cu)
foreach(text IN LISTS texts)
  emulated_kernels(registered cuda/${text})
  string(APPEND compiler_texts "    {\"cuda/${text}\", \"${registered}\"},\n")
endforeach()
set(compiler_options ${STROBE_CXX} ${emulated_options} -O1) # sooner compiled, and hardly slower
list(REMOVE_ITEM compiler_options -g1 -O2)
list(JOIN compiler_options "\", \"" compiler_options)
file(CONFIGURE OUTPUT cuda/emulated/emulated_compiler.h CONTENT [[
/* made by emulated.cmake */
#define COMPILER_FILES   "@CMAKE_CURRENT_SOURCE_DIR@/cuda/emulated"
#define COMPILER_LIBRARY "@PROJECT_BINARY_DIR@/libcuda.so.1"
static const char *const compiler[] = {"@compiler_options@"};
static const struct {
    const char *name, *kernels;
} texts[] = {
@compiler_texts@};
]] @ONLY)
add_library(strobe_emulated_nvrtc SHARED cuda/emulated/compiler.c)
set_target_properties(strobe_emulated_nvrtc PROPERTIES OUTPUT_NAME nvrtc SOVERSION 13
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_include_directories(strobe_emulated_nvrtc PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/cuda/emulated)
target_compile_definitions(strobe_emulated_nvrtc PRIVATE _GNU_SOURCE)
add_dependencies(strobe_emulated_gpu strobe_emulated_nvrtc)
