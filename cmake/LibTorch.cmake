# Finds LibTorch and offers it as the target demi::libtorch (CPU part; CUDA is loaded at run time).
#
# Looked for, in this order:
#   1. -DDEMI_LIBTORCH=DIR, or the environment's DEMI_LIBTORCH. Two folders, "HEADERS;LIBRARIES", where an installation is split.
#   2. the target torch_cpu of a project that has called find_package(Torch)
#   3. CMAKE_PREFIX_PATH and Torch_DIR
#   4. for an installed demi the one that it was built with; for one that can be moved torch/ or libtorch/ beside its folder
#   5. the folder that scripts/setup.sh fills
#   6. the system's folders
# In each, headers in include/ and libraries in lib/ or lib/ARCHITECTURE/, or both in a folder torch/.
#
# Result: DEMI_LIBTORCH_INCLUDE_DIR, DEMI_LIBTORCH_LIBRARY_DIR, DEMI_LIBTORCH_DIR (the folder that holds include/), DEMI_LIBTORCH_TARGETS
# (LibTorch's own list of targets, or empty), DEMI_LIBTORCH_FOUND_VERSION; what is wrong, if anything, in DEMI_LIBTORCH_PROBLEM.
#
# find_package(Torch) itself is not called: it wants a CUDA toolkit for a CUDA build of LibTorch and fails with nvcc 13 on
# CMake 3.25, while a program that links torch_cpu alone needs neither. A project may call it before or after this file is read: its
# torch_cpu is linked then, and another LibTorch than ours is an error.
set(DEMI_LIBTORCH_VERSION "2.15.0" CACHE STRING "The LibTorch that is looked for where setup.sh puts it")
set(DEMI_LIBTORCH "$ENV{DEMI_LIBTORCH}" CACHE PATH "A LibTorch of yours: the folder with include/ and lib/")
set(DEMI_LIBTORCH_PROBLEM "")

# _demi_torch_below(FOLDERS...): _demi_torch_library, the path of libtorch_cpu.so, and _demi_torch_include. Without folders
# CMAKE_PREFIX_PATH is searched. SYSTEM: the system's folders, too.
macro(_demi_torch_below)
  cmake_parse_arguments(_demi "SYSTEM" "" "" ${ARGN})
  set(_demi_how NO_CMAKE_SYSTEM_PATH NO_SYSTEM_ENVIRONMENT_PATH)
  if(_demi_SYSTEM)
    set(_demi_how "")
  elseif(_demi_UNPARSED_ARGUMENTS)
    set(_demi_how PATHS ${_demi_UNPARSED_ARGUMENTS} NO_DEFAULT_PATH)
  endif()
  unset(_demi_torch_library)
  unset(_demi_torch_include)
  find_library(_demi_torch_library libtorch_cpu.so ${_demi_how} NO_CACHE
               PATH_SUFFIXES lib torch/lib lib/${CMAKE_LIBRARY_ARCHITECTURE})
  cmake_path(GET _demi_torch_library PARENT_PATH _demi_torch_beside)  # the headers of the same installation first
  find_path(_demi_torch_include ATen/ATen.h PATHS "${_demi_torch_beside}/../include" "${_demi_torch_beside}/../../include"
            NO_DEFAULT_PATH NO_CACHE)
  find_path(_demi_torch_include ATen/ATen.h ${_demi_how} NO_CACHE PATH_SUFFIXES include torch/include)
endmacro()

# _demi_torch_of_target(): the same of the target torch_cpu.
macro(_demi_torch_of_target)
  unset(_demi_torch_include)
  get_target_property(_demi_torch_library torch_cpu IMPORTED_LOCATION)
  get_target_property(_demi_configurations torch_cpu IMPORTED_CONFIGURATIONS)
  foreach(_demi_configuration ${_demi_configurations})
    if(NOT _demi_torch_library)
      get_target_property(_demi_torch_library torch_cpu IMPORTED_LOCATION_${_demi_configuration})
    endif()
  endforeach()
  get_target_property(_demi_torch_includes torch_cpu INTERFACE_INCLUDE_DIRECTORIES)
  find_path(_demi_torch_include ATen/ATen.h PATHS ${_demi_torch_includes} ${TORCH_INCLUDE_DIRS} NO_DEFAULT_PATH NO_CACHE)
