#!/usr/bin/env bash
# Builds tests/consumer against the demi just built: consumer_test.sh installed|subdirectory SOURCE BUILD CMAKE NINJA
set -euo pipefail
way=$1 source=$2 build=$3 cmake=$4 ninja=$5
work=$(mktemp -d "$build/consumer-$way.XXXX")
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}
configure() { "$cmake" -G Ninja "-DCMAKE_MAKE_PROGRAM=$ninja" -DCMAKE_BUILD_TYPE=Release -S "$source/tests/consumer" "$@"; }

# links_nothing_else FILE: of all that it loads only LibTorch and what belongs to it is not of the C++ compiler or the system.
links_nothing_else() {
  ! ldd "$1" | grep -E 'lib(curl|archive|jpeg|png|z|fmt|utf8proc|md|crypto)[.-]' || fail "$1 loads libraries that only the lab needs"
}

installed() {
  "$cmake" "-DCMAKE_INSTALL_PREFIX=$work/prefix" -DDEMI_INSTALL_LIBTORCH=OFF -P "$build/cmake_install.cmake" >/dev/null
  [ -z "$(find "$work/prefix" -name '*_test*' -o -name '*testing*')" ] || fail "a test was installed"
  [ -e "$work/prefix/include/demi/demi.h" ] || fail "no include/demi/demi.h was installed"
  [ ! -e "$work/prefix/include/lab" ] || fail "include/lab was installed, which is too common a name"
  ! grep -rlE '<(fmt|nlohmann)/' "$work/prefix/include" || fail "an installed header needs fmt or nlohmann"
  if [ -e "$build/demi" ]; then
    "$work/prefix/bin/demi" --version || fail "the installed program does not start"
  fi
  if [ -e "$build/libdemi_nccl.so" ]; then  # opened from beside libdemi
    local plugin
    plugin=$(dirname "$(find "$work/prefix" -name libdemi.so)")/libdemi_nccl.so
    [ -e "$plugin" ] || fail "libdemi_nccl.so is not beside libdemi.so"
    readelf -d "$plugin" | grep -q "R.*PATH.*$libtorch/lib" || fail "libdemi_nccl.so does not know where LibTorch is"
  fi
  # As in a project that never heard of where demi's LibTorch is.
  unset DEMI_LIBTORCH DEMI_CACHE
  HOME=/nonexistent configure -B "$work/build" "-DCMAKE_PREFIX_PATH=$work/prefix"
  "$cmake" --build "$work/build"
  "$work/build/consumer"
  links_nothing_else "$work/build/consumer"
  HOME=/nonexistent configure -B "$work/build" -DLAB=ON
  "$cmake" --build "$work/build"
  "$work/build/lab_consumer"

  mkdir -p "$work/other/lib"
  ! configure -B "$work/refused" "-DCMAKE_PREFIX_PATH=$work/prefix" "-DDEMI_LIBTORCH=$work/other" >"$work/log" 2>&1 ||
    fail "a folder without LibTorch was taken"
  grep -q 'libtorch_cpu.so is missing' "$work/log" || { cat "$work/log"; fail "the refusal does not say what is missing"; }
}

# Everything but demi's own objects, which would take as long as the whole build: the consumer is compiled with what the
# target demi hands on, and linked with CMake's own link command to the library that the tests run on. None of the lab's
# development packages is found here.
subdirectory() {
  local package without=()
  for package in CURL LibArchive JPEG PNG ZLIB CLI11; do without+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON"); done
  configure -B "$work/build" "-DDEMI_SOURCE=$source" "-DDEMI_LIBTORCH=$libtorch" "${without[@]}" >"$work/log" 2>&1 ||
    { cat "$work/log"; fail "the library does not configure without the lab's packages"; }
  cd "$work/build"
  "$ninja" CMakeFiles/consumer.dir/consumer.cpp.o
  local library
  library=$("$ninja" -t query consumer | grep -o '[^ ]*libdemi\.so[^ ]*' | head -n 1)
  mkdir -p "$(dirname "$library")"
  cp -P "$build"/libdemi.so* "$(dirname "$library")"
  "$ninja" -t commands consumer | tail -n 1 | sh
  ./consumer
  links_nothing_else ./consumer
}

libtorch=$(sed -n 's/^set(_demi_built_with_dir "\(.*\)")/\1/p' "$build/demiConfig.cmake")
"$way"
