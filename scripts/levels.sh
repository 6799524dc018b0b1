#!/usr/bin/env bash
# levels.sh FOLDER: the unit tests built in FOLDER once more at each level of instructions below this machine's own, by the settings
# of those who ask for it: LibTorch's operators (ATEN_CPU_CAPABILITY), oneDNN (ONEDNN_MAX_CPU_ISA), MKL (MKL_ENABLE_INSTRUCTIONS)
# and demi (DEMI_KERNELS). A wide machine so answers for narrower ones, but for what no setting reaches (the C library, OpenMP).
set -euo pipefail
# shellcheck source=scripts/say.sh
. "$(dirname "${BASH_SOURCE[0]}")/say.sh"
[ $# -eq 1 ] || wrong_usage "which build folder?"
folder=$1

flags=" $(sed -n 's/^flags[^:]*: //p' /proc/cpuinfo | head -n 1) "
has() { [[ $flags == *" $1 "* ]]; }

levels=()
if has avx512f && has avx512bw && has avx512dq && has avx512vl; then
  ! has avx512_bf16 && ! has amx_bf16 || levels+=("AVX-512 without BF16: ONEDNN_MAX_CPU_ISA=AVX512_CORE")
  levels+=("AVX2: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 DEMI_KERNELS=avx2")
fi
if has avx2; then
  levels+=("baseline: ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 DEMI_KERNELS=reference")
fi
[ ${#levels[@]} -gt 0 ] || say "no level below this machine's own"

# Each level runs, so that one call shows all that is red.
total=0 failed=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for level in "${levels[@]}"; do
  name=${level%%: *}
  read -ra settings <<<"${level#*: }"
  say "unit tests, $name: ${settings[*]}"
  env "${settings[@]}" ctest --test-dir "$folder" --parallel 2 --output-on-failure --label-regex '^unit$' --no-label-summary \
    --no-tests=error 2>&1 | tee "$log" || failed+=("$name")
  passed=$(sed -n 's/.*tests passed, 0 tests failed out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)
  total=$((total + ${passed:-0}))
done
if [ ${#failed[@]} -gt 0 ]; then
  for name in "${failed[@]}"; do say "FAILED at level: $name"; done
  exit 8
fi
printf '100%% tests passed, 0 tests failed out of %s\n' "$total"
