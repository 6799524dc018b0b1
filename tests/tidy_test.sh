#!/usr/bin/env bash
# Which sources scripts/tidy.sh reads again: tidy_test.sh SOURCE
# A script stands in for clang-tidy: it finds something in a file with the word "fault".
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset XDG_CACHE_HOME
failures=0

mkdir "$work/bin"
cat >"$work/bin/clang-tidy" <<'END_OF_TIDY'
#!/usr/bin/env bash
case $1 in
  --version | --dump-config) echo "clang-tidy ${TIDY_VERSION:-14}" ;;
  *) echo called >>"$CALLS" && ! grep fault demi/source.cpp ;;
esac
END_OF_TIDY
chmod +x "$work/bin/clang-tidy"
export CALLS=$work/calls PATH=$work/bin:$PATH DEMI_CACHE=$work/cache

# checkout FOLDER
checkout() {
  mkdir -p "$1"/{scripts,demi}
  cp "$source"/scripts/{tidy,say}.sh "$1/scripts"
  printf '#include "demi/header.h"\nint f(int);\nint g() { return f(1); }\n' >"$1/demi/source.cpp"
  printf '// A header.\n#pragma once\nint h();\n' >"$1/demi/header.h"
}
one=$work/one two=$work/two
checkout "$one"
checkout "$two"

# tidy COUNT CHECKOUT [NAME=VALUE...] [FLAG...]: clang-tidy reads COUNT times; the words are in $said.
tidy() {
  local count=$1 folder=$2 settings=() seen=0
  shift 2
  while [[ ${1:-} == *=* && ${1:-} != -* ]]; do settings+=("$1") && shift; done
  rm -f "$CALLS"
  code=0
  said=$(env "${settings[@]}" "$folder/scripts/tidy.sh" --command \
    "ccache ${CXX:-c++} -I$folder $* -o $folder/source.o -c $folder/demi/source.cpp" 2>&1) || code=$?
  [ ! -e "$CALLS" ] || seen=$(wc -l <"$CALLS")
  [ "$seen" = "$count" ] || failed "clang-tidy read $seen times, expected $count"
}
failed() {
  echo "FAILED (line ${BASH_LINENO[1]}): $1; it said: $said"
  failures=$((failures + 1))
}

tidy 1 "$one"
tidy 0 "$one"
tidy 0 "$two" # another checkout of the same content

# edit COUNT FILE SED: it is read COUNT times after the edit.
edit() {
  sed -i "$3" "$one/demi/$2"
  tidy "$1" "$one"
  tidy 0 "$one"
}
edit 0 header.h 's/A header/Another comment/'
edit 0 source.cpp '3i // A comment of a line of its own.'
edit 0 source.cpp 's/; }/; }  \/\/ behind code/'
edit 1 source.cpp 's/; }.*/; }  \/\/ NOLINT/'
edit 0 source.cpp '3i // One more comment.'
edit 1 source.cpp 's/  \/\/ NOLINT/  \/\/ NOLINT(cert-err34-c)/'
edit 1 header.h '3i // NOLINTNEXTLINE'
edit 1 header.h '$a int i();'
edit 1 header.h '/NOLINTNEXTLINE/d; $i // NOLINTNEXTLINE' # of another line
edit 1 source.cpp 's/f(1)/f(\/*count=*\/1)/'
edit 1 source.cpp 's/count=/size=/'
edit 1 source.cpp '1i #include "demi/header.h"' # twice, which makes no difference to the compiler
edit 1 source.cpp '2i #define UNUSED 1'
tidy 1 "$one" -DNAME=1
tidy 1 "$one" TIDY_VERSION=15

# A file with a fault is never noted.
sed -i '$a int fault;' "$two/demi/source.cpp"
tidy 1 "$two"
tidy 1 "$two"
[ "$code" != 0 ] || failed "exit code 0"

# Without a cache folder it reads, says so, and does not fail.
tidy 1 "$one" DEMI_CACHE=/dev/null/cache
[[ $code == 0 && $said == *"/dev/null/cache/tidy cannot be written to: demi/source.cpp is read again the next time"* ]] || failed "exit code $code"

[ "$failures" -eq 0 ] && echo "all as expected"
