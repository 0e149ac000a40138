# SPDX-License-Identifier: BSD-3-Clause
# embed.cmake: the kernels' own text as one file, which is linked into the library and handed to NVRTC when a user's function of
# a score is compiled (host/nvrtc.c). For each file a line "@ <bytes> <name as it is included>", then its bytes.
#
#   cmake -DROOT=src -DOUTPUT=file -P embed.cmake
file(GLOB_RECURSE names RELATIVE ${ROOT} ${ROOT}/math/*.h ${ROOT}/cuda/device/*.h ${ROOT}/cuda/ptx/*.h ${ROOT}/cuda/sm80/*.h
  ${ROOT}/cuda/sm80/*.cu ${ROOT}/cuda/sm90/*.h ${ROOT}/cuda/sm90/*.cu)
list(SORT names)
list(APPEND names ../include/strobe/strobe_trace.h)
file(WRITE ${OUTPUT} "")
foreach(name IN LISTS names)
  file(SIZE ${ROOT}/${name} bytes)
  string(REPLACE "../include/" "" title ${name})
  file(APPEND ${OUTPUT} "@ ${bytes} ${title}\n")
  file(READ ${ROOT}/${name} text)
  file(APPEND ${OUTPUT} "${text}")
endforeach()
