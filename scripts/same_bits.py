#!/usr/bin/env python3
"""Trains the same runs with two builds of the program and compares what they leave, bit for bit.

    scripts/same_bits.py BEFORE AFTER [--data-dir DIR] [--only PATTERN] [--steps 6]

BEFORE and AFTER are two `demi` programs. Each run is a recipe in a precision, a few steps of few examples, some with clipping,
accumulation, averages, a gradient penalty or two ranks; texts, tables, token files, pictures and networks of .pt2 files are made here
or are the tests' fixtures. Compared are weights, optimizer states, figures, config.json, result.json, and what a model file says of its
network. A run in which a step is skipped may differ: since the statistics of batch normalisation go back with a skipped step, such runs
are told as "statistics". A checkpoint of BEFORE is also resumed by AFTER, whose `eval` reads the model of BEFORE.

Exit codes: 0 all are the same, 1 one is not, 2 usage.
"""
import argparse
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import zlib

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/imported"

SYNTHETIC = ["mlp --in 64 --out 64", "loss-scaling", "synthetic-resnet50 --batch-size 2 --image-size 32"]
OF_DATA = ["cifar10-cnn", "cifar10-resnet18", "cifar10-resnet50", "cifar10-vgg19", "imdb-lstm"]  # in --data-dir; fashion-cnn's have a package
PRECISIONS = ["fp32", "bf16", "fp16", "bf16-true"]
VARIANTS = ["", "--clip-norm 0.5", "--accumulate 2", "--ema 0.9", "--gradient-penalty 0.01", "--monitor 2", "--detect-anomaly",
            "--loss-scale 64"]


def png(colour, side):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    rows = b"".join(b"\0" + bytes((c + 7 * row) % 256 for c in colour) * side for row in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def make_data(folder):
    words = random.Random(4)
    text = "".join(words.choice(["to be ", "or not ", "that is ", "the question\n"]) for _ in range(900))
    (folder / "plays.txt").write_text(text)
    for split in ("train", "test"):
        rows = [f"{words.choice(['good', 'bad'])},\"{' '.join(words.choices('abcdefgh', k=9))}\"\n" for _ in range(64)]
        (folder / f"{split}.csv").write_text("label,text\n" + "".join(rows))
        tokens = [words.randrange(100) for _ in range(2000)]
        (folder / f"{split}.bin").write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack("<2000H", *tokens))
    for split in ("train", "val"):
        for number, kind in enumerate(("cat", "dog")):
            (folder / "photos" / split / kind).mkdir(parents=True)
            for i in range(8):
                (folder / "photos" / split / kind / f"{i}.png").write_bytes(png((9 * i, 90 * number, 40), 48))


def runs_of_files(folder, small):
    gpt = "--batch-size 4 --test-batch-size 4 --context 16 --depth 2 --heads 2 --embedding 16 --eval-every 3 --warmup-steps 1"
    text, tokens = f"--data text --train-file {folder}/plays.txt", f"--train-file {folder}/train.bin --test-file {folder}/test.bin"
    for precision in PRECISIONS[:3]:
        more = f"--precision {precision} {small}"
        yield f"gpt-shakespeare {text} {gpt} {more}"
        yield f"gpt-shakespeare {text} --block llama --key-heads 1 --dropout 0.1 --tokenizer bytes {gpt} {more}"
        yield f"gpt2 {tokens} --vocabulary-size 100 --tokens-per-step 128 {gpt} {more}"
        yield f"imdb-lstm --data csv --train-file {folder}/train.csv --test-file {folder}/test.csv --batch-size 8 --pool mean {more}"
        yield f"folder-resnet50 --data-dir {folder}/photos --model resnet18 --image-size 32 --batch-size 4 --lr 0.001 {more}"
        yield f"{FIXTURES}/rows.pt2 --data synthetic-rows --loss mse --batches 6 --batch-size 8 --lr 0.01 {more}"
    for variant in ("--ema 0.9", "--accumulate 2", "--recompute blocks", "--ranks 2", "--weight-mode split --precision bf16-true"):
        yield f"gpt-shakespeare {text} {gpt} {variant} {small}"
    yield f"imdb-lstm --data csv --train-file {folder}/train.csv --test-file {folder}/test.csv --batch-size 8 --bidirectional --ema 0.9 {small}"


