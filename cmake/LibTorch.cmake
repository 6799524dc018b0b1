# Finds LibTorch and offers it as the imported target demi::libtorch (CPU part; CUDA is loaded at run time).
#
# Looked for, in this order: -DDEMI_LIBTORCH=DIR, the environment's DEMI_LIBTORCH, for an installed demi the one it was built
# with, a folder of CMAKE_PREFIX_PATH that holds TorchConfig.cmake, the folder that scripts/setup.sh fills. DIR is the folder
# that holds include/ and lib/. What is wrong, if anything, is left in DEMI_LIBTORCH_PROBLEM.
# find_package(Torch) itself is not called: it wants a CUDA toolkit for a CUDA build of LibTorch and fails with nvcc 13 on
# CMake 3.25, while a program that links torch_cpu alone needs neither.
set(DEMI_LIBTORCH_VERSION "2.15.0" CACHE STRING "The LibTorch that is looked for where setup.sh puts it")
set(DEMI_LIBTORCH "$ENV{DEMI_LIBTORCH}" CACHE PATH "A LibTorch of yours: the folder with include/ and lib/")
set(DEMI_LIBTORCH_PROBLEM "")

set(_demi_torch "${DEMI_LIBTORCH}")
if(NOT _demi_torch AND EXISTS "${_demi_built_with_dir}/lib/libtorch_cpu.so")
  set(_demi_torch "${_demi_built_with_dir}")
endif()
if(NOT _demi_torch)
  find_path(_demi_torch_cmake TorchConfig.cmake PATH_SUFFIXES share/cmake/Torch NO_CACHE
            HINTS ${Torch_DIR} NO_CMAKE_SYSTEM_PATH)
  if(_demi_torch_cmake)
    get_filename_component(_demi_torch "${_demi_torch_cmake}/../../.." ABSOLUTE)
  endif()
endif()
if(NOT _demi_torch)
  if(DEFINED ENV{DEMI_CACHE})
    set(_demi_cache "$ENV{DEMI_CACHE}")
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(_demi_cache "$ENV{XDG_CACHE_HOME}/demi")
  else()
    set(_demi_cache "$ENV{HOME}/.cache/demi")
  endif()
  set(_demi_torch "${_demi_cache}/libtorch-${DEMI_LIBTORCH_VERSION}/torch")
endif()
if(EXISTS "${_demi_torch}/torch/lib/libtorch_cpu.so")
  set(_demi_torch "${_demi_torch}/torch")
endif()
set(DEMI_LIBTORCH_DIR "${_demi_torch}")

set(DEMI_LIBTORCH_FOUND_VERSION "")
foreach(_header headeronly csrc/api/include/torch)
  if(NOT DEMI_LIBTORCH_FOUND_VERSION AND EXISTS "${_demi_torch}/include/torch/${_header}/version.h")
    file(STRINGS "${_demi_torch}/include/torch/${_header}/version.h" _demi_torch_lines
         REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" _demi_torch_numbers "${_demi_torch_lines}")
    string(REPLACE ";" "." DEMI_LIBTORCH_FOUND_VERSION "${_demi_torch_numbers}")
  endif()
endforeach()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _demi_torch_series "${DEMI_LIBTORCH_FOUND_VERSION}")

if(NOT EXISTS "${_demi_torch}/lib/libtorch_cpu.so")
  set(DEMI_LIBTORCH_PROBLEM "No LibTorch at ${_demi_torch} (lib/libtorch_cpu.so is missing).\n\
Run scripts/setup.sh, which fetches LibTorch ${DEMI_LIBTORCH_VERSION} (1.3 GB), or name yours: \
-DDEMI_LIBTORCH=/path/to/libtorch (2.11 or newer).")
elseif(NOT _demi_torch_series)
  set(DEMI_LIBTORCH_PROBLEM "LibTorch at ${_demi_torch} has no readable include/torch/headeronly/version.h.")
elseif(DEMI_LIBTORCH_FOUND_VERSION VERSION_LESS 2.11)
  set(DEMI_LIBTORCH_PROBLEM "LibTorch at ${_demi_torch} is ${DEMI_LIBTORCH_FOUND_VERSION}; demi needs 2.11 or newer.")
elseif(_demi_built_with AND NOT "${_demi_built_with}." MATCHES "^${_demi_torch_series}\\.")
  set(DEMI_LIBTORCH_PROBLEM "demi was built with LibTorch ${_demi_built_with}, but ${_demi_torch} is \
${DEMI_LIBTORCH_FOUND_VERSION}: its C++ interface differs. Name a ${_demi_built_with} with -DDEMI_LIBTORCH=DIR.")
endif()
if(DEMI_LIBTORCH_PROBLEM)
  return()
endif()

if(NOT TARGET demi::libtorch)
  find_package(Threads REQUIRED)
  foreach(_lib torch_cpu c10)
    add_library(demi::${_lib} SHARED IMPORTED)
    set_target_properties(demi::${_lib} PROPERTIES IMPORTED_LOCATION "${_demi_torch}/lib/lib${_lib}.so")
  endforeach()
  add_library(demi::libtorch INTERFACE IMPORTED)
  set_target_properties(demi::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${_demi_torch}/include;${_demi_torch}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
  target_link_libraries(demi::libtorch INTERFACE demi::torch_cpu demi::c10 Threads::Threads)
  # The wheel keeps the CUDA runtime in nvidia/*/lib beside torch/; torch_cpu needs two of its libraries to link.
  file(GLOB _demi_nvidia "${_demi_torch}/../nvidia/*/lib")
  foreach(_dir ${_demi_nvidia})
    target_link_options(demi::libtorch INTERFACE "LINKER:-rpath-link,${_dir}")
  endforeach()
endif()
message(STATUS "LibTorch ${DEMI_LIBTORCH_FOUND_VERSION} at ${_demi_torch}")
