#!/usr/bin/env bash
# Configures, builds and runs the projects of tests/consumer, each of which takes demi in another way, as docs/guide/integration.md
# shows them: consumer_test.sh WAY SOURCE BUILD CMAKE NINJA
#   find_package   an installed demi: library, lab, and what is refused
#   after_torch    in a project that calls find_package(Torch), before demi or after it
#   layouts        LibTorch where packages put it: a zip, conda, Debian, split in two; found by CMAKE_PREFIX_PATH, Torch_DIR, DEMI_LIBTORCH
#   pkg_config     with make
#   add_subdirectory, fetch_content   demi's own build in a project; the first has fmt, nlohmann_json and GoogleTest of its own
#   add_subdirectory_whole, fetch_content_whole   the same with demi compiled again
set -euo pipefail
way=$1 source=$2 build=$3 cmake=$4 ninja=$5
work=$(mktemp -d "$build/consumer-$way.XXXX")
trap 'rm -rf "$work"' EXIT
libtorch=$(sed -n 's/^set(_demi_built_with_library_dir "\(.*\)")/\1/p' "$build/demiConfig.cmake")
headers=$(sed -n 's/^set(_demi_built_with_include_dir "\(.*\)")/\1/p' "$build/demiConfig.cmake")
version=$(sed -n 's/^set(_demi_built_with "\(.*\)")/\1/p' "$build/demiConfig.cmake")
# What the compiler made for an earlier run is used again, wherever the temporary folder is.
if command -v ccache >/dev/null; then
  CCACHE_DIR=$(ccache --get-config cache_dir)
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
fi
# As in a project that never heard of where demi's LibTorch is.
unset DEMI_LIBTORCH DEMI_CACHE
export HOME=/nonexistent
# As many projects do: what demi hands out compiles under it. Demi's own files have their own flags, under which ccache knows them.
warnings=(-Wall -Wextra -Werror)

fail() {
  echo "FAILED: $*"
  exit 1
}

# project NAME [PROGRAM]: a copy of tests/consumer/NAME in $work/NAME, with the program as its main.cpp. The page shows the same text.
project() {
  [ "$1" = lab ] || [[ $(<"$source/docs/guide/integration.md") == *"$(cat "$source/tests/consumer/$1"/*)"* ]] ||
    fail "docs/guide/integration.md shows another text than tests/consumer/$1"
  cp -r "$source/tests/consumer/$1" "$work/$1"
  cp "$source/tests/consumer/${2:-consumer}.cpp" "$work/$1/main.cpp"
  [ "$1" = pkg_config ] || echo "target_compile_options(mine PRIVATE ${warnings[*]})" >>"$work/$1/CMakeLists.txt"
}

# configure PROJECT [OPTION...]
configure() {
  local name=$1
  shift
  rm -rf "$work/build"
  "$cmake" -G Ninja "-DCMAKE_MAKE_PROGRAM=$ninja" -DCMAKE_BUILD_TYPE=Release -S "$work/$name" -B "$work/build" "$@" >"$work/log" 2>&1
}

# runs PROJECT [OPTION...]: it configures, builds, runs, and loads LibTorch and the system's libraries alone.
runs() {
  configure "$@" || { cat "$work/log"; fail "$* does not configure"; }
  "$cmake" --build "$work/build" >"$work/log" 2>&1 || { cat "$work/log"; fail "$* does not build"; }
  "$work/build/mine" || fail "$*: the program failed"
}

# finds FOLDER PROJECT [OPTION...]: it configures with the LibTorch in this folder.
finds() {
  local folder=$1
  shift
  configure "$@" || { cat "$work/log"; fail "$* does not configure"; }
  grep -q "LibTorch $version at $folder$" "$work/log" || { cat "$work/log"; fail "$* does not find LibTorch in $folder"; }
}

# refused TEXT PROJECT [OPTION...]: it does not configure, and the text is among what CMake says.
refused() {
  local text=$1
  shift
  ! configure "$@" || fail "$* was not refused"
  tr -s '\n ' ' ' <"$work/log" | grep -qF "$text" || { cat "$work/log"; fail "$* does not say: $text"; }
}

loads_nothing_else() {
  ! ldd "$1" | grep -E 'lib(curl|archive|jpeg|png|z|fmt|utf8proc|md|crypto)[.-]' || fail "$1 loads libraries that only the lab needs"
}

