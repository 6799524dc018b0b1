#!/usr/bin/env bash
# What the monitor costs: a run that looks at every other step, whose steps with and without a look are compared pair by pair.
# benchmarks/monitor.sh [DEMI_PROGRAM] [ROUNDS] [RECIPE AND SETTINGS...]
# Prints the median step of each kind, and what a look costs, every step and every 100 steps. Reading and writing the records is in
# neither: it happens between steps. Needs a quiet machine.
set -euo pipefail
program=${1:-build/release/demi} rounds=${2:-5}
shift $(($# < 2 ? $# : 2))
run=("$@")
[ ${#run[@]} -gt 0 ] || run=(mlp --in 1024 --out 1024 --batch-size 256 --batches 200 --epochs 1)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ((round = 1; round <= rounds; ++round)); do
  "$program" train "${run[@]}" --monitor 2 --checkpoint-every 0 --run-dir "$folder" --json >/dev/null 2>&1
done
python3 - "$folder" <<'PY'
import json, statistics, sys
from pathlib import Path

shares = []
looked, plain = [], []
for metrics in Path(sys.argv[1]).glob("*/metrics.jsonl"):
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = {line["step"]: line["seconds"] for line in lines if "loss" in line and "seconds" in line}
    pairs = [(seconds[step], seconds[step + 1]) for step in seconds if step > 10 and step % 2 == 1 and step + 1 in seconds]
    looked += [a for a, _ in pairs]
    plain += [b for _, b in pairs]
    shares.append(100 * (statistics.median(a / b for a, b in pairs) - 1))
shares.sort()
share = statistics.median(shares)
print(f"a step {1e3 * statistics.median(plain):.2f} ms, with a look {1e3 * statistics.median(looked):.2f} ms")
print(f"every step {share:+.1f} %, every 100 steps {share / 100:+.2f} %; rounds: {', '.join(f'{one:+.1f}' for one in shares)} %")
PY
echo "again: benchmarks/monitor.sh $program $rounds ${run[*]}"
