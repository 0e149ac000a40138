# SPDX-License-Identifier: BSD-3-Clause
# The CUDA backend: which kernels are compiled, for which element types and head dims, and how they become one object,
# strobe_cuda.o, in which the CUDA runtime is linked too and of which only strobe__ names are seen: both libraries hold it,
# and need no CUDA library themselves. nvcc is called directly: one text compiled many times with -D suits custom commands.
#
#   STROBE_CUDA                 AUTO (where there is nvcc), ON, OFF
#   STROBE_CUDA_ARCHITECTURES   machine code, such as 80;90; code for later GPUs is made by their driver from PTX of 80
#   STROBE_CUDA_ONLY            for developers: only kernels whose name has all these words, such as "forward bf16 128"
#   STROBE_TRACE                Hopper kernels record what they do when, for `strobe trace`; some percent slower
#   STROBE_CUDA_FLAGS           for developers: more options for nvcc, such as -lineinfo
set(STROBE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set(STROBE_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPUs to make machine code for; others from 8.0 on get PTX")
set(STROBE_CUDA_ONLY "" CACHE STRING "Words that a CUDA kernel's name must have to be built, for developers")
option(STROBE_TRACE "Hopper kernels record what they do when, for strobe trace" OFF)
set(STROBE_CUDA_FLAGS "" CACHE STRING "More options for nvcc, for developers, such as -lineinfo")

set(STROBE_CUDA_BUILT OFF)
if(NOT STROBE_CUDA OR STROBE_SANITIZE OR STROBE_FUZZ OR CMAKE_CROSSCOMPILING)
  message(STATUS "CUDA: left out")
  return()
endif()
find_program(STROBE_NVCC nvcc PATHS /usr/local/cuda/bin)
find_program(STROBE_LD NAMES ld.bfd ld)
if(STROBE_NVCC)
  get_filename_component(cuda_root "${STROBE_NVCC}" REALPATH)
  get_filename_component(cuda_root "${cuda_root}" DIRECTORY)
  find_path(STROBE_CUDA_INCLUDE cuda_runtime_api.h PATHS ${cuda_root}/../include /usr/local/cuda/include)
  find_library(STROBE_CUDART libcudart_static.a PATHS ${cuda_root}/../lib64 /usr/local/cuda/lib64
    PATH_SUFFIXES ../targets/x86_64-linux/lib)
endif()
if(NOT STROBE_NVCC OR NOT STROBE_CUDA_INCLUDE OR NOT STROBE_CUDART OR NOT CMAKE_OBJCOPY OR NOT STROBE_LD)
  if(STROBE_CUDA STREQUAL AUTO)
    message(STATUS "CUDA: left out, no nvcc with its static runtime was found")
    return()
  endif()
  message(FATAL_ERROR "STROBE_CUDA is ${STROBE_CUDA}, but no nvcc with its static runtime was found")
endif()
set(STROBE_CUDA_BUILT ON)

set(codes compute_80)
foreach(architecture IN LISTS STROBE_CUDA_ARCHITECTURES)
  list(APPEND codes sm_${architecture})
endforeach()
list(JOIN codes "," codes)
# One front-end pass over the text; then one of ptxas for each architecture.
set(STROBE_CUDA_CODE -gencode=arch=compute_80,code=[${codes}])
# Kernels whose atomics are wider from sm_90 on, or that convert to e4m3, an instruction there, have a pass of their own.
set(codes_80 compute_80)
set(codes_90)
foreach(architecture IN LISTS STROBE_CUDA_ARCHITECTURES)
  if(architecture LESS 90)
    list(APPEND codes_80 sm_${architecture})
  else()
    list(APPEND codes_90 sm_${architecture})
  endif()
endforeach()
list(JOIN codes_80 "," codes_80)
set(STROBE_CUDA_CODE_ATOMICS -gencode=arch=compute_80,code=[${codes_80}])
if(codes_90)
  list(JOIN codes_90 "," codes_90)
  list(APPEND STROBE_CUDA_CODE_ATOMICS -gencode=arch=compute_90,code=[${codes_90}])
endif()
set(nvcc_options -std=c++17 -O3 -I${CMAKE_CURRENT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include
  -Xptxas=-warn-spills --threads=1 --compress-mode=size # a third of the default's size
  -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics)
if(STROBE_TRACE)
  list(APPEND nvcc_options -DSTROBE_TRACE)
endif()
separate_arguments(developer_options UNIX_COMMAND "${STROBE_CUDA_FLAGS}")
list(APPEND nvcc_options ${developer_options})
set(cuda_objects)

# cuda_object(NAME forward_bf16_128 SOURCE sm80/forward.cu DEFINES DIM=128 ... [CODE options]): its kernel is strobe__<NAME>.
# CODE: for which GPUs, default all. Sets cuda_object_built.
function(cuda_object)
  cmake_parse_arguments(PARSE_ARGV 0 object "" "NAME;SOURCE" "DEFINES;CODE")
  set(cuda_object_built ON)
  if(NOT object_CODE)
    set(object_CODE ${STROBE_CUDA_CODE})
  endif()
  separate_arguments(words UNIX_COMMAND "${STROBE_CUDA_ONLY}")
  foreach(word IN LISTS words)
    if(NOT object_NAME MATCHES "(^|_)${word}(_|$)" AND object_NAME MATCHES "forward|backward|decode")
      set(cuda_object_built OFF)
    endif()
  endforeach()
  if(cuda_object_built)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/cuda/${object_NAME}.o)
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/cuda/${object_SOURCE})
    list(TRANSFORM object_DEFINES PREPEND -D)
    add_custom_command(OUTPUT ${output}
      COMMAND ${STROBE_NVCC} ${nvcc_options} ${object_CODE} -DKERNEL=strobe__${object_NAME} ${object_DEFINES} -MD -MF ${output}.d -c ${source}
        -o ${output}
      DEPENDS ${source} DEPFILE ${output}.d COMMENT "CUDA ${object_NAME}" VERBATIM)
    set(cuda_objects ${cuda_objects} ${output} PARENT_SCOPE)
  endif()
  set(cuda_object_built ${cuda_object_built} PARENT_SCOPE)
endfunction()

# ---- forward: tiles of 16 M x WARPS_M rows and 8 N x WARPS_N keys, see docs/kernels/cuda.md; `blocks` on a multiprocessor
#      is what ptxas fits registers to. Order: as forward.c chooses.
set(forward_lines)
function(cuda_forward kind dtype dim dim_v m n warps_m warps_n stages blocks features cache)
  string(TOUPPER ${dtype} element)
  set(name forward_${dtype}_${dim}_${kind})
  cuda_object(NAME ${name} SOURCE sm80/forward.cu DEFINES ELEMENT_${element} DIM=${dim} DIM_V=${dim_v} M_TILES=${m}
    N_TILES=${n} WARPS_M=${warps_m} WARPS_N=${warps_n} STAGES=${stages} BLOCKS=${blocks} FEATURES=${features} CACHE=${cache})
  set(cuda_objects ${cuda_objects} PARENT_SCOPE)
  set(small 0)
  if("${kind}" STREQUAL "small")
    set(small 1)
  endif()
  if(cuda_object_built)
    set(forward_lines "${forward_lines}VARIANT(${name}, ${element}, ${dim}, ${dim_v}, ${m}, ${n}, ${warps_m}, ${warps_n}, ${stages}, ${blocks}, ${features}, ${cache}, ${small})\n" PARENT_SCOPE)
  endif()
endfunction()

foreach(dtype bf16 fp16)
  #                                              m n wm wn st bl f c
  cuda_forward(rows16        ${dtype}  64  64    1 2  1  4  2  4 1 0)
  cuda_forward(small         ${dtype}  64  64    1 8  4  1  2  4 0 0)
  cuda_forward(plain         ${dtype}  64  64    2 16 4  1  2  2 0 0)
  cuda_forward(general       ${dtype}  64  64    1 8  4  1  2  3 1 0)
  cuda_forward(cache_rows16  ${dtype}  64  64    1 2  1  4  2  4 1 1)
  cuda_forward(cache_plain   ${dtype}  64  64    2 8  4  1  2  2 0 1)
  cuda_forward(cache_general ${dtype}  64  64    1 8  4  1  2  2 1 1)
  cuda_forward(rows16        ${dtype} 128 128    1 2  1  4  2  3 1 0)
  cuda_forward(plain         ${dtype} 128 128    2 8  4  1  2  2 0 0)
  cuda_forward(general       ${dtype} 128 128    1 8  4  1  2  2 1 0)
  cuda_forward(cache_rows16  ${dtype} 128 128    1 2  1  4  2  3 1 1)
  cuda_forward(cache_plain   ${dtype} 128 128    1 8  4  1  2  2 0 1)
  cuda_forward(cache_general ${dtype} 128 128    1 8  4  1  2  2 1 1)
  cuda_forward(rows16        ${dtype} 256 256    1 2  1  2  2  3 1 0)
  cuda_forward(plain         ${dtype} 256 256    1 8  8  1  2  1 0 0)
  cuda_forward(general       ${dtype} 256 256    1 4  4  1  2  2 1 0)
  cuda_forward(cache_rows16  ${dtype} 256 256    1 2  1  2  2  3 1 1)
  cuda_forward(cache_plain   ${dtype} 256 256    1 8  8  1  2  1 0 1)
  cuda_forward(cache_general ${dtype} 256 256    1 4  4  1  2  2 1 1)
  cuda_forward(general       ${dtype} 512 256    1 2  4  1  1  2 1 0)
  cuda_forward(cache_general ${dtype} 512 256    1 2  4  1  1  2 1 1)
  cuda_forward(general       ${dtype} 576 256    1 2  4  1  1  2 1 2)
  cuda_forward(narrow        ${dtype} 576 256    1 2  2  1  1  2 1 2)
endforeach()
cuda_forward(general         fp32      64  64    1 8  4  1  2  2 1 0)
cuda_forward(cache_general   fp32      64  64    1 8  4  1  2  2 1 1)
cuda_forward(general         fp32     128 128    1 4  4  1  2  2 1 0)
cuda_forward(cache_general   fp32     128 128    1 4  4  1  2  2 1 1)
cuda_forward(general         fp32     256 256    1 2  4  1  1  2 1 0)
cuda_forward(cache_general   fp32     256 256    1 2  4  1  1  2 1 1)
cuda_forward(general         fp32     512 256    1 2  1  1  1  2 1 0)
cuda_forward(cache_general   fp32     512 256    1 2  1  1  1  2 1 1)
cuda_forward(general         fp32     576 256    1 2  1  1  1  2 1 2)
file(CONFIGURE OUTPUT cuda/cuda_forward_variants.h CONTENT "${forward_lines}" @ONLY)

# ---- decode: 16 WARPS_M rows and blocks of 8 N x WARPS_N keys; the first that takes a problem's rows and fits the GPU is chosen
set(decode_lines)
function(cuda_decode kind dtype dim n warps_m warps_n stages ctas)
  string(TOUPPER ${dtype} element)
  set(name decode_${dtype}_${dim}_${kind})
  cuda_object(NAME ${name} SOURCE sm80/decode.cu DEFINES ELEMENT_${element} DIM=${dim} N_TILES=${n} WARPS_M=${warps_m}
    WARPS_N=${warps_n} STAGES=${stages} CTAS=${ctas})
  set(cuda_objects ${cuda_objects} PARENT_SCOPE)
  if(cuda_object_built)
    set(decode_lines "${decode_lines}VARIANT(${name}, ${element}, ${dim}, ${n}, ${warps_m}, ${warps_n}, ${stages}, ${ctas})\n" PARENT_SCOPE)
  endif()
endfunction()

foreach(dtype bf16 fp16)
  #                              n wm wn st ct
  cuda_decode(rows16 ${dtype}  64 4 1  4  3  2)
  cuda_decode(rows32 ${dtype}  64 4 2  2  5  2)
  cuda_decode(rows64 ${dtype}  64 4 4  2  5  1)
  cuda_decode(rows16 ${dtype} 128 2 1  4  3  2)
  cuda_decode(rows32 ${dtype} 128 4 2  2  3  2)
  cuda_decode(rows64 ${dtype} 128 4 4  2  5  1)
  cuda_decode(rows16 ${dtype} 256 2 1  4  3  1)
  cuda_decode(rows64 ${dtype} 256 2 4  2  5  1)
endforeach()
file(CONFIGURE OUTPUT cuda/cuda_decode_variants.h CONTENT "${decode_lines}" @ONLY)

# ---- backward: BLOCK = 16 WARPS rows (keys) against 8 TILES keys (rows), head dims as in forward, slices of 256 columns
function(cuda_backward kind dtype dim slice tiles warps stages blocks features)
  string(TOUPPER ${dtype} element)
  set(suffix general)
  if(NOT features)
    set(suffix plain)
  endif()
  set(name backward_${kind}_${dtype}_${dim}_${suffix})
  cuda_object(NAME ${name} SOURCE sm80/backward_${kind}.cu DEFINES ELEMENT_${element} DIM=${dim} SLICE=${slice}
    M_TILES=${tiles} N_TILES=${tiles} WARPS=${warps} STAGES=${stages} BLOCKS=${blocks} FEATURES=${features})
  set(cuda_objects ${cuda_objects} PARENT_SCOPE)
  if(cuda_object_built)
    set(backward_lines "${backward_lines}VARIANT(${kind}, ${name}, ${element}, ${dim}, ${slice}, ${tiles}, ${warps}, ${stages}, ${features}, ${blocks})\n" PARENT_SCOPE)
  endif()
endfunction()

set(backward_lines)
foreach(kind rows keys)
  foreach(dtype bf16 fp16)
    foreach(features 0 1)
      #                                      slice t w st bl
      cuda_backward(${kind} ${dtype}  64   64 8 4 2 3 ${features})
      cuda_backward(${kind} ${dtype} 128  128 8 4 2 2 ${features})
      cuda_backward(${kind} ${dtype} 256  256 4 4 1 2 ${features})
    endforeach()
    cuda_backward(${kind} ${dtype} 512  256 2 1 1 2 1)
  endforeach()
  cuda_backward(${kind} fp32  64   64 8 4 1 2 1)
  cuda_backward(${kind} fp32 128  128 4 4 1 2 1)
  cuda_backward(${kind} fp32 256  256 2 2 1 2 1)
  cuda_backward(${kind} fp32 512  256 1 1 1 2 1)
endforeach()
file(CONFIGURE OUTPUT cuda/cuda_backward_variants.h CONTENT "${backward_lines}" @ONLY)

# dQ, dK and dV in one pass: `keys` x `rows` scores a block; warps over the keys of S^T (sn), over the keys of dK and dV (kn),
# over the rows of dQ (qm); tiles of dO (do); whether warps are skewed (sk). The first that fits the GPU's shared memory.
set(fused_lines)
function(cuda_backward_fused kind dtype dim keys rows warps s_n k_n q_m stages skewed blocks features)
  string(TOUPPER ${dtype} element)
  set(name backward_fused_${dtype}_${dim}_${kind})
  cuda_object(NAME ${name} SOURCE sm80/backward_fused.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_${element} DIM=${dim}
    KEYS=${keys} ROWS=${rows} WARPS=${warps} S_N=${s_n} K_N=${k_n} Q_M=${q_m} DO_STAGES=${stages} SKEWED=${skewed} BLOCKS=${blocks} FEATURES=${features})
  set(cuda_objects ${cuda_objects} PARENT_SCOPE)
  if(cuda_object_built)
    set(stored 1)
    if(s_n EQUAL warps AND k_n EQUAL warps)
      set(stored 0)
    endif()
    set(fused_lines "${fused_lines}VARIANT(${name}, ${element}, ${dim}, ${keys}, ${rows}, ${warps}, ${stored}, ${stages}, ${skewed}, ${features}, ${s_n}, ${k_n}, ${q_m}, ${blocks})\n" PARENT_SCOPE)
  endif()
endfunction()

foreach(dtype bf16 fp16)
  #                                    keys rows w sn kn qm do sk bl f
  cuda_backward_fused(plain   ${dtype}  64   64  64  4  2  2  2  2  0  3 0)
  cuda_backward_fused(general ${dtype}  64   64  64  4  2  2  2  1  0  2 1)
  cuda_backward_fused(skewed  ${dtype} 128  128  64  8  4  4  2  3  1  1 0)
  cuda_backward_fused(plain   ${dtype} 128  128  64  8  4  4  4  2  0  1 0)
  cuda_backward_fused(general ${dtype} 128   64  64  8  4  4  2  1  0  1 1)
  cuda_backward_fused(plain   ${dtype} 256   64  64  8  4  2  2  2  0  1 0)
  cuda_backward_fused(general ${dtype} 256   64  64  8  4  2  2  2  0  1 1)
endforeach()
file(CONFIGURE OUTPUT cuda/cuda_backward_fused_variants.h CONTENT "${fused_lines}" @ONLY)

# A broadcast dbias in a fixed order: chunks of 64 columns serve every head dim.
set(dbias_lines)
foreach(dtype bf16 fp16 fp32)
  string(TOUPPER ${dtype} element)
  cuda_object(NAME backward_dbias_${dtype} SOURCE sm80/backward_dbias.cu DEFINES ELEMENT_${element} FEATURES=1)
  if(cuda_object_built)
    set(dbias_lines "${dbias_lines}VARIANT(backward_dbias_${dtype}, ${element})\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT cuda/cuda_backward_dbias_variants.h CONTENT "${dbias_lines}" @ONLY)

# ---- Hopper's own: sm_90a instructions, so only where machine code for it is asked for

# Inside a function: an object from sm90/<source> and defines, and the options that the SASS guard compiles it with again.
set(sm90_defines)
macro(cuda_object_sm90 name source)
  set(code -gencode=arch=compute_90a,code=sm_90a)
  cuda_object(NAME ${name} SOURCE sm90/${source} CODE ${code} DEFINES ${ARGN})
  set(cuda_objects ${cuda_objects} PARENT_SCOPE)
  if(cuda_object_built)
    set(options ${ARGN})
    list(JOIN options " -D" options)
    set(sm90_defines "${sm90_defines}${name} -std=c++17 -O3 -I${CMAKE_CURRENT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include ${code} -D${options} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/sm90/${source}\n" PARENT_SCOPE)
  endif()
endmacro()

# Stages of K and V, slots of 64 rows for Q, CTAs on a multiprocessor; how many keys a row may see, without and with a mask,
# for this variant to be the best (-1: any number), as measured on an H200: of those that take a problem the first is chosen.
# features: the feature class, see cuda/device/params.h.
set(sm90_lines)
function(cuda_forward_sm90 dtype dim keys groups stages q_slots ctas most_full most_masked features name)
  string(TOUPPER ${dtype} element)
  string(TOUPPER FEATURES_${features} class)
  cuda_object_sm90(${name} forward/forward.cu ELEMENT_${element} HEAD_DIM=${dim} KEYS=${keys} GROUPS=${groups} STAGES=${stages}
    Q_SLOTS=${q_slots} CTAS=${ctas} FEATURE_CLASS=${class})
  if(cuda_object_built)
    set(sm90_lines "${sm90_lines}VARIANT(${name}, ${element}, ${element}, ${class}, ${dim}, ${keys}, ${groups}, ${stages}, ${q_slots}, ${ctas}, ${most_full}, ${most_masked})\n" PARENT_SCOPE)
  endif()
endfunction()

if("90" IN_LIST STROBE_CUDA_ARCHITECTURES)
  foreach(dtype bf16 fp16)
    #                          dim keys g st q ct full masked features
    cuda_forward_sm90(${dtype}  64  64 4 4 8 1 1024    0 none  forward_sm90_${dtype}_64_plain_full)
    cuda_forward_sm90(${dtype}  64  64 1 2 1 3    0 2048 none  forward_sm90_${dtype}_64_plain_masked)
    cuda_forward_sm90(${dtype}  64 128 3 2 6 1   -1   -1 none  forward_sm90_${dtype}_64_plain)
    cuda_forward_sm90(${dtype}  96 128 2 2 4 1   -1   -1 none  forward_sm90_${dtype}_96_plain)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 none  forward_sm90_${dtype}_128_plain)
    cuda_forward_sm90(${dtype} 192  96 2 2 3 1   -1   -1 none  forward_sm90_${dtype}_192_plain)
    cuda_forward_sm90(${dtype} 256  64 2 2 3 1   -1   -1 none  forward_sm90_${dtype}_256_plain)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 alibi forward_sm90_${dtype}_64_alibi)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 softcap forward_sm90_${dtype}_64_softcap)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 bias  forward_sm90_${dtype}_64_bias)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 dropout forward_sm90_${dtype}_64_dropout)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 alibi forward_sm90_${dtype}_128_alibi)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 softcap forward_sm90_${dtype}_128_softcap)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 bias  forward_sm90_${dtype}_128_bias)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 dropout forward_sm90_${dtype}_128_dropout)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 score forward_sm90_${dtype}_64_score)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 score forward_sm90_${dtype}_128_score)
    cuda_forward_sm90(${dtype} 192  64 2 2 3 1   -1   -1 score forward_sm90_${dtype}_192_score)
    cuda_forward_sm90(${dtype} 256  64 2 2 3 1   -1   -1 score forward_sm90_${dtype}_256_score)
    cuda_forward_sm90(${dtype}  64 128 3 2 6 1   -1   -1 pages forward_sm90_${dtype}_64_pages)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 pages forward_sm90_${dtype}_128_pages)
    cuda_forward_sm90(${dtype} 192  96 2 2 3 1   -1   -1 pages forward_sm90_${dtype}_192_pages)
    cuda_forward_sm90(${dtype} 256  64 2 2 3 1   -1   -1 pages forward_sm90_${dtype}_256_pages)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 pages_score forward_sm90_${dtype}_64_pages_score)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 pages_score forward_sm90_${dtype}_128_pages_score)
    cuda_forward_sm90(${dtype} 256  64 2 2 3 1   -1   -1 pages_score forward_sm90_${dtype}_256_pages_score)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 mask  forward_sm90_${dtype}_64_mask)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 mask  forward_sm90_${dtype}_128_mask)
    cuda_forward_sm90(${dtype} 192  64 2 2 3 1   -1   -1 mask  forward_sm90_${dtype}_192_mask)
    cuda_forward_sm90(${dtype} 256  64 2 2 3 1   -1   -1 mask  forward_sm90_${dtype}_256_mask)
    cuda_forward_sm90(${dtype}  64 128 2 2 4 1   -1   -1 all   forward_sm90_${dtype}_64_general)
    cuda_forward_sm90(${dtype} 128 128 2 2 4 1   -1   -1 all   forward_sm90_${dtype}_128_general)
    cuda_forward_sm90(${dtype} 192  64 2 2 3 1   -1   -1 all   forward_sm90_${dtype}_192_general)
    cuda_forward_sm90(${dtype} 256  64 2 2 3 1   -1   -1 all   forward_sm90_${dtype}_256_general)
  endforeach()
