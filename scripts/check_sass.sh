#!/usr/bin/env bash
# check_sass.sh [PLUGIN]: reads the machine code of libdemi_cuda.so with cuobjdump (CUOBJDUMP names another) and fails where,
# for any architecture, a kernel spills registers, reads or writes tensors without 16-byte accesses, or where FMA was made of
# a formula's * and + (SGD has neither division nor square root, whose expansions use FMA rightly).
set -euo pipefail
plugin=${1:-build/release/libdemi_cuda.so}
cuobjdump=${CUOBJDUMP:-cuobjdump}
[ -f "$plugin" ] || { echo "no plugin at $plugin: build the target demi_cuda"; exit 2; }
command -v "$cuobjdump" >/dev/null || { echo "no cuobjdump: it comes with the CUDA toolkit (or set CUOBJDUMP)"; exit 2; }

"$cuobjdump" -sass "$plugin" | awk '
  /^[ \t]*arch = /      { arch = $3 }
  /Function : /         { name = $3; sub(/.*3runI/, "", name); key = arch " " name; seen[key] = 1 }
  /LDG\.E(\.[A-Z]+)*\.128/ { wide_loads[key]++ }
  /STG\.E(\.[A-Z]+)*\.128/ { wide_stores[key]++ }
  /[ \t](LDL|STL)[. ]/  { spills[key]++ }
  /[ \t]FFMA[. ]/       { fma[key]++ }
  END {
    for (key in seen) {
      count++
      tensors = key ~ /Measure|Update|ApplyTrust/
      writes = key ~ /Update|ApplyTrust/
      bad = ""
      if (spills[key]) bad = bad " spills:" spills[key]
      if (tensors && !wide_loads[key]) bad = bad " no 16-byte loads"
      if (writes && !wide_stores[key]) bad = bad " no 16-byte stores"
      if (key ~ /RuleE0E/ && fma[key]) bad = bad " FMA:" fma[key]
      if (bad) { failed = 1; print "FAILED " key bad }
      archs[substr(key, 1, index(key, " ") - 1)]++
    }
    for (arch in archs) printf "%s: %d kernels\n", arch, archs[arch]
    if (!count) { print "no kernels found"; exit 1 }
    if (failed) exit 1
    print "16-byte accesses in all kernels over tensors, no spills, no contracted formulas"
  }'