endmacro()

set(_demi_looked_in "")
if(DEMI_LIBTORCH)
  set(_demi_looked_in "${DEMI_LIBTORCH}")
  _demi_torch_below(${DEMI_LIBTORCH})
elseif(TARGET torch_cpu)
  set(_demi_looked_in "the target torch_cpu")
  _demi_torch_of_target()
else()
  _demi_torch_below()
  if(Torch_DIR AND NOT _demi_torch_library)
    _demi_torch_below("${Torch_DIR}/../../.." "${Torch_DIR}/../../../..")
  endif()
  if(NOT _demi_torch_library AND EXISTS "${_demi_built_with_library_dir}/libtorch_cpu.so")
    set(_demi_torch_library "${_demi_built_with_library_dir}/libtorch_cpu.so")
    set(_demi_torch_include "${_demi_built_with_include_dir}")
  endif()
  if(NOT _demi_torch_library AND _demi_beside)
    _demi_torch_below(${_demi_beside})
  endif()
  if(NOT _demi_torch_library)
    set(_demi_looked_in "$ENV{HOME}/.cache/demi")
    if(NOT "$ENV{DEMI_CACHE}" STREQUAL "")
      set(_demi_looked_in "$ENV{DEMI_CACHE}")
      if(NOT IS_ABSOLUTE "$ENV{DEMI_CACHE}")
        message(FATAL_ERROR "DEMI_CACHE=$ENV{DEMI_CACHE} is a relative path; set it to an absolute one.")
      endif()
    elseif(IS_ABSOLUTE "$ENV{XDG_CACHE_HOME}")
      set(_demi_looked_in "$ENV{XDG_CACHE_HOME}/demi")
    endif()
    string(APPEND _demi_looked_in "/libtorch-${DEMI_LIBTORCH_VERSION}")
    _demi_torch_below("${_demi_looked_in}")
    list(JOIN _demi_beside ", " _demi_places)
    if(_demi_places)
      string(PREPEND _demi_looked_in "${_demi_places}, ")
    endif()
  endif()
  if(NOT _demi_torch_library)
    _demi_torch_below(SYSTEM)
  endif()
endif()

set(DEMI_LIBTORCH_FOUND_VERSION "")
foreach(_header headeronly csrc/api/include/torch)
  if(NOT DEMI_LIBTORCH_FOUND_VERSION AND EXISTS "${_demi_torch_include}/torch/${_header}/version.h")
    file(STRINGS "${_demi_torch_include}/torch/${_header}/version.h" _demi_torch_lines
         REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" _demi_torch_numbers "${_demi_torch_lines}")
    string(REPLACE ";" "." DEMI_LIBTORCH_FOUND_VERSION "${_demi_torch_numbers}")
  endif()
endforeach()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _demi_torch_series "${DEMI_LIBTORCH_FOUND_VERSION}")
string(REGEX REPLACE "/$" "" _demi_torch_include "${_demi_torch_include}")

# What to do, for who builds demi and for who has it installed.
set(_demi_advice "Run scripts/setup.sh, which fetches LibTorch ${DEMI_LIBTORCH_VERSION} (1.3 GB), or name yours: \
-DDEMI_LIBTORCH=/path/to/libtorch (2.11 or newer).")
if(_demi_built_with)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _demi_built_with_series "${_demi_built_with}")
  set(_demi_advice "Name a ${_demi_built_with_series} with -DDEMI_LIBTORCH=DIR: a folder with include/ and lib/, such as \
Python's, which python3 -c 'import torch; print(torch.__path__[0])' prints.")
endif()
if(NOT _demi_torch_library)
  set(DEMI_LIBTORCH_PROBLEM "No LibTorch at ${_demi_looked_in} (lib/libtorch_cpu.so is missing).\n${_demi_advice}")
elseif(NOT _demi_torch_include)
  set(DEMI_LIBTORCH_PROBLEM "No headers of LibTorch were found for ${_demi_torch_library} (include/ATen/ATen.h is missing). \
Where headers and libraries are in two folders, name both: -DDEMI_LIBTORCH=\"HEADERS;LIBRARIES\".")
elseif(NOT _demi_torch_series)
  set(DEMI_LIBTORCH_PROBLEM "LibTorch at ${_demi_torch_include} has no readable torch/headeronly/version.h.")
