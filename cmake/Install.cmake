# cmake --install: the libraries, their public headers, the program, and what find_package(demi [COMPONENTS lab]) reads.
include(CMakePackageConfigHelpers)
set(_demi_package ${CMAKE_INSTALL_LIBDIR}/cmake/demi)

if(DEMI_RELOCATABLE)
  # A wheel holds no links: each library would be three files, and a process could load two of them.
  foreach(library demi demi_lab)
    if(TARGET ${library})
      set_property(TARGET ${library} PROPERTY VERSION)
      set_property(TARGET ${library} PROPERTY SOVERSION)
    endif()
  endforeach()
endif()
install(TARGETS demi EXPORT demi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} FILE_SET HEADERS)
if(TARGET demi_lab)
  # In a folder of its own, which its users get with the target: /usr/include/lab would be too common a name.
  install(TARGETS demi_lab EXPORT demi_lab LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/demi_lab)
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _demi_torch_minor "${DEMI_LIBTORCH_FOUND_VERSION}")
if(TARGET demi_program AND DEMI_RELOCATABLE)
  # bin/demi looks for LibTorch, and says what to do if there is none that the program can use.
  configure_file(${CMAKE_CURRENT_LIST_DIR}/start_demi.sh.in ${PROJECT_BINARY_DIR}/start_demi.sh @ONLY)
  install(TARGETS demi_program RUNTIME DESTINATION libexec)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/start_demi.sh DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME demi)
elseif(TARGET demi_program)
  install(TARGETS demi_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(DEFINED SKBUILD_PROJECT_VERSION_FULL AND NOT SKBUILD_PROJECT_VERSION_FULL STREQUAL "${PROJECT_VERSION}+torch${_demi_torch_minor}")
  message(FATAL_ERROR "pyproject.toml makes a wheel ${SKBUILD_PROJECT_VERSION_FULL}, but this is demi ${PROJECT_VERSION} and LibTorch "
                      "${DEMI_LIBTORCH_FOUND_VERSION} at ${DEMI_LIBTORCH_LIBRARY_DIR}: its version reads "
                      "${PROJECT_VERSION}+torch${_demi_torch_minor}, and its dependency torch==${_demi_torch_minor}.*")
endif()
if(DEMI_RELOCATABLE)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/libtorch_headers.txt CONTENT "${DEMI_LIBTORCH_INCLUDE_DIR}\n")  # for scripts/package.sh
  message(STATUS "LibTorch is expected beside what is installed: installing demi copies none")
