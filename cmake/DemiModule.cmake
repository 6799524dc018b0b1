# The libraries of this tree, demi and demi_lab, are made of modules: one folder each, with header, source and unit test side by
# side, found by name.
#
#   demi_module(NAME [NO_TORCH|HOT] [READER] [PUBLIC headers...] [LINK libraries...] [TEST_LINK libraries...] [LABELS labels...]
#               [GPU_TESTS pattern])
#
# Every *.cpp of the folder becomes an object of LIBRARY_NAME, which is linked into the library that DEMI_LIBRARY names; every *_test.cpp
# goes into one program, LIBRARY_NAME_test, which ctest runs under the label unit. PUBLIC headers are installed. With NO_TORCH the module
# is compiled without a LibTorch header in reach, so its test starts in milliseconds. HOT: the module is compiled with -O3 in a
# library whose others are cold. READER: it reads bytes of other people's, so AddressSanitizer looks into its test's own code, too.
# LABELS are those of its test beside unit. GPU_TESTS is the gtest filter of the tests that need a GPU; they run once more as gpu.NAME.
#
# A test links its module and those below it (scripts/layers.txt, and what the test includes) as objects where these are less than half
# of the library, so that a change builds what its test needs; else it links the library. What a module that is not below registers with
# LibTorch at start is missing there. The programs of tests/ link the whole.
#
# With CMAKE_UNITY_BUILD the sources of a module are compiled as one file: the compiler pays for torch's templates once a file. Names
# in the anonymous namespaces of a module must differ for that. `./check --alone` compiles each file by itself.

