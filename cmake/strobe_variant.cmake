# SPDX-License-Identifier: BSD-3-Clause
# strobe_variant: compiles one source once more, with definitions and options of its own, into the library. One algorithm
# text thus serves every instruction set and every arithmetic without a copy.
#
#   strobe_variant(NAME cpu_forward_avx2 SOURCE cpu/vector/forward.c DEFINES STROBE_LEVEL_avx2 OPTIONS -mavx2 -mfma -mf16c)
#
# The object library is called strobe_<NAME>, lest it meet a parent project's; OPTIONS come last on the command line, so that they win.
function(strobe_variant)
  cmake_parse_arguments(PARSE_ARGV 0 variant "" "NAME;SOURCE" "DEFINES;OPTIONS")
  set(objects strobe_${variant_NAME})
  add_library(${objects} OBJECT ${variant_SOURCE})
  target_compile_definitions(${objects} PRIVATE ${variant_DEFINES})
  target_compile_options(${objects} PRIVATE ${variant_OPTIONS})
  target_sources(strobe PRIVATE $<TARGET_OBJECTS:${objects}>)
  target_sources(strobe_static PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()