endif()
file(CONFIGURE OUTPUT cuda/sm90_forward_variants.h CONTENT "${sm90_lines}" @ONLY)

# In FP8: the dtype is out's. Stages are also those of V^T.
set(sm90_fp8_lines)
function(cuda_forward_fp8_sm90 dtype dim stages features name)
  string(TOUPPER ${dtype} element)
  string(TOUPPER FEATURES_${features} class)
  cuda_object_sm90(${name} fp8/forward.cu ELEMENT_${element} FP8_INPUTS HEAD_DIM=${dim} KEYS=128 GROUPS=2 STAGES=${stages}
    Q_SLOTS=4 CTAS=1 FEATURE_CLASS=${class})
  if(cuda_object_built)
    set(sm90_fp8_lines "${sm90_fp8_lines}VARIANT(${name}, FP8_E4M3, ${element}, ${class}, ${dim}, 128, 2, ${stages}, 4, 1, -1, -1)\n" PARENT_SCOPE)
  endif()
endfunction()

if("90" IN_LIST STROBE_CUDA_ARCHITECTURES)
  foreach(dtype bf16 fp16)
    cuda_forward_fp8_sm90(${dtype}  64 4 none  forward_fp8_sm90_${dtype}_64_plain)
    cuda_forward_fp8_sm90(${dtype} 128 3 none  forward_fp8_sm90_${dtype}_128_plain)
    cuda_forward_fp8_sm90(${dtype}  64 4 score forward_fp8_sm90_${dtype}_64_score)
    cuda_forward_fp8_sm90(${dtype} 128 3 score forward_fp8_sm90_${dtype}_128_score)
  endforeach()
