#!/usr/bin/env bash
# Wrong arguments of the examples: exit code 2, and a message that names what was seen and what would be right.
#     arguments_test.sh QUICK_START EVERY_EXAMPLE PROGRAM...
# EVERY_EXAMPLE calls each of the examples that it holds (tests/every_example.cpp); none: PROGRAM... are all of them.
set -euo pipefail
quick_start=$1 every_example=$2
shift 2
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
message="no such dtype; seen: fp32; accepted: fp16, bf16"
for program in "$@"; do
  refused 2 "$message" "$program" cpu fp32
done
count=$#
if [ "$every_example" != none ]; then
  # Of each example its message, and then how it ended.
  while read -r said && read -r end; do
    [ "$said" = "$message" ] || fail "$end, and did not say '$message': $said"
    [[ $end == *" ended with 2" ]] || fail "$end, not 2"
    count=$((count + 1))
  done < <("$every_example" cpu fp32 2>&1)
fi
[ "$count" -ge 30 ] || fail "only $count examples were asked"
# All read them by one header: the rest is asked of one.
refused 2 "no such device; seen: tpu" "$quick_start" tpu
refused 2 "usage: $quick_start [DEVICE [DTYPE]]" "$quick_start" cpu fp16 512
# With CUDA kept out, whatever the machine. The gpu tests are skipped by this code.
DEMI_CUDA_LIBRARY=off refused 77 "CUDA cannot be used" "$quick_start" cuda fp16
[ "$failures" -eq 0 ] && echo "$count programs refuse wrong arguments"
