#!/usr/bin/env bash
# Configures, only if something about it changed, and builds: scripts/build.sh [PRESET FOLDER] [--target=NAME...] [-DNAME=VALUE...]
# FOLDER stands under build/; without both it is the preset release in build/release. --target=none configures alone. Two at once on one
# folder take turns. The environment's DEMI_LIBTORCH names a LibTorch of yours; DEMI_JOBS the compilers at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/say.sh
. scripts/say.sh

preset=release folder=release
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
  [[ $# -ge 2 && $2 != -* ]] || wrong_usage "usage: scripts/build.sh [PRESET FOLDER] [--target=NAME...] [-DNAME=VALUE...]"
  preset=$1 folder=$2
  shift 2
fi
dir=build/$folder
target=()
while [[ ${1:-} == --target=* ]]; do
  target+=(--target "${1#--target=}")
  shift
done
# Python is looked for anew: CMAKE_PROGRAM_PATH names the one that has what tests against it need.
options=("--preset" "$preset" -B "$dir" -U DEMI_PYTHON "-DDEMI_LIBTORCH=${DEMI_LIBTORCH:-}" "$@")

cache=$(cache_dir)
mkdir -p "$dir" 2>/dev/null || die "cannot write to $dir"
exec 9>"$dir/.lock" || die "cannot write to $dir"
flock -n 9 || { say "waiting for another build in $dir" && flock 9; }

asked=$(printf '%s\n' "$PWD" "$cache" "${CMAKE_PROGRAM_PATH:-}" "${options[@]}")
if [ ! -f "$dir/build.ninja" ] || [ "$(cat "$dir/asked" 2>/dev/null)" != "$asked" ]; then
  [ -f "$dir/build.ninja" ] || need_space build 3000 "the build in $dir"
  say "configuring $dir"
  # A build folder of a tree that stood elsewhere is started anew.
  grep -qsx "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$dir/CMakeCache.txt" || options=(--fresh "${options[@]}")
  rm -f "$dir/asked"  # what fails below leaves a configuration that nobody asked for
  cmake "${options[@]}" >"$dir/configure.log" 2>&1 || {
    cat "$dir/configure.log" >&2
    die "configuring $dir failed"
  }
  printf '%s\n' "$asked" >"$dir/asked"
fi
[ "${target[*]}" != "--target none" ] || exit 0
jobs=$(compilers_at_once)
say "building $dir with $jobs compilers at once"
cmake --build "$dir" -j "$jobs" "${target[@]}" >&2 9>&- || die "building $dir failed"
