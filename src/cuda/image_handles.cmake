# SPDX-License-Identifier: BSD-3-Clause
# image_handles.cmake: of all images the bytes, as text for the assembler, and a handle for each kernel in them, as C; see
# host/image.h. IMAGES is a file with a line for each image: its file, beside which <file>.names has its kernels, a line each, and
# the name of the image after which it is packed, if there is one.
#
#   cmake -DIMAGES=file -DBYTES=file.s -DHANDLES=file.c -P image_handles.cmake
set(bytes "    .section .note.GNU-stack,\"\",%progbits\n    .section .rodata.strobe_images,\"a\",%progbits\n")
set(handles "/* made by image_handles.cmake */\n#include \"cuda/host/image.h\"\n")
file(STRINGS ${IMAGES} images)
foreach(line IN LISTS images)
  string(REGEX MATCH "^(.*) ([a-z0-9_]*)$" found "${line}")
  set(image ${CMAKE_MATCH_1})
  set(base)
  if(CMAKE_MATCH_2)
    set(base ", .base = &${CMAKE_MATCH_2}")
  endif()
  get_filename_component(title ${image} NAME_WLE)
  file(SIZE ${image} size)
  string(APPEND bytes "    .globl strobe__image_${title}\n    .hidden strobe__image_${title}\nstrobe__image_${title}:\n    .incbin \"${image}\"\n")
  string(APPEND handles "\nextern const unsigned char strobe__image_${title}[];\n"
    "static struct cuda_image ${title} = {.packed = {strobe__image_${title}, ${size}}${base}};\n")
  file(STRINGS ${image}.names kernels)
  foreach(kernel IN LISTS kernels)
    string(REGEX REPLACE "^strobe__" "strobe__kernel_" handle ${kernel})
    string(APPEND handles "struct cuda_kernel ${handle} = {.name = \"${kernel}\", .image = &${title}};\n")
  endforeach()
endforeach()
file(WRITE ${HANDLES} "${handles}")
file(WRITE ${BYTES} "${bytes}")
