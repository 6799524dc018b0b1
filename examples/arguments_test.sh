#!/usr/bin/env bash
# Wrong arguments of the examples: exit code 2, and a message that names what was seen and what would be right.
#     arguments_test.sh PROGRAM...
set -euo pipefail
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# refused CODE MESSAGE PROGRAM ARGUMENTS...
refused() {
  local wanted=$1 message=$2 code=0 said
  shift 2
  said=$("$@" 2>&1 >/dev/null) || code=$?
  [ "$code" -eq "$wanted" ] || fail "$* ended with $code, not $wanted: $said"
  [[ $said == *"$message"* ]] || fail "$* did not say '$message': $said"
}
for program in "$@"; do
  refused 2 "no such dtype; seen: fp32; accepted: fp16, bf16" "$program" cpu fp32
done
# All read them by one header: the rest is asked of one.
program=$(dirname "$1")/quick_start
refused 2 "no such device; seen: tpu" "$program" tpu
refused 2 "usage: $program [DEVICE [DTYPE]]" "$program" cpu fp16 512
# With CUDA kept out, whatever the machine. The gpu tests are skipped by this code.
DEMI_CUDA_LIBRARY=off refused 77 "CUDA cannot be used" "$program" cuda fp16
[ "$failures" -eq 0 ] && echo "$# programs refuse wrong arguments"