elseif(DEMI_LIBTORCH_FOUND_VERSION VERSION_LESS 2.11)
  set(DEMI_LIBTORCH_PROBLEM "LibTorch at ${_demi_torch_library} is ${DEMI_LIBTORCH_FOUND_VERSION}; demi needs 2.11 or newer.\n\
${_demi_advice}")
elseif(_demi_built_with AND NOT _demi_torch_series STREQUAL _demi_built_with_series)
  set(DEMI_LIBTORCH_PROBLEM "demi was built with LibTorch ${_demi_built_with}, but ${_demi_torch_library} is \
${DEMI_LIBTORCH_FOUND_VERSION}: its C++ interface differs. ${_demi_advice}")
endif()
if(DEMI_LIBTORCH_PROBLEM)
  return()
endif()

set(DEMI_LIBTORCH_INCLUDE_DIR "${_demi_torch_include}")
cmake_path(GET _demi_torch_library PARENT_PATH DEMI_LIBTORCH_LIBRARY_DIR)
cmake_path(GET _demi_torch_include PARENT_PATH DEMI_LIBTORCH_DIR)
set(DEMI_LIBTORCH_TARGETS "")
foreach(_folder ${DEMI_LIBTORCH_DIR}/share ${DEMI_LIBTORCH_LIBRARY_DIR})
  if(NOT DEMI_LIBTORCH_TARGETS AND EXISTS "${_folder}/cmake/Caffe2/Caffe2Targets.cmake")
    set(DEMI_LIBTORCH_TARGETS "${_folder}/cmake/Caffe2/Caffe2Targets.cmake")
  endif()
endforeach()

# The wheel keeps the CUDA runtime in nvidia/*/lib beside torch/; torch_cpu needs two of its libraries to link.
file(GLOB DEMI_LIBTORCH_NEEDED_DIRS "${DEMI_LIBTORCH_DIR}/../nvidia/*/lib")

# _demi_one_libtorch(OURS): refuses a torch_cpu of find_package(Torch) that is another file than OURS, since a process can hold one.
function(_demi_one_libtorch ours)
  if(NOT TARGET torch_cpu)
    return()
  endif()
  _demi_torch_of_target()
  if(_demi_torch_library)
    file(REAL_PATH "${_demi_torch_library}" theirs)
    file(REAL_PATH "${ours}" ours)
    if(NOT theirs STREQUAL ours)
      message(FATAL_ERROR "Two LibTorches: find_package(Torch) took ${theirs}, demi ${ours}. Give both the same: CMAKE_PREFIX_PATH, \
or -DTorch_DIR and -DDEMI_LIBTORCH.")
    endif()
  endif()
endfunction()

if(NOT TARGET demi::libtorch)
  find_package(Threads REQUIRED)
  foreach(_lib torch_cpu c10)
    add_library(demi::${_lib} SHARED IMPORTED)
    set_target_properties(demi::${_lib} PROPERTIES IMPORTED_LOCATION "${DEMI_LIBTORCH_LIBRARY_DIR}/lib${_lib}.so")
  endforeach()
  add_library(demi::libtorch INTERFACE IMPORTED)
  set_target_properties(demi::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${DEMI_LIBTORCH_INCLUDE_DIR};${DEMI_LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
  # Known when the project is generated: find_package(Torch) may still come.
  foreach(_lib torch_cpu c10)
    target_link_libraries(demi::libtorch INTERFACE "$<IF:$<TARGET_EXISTS:${_lib}>,${_lib},demi::${_lib}>")
  endforeach()
  target_link_libraries(demi::libtorch INTERFACE Threads::Threads)
  foreach(_dir ${DEMI_LIBTORCH_NEEDED_DIRS})
    target_link_options(demi::libtorch INTERFACE "LINKER:-rpath-link,${_dir}")
  endforeach()
  cmake_language(EVAL CODE "cmake_language(DEFER CALL _demi_one_libtorch [[${_demi_torch_library}]])")
endif()
message(STATUS "LibTorch ${DEMI_LIBTORCH_FOUND_VERSION} at ${DEMI_LIBTORCH_LIBRARY_DIR}")