endif()
file(CONFIGURE OUTPUT cuda/sm90_fp8_variants.h CONTENT "${sm90_fp8_lines}" @ONLY)

set(sm90_backward_lines)
function(cuda_backward_sm90 text dtype dim rows ctas parts lag features name)
  string(TOUPPER ${dtype} element)
  string(TOUPPER FEATURES_${features} class)
  math(EXPR stored "(${dim} + 63) / 64 * 64") # columns in shared memory
  cuda_object_sm90(${name} backward/${text}.cu ELEMENT_${element} HEAD_DIM=${stored} COLUMNS=${dim} ROWS=${rows} PARTS=${parts}
    LAG=${lag} FEATURE_CLASS=${class})
  if(cuda_object_built)
    set(sm90_backward_lines "${sm90_backward_lines}VARIANT(${name}, ${element}, ${dim}, ${rows}, 128, ${ctas}, ${class}, ${text}, ${stored}, ${parts}, ${lag})\n" PARENT_SCOPE)
  endif()
endfunction()

if("90" IN_LIST STROBE_CUDA_ARCHITECTURES)
  foreach(dtype bf16 fp16)
    #                                        dim rows ctas parts lag features
    cuda_backward_sm90(backward      ${dtype}  64 128    1 1 1 none  backward_sm90_${dtype}_64_plain)
    cuda_backward_sm90(backward      ${dtype}  96  64    1 2 1 none  backward_sm90_${dtype}_96_plain)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 1 1 none  backward_sm90_${dtype}_128_plain)
    cuda_backward_sm90(backward_pair ${dtype} 192  64    2 1 0 none  backward_sm90_${dtype}_192_plain)
    cuda_backward_sm90(backward_pair ${dtype} 256  64    2 1 0 none  backward_sm90_${dtype}_256_plain)
    cuda_backward_sm90(backward      ${dtype}  64 128    1 1 1 alibi   backward_sm90_${dtype}_64_alibi)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 1 1 alibi   backward_sm90_${dtype}_128_alibi)
    cuda_backward_sm90(backward      ${dtype}  64 128    1 2 1 softcap backward_sm90_${dtype}_64_softcap)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 1 1 softcap backward_sm90_${dtype}_128_softcap)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 1 1 bias    backward_sm90_${dtype}_128_bias)
    cuda_backward_sm90(backward      ${dtype}  64 128    1 1 1 dropout backward_sm90_${dtype}_64_dropout)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 1 1 dropout backward_sm90_${dtype}_128_dropout)
    cuda_backward_sm90(backward      ${dtype}  64 128    1 2 1 score backward_sm90_${dtype}_64_score)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 2 1 score backward_sm90_${dtype}_128_score)
    cuda_backward_sm90(backward_pair ${dtype} 256  64    2 1 0 score backward_sm90_${dtype}_256_score)
    cuda_backward_sm90(backward      ${dtype}  64 128    1 1 1 mask  backward_sm90_${dtype}_64_mask)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 1 1 mask  backward_sm90_${dtype}_128_mask)
    cuda_backward_sm90(backward_pair ${dtype} 256  64    2 1 0 mask  backward_sm90_${dtype}_256_mask)
    cuda_backward_sm90(backward      ${dtype}  64 128    1 1 0 all   backward_sm90_${dtype}_64_general)
    cuda_backward_sm90(backward      ${dtype} 128  64    1 1 0 all   backward_sm90_${dtype}_128_general)
    cuda_backward_sm90(backward_pair ${dtype} 256  64    2 1 0 all   backward_sm90_${dtype}_256_general)
  endforeach()
