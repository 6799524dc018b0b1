# cmake --install: the libraries, their public headers, the program, and what find_package(demi [COMPONENTS lab]) reads.
include(CMakePackageConfigHelpers)
set(_demi_package ${CMAKE_INSTALL_LIBDIR}/cmake/demi)

install(TARGETS demi EXPORT demi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} FILE_SET HEADERS)
if(TARGET demi_lab)
  # In a folder of its own, which its users get with the target: /usr/include/lab would be too common a name.
  install(TARGETS demi_lab EXPORT demi_lab LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/demi_lab)
endif()
if(TARGET demi_program)
  install(TARGETS demi_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# cmake -DDEMI_INSTALL_LIBTORCH=... -P cmake_install.cmake says it once more.
install(CODE "
  if(NOT DEFINED DEMI_INSTALL_LIBTORCH)
    set(DEMI_INSTALL_LIBTORCH \"${DEMI_INSTALL_LIBTORCH}\")
  endif()
  set(_demi_torch \"${DEMI_LIBTORCH_DIR}\")
  set(_demi_torch_version \"${DEMI_LIBTORCH_FOUND_VERSION}\")
  set(_demi_built \"$<TARGET_FILE:demi>\")
  set(_demi_torch_to \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/demi\")")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/InstallLibTorch.cmake)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT demi NAMESPACE demi:: FILE demiTargets.cmake DESTINATION ${_demi_package})
if(TARGET demi_lab)
  install(EXPORT demi_lab NAMESPACE demi:: FILE demiLabTargets.cmake DESTINATION ${_demi_package})
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/demiConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/demiConfig.cmake INSTALL_DESTINATION ${_demi_package})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/demiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/demiConfig.cmake ${PROJECT_BINARY_DIR}/demiConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/LibTorch.cmake DESTINATION ${_demi_package})
