# SPDX-License-Identifier: BSD-3-Clause
# join_ptx.cmake: several PTX texts as one: the head of the first, and the kernels of all. What texts declare outside of kernels
# is one thing for all of them where it is the same line: dynamic shared memory and constants. ptxas refuses whatever else has
# the same name. Beside OUTPUT a file of the kernels' names, a line each.
#
#   cmake -DNAMES=file -DOUTPUT=file -P join_ptx.cmake text...
set(joined)
set(names)
foreach(argument RANGE 5 ${CMAKE_ARGC}) # behind cmake, -D, -D, -P and the script
  if(argument EQUAL CMAKE_ARGC)
    break()
  endif()
  file(READ ${CMAKE_ARGV${argument}} ptx)
  string(REGEX MATCHALL "\\.entry [A-Za-z0-9_]+" entries "${ptx}")
  list(APPEND names ${entries})
  if(joined)
    string(FIND "${ptx}" ".address_size 64" head)
    math(EXPR head "${head} + 16")
    string(SUBSTRING "${ptx}" ${head} -1 ptx)
    string(REGEX MATCHALL "\n(\\.extern \\.shared|\\.global [^\n;=]+=|\\.const) [^\n;]*" declared "${ptx}")
    foreach(line IN LISTS declared)
      string(FIND "${joined}" "${line};" known)
      if(NOT known EQUAL -1)
        string(REPLACE "${line};" "" ptx "${ptx}")
      endif()
    endforeach()
  endif()
  string(APPEND joined "${ptx}")
endforeach()
file(WRITE ${OUTPUT} "${joined}")
list(TRANSFORM names REPLACE "\\.entry " "")
list(JOIN names "\n" names)
file(WRITE ${NAMES} "${names}\n")
