"""Writes scaler_programs.json: what Python PyTorch makes of random programs with a GradScaler, for demi's tests to compare with.

    python scaler_programs.py [COUNT] [SEED] > scaler_programs.json      (torch 2.15.0, CPU; 60 programs from seed 1 on)

A program is 30 steps with 1 to 3 optimizers. In each step an optimizer may have gradients, which may hold an Inf or NaN; it may
be looked at (unscale_, clipped) and then stepped or not; gradients may be mended after unscale_. Programs come from their seed
alone (Random below), so that demi/scaler/random_programs.h can run the same ones.
"""
import json
import math
import sys
import warnings

import torch

warnings.filterwarnings("ignore")
STEPS = 30


class Random:
    """Knuth's MMIX generator: the same numbers in every language."""

    def __init__(self, seed):
        self.state = seed

    def pick(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def number(random):
    """A multiple of 1/32 in 8 bits, so that bf16 holds it, and its product with any power of two."""
    return (random.pick(255) - 127) / 32


def make_optimizer(kind, parameters):
    if kind == 0:
        return torch.optim.SGD(parameters, lr=0.125)
    if kind == 1:
        return torch.optim.SGD(parameters, lr=0.125, momentum=0.875)
    if kind == 2:
        return torch.optim.Adam(parameters, lr=0.01)
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def backward(random, scaler, parameters):
    """In one backward of eight an element is an Inf or NaN."""
    gradients = [torch.tensor([number(random) for _ in range(p.numel())]) for p in parameters]
    bad = random.pick(16)
    if bad < 2:
        gradients[random.pick(len(gradients))][0] = math.inf if bad == 0 else math.nan
    loss = sum((p * g).sum() for p, g in zip(parameters, gradients))
    scaler.scale(loss).backward()


def act(random, scaler, optimizer, parameters):
    """Returns whether the scaler has looked at the gradients."""
    action, limit = random.pick(10), 0.5 + random.pick(8) / 2
    if action == 0:
        return False
    if action == 1:  # clipped, and then not used
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        return False
    if action == 2:  # what is clipped is the scaled gradient
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        scaler.step(optimizer)
        return True
    if action == 3:
        scaler.step(optimizer)
        return True
    scaler.unscale_(optimizer)
    if action in (4, 7):
        torch.nn.utils.clip_grad_norm_(parameters, limit)
    if action in (5, 8):
        torch.nn.utils.clip_grad_value_(parameters, limit)
    if action == 9:
        for p in parameters:
            p.grad.nan_to_num_(1.0, 1.0, 1.0)
    if action >= 7 or action == 6 and random.pick(2) == 0:
        scaler.step(optimizer)
    return True


def run(seed):
    random = Random(seed)
    kinds, groups = [], []
    for _ in range(1 + random.pick(3)):
        kinds.append(random.pick(4))
        sizes = [1 + random.pick(3) for _ in range(1 + random.pick(3))]
        groups.append([torch.nn.Parameter(torch.tensor([number(random) for _ in range(size)])) for size in sizes])
    optimizers = [make_optimizer(kind, group) for kind, group in zip(kinds, groups)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**random.pick(12), growth_interval=1 + random.pick(4))
    track, weights = [], []
    for step in range(STEPS):
        looked = False
        for optimizer, group in zip(optimizers, groups):
            if random.pick(8) == 0:
                continue
            optimizer.zero_grad(set_to_none=random.pick(3) > 0)
            backward(random, scaler, group)
            looked |= act(random, scaler, optimizer, group)
        if looked and random.pick(12) == 0:
            scaler.update(2.0**random.pick(12))
        elif looked:
            scaler.update()
        track.append([round(math.log2(scaler.get_scale())), scaler._get_growth_tracker()])
        if step % 10 == 9:
            weights.append([float("%.7g" % v) for group in groups for p in group for v in p.detach()])
    return {"seed": seed, "track": track, "weights": weights}


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    programs = [run(first + i) for i in range(count)]
    print(json.dumps({"torch": torch.__version__, "programs": programs}, separators=(",", ":")))


if __name__ == "__main__":
    main()
