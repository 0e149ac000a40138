# SPDX-License-Identifier: BSD-3-Clause
# What `cmake --install` copies: header, both libraries, the command, the licence, and what find_package(strobe) and pkg-config
# read. The installed tree can be moved as a whole. Included by the top CMakeLists.txt; tests/install tries each way in.
include(CMakePackageConfigHelpers)
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/strobe)
set(pkgconfig_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY include/strobe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS strobe strobe_static EXPORT strobeTargets)
if(STROBE_DIST)
  set_target_properties(strobe_dist PROPERTIES INSTALL_RPATH $ORIGIN) # libstrobe lies beside it
  install(TARGETS strobe_dist strobe_dist_static EXPORT strobeTargets)
  if(TARGET strobe_dist_mpi)
    set_target_properties(strobe_dist_mpi PROPERTIES INSTALL_RPATH $ORIGIN)
    install(TARGETS strobe_dist_mpi EXPORT strobeTargets)
  endif()
  if(TARGET strobe_dist_nccl)
    install(TARGETS strobe_dist_nccl EXPORT strobeTargets)
  endif()
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET strobe_command)
  # The command finds the library beside it, wherever the prefix is moved to.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(strobe_command PROPERTIES INSTALL_RPATH $ORIGIN/${bin_to_lib})
  install(TARGETS strobe_command)
endif()

install(EXPORT strobeTargets NAMESPACE strobe:: DESTINATION ${cmake_folder})
configure_package_config_file(cmake/strobeConfig.cmake.in strobeConfig.cmake INSTALL_DESTINATION ${cmake_folder}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# As the SONAME: structures grow at their end only, so that a newer library serves an older program.
write_basic_package_version_file(strobeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/strobeConfig.cmake ${PROJECT_BINARY_DIR}/strobeConfigVersion.cmake
  DESTINATION ${cmake_folder})

# strobe.pc finds its prefix from its own place; what only a static link needs stands in Libs.private.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_PREFIX}/${pkgconfig_folder} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix ${pc_to_prefix})
list(TRANSFORM STROBE_PRIVATE_LIBRARIES PREPEND -l OUTPUT_VARIABLE pc_private)
list(JOIN pc_private " " pc_private)
configure_file(cmake/strobe.pc.in strobe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/strobe.pc DESTINATION ${pkgconfig_folder})
if(STROBE_DIST)
  configure_file(cmake/strobe_dist.pc.in strobe_dist.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/strobe_dist.pc DESTINATION ${pkgconfig_folder})
endif()
