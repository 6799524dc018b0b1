#!/usr/bin/env bash
# check_linkage.sh OBJECT...: fails where an object that is compiled for AVX2 or AVX-512 offers a weak symbol. The linker
# keeps one copy of a weak function for the whole library, and an older processor might then run the newer one's.
set -euo pipefail
found=0
for object in "$@"; do
  case "$object" in
    *avx2.cpp.o | *avx512.cpp.o | *avx512_bf16.cpp.o) ;;
    *) continue ;;
  esac
  found=$((found + 1))
  if weak=$(nm --demangle "$object" | grep -E ' [VWu] '); then
    echo "$object offers weak symbols:"
    echo "$weak"
    exit 1
  fi
done
[ "$found" -eq 3 ] || { echo "expected three objects, saw $found"; exit 1; }
echo "no weak symbols in $found objects"