# built_by_demo: the targets of ./demo make all that is installed from the build folder, but for what configuring has written.
built_by_demo() {
  local targets commands file
  mapfile -t targets < <(grep -o -- '--target=[a-z_]*' "$source/demo" | cut -d = -f 2)
  commands=$("$ninja" -C "$build" -t commands "${targets[@]}") || fail "./demo builds no target"
  while read -r file; do
    ! "$ninja" -C "$build" -t query "$file" >/dev/null 2>&1 || grep -qF -- "$file" <<<"$commands" ||
      fail "cmake --install after ./demo lacks $file, which ${targets[*]} does not make"
  done < <(find "$build"/{cmake_install.cmake,lib,lab,cli} -name cmake_install.cmake -exec grep -hoP "\"$build/\K[^\"]+" {} + | sort -u)
}

install_demi() {
  "$cmake" "-DCMAKE_INSTALL_PREFIX=$work/prefix" -DDEMI_INSTALL_LIBTORCH=OFF -P "$build/cmake_install.cmake" >/dev/null
}

# another_libtorch FOLDER VERSION: what CMake reads of a LibTorch, and nothing that could be linked.
another_libtorch() {
  mkdir -p "$1/lib" "$1/include/ATen" "$1/include/torch/csrc/api/include/torch"
  touch "$1/lib/libtorch_cpu.so" "$1/include/ATen/ATen.h"
  local numbers=(${2//./ })
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' "${numbers[@]}" \
    >"$1/include/torch/csrc/api/include/torch/version.h"
}

find_package() {
  [ ! -e "$build/demi" ] || built_by_demo
  install_demi
  [ -z "$(find "$work/prefix" -name '*_test*' -o -name '*testing*')" ] || fail "a test was installed"
  [ -e "$work/prefix/include/demi/demi.h" ] || fail "no include/demi/demi.h was installed"
  [ ! -e "$work/prefix/include/lab" ] || fail "include/lab was installed, which is too common a name"
  ! grep -rlE '<(fmt|nlohmann)/' "$work/prefix/include" || fail "an installed header needs fmt or nlohmann"
  if [ -e "$build/demi" ]; then
    "$work/prefix/bin/demi" --version || fail "the installed program does not start"
  fi
  local plugin installed
  for plugin in libdemi_nccl.so libdemi_graph.so; do  # opened from beside libdemi
    [ -e "$build/$plugin" ] || continue
    installed=$(dirname "$(find "$work/prefix" -name libdemi.so)")/$plugin
    [ -e "$installed" ] || fail "$plugin is not beside libdemi.so"
    readelf -d "$installed" | grep -q "R.*PATH.*$libtorch" || fail "$plugin does not know where LibTorch is"
  done
  project find_package
  runs find_package "-DCMAKE_PREFIX_PATH=$work/prefix"
  loads_nothing_else "$work/build/mine"
  project lab lab_consumer
  runs lab "-DCMAKE_PREFIX_PATH=$work/prefix"

  mkdir -p "$work/empty/lib"
  refused "lib/libtorch_cpu.so is missing" find_package "-DCMAKE_PREFIX_PATH=$work/prefix" "-DDEMI_LIBTORCH=$work/empty"
  another_libtorch "$work/newer" 2.99.0
  another_libtorch "$work/older" 1.13.1
  local prefix
  for prefix in "$work/newer" "$work/older"; do
    refused "Name a ${version%.*} with -DDEMI_LIBTORCH=DIR" find_package "-DCMAKE_PREFIX_PATH=$work/prefix;$prefix"
  done
  refused "demi was built with LibTorch $version, but $work/newer/lib/libtorch_cpu.so is 2.99.0" find_package \
    "-DCMAKE_PREFIX_PATH=$work/prefix" "-DDEMI_LIBTORCH=$work/newer"
  refused "is 1.13.1; demi needs 2.11 or newer" find_package "-DCMAKE_PREFIX_PATH=$work/prefix;$work/older"
  rm -r "$work/newer/include"
  refused "No headers of LibTorch were found for $work/newer/lib/libtorch_cpu.so" find_package "-DCMAKE_PREFIX_PATH=$work/prefix" \
    "-DDEMI_LIBTORCH=$work/newer"
}

# linked FROM TO: every file of the folder FROM as a link in the folder TO.
linked() {
  mkdir -p "$2"
  ln -s "$1"/* "$2"
}

# cpu_libtorch FOLDER: LibTorch as a zip for the CPU has it. Where ours is built for CUDA, the lines about CUDA are left out of its
# CMake files, and libtorch.so is made anew: in a zip for the CPU it is an empty library that loads libtorch_cpu.so.
cpu_libtorch() {
  local package=$1/share/cmake file
  linked "$headers" "$1/include"
  linked "$libtorch" "$1/lib"
  mkdir -p "$package"
  cp -r "$headers"/../share/cmake/{Torch,Caffe2} "$package"
  rm -f "$1"/lib/libtorch{,_cuda,_nvshmem}.so "$1"/lib/libc10_cuda.so
  ${CXX:-c++} -shared -fPIC -x c++ /dev/null -o "$1/lib/libtorch.so" -Wl,--no-as-needed -L"$libtorch" -ltorch_cpu "${rpath_links[@]}"
  sed -i 's/^if(1)$/if(0)/' "$package/Caffe2/Caffe2Config.cmake" "$package/Torch/TorchConfig.cmake"
  for file in "$package"/Caffe2/Caffe2Targets*.cmake; do
    sed -i 's/torch_cpu_library;torch_cuda_library/torch_cpu_library/; /IN ITEMS/s/ \(c10_cuda\|torch_nvshmem\|torch_cuda\|torch_cuda_library\)\b//g' "$file"
    awk 'BEGIN { RS = ""; ORS = "\n\n" } !/c10_cuda|torch_cuda|torch_nvshmem/' "$file" >"$file.new"
    mv "$file.new" "$file"
  done
}

# What a wheel for CUDA keeps beside LibTorch, which links to its files do not find.
rpath_links=()
beside_libtorch() {
  local folder
  for folder in "$libtorch"/../../nvidia/*/lib; do
    [ -d "$folder" ] || continue
    rpath_links+=("-Wl,-rpath-link,$folder")
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
  export LDFLAGS="${rpath_links[*]}"
}

# one_libtorch: what was built links the LibTorch that find_package(Torch) found, and not the one that demi was built with.
one_libtorch() {
  grep -q "$work/torch/lib/libtorch_cpu.so" "$work/build/build.ninja" || fail "find_package(Torch)'s LibTorch is not linked"
  ! grep -q "$libtorch/libtorch_cpu.so" "$work/build/build.ninja" || fail "LibTorch is linked from two folders"
}

after_torch() {
  install_demi
  beside_libtorch
  cpu_libtorch "$work/torch"
  project find_package_after_torch
  runs find_package_after_torch "-DCMAKE_PREFIX_PATH=$work/prefix;$work/torch"
  one_libtorch
  # demi first.
  local list=$work/find_package_after_torch/CMakeLists.txt
  sed -i '/find_package(Torch/d; s/^find_package(demi.*/&\nfind_package(Torch REQUIRED)/' "$list"
  runs find_package_after_torch "-DCMAKE_PREFIX_PATH=$work/prefix;$work/torch"
  one_libtorch
  # Each from another place.
  rm "$work/torch/lib/libtorch_cpu.so"
  cp "$libtorch/libc10.so" "$work/torch/lib/libtorch_cpu.so"
  refused "Two LibTorches: find_package(Torch) took $work/torch/lib/libtorch_cpu.so, demi $libtorch/libtorch_cpu.so" \
    find_package_after_torch "-DCMAKE_PREFIX_PATH=$work/prefix" "-DTorch_DIR=$work/torch/share/cmake/Torch" "-DDEMI_LIBTORCH=$libtorch/.."
}

layouts() {
  install_demi
  beside_libtorch
  project find_package
  local cmake_files=$headers/../share/cmake machine
  machine=$(${CXX:-c++} -print-multiarch)
  # Hidden, so that the one that demi was built with is not taken.
  sed -i 's/^set(_demi_built_with_\(library\|include\)_dir .*/set(_demi_built_with_\1_dir "")/' "$work"/prefix/lib*/cmake/demi/demiConfig.cmake
  refused "No LibTorch at" find_package "-DCMAKE_PREFIX_PATH=$work/prefix"

  linked "$headers" "$work/zip/include"
  linked "$libtorch" "$work/zip/lib"
  linked "$cmake_files" "$work/zip/share/cmake"
  runs find_package "-DCMAKE_PREFIX_PATH=$work/prefix" "-DDEMI_LIBTORCH=$work/zip"
  finds "$work/zip/lib" find_package "-DCMAKE_PREFIX_PATH=$work/prefix" "-DTorch_DIR=$work/zip/share/cmake/Torch"

  linked "$headers" "$work/conda/include"
  linked "$libtorch" "$work/conda/lib"
  linked "$cmake_files" "$work/conda/share/cmake"
  runs find_package "-DCMAKE_PREFIX_PATH=$work/prefix;$work/conda"

  linked "$headers" "$work/debian/include"
  linked "$libtorch" "$work/debian/lib/$machine"
  linked "$cmake_files" "$work/debian/lib/$machine/cmake"
  runs find_package "-DCMAKE_PREFIX_PATH=$work/prefix;$work/debian"

  linked "$headers" "$work/split-dev/include"
  linked "$cmake_files" "$work/split-dev/share/cmake"
  linked "$libtorch" "$work/split/lib"
  runs find_package "-DCMAKE_PREFIX_PATH=$work/prefix;$work/split-dev;$work/split"
  finds "$work/split/lib" find_package "-DCMAKE_PREFIX_PATH=$work/prefix" "-DDEMI_LIBTORCH=$work/split-dev;$work/split"
}

pkg_config() {
  command -v pkg-config >/dev/null || { echo "SKIPPED: no pkg-config"; exit 0; }
  install_demi
  project pkg_config
  PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name demi.pc)") make -C "$work/pkg_config" CXXFLAGS="${warnings[*]}" CXX="${CMAKE_CXX_COMPILER_LAUNCHER:-} ${CXX:-c++}"
  "$work/pkg_config/mine"
  loads_nothing_else "$work/pkg_config/mine"
}

# own_libraries PROJECT: fmt, nlohmann_json and GoogleTest as the project's own targets; the packages of these names are not found.
own_libraries() {
  local include
  for include in fmt nlohmann; do
    mkdir -p "$work/$1/own/$include"
    cp -r "/usr/include/$include" "$work/$1/own/$include/$include"
  done
  sed -i '/^project/r /dev/stdin' "$work/$1/CMakeLists.txt" <<'END'
add_library(fmt INTERFACE)
add_library(fmt::fmt ALIAS fmt)
target_include_directories(fmt INTERFACE own/fmt)
add_library(nlohmann_json INTERFACE)
add_library(nlohmann_json::nlohmann_json ALIAS nlohmann_json)
target_include_directories(nlohmann_json INTERFACE own/nlohmann)
add_library(gtest INTERFACE)
add_library(GTest::gtest ALIAS gtest)
END
  # None of the lab's packages is found here.
  without=()
  local package
  for package in nlohmann_json fmt GTest CURL LibArchive JPEG PNG ZLIB CLI11; do without+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON"); done
}

# links PROJECT [OPTION...]: everything but demi's own objects, which take minutes: the program is compiled with what the target demi
# hands on, and linked with CMake's own command to the library that the tests run on. The ways named _whole compile all.
links() {
  if [[ $way == *_whole ]]; then
    runs "$@"
    return
  fi
  configure "$@" || { cat "$work/log"; fail "$* does not configure"; }
  (
    cd "$work/build"
    "$ninja" CMakeFiles/mine.dir/main.cpp.o >"$work/log" 2>&1 || { cat "$work/log"; fail "$* does not build"; }
    library=$("$ninja" -t query mine | grep -o '[^ ]*libdemi\.so[^ ]*' | head -n 1)
    mkdir -p "$(dirname "$library")"
    cp -P "$build"/libdemi.so* "$(dirname "$library")"
    "$ninja" -t commands mine | tail -n 1 | sh
  )
  "$work/build/mine" || fail "$*: the program failed"
}

add_subdirectory() {
  project add_subdirectory
  own_libraries add_subdirectory
  ln -s "$source" "$work/add_subdirectory/demi"
  links add_subdirectory "-DDEMI_LIBTORCH=$libtorch/.." "${without[@]}"
  local library
  for library in fmt nlohmann; do
    grep -qE "(-I|-isystem )$work/add_subdirectory/own/$library" "$work/build/build.ninja" || fail "the project's $library is not used"
  done
  loads_nothing_else "$work/build/mine"
}

fetch_content() {
  project fetch_content
  tar -C "$source" --exclude=./build --exclude=./runs --exclude=./.git --transform 's,^\.,demi-0.1.0,' -czf "$work/demi-0.1.0.tar.gz" .
  sed -i "s,file:///path/to,file://$work," "$work/fetch_content/CMakeLists.txt"
  links fetch_content "-DDEMI_LIBTORCH=$libtorch/.."
  loads_nothing_else "$work/build/mine"
}

"${way%_whole}"
