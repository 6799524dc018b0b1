# The CUDA kernels as a plugin, libdemi_cuda.so, compiled by calling nvcc by name. CMake's own CUDA language is not used: 3.25
# does not know nvcc 13's C++20, and would hand it the host compiler's flags.
#
#   DEMI_CUDA               AUTO (where nvcc is found), ON (required), OFF
#   DEMI_CUDA_ARCHITECTURES compute capabilities with code of their own (80 serves 8.x, 90 Hopper, 100 and 120 Blackwell);
#                           the newest goes in as PTX too, for what comes after
find_program(DEMI_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin
             DOC "NVIDIA's compiler, for the CUDA kernels")
set(DEMI_CUDA_BUILT OFF)
if(DEMI_CUDA STREQUAL "ON" AND NOT DEMI_NVCC)
  message(FATAL_ERROR "DEMI_CUDA is ON, but no nvcc was found. Put it on PATH, set -DDEMI_NVCC=/path/to/nvcc, or use "
                      "-DDEMI_CUDA=OFF (the kernels for the CPU are always built).")
elseif(NOT DEMI_CUDA STREQUAL "OFF" AND DEMI_NVCC AND NOT DEMI_SANITIZE)
  execute_process(COMMAND ${DEMI_NVCC} --version OUTPUT_VARIABLE _demi_nvcc_text)
  string(REGEX MATCH "release ([0-9.]+)" _demi_nvcc_match "${_demi_nvcc_text}")
  set(_demi_nvcc_version "${CMAKE_MATCH_1}")
  if(_demi_nvcc_version VERSION_LESS 12.0)
    message(STATUS "CUDA kernels: not built, nvcc ${_demi_nvcc_version} has no C++20 (12.0 or newer)")
  else()
    set(DEMI_CUDA_BUILT ON)
  endif()
endif()
if(DEMI_CUDA_BUILT)
  set(_demi_architectures 80 90)
  if(_demi_nvcc_version VERSION_GREATER_EQUAL 12.8)
    list(APPEND _demi_architectures 100 120)
  endif()
  set(DEMI_CUDA_ARCHITECTURES "${_demi_architectures}" CACHE STRING "Compute capabilities of the CUDA kernels")
  message(STATUS "CUDA kernels: nvcc ${_demi_nvcc_version} for ${DEMI_CUDA_ARCHITECTURES}")
endif()

# Compiled through a cache, which DEMI_CCACHE turns off as it does ccache.
set(_demi_nvcc_command ${PROJECT_SOURCE_DIR}/cmake/cached_nvcc.sh)
if(NOT DEMI_CCACHE)
  list(PREPEND _demi_nvcc_command ${CMAKE_COMMAND} -E env CCACHE_DISABLE=1)
endif()

# demi_cuda_plugin(TARGET SOURCE): builds libTARGET.so in the root of the build folder, and installs it beside libdemi.
function(demi_cuda_plugin target source)
  set(flags)
  foreach(architecture ${DEMI_CUDA_ARCHITECTURES})
    list(APPEND flags -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET DEMI_CUDA_ARCHITECTURES -1 newest)
  list(APPEND flags -gencode arch=compute_${newest},code=compute_${newest})
  set(library ${PROJECT_BINARY_DIR}/lib${target}.so)
  # --fmad=false: FMA only where written, so that the bits are the CPU paths'. The runtime is linked statically.
  add_custom_command(
    OUTPUT ${library}
    COMMAND ${_demi_nvcc_command} ${library}.d ${DEMI_NVCC} --shared -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr
            -cudart static ${flags} -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC,-fvisibility=hidden -I${PROJECT_SOURCE_DIR}
            -o ${library} ${source}
    DEPENDS ${source} DEPFILE ${library}.d COMMENT "Building CUDA plugin lib${target}.so" VERBATIM)
  add_custom_target(${target} ALL DEPENDS ${library})
  if(DEMI_INSTALL)
    install(FILES ${library} DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

# demi_cuda_program(TARGET SOURCE OBJECT_LIBRARY... HOST_SOURCE...): a program of one .cu file and what it links, in the root of
# the build folder, beside the plugin that it opens.
function(demi_cuda_program target source)
  set(inputs)
  foreach(input ${ARGN})
    if(TARGET ${input})
      list(APPEND inputs $<TARGET_OBJECTS:${input}>)
    else()
      list(APPEND inputs ${input})
    endif()
  endforeach()
  set(program ${PROJECT_BINARY_DIR}/${target})
  add_custom_command(
    OUTPUT ${program}
    COMMAND ${_demi_nvcc_command} ${program}.d ${DEMI_NVCC} -std=c++20 -O2 --expt-relaxed-constexpr -cudart static -arch=sm_80
            -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fopenmp,-ffp-contract=off -I${PROJECT_SOURCE_DIR}
            -o ${program} ${source} ${inputs} $<TARGET_FILE:demi_fmt> -ldl
    DEPENDS ${source} ${inputs} demi_fmt demi_cuda DEPFILE ${program}.d COMMENT "Building CUDA program ${target}" VERBATIM COMMAND_EXPAND_LISTS)
  add_custom_target(${target} ALL DEPENDS ${program})
endfunction()
