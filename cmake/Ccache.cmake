# Compiles through ccache if it is installed, so that a second build, another checkout or another preset reuses what is the same.
# cmake/compile.sh says how.
option(DEMI_CCACHE "Compile through ccache if it is installed" ON)
if(NOT DEMI_CCACHE OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
find_program(DEMI_CCACHE_PROGRAM ccache)
if(DEMI_CCACHE_PROGRAM)
  # Where it cannot keep anything, as in a home that is read-only, each compile would fail.
  execute_process(COMMAND sh -c [[d=$("$0" --get-config cache_dir) && mkdir -p "$d" && test -w "$d"]] ${DEMI_CCACHE_PROGRAM}
                  RESULT_VARIABLE _demi_ccache_fails OUTPUT_QUIET ERROR_QUIET)
  if(_demi_ccache_fails)
    message(STATUS "ccache cannot write to its cache folder: compiling without it (CCACHE_DIR names another folder)")
    return()
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/compile.sh ${PROJECT_SOURCE_DIR} ${DEMI_CCACHE_PROGRAM})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
