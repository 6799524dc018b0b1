#!/usr/bin/env bash
# clang-tidy on each source that a target of a configured build folder compiles, which compiles nothing itself:
#   scripts/tidy.sh build/tidy [TARGET]
#   scripts/tidy.sh --command COMMAND    on the source of one compiler's command
# A source that clang-tidy has read before, with the same checks and every header the same, and found clean is left out: a file of
# that name lies below the cache folder, for every checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/say.sh
. scripts/say.sh

tidy=$(command -v clang-tidy || command -v clang-tidy-14) || die "clang-tidy is missing: apt-get install clang-tidy-14"
options=(--quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Qunused-arguments --extra-arg-before=--driver-mode=g++)

# read_comments FILE...: the lines with a comment that clang-tidy reads: NOLINT, and an argument's name. A line's number counts code
# alone, so that another comment above it changes nothing.
read_comments() {
  awk 'FNR == 1 { code = 0 } !/^[[:space:]]*(\/\/.*)?$/ { code++ } /NOLINT|\/\*[^*]*=[^*]*\*\// { print code, $0 }' "$@"
}

# clean_name FILE COMPILER ARGUMENTS...: what a clean reading of the file is noted by.
clean_name() {
  local file=$1 preprocessor=() files
  shift
  # The command without its outputs.
  while [ $# -gt 0 ]; do
    case $1 in
      -c | -MD) ;;
      -o | -MT | -MF) shift ;;
      *) preprocessor+=("$1") ;;
    esac
    shift
  done
  # Options with a path differ between checkouts. -dDI: macros and repeated includes count; -P: names of files do not. Comments are
  # not preprocessed with the rest, which would take ten times as long.
  {
    "$tidy" --version && "$tidy" --dump-config "$file" -- && printf '%s\n' "${options[@]}" &&
      printf '%s\n' "${preprocessor[@]}" | grep -v / &&
      "${preprocessor[@]}" -E -dDI -P -MMD -MF "$depfile" -MT "$file" | sed "/^#/s|$PWD||g" &&
      mapfile -t files < <(files_of_depfile <"$depfile") && read_comments "${files[@]}"
  } | sha256sum | cut -d ' ' -f 1
}

if [ "${1:-}" = --command ]; then
  compiler=()
  eval "compiler=(${2##*/ccache })"
  file=${compiler[-1]}
  depfile=$(mktemp)
  trap 'rm -f "$depfile"' EXIT
  clean=$(cache_dir)/tidy/$(clean_name "$file" "${compiler[@]}") || die "$file could not be preprocessed"
  [ ! -e "$clean" ] || exit 0
  say "${file#"$PWD"/}"
  "$tidy" "${options[@]}" "$file" -- "${compiler[@]}"
  { mkdir -p "${clean%/*}" && : >"$clean"; } 2>/dev/null || say "${clean%/*} cannot be written to: ${file#"$PWD"/} is read again the next time"
  exit 0
fi

[ -f "${1:-}/build.ninja" ] || wrong_usage "which build folder? ./check --tidy configures one"
ninja -C "$1" --quiet build.ninja >/dev/null || die "configuring $1 anew failed"  # sources come and go
listed=$(ninja -C "$1" --quiet -t commands "${2:-all}") || die "$1 has no target ${2:-all}"
commands=$(grep -E -- ' -c [^ ]+\.(cpp|cxx)$' <<<"$listed") || die "${2:-all} in $1 compiles nothing"
say "$(wc -l <<<"$commands") sources with $(compilers_at_once) processes at once; named are those that were not read before"
tr '\n' '\0' <<<"$commands" | xargs -0 -n 1 -P "$(compilers_at_once)" scripts/tidy.sh --command || die "see above what clang-tidy found"
