#!/usr/bin/env python3
"""Reads the event file of a real run with the real TensorBoard: tensorboard_test.py DEMI_PROGRAM.

Every scalar must be what metrics.jsonl says of the same step. Needs `pip install tensorboard`; exits with 77 without it.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("skipped: Python's tensorboard is not installed")
    sys.exit(77)

TAGS = {"loss/train": "loss", "learning_rate": "learning_rate", "loss_scale": "loss_scale",
        "seconds/step": "seconds", "seconds/data": "data_seconds"}

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], "train", "mlp", "--in", "16", "--out", "16", "--batch-size", "8", "--batches", "20",
                    "--device", "cpu", "--precision", "fp16", "--run-dir", folder], check=True, capture_output=True)
    run = Path(folder) / "train-mlp-001"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    events = EventAccumulator(str(run / "fp16"), size_guidance={"scalars": 0})
    events.Reload()

assert sorted(events.Tags()["scalars"]) == sorted(TAGS), events.Tags()["scalars"]
assert len(steps) == 60, len(steps)
for tag, field in TAGS.items():
    seen = events.Scalars(tag)
    assert [e.step for e in seen] == [line["step"] for line in steps], tag
    for event, line in zip(seen, steps):
        assert abs(event.value - line[field]) <= 1e-6 * abs(line[field]), (tag, event, line)
print(f"{len(TAGS)} scalars of {len(steps)} steps read by TensorBoard: all as in metrics.jsonl")
