# What the plugins share that link libtorch_cuda, which libdemi opens only where there is a driver: where CUDA's headers are, and how
# such a plugin is built. Read by Nccl.cmake and Graph.cmake.
include_guard(GLOBAL)

# demi_cuda_folders(OUT [HOME...]): where NVIDIA's headers are looked for: in the wheels that stand beside LibTorch's, in HOME/include,
# in that of CUDA_HOME, in the system's folders.
function(demi_cuda_folders out)
  if(NOT DEFINED DEMI_CUDA_SYSTEM_FOLDERS)  # the test has others
    set(DEMI_CUDA_SYSTEM_FOLDERS /usr/local/cuda/include /usr/local/include /usr/include)
  endif()
  file(GLOB folders "${DEMI_LIBTORCH_DIR}/../nvidia/*/include")
  foreach(home ${ARGN} $ENV{CUDA_HOME})
    list(APPEND folders ${home}/include)
  endforeach()
  list(APPEND folders ${DEMI_CUDA_SYSTEM_FOLDERS})
  set(${out} ${folders} PARENT_SCOPE)
endfunction()

# demi_find_cuda_headers(FOLDER MISSING ADVICE FOLDERS HEADER...): the first of the list FOLDERS that has all the headers; else "", and in
# words why, and what to do about it.
function(demi_find_cuda_headers out missing advice folders)
  set(${out} "" PARENT_SCOPE)
  foreach(folder ${folders})
    set(has_all ON)
    foreach(header ${ARGN})
      if(NOT EXISTS ${folder}/${header})
        set(has_all OFF)
      endif()
    endforeach()
    if(has_all)
      set(${out} ${folder} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  list(JOIN ARGN ", " headers)
  set(${missing} "CUDA's headers were not found (${headers})" PARENT_SCOPE)
  set(${advice} "Install CUDA's toolkit, and name it with CUDA_HOME if it is not in /usr/local/cuda." PARENT_SCOPE)
endfunction()

# What a function that looks for the headers of DEMI_PLUGIN, which is AUTO, ON or OFF, returns with.
# demi_not_found(PLUGIN WHY [ADVICE]): DEMI_PLUGIN_BUILT is OFF, DEMI_PLUGIN_MISSING says why, in words that the library repeats, and
# DEMI_PLUGIN_ADVICE what to do about it.
macro(demi_not_found plugin why)
  set(DEMI_${plugin}_BUILT OFF PARENT_SCOPE)
  set(DEMI_${plugin}_MISSING "${why}" PARENT_SCOPE)
  set(DEMI_${plugin}_ADVICE "${ARGN}" PARENT_SCOPE)
  return()
endmacro()

# demi_found(PLUGIN FOLDER): DEMI_PLUGIN_BUILT is ON, and CUDA's headers are in DEMI_PLUGIN_CUDA_FOLDER.
macro(demi_found plugin folder)
  set(DEMI_${plugin}_BUILT ON PARENT_SCOPE)
  set(DEMI_${plugin}_MISSING "" PARENT_SCOPE)
  set(DEMI_${plugin}_ADVICE "" PARENT_SCOPE)
  set(DEMI_${plugin}_CUDA_FOLDER ${folder} PARENT_SCOPE)
endmacro()

# demi_return_if_off(PLUGIN): where nothing is to be looked for.
macro(demi_return_if_off plugin)
  if(DEMI_${plugin} STREQUAL "OFF")
    demi_not_found(${plugin} "DEMI_${plugin} is OFF")
  elseif(DEMI_SANITIZE)
    demi_not_found(${plugin} "it is not built with sanitizers")
  endif()
endmacro()

# demi_say_found(PLUGIN NAME WHAT FOUND): FOUND of the plugin NAME if it is built, else why it is not: an error, in which WHAT cannot be
# built, if it is required.
function(demi_say_found plugin name what found)
  set(why "${DEMI_${plugin}_MISSING}. ${DEMI_${plugin}_ADVICE}")
  if(DEMI_${plugin}_BUILT)
    message(STATUS "${name}: ${found}")
  elseif(DEMI_${plugin} STREQUAL "ON")
    message(FATAL_ERROR "DEMI_${plugin} is ON, but ${what} cannot be built: ${why}")
  elseif(DEMI_${plugin}_INCLUDE AND DEMI_${plugin} STREQUAL "AUTO" AND NOT DEMI_SANITIZE)
    message(FATAL_ERROR "DEMI_${plugin}_INCLUDE is ${DEMI_${plugin}_INCLUDE}, but ${what} cannot be built: ${why}")
  else()
    message(STATUS "${name}: not built, since ${why}")
  endif()
endfunction()

# demi_torch_cuda_plugin(TARGET NAME SOURCE FOLDER...): builds libNAME.so in the root of the build folder, with headers of NVIDIA's from
# the folders, and installs it beside libdemi.
function(demi_torch_cuda_plugin target name source)
  add_library(${target} MODULE ${source})
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${ARGN})
  target_link_libraries(${target} PRIVATE demi_options demi::libtorch ${DEMI_LIBTORCH_LIBRARY_DIR}/libtorch_cuda.so
                        ${DEMI_LIBTORCH_LIBRARY_DIR}/libc10_cuda.so)
  if(DEMI_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()