elseif(DEMI_LIBTORCH_LIBRARY_DIR IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  message(STATUS "LibTorch is a package of the system's: installing demi copies none")
else()
  # cmake -DDEMI_INSTALL_LIBTORCH=... -P cmake_install.cmake says it once more.
  install(CODE "
    if(NOT DEFINED DEMI_INSTALL_LIBTORCH)
      set(DEMI_INSTALL_LIBTORCH \"${DEMI_INSTALL_LIBTORCH}\")
    endif()
    set(_demi_torch \"${DEMI_LIBTORCH_LIBRARY_DIR}\")
    set(_demi_torch_headers \"${DEMI_LIBTORCH_INCLUDE_DIR}\")
    set(_demi_torch_version \"${DEMI_LIBTORCH_FOUND_VERSION}\")
    set(_demi_built \"$<TARGET_FILE:demi>\")
    set(_demi_torch_to \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/demi\")")
  install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/InstallLibTorch.cmake)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/docs/licences.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The licences of what is compiled in, as Debian's packages have them. Other systems keep them elsewhere: licences.md names them.
foreach(_package libfmt-dev nlohmann-json3-dev libcli11-dev)
  if(EXISTS /usr/share/doc/${_package}/copyright)
    install(FILES /usr/share/doc/${_package}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/licences RENAME ${_package}.txt)
  endif()
endforeach()
# For Python: exporting a network, and checkpoints both ways. A wheel has them as modules of its package, too.
set(_demi_python ${PROJECT_SOURCE_DIR}/scripts/demi_export.py ${PROJECT_SOURCE_DIR}/scripts/demi_checkpoint.py)
install(FILES ${_demi_python} DESTINATION ${CMAKE_INSTALL_DATADIR}/demi/python)
if(DEFINED SKBUILD_PROJECT_VERSION_FULL)
  install(FILES ${PROJECT_SOURCE_DIR}/scripts/demi_export.py DESTINATION . RENAME export.py)
  install(FILES ${PROJECT_SOURCE_DIR}/scripts/demi_checkpoint.py DESTINATION . RENAME checkpoint.py)
endif()

install(EXPORT demi NAMESPACE demi:: FILE demiTargets.cmake DESTINATION ${_demi_package})
if(TARGET demi_lab)
  install(EXPORT demi_lab NAMESPACE demi:: FILE demiLabTargets.cmake DESTINATION ${_demi_package})
endif()
# Where find_package(demi) looks for LibTorch if the project names none.
set(_demi_torch_places "set(_demi_built_with_include_dir \"${DEMI_LIBTORCH_INCLUDE_DIR}\")
set(_demi_built_with_library_dir \"${DEMI_LIBTORCH_LIBRARY_DIR}\")")
if(DEMI_RELOCATABLE)
  set(_demi_torch_places "set(_demi_beside \"\${PACKAGE_PREFIX_DIR}/../torch\" \"\${PACKAGE_PREFIX_DIR}/../libtorch\")")
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/demiConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/demiConfig.cmake INSTALL_DESTINATION ${_demi_package})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/demiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/demiConfig.cmake ${PROJECT_BINARY_DIR}/demiConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/LibTorch.cmake DESTINATION ${_demi_package})

# For builds without CMake. What the compiler searches anyway is left out: -isystem would change the order of its folders.
set(_demi_pc ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH _demi_pc_prefix /${_demi_pc} /)
string(REGEX REPLACE "/$" "" _demi_pc_prefix "${_demi_pc_prefix}")
set(_demi_pc_torch_include "${DEMI_LIBTORCH_INCLUDE_DIR}")
set(_demi_pc_torch_library "${DEMI_LIBTORCH_LIBRARY_DIR}")
if(DEMI_RELOCATABLE)
  set(_demi_pc_torch_include "\${prefix}/../torch/include")
  set(_demi_pc_torch_library "\${prefix}/../torch/lib")
endif()
set(_demi_pc_includes " -isystem \${torch_includedir}/torch/csrc/api/include")
if(NOT DEMI_LIBTORCH_INCLUDE_DIR IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
  string(PREPEND _demi_pc_includes " -isystem \${torch_includedir}")
endif()
if(DEMI_RELOCATABLE)  # pkg-config cannot ask which of the two is there
  string(APPEND _demi_pc_includes " -isystem \${prefix}/../libtorch/include -isystem \${prefix}/../libtorch/include/torch/csrc/api/include")
endif()
set(_demi_pc_folders "")
if(NOT DEMI_LIBTORCH_LIBRARY_DIR IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  # The copy that cmake --install may make comes first.
  set(_demi_pc_folders " -L\${torch_libdir} -Wl,-rpath,\${libdir}/demi -Wl,-rpath,\${torch_libdir}")
endif()
if(DEMI_RELOCATABLE)
  string(APPEND _demi_pc_folders " -L\${prefix}/../libtorch/lib -Wl,-rpath,\${prefix}/../libtorch/lib")
endif()
foreach(_folder ${DEMI_LIBTORCH_NEEDED_DIRS})
  if(DEMI_RELOCATABLE)  # the same packages of NVIDIA's beside the same torch
    file(RELATIVE_PATH _folder ${DEMI_LIBTORCH_LIBRARY_DIR} ${_folder})
    set(_folder "\${torch_libdir}/${_folder}")
  endif()
  string(APPEND _demi_pc_folders " -Wl,-rpath-link,${_folder}")
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/demi.pc.in ${PROJECT_BINARY_DIR}/demi.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/demi.pc DESTINATION ${_demi_pc})
