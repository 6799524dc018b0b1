#!/usr/bin/env python3
"""Precision changed in the middle of a run: change_precision.py [--recipe mlp] [--demi build/release/demi] [--work FOLDER].

Trains STEPS steps in each precision, resumes its checkpoint of step CHANGE in each other one (`demi train --resume CHECKPOINT
--precision P`), and compares the training loss after the change with the unbroken FP32 run: means of 20 steps, the greatest
difference, against the greatest difference between FP32 runs of three seeds. A checkpoint within the run, since one that ends by
--steps ends its epoch, and goes on with other batches. Prints a row a pair as it is known. Runs that FOLDER holds already are not trained again, so that it
can be stopped and started. Exits with 1 if a pair is beyond the spread of the seeds.
"""
import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

PRECISIONS = ["fp32", "bf16", "fp16", "bf16-true", "fp16-true"]
CHANGE, STEPS, WINDOW = 100, 200, 20
RECIPES = {
    "mlp": ["--in", "64", "--out", "64", "--batch-size", "64", "--batches", "50", "--epochs", "10", "--optimizer", "adamw", "--lr", "0.003"],
    "fashion-cnn": ["--batch-size", "64", "--limit", "12800", "--test-limit", "64", "--schedule", "constant", "--lr", "0.002"],
}


def train(demi, folder, words):
    """The run folder of those words, trained if it has not come to its end; below `folder`, where it is alone."""
    done = list(folder.glob("*/result.json"))
    if not done:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        subprocess.run([demi, "train", *words, "--device", "cpu", "--run-dir", str(folder), "--json"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        done = list(folder.glob("*/result.json"))
    return done[0].parent


def means(run):
    """Of the loss of each WINDOW of steps after the change."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    losses = {line["step"]: line["loss"] for line in lines if "step" in line and "loss" in line}
    return [sum(losses[step] for step in range(first + 1, first + WINDOW + 1)) / WINDOW for first in range(CHANGE, STEPS, WINDOW)]


def greatest(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="mlp")
    parser.add_argument("--demi", default="build/release/demi")
    parser.add_argument("--work", type=Path, default=Path("build/change_precision"))
    given = parser.parse_args()
    work, words = given.work.absolute() / given.recipe, [given.recipe, *RECIPES[given.recipe]]
    seeds = [means(train(given.demi, work / f"seed-{seed}", [*words, "--seed", str(seed), "--steps", str(STEPS)])) for seed in range(3)]
    spread = max(greatest(a, b) for a, b in itertools.combinations(seeds, 2))
    print(f"{given.recipe}: FP32, three seeds: greatest difference {spread:.4g}; last mean loss {seeds[0][-1]:.4g}\n")
    print("| begun in | goes on in | greatest difference | of the seeds' |\n|---|---|---|---|")
    beyond = 0
    for begun in PRECISIONS:
        run = train(given.demi, work / begun, [*words, "--precision", begun, "--steps", str(STEPS), "--checkpoint-every", str(CHANGE),
                                               "--keep-last", "0"])
        checkpoint = run / "checkpoints" / f"step-{CHANGE:08}"
        for now in PRECISIONS:
            if now == begun:
                continue
            changed = train(given.demi, work / f"{begun}-{now}", ["--resume", str(checkpoint), "--precision", now, "--steps", str(STEPS)])
            difference = greatest(means(changed), seeds[0])
            beyond += not difference <= spread
            print(f"| {begun} | {now} | {difference:.4g} | {difference / spread:.3f} |", flush=True)
    print(f"\n{beyond} of 20 pairs are beyond the spread of the seeds")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
