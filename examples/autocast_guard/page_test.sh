#!/usr/bin/env bash
# page_test.sh PAGE PROGRAM...: each program ends with 0, and PAGE shows each line that it prints.
set -euo pipefail
page=$1
shift
for program; do
  printed=$("$program")
  [ -n "$printed" ] || { echo "$program printed nothing" >&2; exit 1; }
  while IFS= read -r line; do
    grep -qxF "$line" "$page" || { echo "$page does not show what $program prints: $line" >&2; exit 1; }
  done <<<"$printed"
done
