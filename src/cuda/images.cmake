# SPDX-License-Identifier: BSD-3-Clause
# Kernels as data: nvcc makes PTX of each text, and machine code of the PTX; no host compiler sees a kernel, and nothing happens
# to it when the library is loaded (host/image.h). Kernels that are nearly the same code lie in one image, which is then hardly
# larger, compressed, than one of them: those that differ in bf16 and fp16 alone, and of the Hopper kernels of a text and a head
# dim the plain ones and the others. Kernels with PTX go no further: a driver that has to compile it compiles the whole image.
#
#   image_add(NAME IMAGE SOURCE DEFINES CODE)   a text compiled to PTX, for an image
#   image_objects(VARIABLE)                     all images and the handles of their kernels, as objects to be linked
#
# Properties of the build: cuda_images, the images; cuda_code_<image>, for which GPUs; cuda_ptx_<image>_<front>, its texts, of
# which <front> is the architecture that nvcc compiled them for.

# The image that a kernel shares with that of the other type.
function(image_of_pair result name)
  string(REGEX MATCHALL "_(bf16|fp16)" types ${name})
  list(LENGTH types count)
  if(count EQUAL 1)
    string(REGEX REPLACE "_(bf16|fp16)" "" name ${name})
  endif()
  set(${result} ${name} PARENT_SCOPE)
endfunction()

# code: -gencode=arch=<front>,code=<targets>, one or more.
function(image_add name image source defines code)
  if(STROBE_CUDA_FLAGS) # for a developer the texts may have line numbers, which cannot be joined
    set(image ${name})
  endif()
  foreach(pass IN LISTS code)
    string(REGEX MATCH "arch=([a-z0-9_]+)" found ${pass})
    set(front ${CMAKE_MATCH_1})
    set(output ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.${front}.ptx)
    add_custom_command(OUTPUT ${output} COMMAND ${STROBE_NVCC} ${nvcc_options} -arch=${front} -DKERNEL=strobe__${name}
      ${defines} -MD -MF ${output}.d -ptx ${source} -o ${output}
      DEPENDS ${source} DEPFILE ${output}.d COMMENT "CUDA ${name}, ${front}" VERBATIM)
    set_property(GLOBAL APPEND PROPERTY cuda_ptx_${image}_${front} ${output})
  endforeach()
  set_property(GLOBAL PROPERTY cuda_code_${image} ${code})
  set_property(GLOBAL APPEND PROPERTY cuda_images ${image})
endfunction()

# The texts of an image joined, assembled for each GPU, and packed.
function(image_file image file)
  get_property(code GLOBAL PROPERTY cuda_code_${image})
  set(commands)
  set(texts)
  set(parts)
  foreach(pass IN LISTS code)
    string(REGEX MATCH "arch=([a-z0-9_]+),code=\\[?([a-z0-9_,]+)" found ${pass})
    set(joined ${file}.${CMAKE_MATCH_1}.ptx)
    get_property(ptx GLOBAL PROPERTY cuda_ptx_${image}_${CMAKE_MATCH_1})
    string(REPLACE "," ";" targets ${CMAKE_MATCH_2})
    list(APPEND texts ${ptx})
    list(APPEND commands COMMAND ${CMAKE_COMMAND} -DNAMES=${file}.names -DOUTPUT=${joined}
      -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/join_ptx.cmake ${ptx})
    foreach(target IN LISTS targets)
      string(REGEX MATCH "(compute|sm)_([0-9a-z]+)" found ${target})
      if(CMAKE_MATCH_1 STREQUAL compute)
        list(APPEND parts --image3=kind=ptx,sm=${CMAKE_MATCH_2},file=${joined})
      else()
        list(APPEND parts --image3=kind=elf,sm=${CMAKE_MATCH_2},file=${file}.${target}.cubin)
        list(APPEND commands COMMAND ${STROBE_NVCC} ${ptxas_options} -arch=${target} -cubin ${joined} -o ${file}.${target}.cubin)
      endif()
    endforeach()
  endforeach()
  add_custom_command(OUTPUT ${file} BYPRODUCTS ${file}.names ${commands}
    COMMAND ${STROBE_FATBINARY} --create=${file} -64 --compress-mode=size ${parts} # a third of the default's size
    DEPENDS ${texts} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/join_ptx.cmake COMMENT "CUDA image ${image}" VERBATIM)
endfunction()

# One of the emulated GPU: a word. Its kernels are functions of an object.
function(image_emulated name source defines)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
  emulated_command(command ${object} cuda/${source} ${name} ${defines})
  add_custom_command(OUTPUT ${object} COMMAND ${command}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/${source} DEPFILE ${object}.d COMMENT "CUDA ${name}" VERBATIM)
  add_custom_command(OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.image BYPRODUCTS ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.image.names
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DOBJECT=${object} -DOUTPUT=${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.image
    -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/image.cmake
    DEPENDS ${object} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/image.cmake VERBATIM)
  set_property(GLOBAL APPEND PROPERTY cuda_emulated_objects ${object})
  set_property(GLOBAL APPEND PROPERTY cuda_images ${name})
endfunction()

function(image_objects result)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  get_property(images GLOBAL PROPERTY cuda_images)
  get_property(objects GLOBAL PROPERTY cuda_emulated_objects)
  list(REMOVE_DUPLICATES images)
  set(files)
  foreach(image IN LISTS images)
    list(APPEND files ${folder}/${image}.image)
    if(NOT STROBE_CUDA_EMULATED)
      image_file(${image} ${folder}/${image}.image)
    endif()
  endforeach()
  list(JOIN files "\n" lines)
  file(CONFIGURE OUTPUT cuda/images.txt CONTENT "${lines}\n" @ONLY)
  add_custom_command(OUTPUT ${folder}/images.c ${folder}/images.o
    COMMAND ${CMAKE_COMMAND} -DIMAGES=images.txt -DBYTES=images.s -DHANDLES=images.c
    -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/image_handles.cmake
    COMMAND ${CMAKE_C_COMPILER} -c images.s -o images.o
    WORKING_DIRECTORY ${folder} DEPENDS ${files} ${folder}/images.txt ${CMAKE_CURRENT_SOURCE_DIR}/cuda/image_handles.cmake
    VERBATIM COMMENT "CUDA images")
  add_library(strobe_cuda_handles OBJECT ${folder}/images.c)
  set(${result} ${folder}/images.o $<TARGET_OBJECTS:strobe_cuda_handles> ${objects} PARENT_SCOPE)
endfunction()
