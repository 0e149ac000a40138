# SPDX-License-Identifier: BSD-3-Clause
# A GPU that the host plays, for tests without one: kernels are compiled as C++, with the functions of emulated/include/ in
# place of instructions, and linked with a libcuda.so.1 of the same folder. CUDA's headers are needed, nvcc and a driver are
# not. See docs/kernels/emulator.md.
find_program(STROBE_CXX NAMES g++ c++ clang++ REQUIRED)
find_path(STROBE_CUDA_INCLUDE cuda_runtime_api.h PATHS /usr/local/cuda/include REQUIRED)
set(emulated_options -std=gnu++17 -O2 -g1 -march=native -fPIC -fvisibility=hidden -fno-exceptions -fno-strict-aliasing
  -Wno-unknown-pragmas -Wno-attributes -I${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/include -I${CMAKE_CURRENT_SOURCE_DIR}
  -I${PROJECT_SOURCE_DIR}/include -isystem ${STROBE_CUDA_INCLUDE})

add_library(strobe_emulated_gpu SHARED cuda/emulated/barriers.c cuda/emulated/coroutines.c cuda/emulated/driver.c
  cuda/emulated/machine.c cuda/emulated/runtime.c)
set_target_properties(strobe_emulated_gpu PROPERTIES OUTPUT_NAME cuda SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}) # where the loader looks for libraries of this build
target_include_directories(strobe_emulated_gpu PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(strobe_emulated_gpu SYSTEM PRIVATE ${STROBE_CUDA_INCLUDE})
target_compile_definitions(strobe_emulated_gpu PRIVATE _GNU_SOURCE)
target_compile_options(strobe_emulated_gpu PRIVATE -march=native -ftls-model=initial-exec)
target_link_libraries(strobe_emulated_gpu PRIVATE pthread ${CMAKE_DL_LIBS})

# emulated_command(VARIABLE object text kernel defines...): what compiles cuda/<text>, KERNEL being `kernel`. The kernels that
# the machine is told of are those of the text and of the headers beside it.
function(emulated_command result object text kernel)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR}/cuda/${text} DIRECTORY)
  file(GLOB files ${folder}/*.h)
  set(registered)
  foreach(file IN LISTS files ITEMS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/${text})
    file(READ ${file} lines)
    string(REGEX MATCHALL "__global__ void[^{]*{" heads "${lines}")
    foreach(head IN LISTS heads)
      string(REGEX MATCH "(strobe__[a-z0-9_]+|KERNEL|[A-Z]+\\(KERNEL\\))\\(" name "${head}")
      set(name ${CMAKE_MATCH_1})
      set(cluster 1)
      if(head MATCHES "__cluster_dims__\\(([A-Za-z0-9_]+)")
        set(cluster ${CMAKE_MATCH_1})
      endif()
      list(APPEND registered "EMULATED_REGISTER(${name}, ${cluster})")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES registered) # of two kernels of a name one is compiled
  list(JOIN registered " " registered)
  set(${result} ${STROBE_CXX} ${emulated_options} -DKERNEL=strobe__${kernel} "-DEMULATED_TEXT=\"cuda/${text}\""
    "-DEMULATED_KERNELS=${registered}" ${ARGN} -MD -MF ${object}.d -c
    ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/kernel.cpp -o ${object} PARENT_SCOPE)
endfunction()
