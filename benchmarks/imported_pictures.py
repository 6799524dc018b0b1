#!/usr/bin/env python3
"""A training step of a torchvision network in Python and, exported, in C++, in turn, in one run.

    imported_pictures.py IMPORTED_PICTURES_BENCH [NETWORK BATCH SIZE ROUNDS]      default: resnet18 16 224 5

Needs torchvision beside PyTorch. Python runs eagerly, in contiguous memory and in channels_last, and compiled in channels_last, in FP32
and in torch.autocast of bf16, with memory kept as the program in C++ keeps it. Shown is the least time of a step.
"""
import os
import subprocess
import sys
import tempfile
import time

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in KEPT.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEPT})

import torch  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import demi_export  # noqa: E402


def network(name):
    import torchvision
    torch.manual_seed(0)
    return getattr(torchvision.models, name)(num_classes=10).train()


def python_step(name, x, y, memory_format, dtype, compiled):
    model = network(name).to(memory_format=memory_format)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    x = x.contiguous(memory_format=memory_format)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            output = run(x)
        loss = torch.nn.functional.cross_entropy(output.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main():
    bench = sys.argv[1]
    name = sys.argv[2] if len(sys.argv) > 2 else "resnet18"
    batch, size, rounds = (int(n) for n in (sys.argv[3:6] or (16, 224, 5)))
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "network.pt2")
        demi_export.export(network(name), (x,), file)
        subprocess.run([bench, file, str(batch), str(size), str(rounds)], check=True)
        ways = [(f, d, c) for d in ("fp32", "bf16") for f, c in
                ((torch.contiguous_format, False), (torch.channels_last, False), (torch.channels_last, True))]
        for memory_format, dtype, compiled in ways:
            step = python_step(name, x, y, memory_format, dtype, compiled)
            loss = [step() for _ in range(3)][-1]
            least = float("inf")
            for _ in range(rounds):
                start = time.perf_counter()
                step()
                least = min(least, 1e3 * (time.perf_counter() - start))
            way = ("channels_last" if memory_format is torch.channels_last else "contiguous") + (", compiled" if compiled else "")
            print(f"Python  {dtype:5} {way:27} {least:8.1f} ms a step, loss {loss:.4f}", flush=True)
        subprocess.run([bench, file, str(batch), str(size), str(rounds)], check=True)
    print(f"again: {sys.executable} benchmarks/imported_pictures.py {bench} {name} {batch} {size} {rounds}")


if __name__ == "__main__":
    main()
