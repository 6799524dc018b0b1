#!/usr/bin/env bash
# Whether cmake/compile.sh finds what was compiled, and nothing that is stale: ccache_test.sh SOURCE
set -euo pipefail
source=$1
command -v ccache >/dev/null || { echo "no ccache here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_DIR=$work/cache
unset CCACHE_RECACHE CCACHE_DISABLE
failures=0

# build CHECKOUT FLAGS...: a precompiled header and a program behind it, in CHECKOUT/build. Prints what the program says. $meanwhile: a
# command between the two.
meanwhile=:
build() {
  local checkout=$1
  shift
  mkdir -p "$checkout/build" && cd "$checkout/build"
  printf '#include <cstdio>\n#include "%s/value.h"\n' "$checkout" >pch.h
  printf 'int main() { std::printf("%%d", VALUE + OTHER); }\n' >main.cpp
  local compile=("$source/cmake/compile.sh" "$checkout" "$(command -v ccache)" g++ "$@" -fpch-preprocess)
  "${compile[@]}" -x c++-header -include "$checkout/build/pch.h" -MD -MT pch.h.gch -MF pch.d -o pch.h.gch -c empty.h
  $meanwhile
  "${compile[@]}" -include "$checkout/build/pch.h" -MD -MT main.o -MF main.d -o main.o -c main.cpp
  g++ main.o -o program && ./program
}
hits() { ccache --print-stats | awk '$1 == "direct_cache_hit" || $1 == "preprocessed_cache_hit" { sum += $2 } END { print sum + 0 }'; }
expect() { [ "$2" = "$3" ] || { echo "FAILED: $1: $2, expected $3"; failures=$((failures + 1)); }; }

for checkout in one two; do
  mkdir -p "$work/$checkout/build"
  printf '#define VALUE 1\n#ifndef OTHER\n#define OTHER 0\n#endif\n' >"$work/$checkout/value.h"
  : >"$work/$checkout/build/empty.h"
done
expect "the first time" "$(build "$work/one" -O0)" 1
before=$(hits)
expect "in another checkout" "$(build "$work/two" -O0)" 1
expect "header and program found there" "$(($(hits) - before))" 2
cmp -s "$work/one/build/pch.h.gch.sum" "$work/two/build/pch.h.gch.sum" || expect "the sums" differ same

rm "$work/one/build/pch.h.gch"
before=$(hits)
CCACHE_RECACHE=1 build "$work/one" -O0 >/dev/null
expect "behind a header compiled anew, the program" "$(build "$work/two" -O0)" 1
expect "hits behind a header compiled anew" "$(($(hits) - before))" 2

# GCC writes addresses into large headers, which differ each time.
other_bytes() { printf '\0' >>pch.h.gch; }
before=$(hits)
meanwhile=other_bytes
build "$work/two" -O0 >/dev/null
meanwhile=:
expect "hits behind a header of other bytes" "$(($(hits) - before))" 2

cp "$work/one/build/pch.h.gch.sum" "$work/sum"
sed -i 's/VALUE 1/VALUE 2/' "$work/one/value.h"
expect "a header that the precompiled one reads" "$(build "$work/one" -O0)" 2
! cmp -s "$work/one/build/pch.h.gch.sum" "$work/sum" || expect "the sum of another header" same differs
expect "a flag" "$(build "$work/one" -O0 -DOTHER=5)" 7
sed -i 's/VALUE 2/VALUE 1/' "$work/one/value.h"
expect "the text of before" "$(build "$work/one" -O0)" 1

# A cache that cannot be written to.
export CCACHE_DIR=/proc/nowhere
expect "without a cache" "$(build "$work/two" -O0 2>/dev/null)" 1
[ "$failures" = 0 ] && echo "all as expected" || exit 1
