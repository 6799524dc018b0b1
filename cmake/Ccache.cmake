# Compiles through ccache if it is installed, so that a second build, another checkout or another preset reuses what is the same.
#
# What makes it hit across checkouts (ccache 4.7): paths below the checkout are taken relative (base_dir), the folder that the
# compiler runs in does not count (hash_dir off), and GCC keeps the precompiled header's name in what it preprocesses
# (-fpch-preprocess, with the sloppiness that ccache's manual names for precompiled headers).
option(DEMI_CCACHE "Compile through ccache if it is installed" ON)
if(NOT DEMI_CCACHE OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
find_program(DEMI_CCACHE_PROGRAM ccache)
if(DEMI_CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${DEMI_CCACHE_PROGRAM})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
