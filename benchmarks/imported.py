#!/usr/bin/env python3
"""The host's time of an operation in an imported network, in C++ and in Python, and the peak of tensors, in one run: imported.py IMPORTED_BENCH [LAYERS ROUNDS]

IMPORTED_BENCH is the program imported_bench, whose file this exports. Needs PyTorch alone.
"""
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn as nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import demi_export  # noqa: E402


class Chain(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.weight, self.bias = nn.Parameter(torch.full((4,), 0.5)), nn.Parameter(torch.full((4,), 0.1))

    def forward(self, x):
        for _ in range(self.layers):
            x = torch.tanh(x * self.weight + self.bias)
        return x


def times(run, rounds, repeats=20):
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        found.append((time.perf_counter() - start) * 1e6 / repeats)
    return sorted(found)


def peak_bytes(run):
    """The most bytes of tensors at once, above those before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def main():
    bench, layers, rounds = sys.argv[1], *(int(x) for x in sys.argv[2:4] or (100, 15))
    model, x = Chain(layers), torch.ones(4)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "chain.pt2")
        demi_export.export(model, (x,), file)
        subprocess.run([bench, file, str(layers), str(rounds)], check=True)
    torch.set_num_threads(1)
    with torch.no_grad():
        forward = times(lambda: model(x), rounds)
    training = times(lambda: model(x).sum().backward(), rounds)
    peak = peak_bytes(lambda: model(x).sum().backward())
    print(f"{'Python':<9} {forward[0]:9.1f} {forward[rounds // 2]:9.1f} {training[0]:9.1f} {training[rounds // 2]:9.1f} {'':12} {'':12} {peak:9d}")
    print(f"again: {sys.executable} benchmarks/imported.py {bench} {layers} {rounds}")


if __name__ == "__main__":
    main()
