# SPDX-License-Identifier: BSD-3-Clause
# image_handles.cmake: of all images the bytes, as text for the assembler, and a handle for each kernel in them, as C; see
# host/image.h. IMAGES is a file with a line for each image: its file, beside which <file>.names has its kernels, a line each.
#
#   cmake -DIMAGES=file -DBYTES=file.s -DHANDLES=file.c -P image_handles.cmake
set(bytes "    .section .note.GNU-stack,\"\",%progbits\n    .section .nv_fatbin,\"a\",%progbits\n") # where cuobjdump looks
set(handles "/* made by image_handles.cmake */\n#include \"cuda/host/image.h\"\n")
file(STRINGS ${IMAGES} images)
foreach(image IN LISTS images)
  get_filename_component(title ${image} NAME_WLE)
  string(APPEND bytes "    .balign 64\n    .globl strobe__image_${title}\n    .hidden strobe__image_${title}\nstrobe__image_${title}:\n    .incbin \"${image}\"\n")
  string(APPEND handles "\nextern const unsigned char strobe__image_${title}[];\n"
    "static struct cuda_image ${title} = {.code = strobe__image_${title}};\n")
  file(STRINGS ${image}.names kernels)
  foreach(kernel IN LISTS kernels)
    string(REGEX REPLACE "^strobe__" "strobe__kernel_" handle ${kernel})
    string(APPEND handles "struct cuda_kernel ${handle} = {.name = \"${kernel}\", .image = &${title}};\n")
  endforeach()
endforeach()
file(WRITE ${HANDLES} "${handles}")
file(WRITE ${BYTES} "${bytes}")
