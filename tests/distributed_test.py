#!/usr/bin/env python3
"""Gradients on several ranks, against Python's DistributedDataParallel: distributed_test.py PARTNER EXAMPLE.

Starts PARTNER (tests/distributed_partner.cpp) on 2, 3 and 4 ranks with torchrun, whose agent owns the store, and a
Python twin with the same network, numbers and Gloo the same way. No gradient may differ by more than N eps sum|g_i| /
N, where g_i are the gradients of each rank's own batch, and all ranks of demi must have the same bits. EXAMPLE is
examples/distributed, which has to end well on two ranks. Needs torch and safetensors; exits with 77 without them.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import torch.distributed
    import torch.distributed.run
    from safetensors.torch import load_file, save_file
except ImportError:
    print("skipped: Python's torch or safetensors is not installed")
    sys.exit(77)

BATCH = 6
EPS = 2.0**-23


def numbers(sizes, seed):
    """As distributed_partner.cpp: eighths."""
    count = torch.Size(sizes).numel()
    return (((torch.arange(count) * 37 + seed * 11) % 17 - 8).float().view(sizes)) / 8


def network():
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 30), torch.nn.Tanh(),
                                torch.nn.Linear(30, 10))
    with torch.no_grad():
        for seed, p in enumerate(model.parameters()):
            p.copy_(numbers(p.shape, seed + 1) / 4)
    return model


def backward(model, rank):
    torch.nn.functional.mse_loss(model(numbers((BATCH, 20), 100 + rank)), numbers((BATCH, 10), 200 + rank)).backward()


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def python_rank(output):
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = network()
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
    for _ in range(2):
        model.zero_grad()
        backward(parallel, rank)
    save_file(gradients(model), f"{output}.{rank}")
    torch.distributed.barrier()
    os._exit(0)  # one end in twelve of a process with Gloo aborts in a thread's destructor


def torchrun(ranks, *command, own=False):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run([*launcher, *([] if own else ["--no-python"]), *map(str, command)], capture_output=True,
                          text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main(partner, example):
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2, 3, 4):
            demis, pythons = Path(folder, f"demi{ranks}"), Path(folder, f"python{ranks}")
            torchrun(ranks, partner, demis, BATCH)
            torchrun(ranks, Path(__file__).resolve(), "--rank", pythons, own=True)
            own = []
            for rank in range(ranks):
                model = network()
                backward(model, rank)
                own.append(gradients(model))
            first, theirs = load_file(f"{demis}.0"), load_file(f"{pythons}.0")
            assert first.keys() == theirs.keys() == own[0].keys()
            equal = 0
            for name, gradient in first.items():
                for rank in range(1, ranks):
                    assert torch.equal(gradient, load_file(f"{demis}.{rank}")[name]), (name, rank)
                bound = EPS * sum(g[name].abs() for g in own)
                assert ((gradient - theirs[name]).abs() <= bound).all(), name
                equal += torch.equal(gradient, theirs[name])
            print(f"{ranks} ranks: {equal} of {len(first)} gradients have the bits of Python's")
    print(torchrun(2, example), end="")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        python_rank(sys.argv[2])
    else:
        main(*sys.argv[1:3])
