# SPDX-License-Identifier: BSD-3-Clause
# strobe_test: one test for ctest.
#
#   strobe_test(NAME "bad arguments are refused with a sentence" SOURCES unit/test_refusals.c)
#   strobe_test(NAME "clang builds and passes" LABEL full CORES 2 NEEDS clang ninja COMMAND builds/run.sh clang)
#
# NAME     words that say what holds when it passes
# LABEL    its tier, default quick: see tests/CMakeLists.txt
# SOURCES  a cmocka program, called after its first source; it may include headers of src/
# LIBRARY  what it links, default strobe_static, where internal functions are reachable
# COMMAND  or any command; exit code 77 means skipped
# NEEDS    programs without which the command is skipped
# UNIX     it needs what Windows lacks, and is left out there, as is every command but the project's own programs
# CORES    how many cores it keeps busy, default 1
function(strobe_test)
  cmake_parse_arguments(PARSE_ARGV 0 test "UNIX" "NAME;LABEL;CORES;LIBRARY" "SOURCES;LINK_OPTIONS;COMMAND;NEEDS;PROPERTIES")
  list(GET test_COMMAND 0 word)
  if(WIN32 AND (test_UNIX OR (NOT test_SOURCES AND NOT TARGET "${word}")))
    return()
  endif()
  if(test_SOURCES)
    list(GET test_SOURCES 0 first)
    get_filename_component(program ${first} NAME_WE)
    add_executable(${program} ${test_SOURCES})
    target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_options(${program} PRIVATE ${test_LINK_OPTIONS})
    if(NOT test_LIBRARY)
      set(test_LIBRARY strobe_static)
    endif()
    target_link_libraries(${program} PRIVATE ${test_LIBRARY} ${STROBE_CMOCKA} Threads::Threads m)
    set(test_COMMAND ${program})
  endif()
  if(test_NEEDS)
    list(PREPEND test_COMMAND ${PROJECT_SOURCE_DIR}/tests/needs.sh ${test_NEEDS} --)
  endif()
  if(NOT test_LABEL)
    set(test_LABEL quick)
  endif()
  if(NOT test_CORES)
    set(test_CORES 1)
  endif()
  add_test(NAME ${test_NAME} COMMAND ${test_COMMAND})
  set_tests_properties(${test_NAME} PROPERTIES
    LABELS ${test_LABEL} PROCESSORS ${test_CORES} SKIP_RETURN_CODE 77 TIMEOUT 1800
    ENVIRONMENT OMP_WAIT_POLICY=passive # threads that wait must not take the cores of the test beside
    ${test_PROPERTIES})
endfunction()
