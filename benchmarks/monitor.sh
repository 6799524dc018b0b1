#!/usr/bin/env bash
# What the monitor costs: the same training without it, with a look every 100 steps, and every step, in turn.
# benchmarks/monitor.sh [DEMI_PROGRAM] [ROUNDS] [RECIPE AND SETTINGS...]
# Prints the median time of a step of each and what it is above the run without. Needs a quiet machine.
set -euo pipefail
program=${1:-build/release/demi} rounds=${2:-5}
shift $(($# < 2 ? $# : 2))
run=("$@")
[ ${#run[@]} -gt 0 ] || run=(mlp --in 1024 --out 1024 --batch-size 256 --batches 200 --epochs 1)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ((round = 1; round <= rounds; ++round)); do
  for every in 0 100 1; do
    "$program" train "${run[@]}" --monitor "$every" --checkpoint-every 0 --run-dir "$folder/$every" --json >/dev/null 2>&1
  done
done
python3 - "$folder" <<'PY'
import json, statistics, sys
from pathlib import Path

def seconds(every):
    means = []
    for metrics in sorted(Path(sys.argv[1], every).glob("*/metrics.jsonl")):
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        steps = [line["seconds"] for line in lines if "loss" in line][10:]  # warm
        means.append(sum(steps) / len(steps))
    return statistics.median(means), max(means) / min(means)

without, spread = seconds("0")
print(f"without       {1e3 * without:8.3f} ms a step, spread {spread:.2f}")
for every, name in (("100", "every 100"), ("1", "every step")):
    time, spread = seconds(every)
    print(f"{name:13} {1e3 * time:8.3f} ms a step, spread {spread:.2f}, {100 * (time / without - 1):+.2f} %")
PY
echo "again: benchmarks/monitor.sh $program $rounds ${run[*]}"
