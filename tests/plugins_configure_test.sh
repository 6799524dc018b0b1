#!/usr/bin/env bash
# Which headers of NVIDIA's cmake/Nccl.cmake and cmake/Graph.cmake take, and what they say if there are none:
# plugins_configure_test.sh SOURCE CMAKE
# Runs them on folders that look like a LibTorch's wheel, with files of which they read one line each.
set -euo pipefail
source=$1 cmake=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CUDA_HOME NCCL_HOME
failures=0

# nccl_header FOLDER VERSION
nccl_header() {
  local major minor patch
  IFS=. read -r major minor patch <<<"$2"
  mkdir -p "$1"
  printf '#define NCCL_MAJOR %s\n#define NCCL_MINOR %s\n#define NCCL_PATCH %s\n#define NCCL_SUFFIX ""\n' "$major" "$minor" "$patch" >"$1/nccl.h"
}
# cuda_headers FOLDER [VERSION]
cuda_headers() {
  mkdir -p "$1/crt" && touch "$1"/{cuda,cuda_runtime,crt/host_config,cublas_v2,cusparse,cusolverDn}.h
  printf '#define CUDART_VERSION  %s\n' "${2:-13000}" >"$1/cuda_runtime_api.h"
}

# A LibTorch that was built with NCCL 2.30.7, and a system with 2.28.9.
fresh() {
  rm -rf "$work"/*
  mkdir -p "$work"/wheel/torch/{lib,share/cmake/Caffe2} "$work"/wheel/torch-2.15.0.dist-info
  touch "$work/wheel/torch/lib/libtorch_cuda.so"
  echo '-DUSE_C10D_NCCL' >"$work/wheel/torch/share/cmake/Caffe2/Caffe2Targets.cmake"
  printf 'Name: torch\nRequires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == "Linux"\n' >"$work/wheel/torch-2.15.0.dist-info/METADATA"
  nccl_header "$work/system" 2.28.9
  cuda_headers "$work/system"
}

# expect CODE TEXT [OPTION...]: how $file ends, and what it says.
file=Nccl.cmake
expect() {
  local code=$1 text=$2 seen=0 said
  shift 2
  said=$("$cmake" "-DDEMI_LIBTORCH_DIR=$work/wheel/torch" "-DDEMI_LIBTORCH_LIBRARY_DIR=$work/wheel/torch/lib" \
    "-DDEMI_LIBTORCH_TARGETS=$work/wheel/torch/share/cmake/Caffe2/Caffe2Targets.cmake" "-DDEMI_CUDA_SYSTEM_FOLDERS=$work/system" \
    -DDEMI_LIBTORCH_FOUND_VERSION=2.15.0 "$@" -P "$source/cmake/$file" 2>&1) || seen=$?
  said=$(tr -s ' \n' '  ' <<<"$said")
  if [ "$seen" != "$code" ] || [[ $said != *"$text"* ]]; then
    echo "FAILED (line ${BASH_LINENO[0]}): code $seen, expected $code; expected '$text' in: $said"
    failures=$((failures + 1))
  fi
}

fresh
differs="LibTorch's NCCL is 2.30.7, and only an nccl.h of 2.28.9 was found"
expect 0 "NCCL: not built, since $differs."
expect 0 "nvidia-nccl-cu13==2.30.7 has it in nvidia/nccl/include"
expect 1 "DEMI_NCCL is ON, but NCCL cannot be built: $differs" -DDEMI_NCCL=ON
expect 0 "NCCL: not built, since DEMI_NCCL is OFF" -DDEMI_NCCL=OFF
expect 0 "NCCL: not built, since it is not built with sanitizers" -DDEMI_SANITIZE=address

# The wheel of NCCL beside LibTorch's comes first, and a folder that is named before all.
nccl_header "$work/wheel/nvidia/nccl/include" 2.30.7
expect 0 "NCCL: header of 2.30.7 in $work/wheel/torch/../nvidia/nccl/include"
expect 1 "DEMI_NCCL_INCLUDE is $work/system, but NCCL cannot be built: $differs" "-DDEMI_NCCL_INCLUDE=$work/system"
nccl_header "$work/mine" 2.30.7
expect 0 "NCCL: header of 2.30.7 in $work/mine" "-DDEMI_NCCL_INCLUDE=$work/mine" -DDEMI_NCCL=ON
nccl_header "$work/mine" 2.30.6
expect 1 "only an nccl.h of 2.30.6 was found" "-DDEMI_NCCL_INCLUDE=$work/mine"
expect 0 "NCCL: not built, since DEMI_NCCL is OFF" "-DDEMI_NCCL_INCLUDE=$work/mine" -DDEMI_NCCL=OFF
expect 0 "NCCL: not built, since it is not built with sanitizers" "-DDEMI_NCCL_INCLUDE=$work/mine" -DDEMI_SANITIZE=thread

# A header that matches further down the list.
fresh
nccl_header "$work/later" 2.30.7
expect 0 "NCCL: header of 2.30.7 in $work/later" "-DDEMI_CUDA_SYSTEM_FOLDERS=$work/system;$work/later"
nccl_header "$work/last" 2.30.7
expect 0 "NCCL: header of 2.30.7 in $work/later" "-DDEMI_CUDA_SYSTEM_FOLDERS=$work/system;$work/later;$work/last"
expect 0 "$differs." "-DDEMI_CUDA_SYSTEM_FOLDERS=$work/system;$work/system"
NCCL_HOME=$work/home expect 0 "$differs"
nccl_header "$work/home/include" 2.30.7
NCCL_HOME=$work/home expect 0 "NCCL: header of 2.30.7 in $work/home/include"

# None at all; nothing that says which one.
fresh
rm "$work/system/nccl.h"
expect 0 "NCCL: not built, since no nccl.h was found, and LibTorch's NCCL is 2.30.7"
rm -r "$work"/wheel/torch-2.15.0.dist-info
expect 0 "NCCL: not built, since no nccl.h was found. Name its folder"
nccl_header "$work/system" 2.28.9
expect 0 "NCCL: header of 2.28.9 in $work/system"

# The runtime's header alone, as in the wheel of the CUDA runtime.
fresh
nccl_header "$work/system" 2.30.7
rm "$work/system/cusolverDn.h"
expect 0 "NCCL: not built, since CUDA's headers were not found"
expect 1 "DEMI_NCCL is ON, but NCCL cannot be built: CUDA's headers" -DDEMI_NCCL=ON
cuda_headers "$work/toolkit/include"
CUDA_HOME=$work/toolkit expect 0 "NCCL: header of 2.30.7 in $work/system"

# All but crt/, which a wheel of its own holds beside the toolkit's wheels.
rm -r "$work/toolkit/include/crt"
CUDA_HOME=$work/toolkit expect 0 "NCCL: not built, since CUDA's headers were not found"

# A LibTorch for the CPU.
fresh
rm "$work/wheel/torch/lib/libtorch_cuda.so"
expect 0 "NCCL: not built, since this LibTorch has none"
fresh
echo '-DUSE_C10D_GLOO' >"$work/wheel/torch/share/cmake/Caffe2/Caffe2Targets.cmake"
expect 1 "DEMI_NCCL is ON, but NCCL cannot be built: this LibTorch has none" -DDEMI_NCCL=ON

# Graphs: they need no NCCL, and headers of CUDA from 12.4 on.
file=Graph.cmake
fresh
rm "$work"/system/{nccl,cublas_v2}.h
expect 0 "Graphs: headers of CUDA 13.0 in $work/system"
expect 0 "Graphs: headers of CUDA 13.0 in $work/system" -DDEMI_GRAPH=ON
expect 0 "Graphs: not built, since DEMI_GRAPH is OFF" -DDEMI_GRAPH=OFF
expect 0 "Graphs: not built, since it is not built with sanitizers" -DDEMI_SANITIZE=thread
old="this LibTorch is 2.11.0, and work is recorded from 2.15 on"
expect 0 "Graphs: not built, since $old" -DDEMI_LIBTORCH_FOUND_VERSION=2.11.0
expect 1 "DEMI_GRAPH is ON, but libdemi_graph.so cannot be built: $old" -DDEMI_LIBTORCH_FOUND_VERSION=2.11.0 -DDEMI_GRAPH=ON
cuda_headers "$work/system" 12040
expect 0 "Graphs: headers of CUDA 12.4 in $work/system"
cuda_headers "$work/system" 12030
expect 0 "Graphs: not built, since CUDA's headers are of 12.3 ($work/system), and it needs 12.4 or newer"
cuda_headers "$work/toolkit/include" 13020
CUDA_HOME=$work/toolkit expect 0 "Graphs: headers of CUDA 13.2 in $work/toolkit/include"
rm "$work/system/crt/host_config.h"
expect 0 "Graphs: not built, since CUDA's headers were not found (cuda_runtime.h, cuda_runtime_api.h, cuda.h, crt/host_config.h)"
rm "$work/wheel/torch/lib/libtorch_cuda.so"
expect 0 "Graphs: not built, since this LibTorch has no part for CUDA"

[ "$failures" -eq 0 ] && echo "all as expected"
