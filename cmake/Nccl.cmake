# LibTorch's NCCL backend as a plugin, libdemi_nccl.so: it links libtorch_cuda, which libdemi opens only where there is a driver.
#
#   DEMI_NCCL           AUTO (where LibTorch has NCCL, and the headers of NCCL and CUDA are found), ON (required), OFF
#   DEMI_NCCL_INCLUDE   the folder with nccl.h, if it is not to be looked for
#
# nccl.h has to be of the version that LibTorch was built with. c10d's ProcessGroupNCCL::Options holds ncclConfig_t by value, with
# other members behind it, and this struct grows: 80 bytes in 2.28, 96 in 2.30. Patch releases added members, too (2.27.3, 2.29.7).
# LibTorch's wheel names the version among its requirements. Where nothing names it, the plugin compares when it is opened.
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

# demi_find_nccl(): DEMI_NCCL_BUILT, with the folders DEMI_NCCL_FOLDER and DEMI_NCCL_CUDA_FOLDER; else DEMI_NCCL_MISSING says why, in
# words that the library repeats, and DEMI_NCCL_ADVICE what to do about it.
function(demi_find_nccl)
  set(DEMI_NCCL_BUILT OFF PARENT_SCOPE)
  set(DEMI_NCCL_ADVICE "" PARENT_SCOPE)
  if(DEMI_NCCL STREQUAL "OFF")
    set(DEMI_NCCL_MISSING "DEMI_NCCL is OFF" PARENT_SCOPE)
    return()
  elseif(DEMI_SANITIZE)
    set(DEMI_NCCL_MISSING "it is not built with sanitizers" PARENT_SCOPE)
    return()
  endif()
  set(has_nccl "")
  if(DEMI_LIBTORCH_TARGETS AND EXISTS "${DEMI_LIBTORCH_LIBRARY_DIR}/libtorch_cuda.so")
    file(STRINGS "${DEMI_LIBTORCH_TARGETS}" has_nccl REGEX "USE_C10D_NCCL")
  endif()
  if(NOT has_nccl)
    set(DEMI_NCCL_MISSING "this LibTorch has none" PARENT_SCOPE)
    set(DEMI_NCCL_ADVICE "Name a LibTorch for CUDA with -DDEMI_LIBTORCH=DIR." PARENT_SCOPE)
    return()
  endif()

  if(NOT DEFINED DEMI_NCCL_SYSTEM_FOLDERS)  # the test has others
    set(DEMI_NCCL_SYSTEM_FOLDERS /usr/local/cuda/include /usr/local/include /usr/include)
  endif()
  file(GLOB folders "${DEMI_LIBTORCH_DIR}/../nvidia/*/include")  # the wheels that stand beside LibTorch's
  foreach(home $ENV{NCCL_HOME} $ENV{CUDA_HOME})
    list(APPEND folders ${home}/include)
  endforeach()
  list(APPEND folders ${DEMI_NCCL_SYSTEM_FOLDERS})

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
    set(DEMI_NCCL_MISSING "${missing}" PARENT_SCOPE)
    set(DEMI_NCCL_ADVICE "${advice}" PARENT_SCOPE)
    return()
  endif()

  # What ATen's header of CUDA includes. The runtime's wheel alone has only the first, and leaves crt/ to another wheel.
  set(cuda "")
  foreach(folder ${folders})
    if(NOT cuda AND EXISTS ${folder}/cuda_runtime_api.h AND EXISTS ${folder}/cublas_v2.h AND EXISTS ${folder}/cusparse.h
       AND EXISTS ${folder}/cusolverDn.h AND EXISTS ${folder}/crt/host_config.h)
      set(cuda ${folder})
    endif()
  endforeach()
  if(NOT cuda)
    set(DEMI_NCCL_MISSING "CUDA's headers were not found (cuda_runtime_api.h, crt/host_config.h, cublas_v2.h, cusparse.h, cusolverDn.h)"
        PARENT_SCOPE)
    set(DEMI_NCCL_ADVICE "Install CUDA's toolkit, and name it with CUDA_HOME if it is not in /usr/local/cuda." PARENT_SCOPE)
    return()
  endif()
  set(DEMI_NCCL_BUILT ON PARENT_SCOPE)
  set(DEMI_NCCL_MISSING "" PARENT_SCOPE)
  set(DEMI_NCCL_FOLDER ${found} PARENT_SCOPE)
  set(DEMI_NCCL_CUDA_FOLDER ${cuda} PARENT_SCOPE)
endfunction()

# demi_nccl_plugin(TARGET SOURCE): builds libTARGET.so in the root of the build folder, and installs it beside libdemi.
function(demi_nccl_plugin target source)
  add_library(${target} MODULE ${source})
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_compile_definitions(${target} PRIVATE USE_C10D_NCCL)
  # Of an inline function of LibTorch's, in the eyes of GCC 12.
  target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  # NCCL's first: CUDA's folder may hold another nccl.h.
  target_include_directories(${target} SYSTEM PRIVATE ${DEMI_NCCL_FOLDER} ${DEMI_NCCL_CUDA_FOLDER})
  target_link_libraries(${target} PRIVATE demi_options demi::libtorch ${DEMI_LIBTORCH_LIBRARY_DIR}/libtorch_cuda.so
                        ${DEMI_LIBTORCH_LIBRARY_DIR}/libc10_cuda.so)
  if(DEMI_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

demi_find_nccl()
if(DEMI_NCCL_BUILT)
  _demi_nccl_version(_demi_nccl_found ${DEMI_NCCL_FOLDER}/nccl.h)
  message(STATUS "NCCL: header of ${_demi_nccl_found} in ${DEMI_NCCL_FOLDER}")
elseif(DEMI_NCCL STREQUAL "ON")
  message(FATAL_ERROR "DEMI_NCCL is ON, but NCCL cannot be built: ${DEMI_NCCL_MISSING}. ${DEMI_NCCL_ADVICE}")
elseif(DEMI_NCCL_INCLUDE AND DEMI_NCCL STREQUAL "AUTO" AND NOT DEMI_SANITIZE)
  message(FATAL_ERROR "DEMI_NCCL_INCLUDE is ${DEMI_NCCL_INCLUDE}, but NCCL cannot be built: ${DEMI_NCCL_MISSING}. ${DEMI_NCCL_ADVICE}")
else()
  message(STATUS "NCCL: not built, since ${DEMI_NCCL_MISSING}. ${DEMI_NCCL_ADVICE}")
endif()
