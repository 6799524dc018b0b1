#!/usr/bin/env python3
"""Reads the event files of a real run with the real TensorBoard: tensorboard_test.py DEMI_PROGRAM.

Every scalar must be what metrics.jsonl says of the same step, and each step must be there once, also of a run that was
stopped and killed in between. Needs `pip install tensorboard`; exits with 77 without it.
"""
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginAccumulator
except ImportError:
    print("skipped: Python's tensorboard is not installed")
    sys.exit(77)

TAGS = {"loss/train": "loss", "learning_rate": "learning_rate", "loss_scale": "loss_scale",
        "seconds/step": "seconds", "seconds/data": "data_seconds"}


def check(run, expected_steps):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, expected_steps + 1)), len(steps)
    events = EventAccumulator(str(run / "fp16"), size_guidance={"scalars": 0})
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(TAGS), events.Tags()["scalars"]
    for tag, field in TAGS.items():
        seen = events.Scalars(tag)
        assert [e.step for e in seen] == [line["step"] for line in steps], (tag, [e.step for e in seen])
        for event, line in zip(seen, steps):
            assert abs(event.value - line[field]) <= 1e-6 * abs(line[field]), (tag, event, line)
    # What the server reads with where its fast data server is not installed: another purge.
    plugin = PluginAccumulator(str(run / "fp16"), size_guidance={"tensors": 0}, tensor_size_guidance={"scalars": 0})
    plugin.Reload()
    assert [e.step for e in plugin.Tensors("loss/train")] == [line["step"] for line in steps]
    return len(steps)


with tempfile.TemporaryDirectory() as folder:
    train = [sys.argv[1], "train", "mlp", "--in", "16", "--out", "16", "--batch-size", "8", "--batches", "20",
             "--device", "cpu", "--precision", "fp16", "--run-dir", folder]
    subprocess.run(train, check=True, capture_output=True)
    read = check(Path(folder) / "train-mlp-001", 60)
    run = Path(folder) / "train-mlp-002"
    resume = []
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        child = subprocess.Popen([*train, "--epochs", "400", "--checkpoint-every", "30", *resume],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        last = run / "checkpoints" / "last"
        before = last.read_text() if last.exists() else None
        while child.poll() is None and (not last.exists() or last.read_text() == before):
            time.sleep(0.002)
        time.sleep(0.1)
        child.send_signal(number)
        child.wait()
        resume = ["--resume", str(run)]
    subprocess.run([*train, "--epochs", "400", *resume], check=True, capture_output=True)
    read += check(run, 8000)
print(f"{len(TAGS)} scalars of {read} steps read by TensorBoard: all as in metrics.jsonl")
