# SPDX-License-Identifier: BSD-3-Clause
# Kernels as data: nvcc makes PTX of each text, and machine code of the PTX; no host compiler sees a kernel, and nothing happens
# to it when the library is loaded (host/image.h). Kernels that differ in bf16 and fp16 alone lie in one image, which is packed by
# packed/pack.c. Images that are nearly the same code are a family: the first is packed by itself, each other one as what follows
# it. What differs in more than a number, a type or a bound packs better alone (docs/kernels/cuda.md, "Families again").
#
#   image_add(NAME IMAGE FAMILY SOURCE DEFINES CODE)   a text compiled to PTX, for an image of a family
#   image_objects(VARIABLE)                            all images and the handles of their kernels, as objects to be linked
#
# Properties of the build: cuda_families; cuda_family_<family>, its images; cuda_code_<image>, for which GPUs;
# cuda_ptx_<image>_<front>, its texts, of which <front> is the architecture that nvcc compiled them for.

add_executable(strobe_pack cuda/packed/bytes.c cuda/packed/pack.c cuda/packed/stream.c cuda/packed/text.c cuda/host/unpack.c)
target_include_directories(strobe_pack PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(strobe_pack PRIVATE -O2) # in a debug build too
target_link_libraries(strobe_pack PRIVATE m)

# The image that a kernel shares with that of the other type.
function(image_of_pair result name)
  string(REGEX MATCHALL "_(bf16|fp16)" types ${name})
  list(LENGTH types count)
  if(count EQUAL 1)
    string(REGEX REPLACE "_(bf16|fp16)" "" name ${name})
  endif()
  set(${result} ${name} PARENT_SCOPE)
endfunction()

function(image_of_family image family)
  get_property(images GLOBAL PROPERTY cuda_family_${family})
  get_property(families GLOBAL PROPERTY cuda_families)
  if(NOT family IN_LIST families)
    set_property(GLOBAL APPEND PROPERTY cuda_families ${family})
  endif()
  if(NOT image IN_LIST images)
    set_property(GLOBAL APPEND PROPERTY cuda_family_${family} ${image})
  endif()
endfunction()

# code: -gencode=arch=<front>,code=<targets>, one or more.
function(image_add name image family source defines code)
  if(STROBE_CUDA_FLAGS) # for a developer the texts may have line numbers, which cannot be joined
    set(image ${name})
  endif()
  image_of_family(${image} ${family})
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
endfunction()

# The texts of an image joined, and assembled for each GPU. Sets `codes`, what there is to pack, and `code_files`.
function(image_codes image file)
  get_property(code GLOBAL PROPERTY cuda_code_${image})
  set(codes)
  set(code_files)
  set(names ${file}.names) # the same from every front
  foreach(pass IN LISTS code)
    string(REGEX MATCH "arch=([a-z0-9_]+),code=\\[?([a-z0-9_,]+)" found ${pass})
    set(joined ${file}.${CMAKE_MATCH_1}.ptx)
    get_property(ptx GLOBAL PROPERTY cuda_ptx_${image}_${CMAKE_MATCH_1})
    string(REPLACE "," ";" targets ${CMAKE_MATCH_2})
    add_custom_command(OUTPUT ${joined} BYPRODUCTS ${names} COMMAND ${CMAKE_COMMAND} -DNAMES=${names} -DOUTPUT=${joined}
      -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/join_ptx.cmake ${ptx}
      DEPENDS ${ptx} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/join_ptx.cmake VERBATIM)
    set(names ${joined}.names)
    foreach(target IN LISTS targets)
      string(REGEX MATCH "(compute|sm)_([0-9]+)" found ${target})
      if(CMAKE_MATCH_1 STREQUAL compute)
        list(APPEND codes ptx${CMAKE_MATCH_2}=${joined})
        list(APPEND code_files ${joined})
      else()
        list(APPEND codes ${CMAKE_MATCH_2}=${file}.${target}.cubin)
        list(APPEND code_files ${file}.${target}.cubin)
        add_custom_command(OUTPUT ${file}.${target}.cubin COMMAND ${STROBE_NVCC} ${ptxas_options} -arch=${target} -cubin ${joined}
          -o ${file}.${target}.cubin DEPENDS ${joined} COMMENT "CUDA image ${image}, ${target}" VERBATIM)
      endif()
    endforeach()
  endforeach()
  set(codes ${codes} PARENT_SCOPE)
  set(code_files ${code_files} PARENT_SCOPE)
endfunction()

# One of the emulated GPU: a word. Its kernels are functions of an object.
function(image_emulated name source defines)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
  emulated_command(command ${object} cuda/${source} ${name} ${defines})
  add_custom_command(OUTPUT ${object} COMMAND ${command}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/${source} DEPFILE ${object}.d COMMENT "CUDA ${name}" VERBATIM)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.image)
  add_custom_command(OUTPUT ${file}.word BYPRODUCTS ${file}.names
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DOBJECT=${object} -DNAMES=${file}.names -DOUTPUT=${file}.word
    -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/image.cmake
    DEPENDS ${object} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated/image.cmake VERBATIM)
  set_property(GLOBAL APPEND PROPERTY cuda_emulated_objects ${object})
  image_of_family(${name} ${name})
endfunction()

function(image_objects result)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  get_property(families GLOBAL PROPERTY cuda_families)
  get_property(objects GLOBAL PROPERTY cuda_emulated_objects)
  set(files)
  set(lines)
  foreach(family IN LISTS families)
    get_property(images GLOBAL PROPERTY cuda_family_${family})
    if(${family}_plain IN_LIST images) # first what is called most
      list(REMOVE_ITEM images ${family}_plain)
      list(PREPEND images ${family}_plain)
    endif()
    set(arguments)
    set(parts)
    set(outputs)
    set(base)
    foreach(image IN LISTS images)
      set(file ${folder}/${image}.image)
      if(STROBE_CUDA_EMULATED)
        set(codes ptx80=${file}.word)
        set(code_files ${file}.word)
      else()
        image_codes(${image} ${file})
      endif()
      if(arguments)
        list(APPEND arguments --)
      endif()
      list(APPEND arguments ${file} ${codes})
      list(APPEND parts ${code_files})
      list(APPEND outputs ${file})
      string(APPEND lines "${file} ${base}\n")
      if(NOT base)
        set(base ${image})
      endif()
    endforeach()
    add_custom_command(OUTPUT ${outputs} COMMAND strobe_pack ${arguments} DEPENDS ${parts} strobe_pack
      COMMENT "CUDA images ${family}" VERBATIM)
    list(APPEND files ${outputs})
  endforeach()
  file(CONFIGURE OUTPUT cuda/images.txt CONTENT "${lines}" @ONLY)
  add_custom_command(OUTPUT ${folder}/images.c ${folder}/images.o
    COMMAND ${CMAKE_COMMAND} -DIMAGES=images.txt -DBYTES=images.s -DHANDLES=images.c
    -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/image_handles.cmake
    COMMAND ${CMAKE_C_COMPILER} -c images.s -o images.o
    WORKING_DIRECTORY ${folder} DEPENDS ${files} ${folder}/images.txt ${CMAKE_CURRENT_SOURCE_DIR}/cuda/image_handles.cmake
    VERBATIM COMMENT "CUDA images")
  add_library(strobe_cuda_handles OBJECT ${folder}/images.c)
  target_include_directories(strobe_cuda_handles SYSTEM PRIVATE ${STROBE_CUDA_INCLUDE})
  set(${result} ${folder}/images.o $<TARGET_OBJECTS:strobe_cuda_handles> ${objects} PARENT_SCOPE)
endfunction()
