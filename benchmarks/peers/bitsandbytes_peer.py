"""bitsandbytes' AdamW with 8-bit states on a CPU beside demi's: the time of a step, and what a training ends with.

    python -m pip install bitsandbytes                     # 0.50.2 was measured; beside PyTorch, as make_env.sh has it
    benchmarks/peers/bitsandbytes_peer.py build/release/demi [--parameters N] [--turns N] [--seeds N] [--limit N] [--epochs N]

Speed: AdamW over FP32 weights with FP32 gradients, PyTorch's fused and bitsandbytes', in turn with `demi bench step` with
moments in FP32 and in 8 bits, which unscales, checks and clips 16-bit gradients besides; the least of all turns. Loss: the
network of recipe fashion-cnn on its data in FP32, AdamW at 1e-3: `demi train` with both forms of moments, and the same training in
Python with both optimizers, each with initial weights and an order of its own; means over seeds. Prints one JSON object.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import bitsandbytes
import torch
from fashion_mnist import read
from recipe_peer import FashionCNN

RATE, DECAY, BATCH = 1e-3, 1e-2, 128
OPTIMIZERS = {
    "torch AdamW, fused": lambda p: torch.optim.AdamW(p, lr=RATE, weight_decay=DECAY, fused=True),
    "bitsandbytes AdamW8bit": lambda p: bitsandbytes.optim.AdamW8bit(p, lr=RATE, weight_decay=DECAY),
}
MOMENTS = {"demi AdamW": "fp32", "demi AdamW, int8 moments": "int8"}


def demi(a, *arguments):
    done = subprocess.run([a.demi, *arguments, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def python_step(optimizer, parameters):
    start = time.perf_counter()
    optimizer.step()
    return 1e3 * (time.perf_counter() - start)


def speed(a):
    length = a.parameters // 8
    times = {name: [] for name in (*OPTIMIZERS, *MOMENTS)}
    for turn in range(a.turns):
        for name, make in OPTIMIZERS.items():
            weights = [torch.nn.Parameter((torch.arange(length) * 0.37 + i).sin()) for i in range(8)]
            for w in weights:
                w.grad = (w.detach() * 1.7).cos() * 1e-3
            optimizer = make(weights)
            optimizer.step()  # makes the states
            times[name] += [python_step(optimizer, weights) for _ in range(3)]
            del optimizer, weights
        for name, moments in MOMENTS.items():
            found = demi(a, "bench", "step", "--parameters", str(a.parameters), "--rounds", "3", "--no-peer", "--moments", moments)
            times[name].append(found["ms"])
    return {name: min(ms) for name, ms in times.items()}


def train_python(a, make, seed):
    torch.manual_seed(seed)
    x, y = read("train")
    x, y = x[:a.limit], y[:a.limit]
    model = FashionCNN().to(memory_format=torch.channels_last)
    optimizer = make(model.parameters())
    for _ in range(a.epochs):
        total = 0.0
        for rows in torch.randperm(a.limit).split(BATCH):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
    model.eval()
    tx, ty = read("t10k")
    with torch.no_grad():
        right = sum((model(tx[i:i + 1000]).argmax(1) == ty[i:i + 1000]).sum().item() for i in range(0, len(ty), 1000))
    return total / a.limit, right / len(ty)


def train_demi(a, moments, seed):
    with tempfile.TemporaryDirectory() as folder:
        run = demi(a, "train", "fashion-cnn", "--precision", "fp32", "--optimizer", "adamw", "--lr", str(RATE), "--weight-decay",
                   str(DECAY), "--batch-size", str(BATCH), "--schedule", "constant", "--limit", str(a.limit), "--epochs", str(a.epochs),
                   "--seed", str(seed), "--test-limit", "10000", "--moments", moments, "--run-dir", folder, "--checkpoint-every", "0")["runs"][0]
        metrics = next(pathlib.Path(folder).glob("*/metrics.jsonl")).read_text().splitlines()
        return [json.loads(line)["epoch_loss"] for line in metrics if "epoch_loss" in line][-1], run["test_accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demi")
    parser.add_argument("--parameters", type=int, default=16777216)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=12000)
    parser.add_argument("--epochs", type=int, default=3)
    a = parser.parse_args()
    torch.set_flush_denormal(True)
    ends = {name: [] for name in (*OPTIMIZERS, *MOMENTS)}
    for seed in range(1, a.seeds + 1):
        for name, make in OPTIMIZERS.items():
            ends[name].append(train_python(a, make, seed))
        for name, moments in MOMENTS.items():
            ends[name].append(train_demi(a, moments, seed))
    print(json.dumps({
        "torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__, "threads": torch.get_num_threads(),
        "parameters": a.parameters, "step_ms": speed(a) if a.turns else {},
        "limit": a.limit, "epochs": a.epochs, "seeds": a.seeds,
        "training_loss": {name: statistics.mean(loss for loss, _ in end) for name, end in ends.items() if end},
        "test_accuracy": {name: statistics.mean(right for _, right in end) for name, end in ends.items() if end},
        "test_accuracy_spread": {name: max(r for _, r in end) - min(r for _, r in end) for name, end in ends.items() if end}}, indent=1))


if __name__ == "__main__":
    main()
