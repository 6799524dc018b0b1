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

installed() {
  "$cmake" --install "$build" --prefix "$work/prefix" >/dev/null
  [ -z "$(find "$work/prefix" -name '*_test*' -o -name '*testing*')" ] || fail "a test was installed"
  [ -e "$work/prefix/include/demi/demi.h" ] || fail "no include/demi/demi.h was installed"
  if [ -e "$build/demi" ]; then
    "$work/prefix/bin/demi" --version || fail "the installed program does not start"
  fi
  # As in a project that never heard of where demi's LibTorch is.
  unset DEMI_LIBTORCH DEMI_CACHE
  HOME=/nonexistent configure -B "$work/build" "-DCMAKE_PREFIX_PATH=$work/prefix"
  "$cmake" --build "$work/build"
  "$work/build/consumer"

  mkdir -p "$work/other/lib"
  ! configure -B "$work/refused" "-DCMAKE_PREFIX_PATH=$work/prefix" "-DDEMI_LIBTORCH=$work/other" >"$work/log" 2>&1 ||
    fail "a folder without LibTorch was taken"
  grep -q 'libtorch_cpu.so is missing' "$work/log" || { cat "$work/log"; fail "the refusal does not say what is missing"; }
}

# Everything but demi's own objects, which would take as long as the whole build: the consumer is compiled with what the
# target demi hands on, and linked with CMake's own link command to the library that the tests run on.
subdirectory() {
  configure -B "$work/build" "-DDEMI_SOURCE=$source" "-DDEMI_LIBTORCH=$libtorch"
  cd "$work/build"
  "$ninja" CMakeFiles/consumer.dir/consumer.cpp.o
  local library
  library=$("$ninja" -t query consumer | grep -o '[^ ]*libdemi\.so[^ ]*' | head -n 1)
  mkdir -p "$(dirname "$library")"
  cp -P "$build"/libdemi.so* "$(dirname "$library")"
  "$ninja" -t commands consumer | tail -n 1 | sh
  ./consumer
}

libtorch=$(sed -n 's/^set(_demi_built_with_dir "\(.*\)")/\1/p' "$build/demiConfig.cmake")
"$way"
