#!/usr/bin/env bash
# levels.sh FOLDER [--by-instruction-set]: the unit tests built in FOLDER once more at each level of instructions below this machine's
# own, by the settings of those who ask for it: LibTorch's operators (ATEN_CPU_CAPABILITY), oneDNN (ONEDNN_MAX_CPU_ISA), MKL
# (MKL_ENABLE_INSTRUCTIONS) and demi (DEMI_KERNELS). A wide machine so answers for narrower ones, but for what no setting reaches (the C
# library, OpenMP). --by-instruction-set: the modules that choose a path by it alone, which are those that include kernels or products.
set -euo pipefail
# shellcheck source=scripts/say.sh
. "$(dirname "${BASH_SOURCE[0]}")/say.sh"
[ $# -eq 1 ] || [ "${2:-}" = --by-instruction-set ] || wrong_usage "which build folder? levels.sh FOLDER [--by-instruction-set]"
folder=$1 some=${2:-}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

flags=" $(sed -n 's/^flags[^:]*: //p' /proc/cpuinfo | head -n 1) "
has() { [[ $flags == *" $1 "* ]]; }

levels=()
if has avx512f && has avx512bw && has avx512dq && has avx512vl; then
  { ! has avx512_bf16 && ! has amx_bf16; } || [ -n "$some" ] || levels+=("AVX-512 without BF16: ONEDNN_MAX_CPU_ISA=AVX512_CORE")
  levels+=("AVX2: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 DEMI_KERNELS=avx2")
fi
if has avx2; then
  levels+=("baseline: ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 DEMI_KERNELS=reference")
fi
[ ${#levels[@]} -gt 0 ] || say "no level below this machine's own"

# What reads neither tensors nor the tree's pages has no level.
mapfile -t tests < <(ctest --test-dir "$folder" --show-only --label-regex '^unit$' | sed -n 's/^ *Test *#[0-9]*: //p' |
  grep -vE '^(unit\.(core|data|profile|cli|lab\.(number|tokens|report))|tree\..*|tests\.dlopen)$')
if [ -n "$some" ]; then
  by_instruction_set=$(sed -n 's,^demi/\([a-z_]*\):.* demi/\(kernels\|products\)\( .*\)\?$,unit.\1,p' scripts/layers.txt; echo unit.kernels)
  mapfile -t tests < <(printf '%s\n' "${tests[@]}" | grep -xF "$by_instruction_set")
fi

# Each level runs, so that one call shows all that is red.
failed=()
for level in "${levels[@]}"; do
  name=${level%%: *}
  read -ra settings <<<"${level#*: }"
  env "${settings[@]}" scripts/run_tests.py "$folder" --part "unit tests, $name (${settings[*]})" --tests "$(IFS=, && echo "${tests[*]}")" ||
    failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
  for name in "${failed[@]}"; do say "FAILED at level: $name"; done
  exit 8
fi
