#!/usr/bin/env bash
# When scripts/build.sh configures, and which folders it refuses: build_test.sh SOURCE
# A program of the name cmake stands in for the real one.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset DEMI_LIBTORCH DEMI_CACHE XDG_CACHE_HOME CMAKE_PROGRAM_PATH
failures=0

mkdir -p "$work/tree" "$work/bin" "$work/home"
cp -r "$source/scripts" "$work/tree/"
cat >"$work/bin/cmake" <<'END'
#!/usr/bin/env bash
if [ "$1" = --build ]; then
  echo "built $2" >>"$CALLS"
  [ ! -p "${HELD:-}" ] || read -r _ <"$HELD"
  exit
fi
echo configured >>"$CALLS"
[[ $* != *-DDEMI_LIBTORCH=/wrong* ]] || exit 1
while [ "$1" != -B ]; do shift; done
mkdir -p "$2" && touch "$2/build.ninja"
printf 'CMAKE_HOME_DIRECTORY:INTERNAL=%s\n' "$PWD" >"$2/CMakeCache.txt"
END
chmod +x "$work/bin/cmake"
export CALLS=$work/calls PATH=$work/bin:$PATH HOME=$work/home

failed() {
  echo "FAILED (line ${BASH_LINENO[1]}): $1, in:" && cat "$work/said" "$CALLS"
  failures=$((failures + 1))
}
# build CODE CALLS [NAME=VALUE...] [-- ARGUMENT...]: what it ends with, and what it called, words with a blank between.
build() {
  local code=$1 calls=$2 settings=() seen=0
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do settings+=("$1") && shift; done
  : >"$CALLS"
  env "${settings[@]}" "$work/tree/scripts/build.sh" "${@:2}" >"$work/said" 2>&1 || seen=$?
  [ "$seen" = "$code" ] || failed "exit code $seen, expected $code"
  [ "$(tr '\n' ' ' <"$CALLS")" = "$calls" ] || failed "other calls than '$calls'"
}
says() { grep -qF -- "$1" "$work/said" || failed "it does not say '$1'"; }

build 0 "configured built build/release "
build 0 "built build/release "
build 0 "built build/release " -- release release
build 2 "" -- release
build 0 "configured built build/other " -- tsan other --target=a

# A configuration that failed is not taken for the one before it.
build 1 "configured " DEMI_LIBTORCH=/wrong
build 0 "configured built build/release "

build 1 "" DEMI_CACHE=relative
says "DEMI_CACHE=relative is a relative path"
build 0 "built build/release " XDG_CACHE_HOME=
build 0 "built build/release " XDG_CACHE_HOME=relative
build 0 "built build/release " DEMI_CACHE=
build 1 "" -u HOME
says "set DEMI_CACHE to an absolute path"

# Two at once take turns: the second begins when the first, which a pipe holds, has ended.
mkfifo "$work/held"
: >"$CALLS"
HELD=$work/held "$work/tree/scripts/build.sh" 2>/dev/null &
until [ -s "$CALLS" ]; do sleep 0.02; done
"$work/tree/scripts/build.sh" >"$work/said" 2>&1 &
second=$!
until grep -q "waiting for another build in build/release" "$work/said"; do sleep 0.02; done
[ "$(wc -l <"$CALLS")" = 1 ] || failed "the second did not wait"
echo go >"$work/held"
wait "$second" || failed "the second failed"
wait
[ "$(wc -l <"$CALLS")" = 2 ] || failed "not both have built"

[ "$failures" -eq 0 ] && echo "all as expected"
