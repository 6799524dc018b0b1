#!/usr/bin/env python3
"""Trains the same runs with two builds of the program and compares weights, optimizer states and figures, bit for bit.

    scripts/same_bits.py BEFORE AFTER [--data-dir DIR] [--only PATTERN] [--steps 6]

BEFORE and AFTER are two `demi` programs. Each run is a recipe in a precision, a few steps of few examples, some with clipping,
accumulation, averages, a gradient penalty or two ranks. A run in which a step is skipped may differ: since the statistics of batch
normalisation go back with a skipped step, such runs are told as "statistics". A checkpoint of BEFORE is also resumed by AFTER.

Exit codes: 0 all are the same, 1 one is not, 2 usage.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

SYNTHETIC = ["mlp --in 64 --out 64", "loss-scaling", "synthetic-resnet50 --batch-size 2 --image-size 32"]
OF_DATA = ["cifar10-cnn", "cifar10-resnet18", "imdb-lstm"]  # in --data-dir; fashion-cnn's have a package
PRECISIONS = ["fp32", "bf16", "fp16", "bf16-true"]
VARIANTS = ["", "--clip-norm 0.5", "--accumulate 2", "--ema 0.9", "--gradient-penalty 0.01", "--monitor 2", "--detect-anomaly",
            "--loss-scale 64"]


def runs(steps, data_dir):
    small = f"--steps {steps} --seed 3"
    for recipe in SYNTHETIC:
        for precision in PRECISIONS:
            yield f"{recipe} --precision {precision} {small}"
    for variant in VARIANTS[1:]:
        yield f"mlp --in 64 --out 64 --precision fp16 {variant} {small}"
    yield f"mlp --in 64 --out 64 --precision bf16 --ranks 2 {small}"
    yield f"mlp --in 64 --out 64 --precision fp16 --ranks 2 --accumulate 2 {small}"
    for recipe in ["fashion-cnn", *(f"{recipe} --data-dir {data_dir}" for recipe in OF_DATA if data_dir)]:
        for precision in PRECISIONS[:3]:
            yield f"{recipe} --limit 128 --test-limit 64 --batch-size 16 --precision {precision} {small}"


def train(program, command, folder, more=""):
    done = subprocess.run([program, "train", *command.split(), *more.split(), "--run-dir", str(folder), "--checkpoint-every", "2",
                           "--keep-last", "0"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr[-300:]


# What the log says of each step and epoch, without times.
def figures(folder):
    lines = []
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines.append({name: value for name, value in line.items() if "seconds" not in name})
    return lines


def difference(program, a, b):
    done = subprocess.run([program, "inspect", "--diff", str(a), str(b), "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return done.stderr.strip()[-300:]
    found = json.loads(done.stdout)["different_tensors"]
    return f"{found} tensors" if found else ""


def compare(after, a, b):
    if difference(after, a, b):
        return difference(after, a, b)
    if difference(after, a / "model.safetensors", b / "model.safetensors"):
        return "model.safetensors"
    return "" if figures(a) == figures(b) else "metrics.jsonl"


# A checkpoint of BEFORE after its second step, from which AFTER trains to the end.
def compare_resumed(after, command, a, b, folder):
    code, said = train(after, command, folder, f"--resume {a}/checkpoints/step-00000002")
    if code:
        return f"resumed, it ends with {code}: {said}"
    found = difference(after, next(folder.glob("train-*")), b)
    return found and f"resumed: {found}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    bad = count = 0
    for command in runs(arguments.steps, arguments.data_dir):
        if not re.search(arguments.only, command):
            continue
        count += 1
        with tempfile.TemporaryDirectory() as where:
            a, b = pathlib.Path(where, "before"), pathlib.Path(where, "after")
            ended = [train(arguments.before, command, a), train(arguments.after, command, b)]
            if ended[0][0] or ended[1][0]:
                word = f"ends with {ended[0][0]} and {ended[1][0]}: {ended[1][1]}"
                bad += 1
            else:
                a, b = next(a.glob("train-*")), next(b.glob("train-*"))
                word = compare(arguments.after, a, b) or compare_resumed(arguments.after, command, a, b, pathlib.Path(where, "resumed"))
                skipped = any(line.get("skipped") for line in figures(a))
                if word and skipped and "mlp" not in command and "loss-scaling" not in command:
                    word = f"statistics ({word})"
                else:
                    bad += bool(word)
            print(f"{word or 'same'}: {command}", flush=True)
    print(f"{count} runs, {bad} differ")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
