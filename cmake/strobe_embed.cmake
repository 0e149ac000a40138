# SPDX-License-Identifier: BSD-3-Clause
# cmake -DINPUT=file -DOUTPUT=header -DNAME=name -P strobe_embed.cmake: the bytes of a file as a C array.
file(READ "${INPUT}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE "${OUTPUT}" "/* made from a file by strobe_embed.cmake */\n_Alignas(64) static const unsigned char ${NAME}[] = {\n${bytes}};\n")