endif()
file(CONFIGURE OUTPUT cuda/sm90_backward_variants.h CONTENT "${sm90_backward_lines}" @ONLY)
file(CONFIGURE OUTPUT cuda/sm90_defines.txt CONTENT "${sm90_defines}" @ONLY) # for tools/sass_guard.py

cuda_object(NAME merge_few SOURCE device/merge.cu DEFINES ELEMENT_FP32 MERGE_PARTS=FEW_MERGE_PARTS)
cuda_object(NAME merge_most SOURCE device/merge.cu DEFINES ELEMENT_FP32 MERGE_PARTS=MOST_MERGE_PARTS)
foreach(columns 64 128 256)
  math(EXPR lanes "${columns} / 8")
  cuda_object(NAME quantise_rows_${columns}_plain SOURCE device/quantise_rows.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32 LANES=${lanes} PLAIN=1)
  cuda_object(NAME quantise_rows_${columns}_general SOURCE device/quantise_rows.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32 LANES=${lanes} PLAIN=0)
  cuda_object(NAME quantise_block_${columns} SOURCE device/quantise_block.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32 COLUMNS=${columns})
endforeach()
cuda_object(NAME quantise_scales SOURCE device/quantise_scales.cu DEFINES ELEMENT_FP32)
cuda_object(NAME quantise_mean SOURCE device/quantise_mean.cu DEFINES ELEMENT_FP32)
cuda_object(NAME append_copies SOURCE device/append.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32 VARIANT=APPEND_COPIES CTAS=9)
cuda_object(NAME append_floats SOURCE device/append.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32 VARIANT=APPEND_FLOATS CTAS=7)
cuda_object(NAME append_all SOURCE device/append.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32 VARIANT=APPEND_ALL CTAS=6)
cuda_object(NAME visible_units SOURCE device/visible.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32)
cuda_object(NAME visible_function_units SOURCE device/visible_function.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32)
cuda_object(NAME array_gradients SOURCE device/array_gradients.cu DEFINES ELEMENT_FP32)
cuda_object(NAME delta SOURCE device/delta.cu CODE ${STROBE_CUDA_CODE_ATOMICS} DEFINES ELEMENT_FP32 FEATURES=1)

