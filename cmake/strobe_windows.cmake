# SPDX-License-Identifier: BSD-3-Clause
# What a build for Windows needs beside the sources: GCC of MinGW-w64. Included by the top CMakeLists.txt.
if(NOT CMAKE_C_COMPILER_ID STREQUAL "GNU" OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  message(FATAL_ERROR "On Windows Strobe is compiled by GCC of MinGW-w64 for x86-64; this is ${CMAKE_C_COMPILER_ID}")
endif()

# Windows keeps stacks at multiples of 16 bytes, and this GCC does not align them further, though it moves vectors of 32 and 64
# bytes there as if they lay at multiples of their size (GCC's bug 54412), which is a fault. The assembler writes each such
# move in its form for any address, which costs nothing where the address is even. tests/builds/windows.sh looks for others.
add_compile_options(-Wa,-muse-unaligned-vector-move)

# Formats are C's, by MinGW's own printf; GCC would compare them with those of Microsoft's. And isnan(double) of its <math.h> has a
# float in a branch that is never taken. The builds on Linux check both.
add_compile_definitions(__USE_MINGW_ANSI_STDIO=1 _FILE_OFFSET_BITS=64 _POSIX_THREAD_SAFE_FUNCTIONS=200112L)
add_compile_options(-Wno-format -Wno-float-conversion)

# Windows looks for a .dll where the .exe lies.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
# A .dll or .exe of ours needs nothing that Windows lacks: OpenMP's and MinGW's own libraries are linked into it.
add_link_options(-static)

# POSIX's calls that Windows lacks (portable/posix.h), for the libraries that need them.
add_library(strobe_portable OBJECT portable/windows.c)
target_include_directories(strobe_portable PRIVATE ${PROJECT_SOURCE_DIR})
set(STROBE_PORTABLE $<TARGET_OBJECTS:strobe_portable>)
