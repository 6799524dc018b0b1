#!/usr/bin/env python3
"""Gradients on several ranks, against Python's DistributedDataParallel: distributed_test.py PARTNER EXAMPLE [--python]

Starts PARTNER (tests/distributed_partner.cpp) on 2, 3 and 4 ranks with torchrun, whose agent owns the store. A Python twin with the
same network, numbers and Gloo was started the same way for the fixture; --python starts it here. No gradient may differ by more than
N eps sum|g_i| / N, where g_i are the gradients of each rank's own batch, and all ranks of demi must have the same bits. Where this
processor rounds the g_i in another way than the fixture's, their mean differs by as much, too. EXAMPLE is examples/distributed, which
has to end well on two ranks. Needs torch and safetensors; exits with 77 without them.

    distributed_test.py --write     writes the fixture
"""
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # here as on each rank: another number of threads rounds in another way
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
RANKS = (2, 3, 4)
FIXTURE = Path(__file__).parent / "fixtures" / "distributed" / "gradients.safetensors"


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
    """In this process, which has loaded torch already."""
    options = ["--standalone", "--nproc-per-node", str(ranks), *([] if own else ["--no-python"])]
    torch.distributed.run.main([*options, *map(str, command)])


def of_python(ranks, folder):
    """The averaged gradients of DistributedDataParallel, by name."""
    output = Path(folder, f"python{ranks}")
    torchrun(ranks, Path(__file__).resolve(), "--rank", output, own=True)
    return load_file(f"{output}.0")


def own_gradients(rank):
    model = network()
    backward(model, rank)
    return gradients(model)


def named(prefix, tensors):
    return {prefix + name: t for name, t in tensors.items()}


def write():
    """averagedN.NAME: of N ranks. ownR.NAME: of the batch of rank R."""
    tensors = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS:
            tensors.update(named(f"averaged{ranks}.", of_python(ranks, folder)))
    for rank in range(max(RANKS)):
        tensors.update(named(f"own{rank}.", own_gradients(rank)))
    FIXTURE.parent.mkdir(exist_ok=True)
    save_file(tensors, FIXTURE, {"made_with": f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"})


def of_fixture(prefix):
    return {name.removeprefix(prefix): t for name, t in load_file(FIXTURE).items() if name.startswith(prefix)}


def main(partner, example, python):
    own = [own_gradients(rank) for rank in range(max(RANKS))]
    own_there = own if python else [of_fixture(f"own{rank}.") for rank in range(max(RANKS))]
    torch.testing.assert_close(own, own_there)
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS:
            demis = Path(folder, f"demi{ranks}")
            torchrun(ranks, partner, demis, BATCH)
            first, theirs = load_file(f"{demis}.0"), of_python(ranks, folder) if python else of_fixture(f"averaged{ranks}.")
            assert first.keys() == theirs.keys() == own[0].keys()
            equal = 0
            for name, gradient in first.items():
                for rank in range(1, ranks):
                    assert torch.equal(gradient, load_file(f"{demis}.{rank}")[name]), (name, rank)
                mine = [g[name].double() for g in own[:ranks]]
                bound = EPS * sum(g.abs() for g in mine) + (sum(mine) - sum(g[name].double() for g in own_there[:ranks])).abs() / ranks
                assert ((gradient - theirs[name]).abs() <= bound).all(), name
                equal += torch.equal(gradient, theirs[name])
            print(f"{ranks} ranks: {equal} of {len(first)} gradients have the bits of Python's", flush=True)
    torchrun(2, example)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        python_rank(sys.argv[2])
    elif sys.argv[1] == "--write":
        write()
    else:
        main(sys.argv[1], sys.argv[2], python="--python" in sys.argv[3:])
