# LibTorch's NCCL backend as a plugin, libdemi_nccl.so: it links libtorch_cuda, which libdemi opens only where there is a driver.
#
#   DEMI_NCCL           AUTO (where LibTorch has NCCL, and the headers of NCCL and CUDA are found), ON (required), OFF
#   DEMI_NCCL_INCLUDE   the folder with nccl.h, if it is not to be looked for
#
# nccl.h has to be of the version that LibTorch was built with. c10d's ProcessGroupNCCL::Options holds ncclConfig_t by value, with
# other members behind it, and this struct grows: 80 bytes in 2.28, 96 in 2.30. Patch releases added members, too (2.27.3, 2.29.7).
# LibTorch's wheel names the version among its requirements. Where nothing names it, the plugin compares when it is opened.
include(${CMAKE_CURRENT_LIST_DIR}/TorchCuda.cmake)
set(DEMI_NCCL AUTO CACHE STRING "NCCL for several ranks on GPUs: AUTO, ON (required) or OFF")
set(DEMI_NCCL_INCLUDE "" CACHE PATH "The folder with the nccl.h of LibTorch's NCCL; looked for if empty")

# _demi_nccl_version(OUT HEADER): of nccl.h, as 2.30.7; "" if it has none.
function(_demi_nccl_version out header)
  file(STRINGS ${header} lines REGEX "define +NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  string(REPLACE ";" "." version "${numbers}")
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# _demi_libtorch_nccl(VERSION PACKAGE): what the wheel of this LibTorch requires; "" if nothing says it.
function(_demi_libtorch_nccl version package)
  set(${version} "" PARENT_SCOPE)
  file(GLOB metadata "${DEMI_LIBTORCH_DIR}/../torch-*.dist-info/METADATA")
  foreach(file ${metadata})
    file(STRINGS ${file} line REGEX "^Requires-Dist: nvidia-nccl-[a-z0-9]+ *==" LIMIT_COUNT 1)
    if(line MATCHES "(nvidia-nccl-[a-z0-9]+) *== *([0-9.]+)")
      set(${package} ${CMAKE_MATCH_1} PARENT_SCOPE)
      set(${version} ${CMAKE_MATCH_2} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# demi_find_nccl(): as demi_found and demi_not_found say, with the folder DEMI_NCCL_FOLDER of nccl.h, of DEMI_NCCL_VERSION.
function(demi_find_nccl)
  demi_return_if_off(NCCL)
  set(has_nccl "")
  if(DEMI_LIBTORCH_TARGETS AND EXISTS "${DEMI_LIBTORCH_LIBRARY_DIR}/libtorch_cuda.so")
    file(STRINGS "${DEMI_LIBTORCH_TARGETS}" has_nccl REGEX "USE_C10D_NCCL")
  endif()
  if(NOT has_nccl)
    demi_not_found(NCCL "this LibTorch has none" "Name a LibTorch for CUDA with -DDEMI_LIBTORCH=DIR.")
  endif()

  demi_cuda_folders(folders $ENV{NCCL_HOME})
  _demi_libtorch_nccl(wanted package)
  set(seen "")
  set(found "")
  set(places ${folders})
  if(DEMI_NCCL_INCLUDE)
    set(places ${DEMI_NCCL_INCLUDE})
  endif()
  foreach(folder ${places})
    if(NOT found AND EXISTS ${folder}/nccl.h)
      _demi_nccl_version(version ${folder}/nccl.h)
      if(NOT wanted OR version STREQUAL wanted)
        set(found ${folder})
        set(version_found ${version})
      else()
        list(APPEND seen "${version}")
      endif()
    endif()
  endforeach()
  if(NOT found)
    set(advice "Name its folder with -DDEMI_NCCL_INCLUDE=DIR.")
    if(wanted)
      string(APPEND advice " The pip package ${package}==${wanted} has it in nvidia/nccl/include.")
    endif()
    list(REMOVE_DUPLICATES seen)
    list(JOIN seen ", " seen)
    if(seen)
      set(missing "LibTorch's NCCL is ${wanted}, and only an nccl.h of ${seen} was found")
    elseif(wanted)
      set(missing "no nccl.h was found, and LibTorch's NCCL is ${wanted}")
    else()
      set(missing "no nccl.h was found")
    endif()
    demi_not_found(NCCL "${missing}" "${advice}")
  endif()

  # What ATen's header of CUDA includes. The runtime's wheel alone has only the first, and leaves crt/ to another wheel.
  demi_find_cuda_headers(cuda missing advice "${folders}" cuda_runtime_api.h crt/host_config.h cublas_v2.h cusparse.h cusolverDn.h)
  if(NOT cuda)
    demi_not_found(NCCL "${missing}" "${advice}")
  endif()
  demi_found(NCCL ${cuda})
  set(DEMI_NCCL_FOLDER ${found} PARENT_SCOPE)
  set(DEMI_NCCL_VERSION ${version_found} PARENT_SCOPE)
endfunction()

# demi_nccl_plugin(TARGET SOURCE): builds libTARGET.so in the root of the build folder, and installs it beside libdemi.
function(demi_nccl_plugin target source)
  # NCCL's first: CUDA's folder may hold another nccl.h.
  demi_torch_cuda_plugin(${target} ${target} ${source} ${DEMI_NCCL_FOLDER} ${DEMI_NCCL_CUDA_FOLDER})
  target_compile_definitions(${target} PRIVATE USE_C10D_NCCL)
  # Of an inline function of LibTorch's, in the eyes of GCC 12.
  target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
endfunction()

demi_find_nccl()
demi_say_found(NCCL NCCL NCCL "header of ${DEMI_NCCL_VERSION} in ${DEMI_NCCL_FOLDER}")