def runs(steps, data_dir, folder):
    small = f"--steps {steps} --seed 3"
    for recipe in SYNTHETIC:
        for precision in PRECISIONS:
            yield f"{recipe} --precision {precision} {small}"
    for variant in VARIANTS[1:]:
        yield f"mlp --in 64 --out 64 --precision fp16 {variant} {small}"
    yield f"mlp --in 64 --out 64 --precision bf16 --ranks 2 {small}"
    yield f"mlp --in 64 --out 64 --precision fp16 --ranks 2 --accumulate 2 {small}"
    yield from runs_of_files(folder, small)
    for recipe in ["fashion-cnn", *(f"{recipe} --data-dir {data_dir}" for recipe in OF_DATA if data_dir)]:
        for precision in PRECISIONS[:3]:
            yield f"{recipe} --limit 128 --test-limit 64 --batch-size 16 --precision {precision} {small}"


def train(program, command, folder, more=""):
    done = subprocess.run([program, "train", *command.split(), *more.split(), "--run-dir", str(folder), "--checkpoint-every", "2",
                           "--keep-last", "0"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr[-300:]


# A file of JSON without what differs from run to run: times, memory, folders.
def settled(value):
    if isinstance(value, dict):
        return {name: settled(one) for name, one in value.items()
                if not re.search("seconds|_ms|memory|bytes|per_second|folder|started|command|git|where|speed|time|rss|load|mfu|share|switches|flop|disturbed", name)}
    return [settled(one) for one in value] if isinstance(value, list) else value


def read_json(file):
    return settled(json.loads(file.read_text())) if file.exists() else None


# What a model file says of its network, besides the order of the names.
def network_of(program, file):
    done = subprocess.run([program, "inspect", str(file), "--json"], capture_output=True, text=True, check=False)
    texts = json.loads(done.stdout).get("metadata", {})
    return json.loads(texts.get("demi.model", "{}"))


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
    if network_of(after, a / "model.safetensors") != network_of(after, b / "model.safetensors"):
        return "demi.model"
    for name in ("config.json", "result.json"):
        if read_json(a / name) != read_json(b / name):
            return name
    if list(json.loads((a / "config.json").read_text())) != list(json.loads((b / "config.json").read_text())):
        return "order of config.json"
    return "" if figures(a) == figures(b) else "metrics.jsonl"


# A checkpoint of BEFORE after its second step, from which AFTER trains to the end.
def compare_resumed(after, command, a, b, folder):
    code, said = train(after, command, folder, f"--resume {a}/checkpoints/step-00000002")
    if code:
        return f"resumed, it ends with {code}: {said}"
    found = difference(after, next(folder.glob("train-*")), b)
    return found and f"resumed: {found}"


# The result of `demi eval` with the model of BEFORE.
def compare_evaluated(before, after, model):
    said = [subprocess.run([program, "eval", str(model), "--json"], capture_output=True, text=True, check=False) for program in (before, after)]
    if said[0].returncode != said[1].returncode:
        return f"eval ends with {said[0].returncode} and {said[1].returncode}: {said[1].stderr[-300:]}"
    if said[0].returncode:
        return ""  # as data that are made have no test set
    return "" if settled(json.loads(said[0].stdout)) == settled(json.loads(said[1].stdout)) else "eval"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    bad = count = 0
    data = tempfile.TemporaryDirectory()
    make_data(pathlib.Path(data.name))
    for command in runs(arguments.steps, arguments.data_dir, data.name):
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
                word = (compare(arguments.after, a, b) or
                        compare_resumed(arguments.after, command, a, b, pathlib.Path(where, "resumed")) or
                        compare_evaluated(arguments.before, arguments.after, a / "model.safetensors"))
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
