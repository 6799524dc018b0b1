#!/usr/bin/env python3
"""Accuracy of weights and moments in fewer bytes: lean_states.py [--recipe NAME] [--seeds N] [--device cuda] [--jobs N] ... [-- OPTIONS]

Trains the recipe with each pair of --weight-mode and --moments, and in FP32, from each seed, and prints the mean difference of the test
accuracy from FP32's, paired by seed, in points, and the greatest one. A network that computes in bf16 throughout, with FP32 masters,
stands beside and is held to no bound: what it loses, its computation loses. Weights without a master in any form, which demi does not
have, are benchmarks/peers/plain_bf16_peer.py's. OPTIONS go to `demi train`: --epochs 1 --limit 6400 for a short look. Runs that FOLDER holds already are
not trained again, so that it can be stopped and started. Exits with 1 if a mean is more than 0.3 points from FP32 or a run more than 0.6.
"""
import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VARIANTS = {  # bytes a parameter of weight, gradient and AdamW's states: the options
    "fp32": ("16", ["--precision", "fp32"]),
    "bf16, master, fp32": ("16", ["--precision", "bf16"]),
    "bf16, master, bf16": ("12", ["--precision", "bf16", "--moments", "bf16"]),
    "bf16, split, fp32": ("14", ["--precision", "bf16", "--weight-mode", "split"]),
    "bf16, split, bf16": ("10", ["--precision", "bf16", "--weight-mode", "split", "--moments", "bf16"]),
    "bf16, split24, int8": ("7.1", ["--precision", "bf16", "--weight-mode", "split24", "--moments", "int8"]),
    "bf16, stochastic, bf16": ("8", ["--precision", "bf16", "--weight-mode", "stochastic", "--moments", "bf16"]),
    "bf16, stochastic, int8": ("6.1", ["--precision", "bf16", "--weight-mode", "stochastic", "--moments", "int8"]),
    "bf16-true, stochastic, int8": ("6.1", ["--precision", "bf16-true", "--weight-mode", "stochastic", "--moments", "int8"]),
}
BESIDE = {"bf16-true, master, bf16": ("12", ["--precision", "bf16-true", "--moments", "bf16"])}
MOST_MEAN, MOST = 0.3, 0.6  # points


def accuracy(given, folder, words):
    """The test accuracy in percent of the run of those words, trained if it has not come to its end; below `folder`, where it is alone."""
    done = list(folder.glob("*/result.json"))
    if not done:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        run = subprocess.run([given.demi, "train", *words, "--device", given.device, "--run-dir", str(folder), "--json"], text=True,
                             capture_output=True)
        if run.returncode != 0:
            sys.exit(f"{' '.join(words)}: {run.stderr}")
        done = list(folder.glob("*/result.json"))
    return 100 * json.loads(done[0].read_text())["runs"][0]["test_accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="fashion-cnn")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--demi", default="build/release/demi")
    parser.add_argument("--work", type=Path, default=Path("build/lean_states"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("options", nargs="*", help="of demi train")
    given = parser.parse_args()
    work = given.work.absolute() / "-".join([given.recipe, *(word.strip("-").replace("/", "_") for word in given.options)])
    variants = {**VARIANTS, **BESIDE}
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = {name: [pool.submit(accuracy, given, work / f"{name.replace(', ', '-')}-{seed}",
                                   [given.recipe, *options, *given.options, "--seed", str(seed)]) for seed in range(given.seeds)]
                for name, (_, options) in variants.items()}
        print("| weights in, weight mode, moments | bytes | accuracy | mean difference | greatest |\n|---|---|---|---|---|")
        beyond, fp32 = 0, []
        for name, (size, _) in variants.items():
            seen = [run.result() for run in runs[name]]
            fp32 = fp32 or seen
            differences = [a - b for a, b in zip(seen, fp32)]
            mean, greatest = sum(differences) / len(differences), max(differences, key=abs)
            beyond += name in VARIANTS and (abs(mean) > MOST_MEAN or abs(greatest) > MOST)
            print(f"| {name} | {size} | {sum(seen) / len(seen):.2f} % | {mean:+.2f} | {greatest:+.2f} |", flush=True)
    print(f"\n{beyond} of {len(VARIANTS) - 1} are beyond {MOST_MEAN} points in the mean, or {MOST} in one run")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
