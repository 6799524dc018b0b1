# LibTorch's CUDA graphs, by which work is recorded, as a plugin, libdemi_graph.so: it links libtorch_cuda, which libdemi opens only
# where there is a driver.
#
#   DEMI_GRAPH          AUTO (where LibTorch has CUDA and is 2.15 or newer, and CUDA's headers are found), ON (required), OFF
#
# Headers of CUDA before 12.4 leave members of at::cuda::CUDAGraph out, which LibTorch's own has. Whether LibTorch was built with the same
# major version is compared when the plugin is opened.
include(${CMAKE_CURRENT_LIST_DIR}/TorchCuda.cmake)
set(DEMI_GRAPH AUTO CACHE STRING "Recorded work of GPUs (CUDA graphs): AUTO, ON (required) or OFF")

# _demi_cuda_version(OUT FOLDER): of CUDA's headers, as 13.0; "" if they do not say it.
function(_demi_cuda_version out folder)
  set(${out} "" PARENT_SCOPE)
  file(STRINGS ${folder}/cuda_runtime_api.h line REGEX "^#define +CUDART_VERSION +[0-9]+" LIMIT_COUNT 1)
  if(line MATCHES "CUDART_VERSION +([0-9]+)")  # 13000
    math(EXPR major "${CMAKE_MATCH_1} / 1000")
    math(EXPR minor "${CMAKE_MATCH_1} % 1000 / 10")
    set(${out} "${major}.${minor}" PARENT_SCOPE)
  endif()
endfunction()

# demi_find_graph(): DEMI_GRAPH_BUILT, with CUDA's headers in DEMI_GRAPH_CUDA_FOLDER; else DEMI_GRAPH_MISSING says why, in words that the
# library repeats, and DEMI_GRAPH_ADVICE what to do about it.
function(demi_find_graph)
  set(DEMI_GRAPH_BUILT OFF PARENT_SCOPE)
  set(DEMI_GRAPH_ADVICE "" PARENT_SCOPE)
  if(DEMI_GRAPH STREQUAL "OFF")
    set(DEMI_GRAPH_MISSING "DEMI_GRAPH is OFF" PARENT_SCOPE)
    return()
  elseif(DEMI_SANITIZE)
    set(DEMI_GRAPH_MISSING "it is not built with sanitizers" PARENT_SCOPE)
    return()
  elseif(NOT EXISTS "${DEMI_LIBTORCH_LIBRARY_DIR}/libtorch_cuda.so")
    set(DEMI_GRAPH_MISSING "this LibTorch has no part for CUDA" PARENT_SCOPE)
    set(DEMI_GRAPH_ADVICE "Name a LibTorch for CUDA with -DDEMI_LIBTORCH=DIR." PARENT_SCOPE)
    return()
  elseif(DEMI_LIBTORCH_FOUND_VERSION VERSION_LESS 2.15)
    set(DEMI_GRAPH_MISSING "this LibTorch is ${DEMI_LIBTORCH_FOUND_VERSION}, and work is recorded from 2.15 on" PARENT_SCOPE)
    set(DEMI_GRAPH_ADVICE "Name a newer LibTorch with -DDEMI_LIBTORCH=DIR." PARENT_SCOPE)
    return()
  endif()

  # What ATen's header of graphs includes. The runtime's wheel leaves crt/ to another wheel.
  demi_cuda_folders(folders)
  demi_find_cuda_headers(cuda missing advice "${folders}" cuda_runtime.h cuda_runtime_api.h cuda.h crt/host_config.h)
  if(cuda)
    _demi_cuda_version(version ${cuda})
    if(NOT version OR version VERSION_LESS 12.4)
      set(missing "CUDA's headers are of ${version} (${cuda}), and it needs 12.4 or newer")
      set(advice "Name a newer toolkit with CUDA_HOME.")
      set(cuda "")
    endif()
  endif()
  if(NOT cuda)
    set(DEMI_GRAPH_MISSING "${missing}" PARENT_SCOPE)
    set(DEMI_GRAPH_ADVICE "${advice}" PARENT_SCOPE)
    return()
  endif()
  set(DEMI_GRAPH_BUILT ON PARENT_SCOPE)
  set(DEMI_GRAPH_MISSING "" PARENT_SCOPE)
  set(DEMI_GRAPH_CUDA_FOLDER ${cuda} PARENT_SCOPE)
  set(DEMI_GRAPH_CUDA_VERSION ${version} PARENT_SCOPE)
endfunction()

demi_find_graph()
if(DEMI_GRAPH_BUILT)
  message(STATUS "Graphs: headers of CUDA ${DEMI_GRAPH_CUDA_VERSION} in ${DEMI_GRAPH_CUDA_FOLDER}")
elseif(DEMI_GRAPH STREQUAL "ON")
  message(FATAL_ERROR "DEMI_GRAPH is ON, but libdemi_graph.so cannot be built: ${DEMI_GRAPH_MISSING}. ${DEMI_GRAPH_ADVICE}")
else()
  message(STATUS "Graphs: not built, since ${DEMI_GRAPH_MISSING}. ${DEMI_GRAPH_ADVICE}")
endif()
