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

# demi_find_graph(): as demi_found and demi_not_found say, with DEMI_GRAPH_CUDA_VERSION.
function(demi_find_graph)
  demi_return_if_off(GRAPH)
  if(NOT EXISTS "${DEMI_LIBTORCH_LIBRARY_DIR}/libtorch_cuda.so")
    demi_not_found(GRAPH "this LibTorch has no part for CUDA" "Name a LibTorch for CUDA with -DDEMI_LIBTORCH=DIR.")
  elseif(DEMI_LIBTORCH_FOUND_VERSION VERSION_LESS 2.15)
    demi_not_found(GRAPH "this LibTorch is ${DEMI_LIBTORCH_FOUND_VERSION}, and work is recorded from 2.15 on"
                   "Name a newer LibTorch with -DDEMI_LIBTORCH=DIR.")
  endif()

  # What ATen's header of graphs includes. The runtime's wheel leaves crt/ to another wheel.
  demi_cuda_folders(folders)
  demi_find_cuda_headers(cuda missing advice "${folders}" cuda_runtime.h cuda_runtime_api.h cuda.h crt/host_config.h)
  if(NOT cuda)
    demi_not_found(GRAPH "${missing}" "${advice}")
  endif()
  _demi_cuda_version(version ${cuda})
  if(NOT version OR version VERSION_LESS 12.4)
    demi_not_found(GRAPH "CUDA's headers are of ${version} (${cuda}), and it needs 12.4 or newer" "Name a newer toolkit with CUDA_HOME.")
  endif()
  demi_found(GRAPH ${cuda})
  set(DEMI_GRAPH_CUDA_VERSION ${version} PARENT_SCOPE)
endfunction()

demi_find_graph()
demi_say_found(GRAPH Graphs libdemi_graph.so "headers of CUDA ${DEMI_GRAPH_CUDA_VERSION} in ${DEMI_GRAPH_CUDA_FOLDER}")
