#!/usr/bin/env bash
# clang-tidy on one file, unless it has read the same text with the same checks before and found nothing:
#   scripts/tidy.sh CLANG_TIDY OPTIONS... FILE -- COMPILER ARGUMENTS...
# CMake calls it in clang-tidy's place (DEMI_TIDY). What was found to be clean is noted below the cache folder, for every checkout.
set -euo pipefail
# shellcheck source=scripts/say.sh
. "$(dirname "${BASH_SOURCE[0]}")/say.sh"

tidy=$1
shift
options=()
while [ "$1" != -- ]; do
  options+=("$1")
  shift
done
compiler=("${@:2}")
file=${options[-1]}

# The compiler's command without its outputs.
preprocessor=()
shift
while [ $# -gt 0 ]; do
  case $1 in
    -c | -MD) ;;
    -o | -MT | -MF) shift ;;
    *) preprocessor+=("$1") ;;
  esac
  shift
done

# Options with a path differ between checkouts. -C: comments count, for NOLINT is one. -dD: so do macros. -P: names of files do not.
key=$({
  "$tidy" --version && "$tidy" --dump-config "$file" -- && printf '%s\n' "${options[@]:0:${#options[@]}-1}" &&
    printf '%s\n' "${preprocessor[@]}" | grep -v / && "${preprocessor[@]}" -E -C -dD -P
} | sha256sum | cut -d ' ' -f 1) || die "$file could not be preprocessed"
clean=$(cache_dir)/tidy/$key
[ ! -e "$clean" ] || exit 0
"$tidy" "${options[@]}" -- "${compiler[@]}"
mkdir -p "${clean%/*}" && : >"$clean"