add_library(demi_options INTERFACE)
target_compile_features(demi_options INTERFACE cxx_std_20)
# -ffp-contract=off: a formula written with * and + rounds twice on every path; FMA only where written.
# -fmacro-prefix-map: messages name sources relative to the checkout, wherever the object was compiled (ccache).
target_compile_options(demi_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
                       -ffp-contract=off -fopenmp -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
# Warnings that only the neighbourhood of other sources causes. Builds without CMAKE_UNITY_BUILD have them.
target_compile_options(demi_options INTERFACE
                       "$<$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>:-Wno-shadow;-Wno-subobject-linkage;-Wno-maybe-uninitialized>")
target_link_options(demi_options INTERFACE -fopenmp)
# GCC collects its garbage after reading the precompiled header, which is large and none of it: a tenth of the time of a file.
# Up to 0.2 GB more memory for each compiler, of 2.3 at most.
target_compile_options(demi_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=2000000>)
# In a project without a build type, which is the project's to choose, the compiler would optimise nothing of ours.
get_property(demi_several_types GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT demi_several_types AND NOT DEMI_SANITIZE)
  target_compile_options(demi_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O2>)
endif()
if(DEMI_WERROR)
  target_compile_options(demi_options INTERFACE -Werror)
endif()
target_include_directories(demi_options INTERFACE ${PROJECT_SOURCE_DIR})
if(TARGET fmt::fmt)  # of the project that demi is a folder of
  target_include_directories(demi_options SYSTEM INTERFACE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
endif()

# What the sanitizers look into. A test's own code is left out under AddressSanitizer but for readers of bytes: its objects are
# those of the release build then, as ccache sees. ThreadSanitizer has to see every access.
add_library(demi_instrumented INTERFACE)
if(DEMI_SANITIZE)
  target_compile_options(demi_instrumented INTERFACE -fsanitize=${DEMI_SANITIZE} -fno-omit-frame-pointer -O1 -g1)
  # These two checks are half of a file's time. A null pointer ends a program without one; demi/, which reads raw memory, has the other.
  target_compile_options(demi_instrumented INTERFACE -fno-sanitize=null,alignment)
  if(DEMI_SANITIZE STREQUAL "thread")
    target_compile_options(demi_instrumented INTERFACE -Wno-tsan)  # a fence in a header of LibTorch's, which only Python objects reach
  endif()
endif()

# {fmt} for the modules without torch, and the other one for those with it, which find LibTorch's before the project's. Linked
# statically and hidden: no other library meets ours.
add_library(demi_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_link_libraries(demi_fmt PRIVATE demi_options demi_instrumented)
add_library(demi_fmt_torch STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_link_libraries(demi_fmt_torch PRIVATE demi::libtorch demi_options demi_instrumented)

# Three precompiled headers for all that reads torch, since each file instantiates again what the inline functions of a precompiled header
# use: 6 s for torch/torch.h, 3 s for the part that most modules of demi read. Nothing in the lab, the program and examples is hot
# but what the lab marks HOT, and the optimizer has a lot of torch's inline functions to read: they are compiled with -O1. Tests are
# compiled without optimising, a third of their time. So is their header each time, whose level counts for every file behind it.
set(DEMI_COLD_CODE "")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(DEMI_COLD_CODE -O1)
endif()
if(DEMI_PCH)
  # Not touched if it is there: everything would be compiled again after each run of CMake.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/pch/pch.cpp CONTENT "")
  set(pchs demi_pch demi_cold_pch)
  if(DEMI_BUILD_TESTS)
    list(APPEND pchs demi_test_pch)
  endif()
  foreach(pch ${pchs})
    add_library(${pch} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/pch/pch.cpp)
    target_link_libraries(${pch} PRIVATE demi_options demi::libtorch)
    if(NOT pch STREQUAL "demi_test_pch" OR DEMI_SANITIZE STREQUAL "thread")
      target_link_libraries(${pch} PRIVATE demi_instrumented)
    endif()
  endforeach()
  target_precompile_headers(demi_pch PRIVATE <torch/types.h> <torch/library.h> <torch/utils.h> <torch/csrc/autograd/custom_function.h>
                            <torch/nn/module.h> <torch/optim/optimizer.h>)
  target_precompile_headers(demi_cold_pch PRIVATE <torch/torch.h>)
  target_compile_options(demi_cold_pch PRIVATE ${DEMI_COLD_CODE})
  if(DEMI_BUILD_TESTS)
    target_link_libraries(demi_test_pch PRIVATE GTest::gmock nlohmann_json::nlohmann_json)
    target_precompile_headers(demi_test_pch PRIVATE <torch/torch.h> <gmock/gmock.h> <nlohmann/json.hpp>)
    target_compile_options(demi_test_pch PRIVATE -O0)
  endif()
endif()

# demi_use_torch(TARGET [COLD|TEST]): TARGET is compiled as everything here that reads torch. COLD: nothing in it is hot. TEST: it is a
# test's own code.
function(demi_use_torch target)
  cmake_parse_arguments(arg "COLD;TEST" "" "" ${ARGN})
  target_link_libraries(${target} PRIVATE demi_options demi::libtorch demi_fmt_torch)
  set(pch demi_pch)
  if(arg_TEST)
    set(pch demi_test_pch)
    target_compile_options(${target} PRIVATE -O0)
  elseif(arg_COLD)
    set(pch demi_cold_pch)
    target_compile_options(${target} PRIVATE ${DEMI_COLD_CODE})
  endif()
  if(NOT arg_TEST OR DEMI_SANITIZE STREQUAL "thread")
    target_link_libraries(${target} PRIVATE demi_instrumented)
  endif()
  if(DEMI_PCH)
    target_precompile_headers(${target} REUSE_FROM ${pch})
  endif()
endfunction()

# demi_test_program(TARGET [READER] SOURCES...): a test program that reads torch. Its sources are compiled in batches of some 1,000 lines:
# one file costs the same each time, and a change should not compile 5,000 lines. A source that the unity build leaves out stays out.
function(demi_test_program target)
  cmake_parse_arguments(arg "READER" "" "" ${ARGN})
  add_executable(${target} ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  set(batch 0)
  set(bytes 0)
  foreach(source ${arg_UNPARSED_ARGUMENTS})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE file)
    file(SIZE ${file} size)
    math(EXPR bytes "${bytes} + ${size}")
    if(bytes GREATER 44000)
      math(EXPR batch "${batch} + 1")
      set(bytes ${size})
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${batch})
  endforeach()
  if(arg_READER AND DEMI_SANITIZE)
    demi_use_torch(${target} COLD)
  else()
    demi_use_torch(${target} TEST)
  endif()
  target_link_libraries(${target} PRIVATE GTest::gmock GTest::gtest_main nlohmann_json::nlohmann_json)
endfunction()

# The programs of all tests labelled unit, for builds that run no others.
if(DEMI_BUILD_TESTS)
  add_custom_target(demi_unit_tests)
endif()

# demi_exports(LIBRARY): it exports names of demi alone.
function(demi_exports library)
  target_link_options(${library} PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
  set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
endfunction()

# Which modules a module needs, itself included: DEMI_MODULES_OF_demi/step, by scripts/layers.txt.
set(DEMI_LAYERS ${PROJECT_SOURCE_DIR}/scripts/layers.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${DEMI_LAYERS})
file(STRINGS ${DEMI_LAYERS} layers REGEX "^(demi|lab|cli)[^ ]*:")
foreach(layer ${layers})
  string(REGEX MATCH "^([^:]+): *(.*)$" layer "${layer}")
  set(name ${CMAKE_MATCH_1})
  separate_arguments(below UNIX_COMMAND "${CMAKE_MATCH_2}")
  set(all ${name})
  foreach(module ${below})
    list(APPEND all ${DEMI_MODULES_OF_${module}})
  endforeach()
  list(REMOVE_DUPLICATES all)
  set(DEMI_MODULES_OF_${name} ${all})
endforeach()

# demi_bytes_of(OUT MODULE...): the size of their sources.
function(demi_bytes_of out)
  set(sum 0)
  foreach(module ${ARGN})
    file(GLOB sources ${PROJECT_SOURCE_DIR}/${module}/*.cpp)
    list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
    foreach(source ${sources})
      file(SIZE ${source} size)
      math(EXPR sum "${sum} + ${size}")
    endforeach()
  endforeach()
  set(${out} ${sum} PARENT_SCOPE)
endfunction()

# demi_link_modules(PROGRAM MODULE TESTS...): what the test program of demi/step or lab/data links.
function(demi_link_modules program module)
  set(needed ${DEMI_MODULES_OF_${module}})
  file(GLOB testing ${CMAKE_CURRENT_SOURCE_DIR}/*testing*)
  foreach(file ${ARGN} ${testing})
    file(STRINGS ${file} includes REGEX "^#include \"(demi|lab)/")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    foreach(include ${includes})
      string(REGEX REPLACE "^#include \"([^\"]*)/[^/\"]*\".*" "\\1" folder "${include}")
      string(REGEX REPLACE "^([^/]*/[^/]*)/.*" "\\1" folder "${folder}")
      if(include MATCHES "demi/demi.h")
        set(folder demi/demi.h)
      endif()
      list(APPEND needed ${DEMI_MODULES_OF_${folder}})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES needed)

  # A library from which a test needs less than a half is linked as objects, unless it stands below one that is linked whole.
  set(above "")
  foreach(library demi_lab demi)
    string(REPLACE demi_lab lab folder ${library})
    set(mine ${needed})
    list(FILTER mine INCLUDE REGEX "^${folder}/[a-z_]+$")
    set(all ${DEMI_MODULES_OF_cli} ${DEMI_MODULES_OF_demi/demi.h})
    list(FILTER all INCLUDE REGEX "^${folder}/[a-z_]+$")
    list(REMOVE_DUPLICATES all)
    demi_bytes_of(needed_bytes ${mine})
    demi_bytes_of(all_bytes ${all})
    math(EXPR twice "2 * ${needed_bytes}")
    if(NOT mine)
      continue()
    elseif(twice GREATER all_bytes OR above)
      target_link_libraries(${program} PRIVATE ${library})
      set(above ${library})
    else()
      foreach(one ${mine})
        string(REGEX REPLACE ".*/" "${library}_" objects ${one})
        # The first copy of an inline function is what the linker keeps: the module's, not the test's.
        target_sources(${program} PRIVATE $<TARGET_OBJECTS:${objects}>)
        target_link_libraries(${program} PRIVATE $<TARGET_PROPERTY:${objects},DEMI_LINK>)
      endforeach()
      target_link_libraries(${program} PRIVATE demi_fmt ${CMAKE_DL_LIBS})
    endif()
  endforeach()
endfunction()

function(demi_module name)
  cmake_parse_arguments(arg "NO_TORCH;HOT;READER" "GPU_TESTS" "PUBLIC;LINK;TEST_LINK;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(TRANSFORM arg_PUBLIC PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  target_sources(${DEMI_LIBRARY} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_PUBLIC})

  set(objects ${DEMI_LIBRARY}_${name})
  add_library(${objects} OBJECT ${sources})
  set_target_properties(${objects} PROPERTIES UNITY_BUILD_BATCH_SIZE 0 DEMI_LINK "${arg_LINK}")
  target_link_libraries(${objects} PRIVATE demi_options demi_instrumented ${CMAKE_DL_LIBS} ${arg_LINK})
  if(DEMI_SANITIZE MATCHES undefined AND DEMI_LIBRARY STREQUAL "demi")
    target_compile_options(${objects} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=alignment>)
  endif()
  if(NOT arg_NO_TORCH)
    target_link_libraries(${objects} PRIVATE nlohmann_json::nlohmann_json)
    if(arg_HOT OR DEMI_LIBRARY STREQUAL "demi")
      demi_use_torch(${objects})
    else()
      demi_use_torch(${objects} COLD)
    endif()
  endif()
  target_sources(${DEMI_LIBRARY} PRIVATE $<TARGET_OBJECTS:${objects}>)
  target_link_libraries(${DEMI_LIBRARY} PRIVATE ${arg_LINK})

  if(NOT DEMI_BUILD_TESTS OR NOT tests)
    return()
  endif()
  string(REPLACE demi_lab lab folder ${DEMI_LIBRARY})
  set(program ${objects}_test)
  set(reader "")
  if(arg_READER)
    set(reader READER)
  endif()
  if(arg_NO_TORCH)
    add_executable(${program} ${tests})
    set_target_properties(${program} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
    target_compile_options(${program} PRIVATE ${DEMI_COLD_CODE})
    target_link_libraries(${program} PRIVATE demi_options ${arg_LINK} ${arg_TEST_LINK} demi_fmt GTest::gtest_main)
    if(arg_READER OR DEMI_SANITIZE STREQUAL "thread")
      target_link_libraries(${program} PRIVATE demi_instrumented)
    endif()
  else()
    demi_test_program(${program} ${reader} ${tests})
    target_link_libraries(${program} PRIVATE ${arg_LINK} ${arg_TEST_LINK})
  endif()
  demi_link_modules(${program} ${folder}/${name} ${tests})
  set_target_properties(${program} PROPERTIES BUILD_RPATH ${PROJECT_BINARY_DIR})  # libdemi_cuda.so, which is opened by name
  string(REPLACE "demi_lab" "unit.lab" test ${DEMI_LIBRARY})
  string(REPLACE "demi" "unit" test ${test})
  add_dependencies(demi_unit_tests ${program})
  add_test(NAME ${test}.${name} COMMAND ${program})
  set_tests_properties(${test}.${name} PROPERTIES LABELS "unit;${arg_LABELS}" TIMEOUT 600 ENVIRONMENT DEMI_SOURCE_DIR=${PROJECT_SOURCE_DIR})
  if(arg_GPU_TESTS)
    add_test(NAME gpu.${name} COMMAND ${program} --gtest_filter=${arg_GPU_TESTS})
    set_tests_properties(gpu.${name} PROPERTIES LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION "SKIPPED")
  endif()
endfunction()
