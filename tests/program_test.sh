#!/usr/bin/env bash
# program_test.sh DEMI SECOND_LIBTORCH OLD_LIBTORCH: what a shell offers is what --help lists, the man page has every option of it,
# --version --verbose says what runs, and a LibTorch that cannot be used is refused.
set -euo pipefail
demi=$1 second=$2 old=$3
fail() {
  echo "program: $*" >&2
  exit 1
}
# shellcheck source=/dev/null
source <("$demi" completion bash)

# offered WORDS...: what bash would offer for the last of them.
offered() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _demi
  echo "${COMPREPLY[*]}"
}
expect() {
  local expected=$1
  shift
  local seen
  seen=$(offered "$@")
  [ "$seen" = "$expected" ] || fail "$*: offers '$seen', not '$expected'"
}
expect train demi tr
expect "model matmul memory" demi bench m
expect fashion-cnn demi train fash
expect "--limit" demi train --lim
expect "--lr" demi train fashion-cnn --lr
expect "auto cpu cuda" demi train fashion-cnn --device ""
expect "adam adamw adagrad" demi train mlp --optimizer ada
expect "last mean max" demi train mlp --pool ""
expect "" demi train --data-dir ""  # bash completes files, and no recipe
expect "" demi train nothing-of-that-name
expect "bash zsh fish" demi completion ""

# The options of a command's help, one a line.
listed() { "$demi" "$@" --help | grep -oE '^  (-[a-z],)?--[a-zA-Z0-9][a-zA-Z0-9_-]*' | grep -oE -- '--[a-zA-Z0-9][a-zA-Z0-9_-]*' | sort -u; }
manual=$("$demi" manual)
for command in train compare "bench memory" inspect; do
  # shellcheck disable=SC2086
  has=$(offered demi $command -- | tr ' ' '\n' | sort -u)
  # shellcheck disable=SC2086
  for option in $(listed $command); do
    grep -qxF -- "$option" <<<"$has" || fail "demi $command has $option, which bash does not offer"
    grep -qF -- "\\fB${option//-/\\-}\\fR" <<<"$manual" || fail "demi $command has $option, which the man page does not have"
  done
  [ "$(listed $command | wc -l)" -gt 3 ] || fail "demi $command --help lists no options"
done
# A run's settings stood in the section of each of six commands.
[ "$(grep -cF '\fB\-\-lr\fR' <<<"$manual")" = 1 ] || fail "the man page describes --lr more than once"
for section in COMMANDS SETTINGS EXAMPLES ENVIRONMENT "EXIT STATUS"; do
  grep -qx ".SH $section" <<<"$manual" || fail "the man page has no section $section"
done
for shell in zsh fish; do
  command -v "$shell" >/dev/null || continue
  file=$(mktemp)
  "$demi" completion "$shell" >"$file"
  "$shell" -n "$file" || fail "$shell cannot read its completion"
  rm -f "$file"
done
for order in "--version --verbose" "--verbose --version"; do
  # shellcheck disable=SC2086
  versions=$("$demi" $order)
  for name in demi LibTorch oneDNN processor "kernels reference"; do
    grep -qE "^$name  +[^ ]" <<<"$versions" || fail "demi $order does not show $name"
  done
  file=$(sed -n 's/^LibTorch .*, //p' <<<"$versions")
  [ -e "$file" ] || fail "demi $order names no file of LibTorch: $file"
done
[ "$("$demi" --version | wc -l)" = 1 ] || fail "demi --version is more than a line"
if "$demi" completion tcsh 2>/dev/null; then fail "tcsh is taken"; fi

# refused LIBRARY TEXT: with this library loaded before its own, the program says the text and does nothing.
refused() {
  local status arguments
  for arguments in "train --list" "--version --verbose"; do
    status=0
    # shellcheck disable=SC2086
    LD_PRELOAD=$1 "$demi" $arguments >"$out" 2>"$errors" || status=$?
    [ "$status" = 2 ] || fail "demi $arguments with $1 ends with $status, not with 2"
    grep -qF "$2" "$errors" || fail "demi $arguments with $1 does not say: $2: $(cat "$errors")"
  done
  grep -qE '^LibTorch +[0-9.]+, /' "$out" || fail "demi --version --verbose with $1 does not say which LibTorch is loaded"
}
out=$(mktemp) errors=$(mktemp)
trap 'rm -f "$out" "$errors"' EXIT
refused "$second" "two LibTorches are loaded, whose operators, modes and tensors know nothing of each other; seen: $second, "
refused "$old" "one of another minor version is loaded, whose C++ interface differs; seen: 2.11.0, $old"
