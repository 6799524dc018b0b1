#!/usr/bin/env bash
# check_sass.sh [PLUGIN]: reads the machine code of libdemi_cuda.so with cuobjdump (CUOBJDUMP names another) and fails where,
# for any architecture, a kernel spills registers, reads or writes tensors without 16-byte accesses, or where FMA was made of
# a formula's * and + (SGD has neither division nor square root, whose expansions use FMA rightly; the codecs of narrow states have).
# A machine without the CUDA toolkit's cuobjdump gets that of NVIDIA's wheels (cuobjdump.txt, 100 MB in the cache folder).
# Exit codes: 0 all is so, 1 a kernel is not, 2 usage.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/say.sh
. "$here/say.sh"
# shellcheck source=scripts/environment.sh
. "$here/environment.sh"
plugin=$(realpath -m "${1:-build/release/libdemi_cuda.so}")
[ -f "$plugin" ] || wrong_usage "no plugin at $plugin: build the target demi_cuda"
cuobjdump=${CUOBJDUMP:-cuobjdump}
cd "$here/.."
if ! command -v "$cuobjdump" >/dev/null; then
  [ -z "${CUOBJDUMP:-}" ] || wrong_usage "CUOBJDUMP=$CUOBJDUMP is no program"
  python=$(environment cuobjdump_env "$here/cuobjdump.txt" 300)
  PATH=$("$python" -c 'import os, nvidia.cu13; print(os.path.join(nvidia.cu13.__path__[0], "bin"))'):$PATH  # nvdisasm, too
  chmod +x "${PATH%%:*}"/{cuobjdump,nvdisasm}
fi

# A few words of stack are no loss of registers: what a call of a slow path saves (64-bit division is one). It writes them once, and
# each path behind it reads them, so there may be more reads than writes.
"$cuobjdump" -sass "$plugin" | awk -v few=4 -v reads_too=10 '
  /^[ \t]*arch = /      { arch = $3 }
  /Function : /         { name = $3; sub(/.*3runI/, "", name); key = arch " " name; seen[key] = 1 }
  /LDG\.E(\.[A-Z]+)*\.128/ { wide_loads[key]++ }
  /STG\.E(\.[A-Z]+)*\.128/ { wide_stores[key]++ }
  /[ \t]STL[. ]/        { spills[key]++ }
  /[ \t](LDL|STL)[. ]/  { accesses[key]++ }
  /[ \t]FFMA[. ]/       { fma[key]++ }
  END {
    for (key in seen) {
      count++
      tensors = key ~ /Measure|Update|ApplyTrust/ && key !~ /LossScaleUpdate/
      writes = tensors && key !~ /Measure/
      bad = ""
      if (spills[key] > few || accesses[key] > reads_too) bad = bad " spills:" spills[key] " of " accesses[key] " accesses"
      if (tensors && !wide_loads[key]) bad = bad " no 16-byte loads"
      if (writes && !wide_stores[key]) bad = bad " no 16-byte stores"
      if (key ~ /RuleE0E/ && key !~ /Coded/ && fma[key]) bad = bad " FMA:" fma[key]
      if (bad) { failed = 1; print "FAILED " key bad }
      else if (spills[key]) print key ": " spills[key] " writes to the stack"
      archs[substr(key, 1, index(key, " ") - 1)]++
    }
    for (arch in archs) printf "%s: %d kernels\n", arch, archs[arch]
    if (!count) { print "no kernels found"; exit 1 }
    if (failed) exit 1
    print "16-byte accesses in all kernels over tensors, at most " few " writes to the stack and " reads_too " accesses, no contracted formulas"
  }'
