# SPDX-License-Identifier: BSD-3-Clause
# image.cmake: what an object with kernels for the emulated GPU has in place of an image: a word by which cuLibraryLoadData knows
# that the kernels are functions of the program, and in the file NAMES their names, a line each.
#
#   cmake -DNM=nm -DOBJECT=file.o -DNAMES=file -DOUTPUT=file -P image.cmake
execute_process(COMMAND ${NM} --defined-only ${OBJECT} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " T strobe__[a-z0-9_]+" names "${symbols}")
list(TRANSFORM names REPLACE " T " "")
list(JOIN names "\n" names)
file(WRITE ${NAMES} "${names}\n")
file(WRITE ${OUTPUT} "emulated")
