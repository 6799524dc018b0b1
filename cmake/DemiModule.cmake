# The libraries of this tree, demi and demi_lab, are made of modules: one folder each, with header, source and unit test side by
# side, found by name.
#
#   demi_module(NAME [NO_TORCH|HOT] [PUBLIC headers...] [LINK libraries...] [TEST_LINK libraries...] [GPU_TESTS pattern])
#
# Every *.cpp of the folder goes into the library that DEMI_LIBRARY names; every *_test.cpp into one program, LIBRARY_NAME_test, which
# ctest runs under the label unit. PUBLIC headers are installed. With NO_TORCH the module is compiled without a LibTorch header in
# reach, and its test links the module's objects alone, so that it starts in milliseconds. HOT: the module is compiled with -O3 in a
# library whose others are cold. GPU_TESTS is the gtest filter of the tests that need a GPU; they run once more as gpu.NAME.
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

# {fmt} for the modules without torch, and the other one for those with it, which find LibTorch's before the project's. Linked
# statically and hidden: no other library meets ours.
add_library(demi_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_link_libraries(demi_fmt PRIVATE demi_options)
add_library(demi_fmt_torch STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_link_libraries(demi_fmt_torch PRIVATE demi::libtorch demi_options)

# Two precompiled headers for all that reads torch, since each file instantiates again what the inline functions of a precompiled header
# use: 6 s for torch/torch.h, 3 s for the part that most modules of demi read. Nothing in the lab, the program, tests and examples is hot
# but what the lab marks HOT, and the optimizer has a lot of torch's inline functions to read: they are compiled with -O1. So is their
# header, whose level counts for every file behind it.
set(DEMI_COLD_CODE "")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(DEMI_COLD_CODE -O1)
endif()
if(DEMI_PCH)
  # Not touched if it is there: everything would be compiled again after each run of CMake.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/pch/pch.cpp CONTENT "")
  foreach(pch demi_pch demi_cold_pch)
    add_library(${pch} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/pch/pch.cpp)
    target_link_libraries(${pch} PRIVATE demi_options demi::libtorch)
  endforeach()
  target_precompile_headers(demi_pch PRIVATE <torch/types.h> <torch/library.h> <torch/utils.h> <torch/csrc/autograd/custom_function.h>
                            <torch/nn/module.h> <torch/optim/optimizer.h>)
  target_precompile_headers(demi_cold_pch PRIVATE <torch/torch.h>)
  target_compile_options(demi_cold_pch PRIVATE ${DEMI_COLD_CODE})
endif()

# demi_use_torch(TARGET [COLD]): TARGET is compiled as everything here that reads torch. COLD: nothing in it is hot.
function(demi_use_torch target)
  cmake_parse_arguments(arg "COLD" "" "" ${ARGN})
  target_link_libraries(${target} PRIVATE demi_options demi::libtorch demi_fmt_torch)
  set(pch demi_pch)
  if(arg_COLD)
    set(pch demi_cold_pch)
    target_compile_options(${target} PRIVATE ${DEMI_COLD_CODE})
  endif()
  if(DEMI_PCH)
    target_precompile_headers(${target} REUSE_FROM ${pch})
  endif()
endfunction()

# demi_test_program(TARGET SOURCES...): a test program that reads torch.
function(demi_test_program target)
  add_executable(${target} ${ARGN})
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
  demi_use_torch(${target} COLD)
  target_link_libraries(${target} PRIVATE GTest::gmock GTest::gtest_main)
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

function(demi_module name)
  cmake_parse_arguments(arg "NO_TORCH;HOT" "GPU_TESTS" "PUBLIC;LINK;TEST_LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(TRANSFORM arg_PUBLIC PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  target_sources(${DEMI_LIBRARY} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_PUBLIC})

  set(objects ${DEMI_LIBRARY}_${name})
  if(arg_NO_TORCH OR arg_HOT)
    add_library(${objects} OBJECT ${sources})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
    target_link_libraries(${objects} PRIVATE demi_options ${CMAKE_DL_LIBS} ${arg_LINK})
    target_sources(${DEMI_LIBRARY} PRIVATE $<TARGET_OBJECTS:${objects}>)
    if(arg_HOT)
      demi_use_torch(${objects})
    endif()
  else()
    target_sources(${DEMI_LIBRARY} PRIVATE ${sources})
    set_source_files_properties(${sources} TARGET_DIRECTORY ${DEMI_LIBRARY} PROPERTIES UNITY_GROUP ${name})
  endif()
  if(NOT arg_NO_TORCH)
    target_link_libraries(${DEMI_LIBRARY} PRIVATE ${arg_LINK})
  endif()

  if(NOT DEMI_BUILD_TESTS OR NOT tests)
    return()
  endif()
  set(program ${DEMI_LIBRARY}_${name}_test)
  if(arg_NO_TORCH)
    add_executable(${program} ${tests} $<TARGET_OBJECTS:${DEMI_LIBRARY}_${name}>)
    set_target_properties(${program} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
    target_compile_options(${program} PRIVATE ${DEMI_COLD_CODE})
    target_link_libraries(${program} PRIVATE demi_options ${arg_LINK} ${arg_TEST_LINK} demi_fmt GTest::gtest_main)
    foreach(below ${arg_TEST_LINK})
      if(TARGET ${below})
        target_sources(${program} PRIVATE $<TARGET_OBJECTS:${below}>)
      endif()
    endforeach()
  else()
    demi_test_program(${program} ${tests})
    target_link_libraries(${program} PRIVATE ${DEMI_LIBRARY} ${arg_LINK} ${arg_TEST_LINK})
  endif()
  string(REPLACE "demi_lab" "unit.lab" test ${DEMI_LIBRARY})
  string(REPLACE "demi" "unit" test ${test})
  add_dependencies(demi_unit_tests ${program})
  add_test(NAME ${test}.${name} COMMAND ${program})
  set_tests_properties(${test}.${name} PROPERTIES LABELS unit TIMEOUT 600 ENVIRONMENT DEMI_SOURCE_DIR=${PROJECT_SOURCE_DIR})
  if(arg_GPU_TESTS)
    add_test(NAME gpu.${name} COMMAND ${program} --gtest_filter=${arg_GPU_TESTS})
    set_tests_properties(gpu.${name} PROPERTIES LABELS gpu RESOURCE_LOCK gpu SKIP_REGULAR_EXPRESSION "SKIPPED")
  endif()
endfunction()
