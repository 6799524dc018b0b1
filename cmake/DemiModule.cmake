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
target_compile_definitions(demi_options INTERFACE FMT_HEADER_ONLY)
if(DEMI_WERROR)
  target_compile_options(demi_options INTERFACE -Werror)
endif()
target_include_directories(demi_options INTERFACE ${PROJECT_SOURCE_DIR})

# Everything that includes torch shares one precompiled header: 31 s and 0.7 GB once instead of 13 s a file.
function(demi_use_torch target)
  target_link_libraries(${target} PRIVATE demi_options demi::libtorch)
  if(DEMI_PCH)
    target_precompile_headers(${target} REUSE_FROM demi_pch)
  endif()
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
    target_sources(demi PRIVATE ${sources})
    target_link_libraries(demi PRIVATE ${arg_LINK})
  endif()

  if(NOT DEMI_BUILD_TESTS OR NOT tests)
    return()
  endif()
  add_executable(demi_${name}_test ${tests})
  if(arg_NO_TORCH)
    target_sources(demi_${name}_test PRIVATE $<TARGET_OBJECTS:demi_${name}>)
    target_link_libraries(demi_${name}_test PRIVATE demi_options ${arg_LINK} ${arg_TEST_LINK} GTest::gtest_main)
    foreach(below ${arg_TEST_LINK})
      if(TARGET ${below})
        target_sources(demi_${name}_test PRIVATE $<TARGET_OBJECTS:${below}>)
      endif()
    endforeach()
  else()
    demi_use_torch(demi_${name}_test)
    target_link_libraries(demi_${name}_test PRIVATE demi ${arg_LINK} ${arg_TEST_LINK} GTest::gmock GTest::gtest_main)
  endif()
  add_test(NAME unit.${name} COMMAND demi_${name}_test)
  set(labels unit)
  if(name STREQUAL kernels)
    list(APPEND labels kernel)
  endif()
  set_tests_properties(unit.${name} PROPERTIES LABELS "${labels}" TIMEOUT 600)
endfunction()
