# One folder under demi/ is one module: header, source and unit test side by side, found by name.
#
#   demi_module(NAME [NO_TORCH] [LINK libraries...])
#
# NAME.cpp files go into the shared library `demi`; *_test.cpp files become the program demi_NAME_test, which ctest runs
# under the label unit (kernel for demi/kernels). With NO_TORCH the module is compiled without a LibTorch header in reach,
# and its test links the module's objects alone, so that it starts in milliseconds and runs under every sanitizer.

add_library(demi_options INTERFACE)
target_compile_features(demi_options INTERFACE cxx_std_20)
# -ffp-contract=off: a formula written with * and + rounds twice on every path; FMA only where written.
target_compile_options(demi_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
                       -ffp-contract=off -fopenmp)
target_link_options(demi_options INTERFACE -fopenmp)
if(DEMI_WERROR)
  target_compile_options(demi_options INTERFACE -Werror)
endif()
target_include_directories(demi_options INTERFACE ${PROJECT_SOURCE_DIR})

# The program, tests and examples: nothing there is hot, and the optimizer has a lot of torch's inline functions to read.
set(DEMI_COLD_CODE $<$<CONFIG:Release>:-O1>)

# {fmt} for the modules without torch, and the other one for those with it. Linked statically and hidden: no other library
# meets ours.
add_library(demi_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_link_libraries(demi_fmt PRIVATE demi_options)
add_library(demi_fmt_torch STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_link_libraries(demi_fmt_torch PRIVATE demi_options demi::libtorch)

# demi_reads_torch(FILE VARIABLE): how much of torch FILE reads, itself or through headers of this tree: 2 with torch/torch.h or
# torch's layers, 1 with one of the other large headers, 0 with thin ones at most (ATen/core, ATen/ops, c10).
function(demi_reads_torch file variable)
  get_property(known GLOBAL PROPERTY "demi_reads_torch ${file}")
  if("${known}" STREQUAL "")
    set(known 0)
    file(STRINGS ${file} lines REGEX "^#include [<\"]")
    foreach(line ${lines})
      set(reads 0)
      if(line MATCHES "<torch/(torch\\.h|nn/functional|nn/modules)")
        set(reads 2)
      elseif(line MATCHES "<torch/" OR line MATCHES "<ATen/[A-Za-z_]+\\.h>")
        set(reads 1)
      elseif(line MATCHES "\"([^\"]+)\"" AND EXISTS ${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_1})
        demi_reads_torch(${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_1} reads)
      endif()
      if(reads GREATER known)
        set(known ${reads})
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY "demi_reads_torch ${file}" ${known})
  endif()
  set(${variable} ${known} PARENT_SCOPE)
endfunction()

# demi_merged(NAME VARIABLE SOURCES...): the sources, those that read much of torch DEMI_MERGE at a time through a file that
# includes them, because the compiler pays for torch's templates once a file. Names in the anonymous namespaces of a module
# must differ for that; `./check --libtorch VERSION` compiles each file by itself.
function(demi_merged name variable)
  set(result)
  foreach(level 1 2)
    set(group_${level})
  endforeach()
  foreach(source ${ARGN})
    demi_reads_torch(${source} reads)
    if(DEMI_MERGE GREATER 1 AND reads GREATER 0)
      list(APPEND group_${reads} ${source})
    else()
      list(APPEND result ${source})
    endif()
  endforeach()
  foreach(level 1 2)
    list(LENGTH group_${level} count)
    if(count EQUAL 0)
      continue()
    endif()
    # Groups of like size: 5 files with DEMI_MERGE 4 are 3 and 2.
    math(EXPR groups "(${count} + ${DEMI_MERGE} - 1) / ${DEMI_MERGE}")
    foreach(group RANGE 1 ${groups})
      math(EXPR begin "(${group} - 1) * ${count} / ${groups}")
      math(EXPR size "${group} * ${count} / ${groups} - ${begin}")
      list(SUBLIST group_${level} ${begin} ${size} sources)
      set(lines)
      foreach(source ${sources})
        file(RELATIVE_PATH source ${PROJECT_SOURCE_DIR} ${source})
        string(APPEND lines "#include \"${source}\"\n")
      endforeach()
      set(merged ${PROJECT_BINARY_DIR}/merged/${name}_${level}_${group}.cpp)
      file(CONFIGURE OUTPUT ${merged} CONTENT "${lines}")
      list(APPEND result ${merged})
    endforeach()
  endforeach()
  set(${variable} ${result} PARENT_SCOPE)
endfunction()

# Files that include torch share a precompiled header, the small one where it is enough: what torch leaves pending costs each
# file 3 s there and 5 s with all of torch/torch.h. A file without torch goes without: 0.3 s.
if(DEMI_PCH)
  # Compiled as targets of their own, so that the library, the program, the tests and the examples all reuse them.
  # Not touched where it is there: everything would be compiled again after each run of CMake.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/pch/pch.cpp CONTENT "")
  foreach(pch base torch)
    add_library(demi_pch_${pch} OBJECT ${PROJECT_BINARY_DIR}/pch/pch.cpp)
    target_link_libraries(demi_pch_${pch} PRIVATE demi_options demi::libtorch)
  endforeach()
  target_precompile_headers(demi_pch_base PRIVATE <torch/types.h> <torch/nn/module.h> <torch/optim/optimizer.h>)
  target_precompile_headers(demi_pch_torch PRIVATE <torch/torch.h>)
  set(demi_pch_torch_header ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/demi_pch_torch.dir/cmake_pch.hxx)
endif()

function(demi_use_torch target)
  target_link_libraries(${target} PRIVATE demi_options demi::libtorch demi_fmt_torch)
  if(DEMI_PCH)
    target_precompile_headers(${target} REUSE_FROM demi_pch_base)
    add_dependencies(${target} demi_pch_torch)
    get_target_property(sources ${target} SOURCES)
    demi_precompiled(${target} ${sources})
  endif()
endfunction()

# demi_precompiled(TARGET SOURCES...): gives each source the precompiled header that fits what it reads. A target has one in
# CMake, so the other is named by hand.
function(demi_precompiled target)
  if(NOT DEMI_PCH)
    return()
  endif()
  foreach(source ${ARGN})
    if(source MATCHES "\\.cpp$")
      get_filename_component(source ${source} ABSOLUTE)
      demi_reads_torch(${source} reads)
      if(source MATCHES "/merged/")
        # What only the neighbourhood of other files causes, or what is inlined with them; a build with DEMI_MERGE 1 has these warnings.
        set_property(SOURCE ${source} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS
                     "-Wno-shadow;-Wno-subobject-linkage;-Wno-maybe-uninitialized")
      endif()
      if(NOT reads EQUAL 1)
        set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
      if(reads EQUAL 2)
        set_property(SOURCE ${source} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS
                     "-Winvalid-pch;-include;${demi_pch_torch_header}")
        set_property(SOURCE ${source} TARGET_DIRECTORY ${target} APPEND PROPERTY OBJECT_DEPENDS
                     ${demi_pch_torch_header}.gch)
      endif()
    endif()
  endforeach()
endfunction()

function(demi_module name)
  cmake_parse_arguments(arg "NO_TORCH" "" "LINK;TEST_LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")

  if(arg_NO_TORCH)
    add_library(demi_${name} OBJECT ${sources})
    target_link_libraries(demi_${name} PRIVATE demi_options ${CMAKE_DL_LIBS} ${arg_LINK})
    target_sources(demi PRIVATE $<TARGET_OBJECTS:demi_${name}>)
  else()
    demi_merged(${name} sources ${sources})
    target_sources(demi PRIVATE ${sources})
    demi_precompiled(demi ${sources})
    target_link_libraries(demi PRIVATE ${arg_LINK})
  endif()

  if(NOT DEMI_BUILD_TESTS OR NOT tests)
    return()
  endif()
  if(NOT arg_NO_TORCH)
    demi_merged(${name}_test tests ${tests})
  endif()
  add_executable(demi_${name}_test ${tests})
  if(arg_NO_TORCH)
    target_sources(demi_${name}_test PRIVATE $<TARGET_OBJECTS:demi_${name}>)
    target_link_libraries(demi_${name}_test PRIVATE demi_options ${arg_LINK} ${arg_TEST_LINK} demi_fmt GTest::gtest_main)
    foreach(below ${arg_TEST_LINK})
      if(TARGET ${below})
        target_sources(demi_${name}_test PRIVATE $<TARGET_OBJECTS:${below}>)
      endif()
    endforeach()
  else()
    demi_use_torch(demi_${name}_test)
    target_compile_options(demi_${name}_test PRIVATE ${DEMI_COLD_CODE})
    target_link_libraries(demi_${name}_test PRIVATE demi ${arg_LINK} ${arg_TEST_LINK} GTest::gmock GTest::gtest_main)
  endif()
  # ccache makes __FILE__ relative to the folder that is built in; tests of pages find the sources by it.
  add_test(NAME unit.${name} COMMAND demi_${name}_test WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set(labels unit)
  if(name STREQUAL kernels)
    list(APPEND labels kernel)
  endif()
  set_tests_properties(unit.${name} PROPERTIES LABELS "${labels}" TIMEOUT 600)
endfunction()
