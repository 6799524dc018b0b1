# cmake --install: the library, its headers, the program, and what find_package(demi) reads.
include(CMakePackageConfigHelpers)
set(_demi_package ${CMAKE_INSTALL_LIBDIR}/cmake/demi)

install(TARGETS demi EXPORT demi
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET demi_program)
  install(TARGETS demi_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/demi/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/demi
        FILES_MATCHING PATTERN "*.h" PATTERN "*_test.h" EXCLUDE PATTERN "*testing.h" EXCLUDE
        PATTERN "testing" EXCLUDE PATTERN "real_data" EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT demi NAMESPACE demi:: FILE demiTargets.cmake DESTINATION ${_demi_package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/demiConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/demiConfig.cmake INSTALL_DESTINATION ${_demi_package})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/demiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/demiConfig.cmake ${PROJECT_BINARY_DIR}/demiConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/LibTorch.cmake DESTINATION ${_demi_package})
