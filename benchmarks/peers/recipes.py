#!/usr/bin/env python3
"""A recipe's training step beside Python PyTorch's: same model, sizes, optimizer and threads, the programs in turn.

    benchmarks/peers/recipes.py --demi build/release/demi --peer $(benchmarks/peers/make_env.sh) mlp imdb-lstm

Each program is run --rounds times, in turn, in FP32 and bf16 (Python: torch.autocast); the table holds the median of the rounds'
medians, ms, and their ratio. Both flush subnormal numbers, which Python does not do by itself. cifar10-resnet50 reads CIFAR-10 on demi's
side (--data-dir)."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recipe_peer.py")
WORDS, TEXTS, LENGTH = 100_681, 640, 256  # with the two marks, IMDB's vocabulary of 100,683


def texts(folder):
    """Random texts of one length that hold every word at least once."""
    words = [f"w{i % WORDS}" for i in range(TEXTS * LENGTH)]
    random.Random(0).shuffle(words)
    path = os.path.join(folder, "texts.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write("label,text\n")
        for i in range(TEXTS):
            file.write(f"{i % 2},{' '.join(words[i * LENGTH:(i + 1) * LENGTH])}\n")
    return path


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def demi_ms(a, recipe, folder):
    options = ["--warmup", "2", "--steps", "1", "--rounds", str(a.steps), "--clip-norm", "0", "--json"]
    if recipe == "imdb-lstm":
        path = texts(folder)
        options += ["--data", "csv", "--train-file", path, "--test-file", path]
    if recipe == "cifar10-resnet50":
        options += ["--batch-size", "32"] + (["--data-dir", a.data_dir] if a.data_dir else [])
    result = last_json([a.demi, "bench", "recipe", recipe, *options])
    return {run["precision"]: run["ms"] for run in result["runs"]}


def peer_ms(a, recipe):
    result = {}
    for precision in ("fp32", "bf16"):
        command = [a.peer, PEER, recipe, "--precision", precision, "--steps", str(a.steps), "--flush-denormal"]
        result[precision] = last_json(command)["ms"]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", choices=["mlp", "cifar10-resnet50", "imdb-lstm"], metavar="RECIPE",
                        help="mlp, cifar10-resnet50 or imdb-lstm")
    parser.add_argument("--demi", default="build/release/demi", help="the program [build/release/demi]")
    parser.add_argument("--peer", default="python3", help="a Python with torch [python3]")
    parser.add_argument("--data-dir", default="", help="folder of CIFAR-10's files")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a run [5]")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each program, in turn [2]")
    a = parser.parse_args()
    print("| recipe | precision | demi ms | Python ms | Python / demi |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for recipe in a.recipes:
            rounds = [(demi_ms(a, recipe, folder), peer_ms(a, recipe)) for _ in range(a.rounds)]
            for precision in ("fp32", "bf16"):
                ours = statistics.median(one[precision] for one, _ in rounds)
                theirs = statistics.median(other[precision] for _, other in rounds)
                print(f"| {recipe} | {precision} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
