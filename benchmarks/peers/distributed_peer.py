"""Python PyTorch's side of benchmarks/distributed_bench.cpp: one rank of DistributedDataParallel on Gloo.

    distributed_peer.py fp32|bf16|bf16-hook [--layers N] [--width N] [--batch N] [--steps N] [--bucket-kb N]

bf16-hook is autocast with bf16_compress_hook, which sends bf16. Rank 0 prints one JSON object.
"""
import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("precision", choices=["fp32", "bf16", "bf16-hook"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--bucket-kb", type=int, default=0)
    a = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a.width, a.width, bias=False) if i % 2 == 0 else torch.nn.ReLU() for i in range(2 * a.layers)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=a.bucket_kb / 1024 if a.bucket_kb else None)
    if a.precision == "bf16-hook":
        model.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(1 + dist.get_rank())
    inputs = torch.randn(a.batch, a.width)
    targets = torch.randn(a.batch, a.width)

    def step(alone=False):
        optimizer.zero_grad()
        with model.no_sync() if alone else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=a.precision != "fp32"):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
        optimizer.step()

    def milliseconds(work):
        dist.barrier()
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)

    for _ in range(3):
        step()
    steps, computations = [], []
    for _ in range(a.steps):
        steps.append(milliseconds(step))
        computations.append(milliseconds(lambda: step(alone=True)))
        for p in model.parameters():
            dist.broadcast(p.detach(), 0)
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": statistics.median(steps), "compute_ms": statistics.median(computations)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
