#!/usr/bin/env python3
"""Reads the event files of a real run with the real TensorBoard: tensorboard_test.py DEMI_PROGRAM.

Every scalar must be what metrics.jsonl says of the same step, and each step must be there once, also of a run that was
stopped and killed in between. Needs `pip install tensorboard`; exits with 77 without it.
"""
import json
import math
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
        "grad_norm": "grad_norm",
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
            if line[field] is None:  # NaN or Inf
                assert not math.isfinite(event.value), (tag, event, line)
                continue
            assert abs(event.value - line[field]) <= 1e-6 * abs(line[field]), (tag, event, line)
    # What the server reads with where its fast data server is not installed: another purge.
    plugin = PluginAccumulator(str(run / "fp16"), size_guidance={"tensors": 0}, tensor_size_guidance={"scalars": 0})
    plugin.Reload()
    assert [e.step for e in plugin.Tensors("loss/train")] == [line["step"] for line in steps]
    return len(steps)


def check_histograms(run):
    """Buckets are powers of two of the unscaled gradients; metrics.jsonl counts the scaled ones."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "gradients" in line]
    events = EventAccumulator(str(run / "fp16"), size_guidance={"histograms": 0})
    events.Reload()
    for line in lines:
        seen = [e for e in events.Histograms(f"log2_gradients_{line['gradients']}/{line['layer']}")
                if e.step == line["step"]]
        assert len(seen) == 1, (line, seen)
        histogram = seen[0].histogram_value
        first = line["first_exponent"] - math.log2(line["loss_scale"])
        assert histogram.bucket == line["counts"], (line, histogram)
        assert histogram.bucket_limit == [first + 1 + i for i in range(len(line["counts"]))], (line, histogram)
        assert sum(line["counts"]) + line["zeros"] + line["infinities"] + line["nans"] == line["elements"]
    assert sorted({line["step"] for line in lines}) == [1, 31], lines
    return len(lines)


with tempfile.TemporaryDirectory() as folder:
    train = [sys.argv[1], "train", "mlp", "--in", "16", "--out", "16", "--batch-size", "8", "--batches", "20",
             "--device", "cpu", "--precision", "fp16", "--run-dir", folder]
    subprocess.run(train, check=True, capture_output=True)
    read = check(Path(folder) / "train-mlp-001", 60)
    monitored = [*train[:-1], folder + "/monitored", "--monitor", "30"]
    subprocess.run(monitored, check=True, capture_output=True)
    histograms = check_histograms(Path(folder) / "monitored" / "train-mlp-001")
    run = Path(folder) / "train-mlp-002"
    resume = []
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        child = subprocess.Popen([*train, "--epochs", "400", "--checkpoint-every", "30", *resume],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        last = run / "checkpoints" / "last"
        before = last.read_text() if last.exists() else None
        while child.poll() is None and (not last.exists() or last.read_text() == before):
            time.sleep(0.002)
        time.sleep(0.1)  # it goes on from the checkpoint meanwhile: any instant will do
        child.send_signal(number)
        child.wait()
        resume = ["--resume", str(run)]
    subprocess.run([*train, "--epochs", "400", *resume], check=True, capture_output=True)
    read += check(run, 8000)
print(f"{len(TAGS)} scalars of {read} steps and {histograms} histograms read by TensorBoard: all as in metrics.jsonl")