# ---- the host's part, and all of it in one object

add_library(strobe_cuda_host OBJECT cuda/table.c
  cuda/host/append.c cuda/host/array_gradients.c cuda/host/compiled.c cuda/host/dbias.c cuda/host/device.c cuda/host/disk_cache.c cuda/host/launch.c cuda/host/merge.c cuda/host/nvrtc.c cuda/host/quantise.c cuda/host/tensor_map.c cuda/host/visible.c
  cuda/host/visible_function.c
  cuda/sm80/backward_host.c cuda/sm80/decode_host.c cuda/sm80/forward_host.c
  cuda/sm90/backward/host.c cuda/sm90/band.c cuda/sm90/feature_class.c cuda/sm90/forward/host.c
  cuda/sm90/forward/pages.c)
if(STROBE_TRACE)
  target_compile_definitions(strobe_cuda_host PRIVATE STROBE_TRACE)
endif()
target_include_directories(strobe_cuda_host PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/cuda)
target_include_directories(strobe_cuda_host SYSTEM PRIVATE ${STROBE_CUDA_INCLUDE})
# The kernels' own text, for NVRTC.
file(GLOB_RECURSE embedded CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/math/*.h ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.h
  ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cu ${PROJECT_SOURCE_DIR}/include/strobe/strobe_trace.h)
set(strobe_cuda_sources ${CMAKE_CURRENT_BINARY_DIR}/cuda/sources.o)
add_custom_command(OUTPUT ${strobe_cuda_sources}
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_CURRENT_SOURCE_DIR} -DOUTPUT=sources.txt -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/embed.cmake
  COMMAND ${STROBE_LD} -r -b binary -z noexecstack -o ${strobe_cuda_sources} sources.txt
  COMMAND ${CMAKE_OBJCOPY} --redefine-sym _binary_sources_txt_start=strobe__cuda_sources
    --redefine-sym _binary_sources_txt_end=strobe__cuda_sources_end --rename-section .data=.rodata,alloc,load,readonly,data,contents ${strobe_cuda_sources}
  WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda DEPENDS ${embedded} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/embed.cmake VERBATIM
  COMMENT "CUDA sources")
set(strobe_cuda_object ${CMAKE_CURRENT_BINARY_DIR}/cuda/strobe_cuda.o)
add_custom_command(OUTPUT ${strobe_cuda_object}
  COMMAND ${STROBE_LD} -r -o ${strobe_cuda_object}.tmp $<TARGET_OBJECTS:strobe_cuda_host> ${cuda_objects} ${strobe_cuda_sources} ${STROBE_CUDART}
  COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=strobe__* ${strobe_cuda_object}.tmp ${strobe_cuda_object}
  COMMAND ${CMAKE_COMMAND} -E rm ${strobe_cuda_object}.tmp
  DEPENDS strobe_cuda_host $<TARGET_OBJECTS:strobe_cuda_host> ${cuda_objects} ${strobe_cuda_sources} COMMAND_EXPAND_LISTS VERBATIM
  COMMENT "CUDA object")
add_custom_target(strobe_cuda_combined DEPENDS ${strobe_cuda_object})
foreach(library strobe strobe_static)
  target_sources(${library} PRIVATE ${strobe_cuda_object})
  add_dependencies(${library} strobe_cuda_combined)
endforeach()
set_source_files_properties(${strobe_cuda_object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
list(JOIN STROBE_CUDA_ARCHITECTURES " sm_" cuda_text)
target_compile_definitions(strobe_objects PRIVATE STROBE_CUDA_BUILD="sm_${cuda_text}, PTX of 8.0")
