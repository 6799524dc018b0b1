#!/usr/bin/env bash
# When cmake/cached_nvcc.sh compiles, and when it copies what it kept: nvcc_cache_test.sh SOURCE
# A script stands in for nvcc: it lists the lines `#include "FILE"`, and its result is the content of all that it reads.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CCACHE_RECACHE CCACHE_DISABLE XDG_CACHE_HOME NVCC_APPEND_FLAGS
failures=0 through=()

mkdir "$work/bin"
cat >"$work/bin/nvcc" <<'END_OF_NVCC'
#!/usr/bin/env bash
set -euo pipefail
[ "$1" != --version ] || { echo "release ${NVCC_VERSION:-13.0}" && exit; }
output='' inputs=() lists=no
while [ $# -gt 0 ]; do
  case $1 in
    -M) lists=yes ;;
    -o) output=$2 && shift ;;
    -I*) folder=${1#-I} ;;
    *.cu | *.cpp | *.o) inputs+=("$1") ;;
  esac
  shift
done
headers=$(sed -n 's/^#include "\(.*\)"/\1/p' "${inputs[0]}")
headers=${headers:+$folder/$headers}
[ "$lists" = no ] || { printf 'x.o: %s \\\n  %s\n' "${inputs[0]// /\\ }" "${headers// /\\ }" && exit; }
echo called >>"$CALLS"
[ -z "${NVCC_FAILS:-}" ] || { echo "error: no such type" && exit 2; }
cat "${inputs[@]}" ${headers:+"$headers"} >"$output"
[ -z "${EDIT:-}" ] || echo "changed meanwhile" >>"$EDIT"
chmod +x "$output"
END_OF_NVCC
cat >"$work/bin/c++" <<<'echo "host ${HOST_VERSION:-12.2}"'
sed -i '1i #!/bin/sh' "$work/bin/c++"
chmod +x "$work/bin"/*
export CALLS=$work/calls PATH=$work/bin:$PATH DEMI_CACHE=$work/cache

# checkout FOLDER: one with the script, a kernel, and a header of it.
checkout() {
  mkdir -p "$1"/{cmake,scripts,demi,build}
  cp "$source/cmake/cached_nvcc.sh" "$1/cmake"
  cp "$source/scripts/say.sh" "$1/scripts"
  printf '#include "demi/kernel.h"\nkernel\n' >"$1/demi/kernel.cu"
  echo header >"$1/demi/kernel.h"
  echo object >"$1/build/object.o"
}
one="$work/one checkout" two=$work/two
checkout "$one"
checkout "$two"

# compile COUNT CHECKOUT [NAME=VALUE...] [ARGUMENT...]: nvcc compiles COUNT times. The result and its depfile are right; the words are in $said.
compile() {
  local count=$1 folder=$2 settings=() seen=0
  shift 2
  while [[ ${1:-} == *=* && ${1:-} != -* ]]; do settings+=("$1") && shift; done
  rm -f "$CALLS" "$folder/build/out" "$folder/build/out.d"
  said=$(env "${settings[@]}" "${through[@]}" "$folder/cmake/cached_nvcc.sh" "$folder/build/out.d" nvcc "-I$folder" "$@" -o "$folder/build/out" \
    "$folder/demi/kernel.cu" "$folder/build/object.o" 2>&1) || failed "exit code $?"
  [ ! -e "$CALLS" ] || seen=$(wc -l <"$CALLS")
  [ "$seen" = "$count" ] || failed "nvcc compiled $seen times, expected $count"
  [ -n "${EDIT_ALLOWED:-}" ] || cmp "$folder/build/out" <(cat "$folder/demi/kernel.cu" "$folder/build/object.o" "$folder/demi/kernel.h") ||
    failed "another result"
  [ -x "$folder/build/out" ] || failed "the result cannot be started"
  [ "$(. "$source/scripts/say.sh" && files_of_depfile <"$folder/build/out.d")" = "$folder/demi/kernel.cu"$'\n'"$folder/demi/kernel.h" ] ||
    failed "the depfile is $(cat "$folder/build/out.d")"
  [[ $(<"$folder/build/out.d") == "$folder/build/out:"* ]] || failed "the depfile's target is another one"
}
failed() {
  echo "FAILED (line ${BASH_LINENO[1]}): $1; it said: $said"
  failures=$((failures + 1))
}
says() { [[ $said == *"$1"* ]] || failed "it does not say '$1'"; }
quiet() { [ -z "$said" ] || failed "it says something"; }

compile 1 "$one"
quiet
compile 0 "$one"
quiet
compile 0 "$two" # another checkout of the same content

# What a result depends on, one at a time; each is kept by itself.
compile 1 "$one" -O2
compile 1 "$one" NVCC_VERSION=13.1
compile 1 "$one" HOST_VERSION=12.3
compile 1 "$one" NVCC_APPEND_FLAGS=-lineinfo
for file in demi/kernel.h demi/kernel.cu build/object.o; do
  echo "another line" >>"$two/$file"
  compile 1 "$two"
  compile 0 "$two"
done
compile 0 "$one"

# Kept and not used for a while; used today; an edit while nvcc reads.
compile 0 "$one" -O2
find "$DEMI_CACHE/nvcc" -type f -exec touch -d '31 days ago' {} +
compile 0 "$one" -O2
compile 1 "$one" -O3
[ "$(find "$DEMI_CACHE/nvcc" -type f | wc -l)" = 2 ] || failed "what nobody used is still there"
EDIT_ALLOWED=yes compile 1 "$two" "EDIT=$two/demi/kernel.h" -O4
compile 1 "$two" -O4

# Damaged, and asked to compile anew.
rm -r "$DEMI_CACHE/nvcc"
compile 1 "$one"
compile 1 "$one" CCACHE_RECACHE=1
compile 0 "$one"
[ "$(find "$DEMI_CACHE/nvcc" -type f | wc -l)" = 1 ] || failed "more than one result of one key"
echo damage >>"$(find "$DEMI_CACHE/nvcc" -type f)"
compile 1 "$one"
says "is damaged: out is compiled anew"
compile 0 "$one"
compile 1 "$one" CCACHE_DISABLE=1
quiet

# What nvcc ends with, and nothing is kept.
said=$(NVCC_FAILS=yes "$one/cmake/cached_nvcc.sh" "$one/build/out.d" nvcc "-I$one" -O6 -o "$one/build/out" "$one/demi/kernel.cu" 2>&1) && failed "no error"
says "error: no such type"
compile 1 "$one" -O6

# Folders that cannot be made, even by root.
compile 1 "$one" DEMI_CACHE=/dev/null/cache
says "none can be made: out is compiled and not kept"
compile 1 "$one" DEMI_CACHE= HOME=/nonexistent
says "there is no cache folder"
[ ! -e /nonexistent ] || failed "it made /nonexistent"
said=$(env -u HOME DEMI_CACHE= "$one/cmake/cached_nvcc.sh" "$one/build/out.d" nvcc "-I$one" -o "$one/build/out" "$one/demi/kernel.cu" 2>&1) || failed "exit code $?"
says "there is no cache folder"

# A folder that is read-only, or full.
if unshare -rm true 2>/dev/null; then
  compile 0 "$one"
  through=(unshare -rm sh -c 'mount --bind "$DEMI_CACHE" "$DEMI_CACHE" && mount -o remount,bind,ro "$DEMI_CACHE" && exec "$@"' sh)
  compile 0 "$one"
  quiet
  compile 1 "$one" -O5
  says "$DEMI_CACHE/nvcc cannot be written to: out is not kept"
  through=(unshare -rm sh -c 'mount -t tmpfs -o size=4k none "$DEMI_CACHE" && mkdir "$DEMI_CACHE/nvcc" && { cat /dev/zero >"$DEMI_CACHE/fill" || exec "$@"; }' sh)
  compile 1 "$one"
  says "$DEMI_CACHE/nvcc cannot be written to: out is not kept"
else
  echo "SKIPPED a cache that is read-only or full: no name space of mounts can be made here"
fi

[ "$failures" -eq 0 ] && echo "all as expected"
