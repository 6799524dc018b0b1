"""Writes rules.json: 50 steps of Python PyTorch's RMSprop, NAdam, RAdam and Adagrad in FP32 and FP64, for demi's tests to compare with.

    python rules.py > rules.json        (torch 2.15.0, CPU)

The single tensor forms, with LibTorch's operators for processors without FMA (ATEN_CPU_CAPABILITY=default), since those for AVX2 and
AVX-512 contract some products and sums: each operation rounds, in the order of the Python lines. Roots are rounded to nearest:
PyTorch's FP32 root is one unit off for some numbers without AVX-512. Numbers are written so that they read back as the same FP32 (or
FP64) numbers.
"""
import json
import math
import os
import warnings

os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch  # noqa: E402

warnings.filterwarnings("ignore")

TARGET = torch.tensor([math.sin(3.0 * i) for i in range(19)])
ELEMENT = torch.arange(19)
STEPS = [1, 2, 10, 50]

CASES = {
    "rmsprop": ("RMSprop", dict(lr=1e-2)),
    "rmsprop_alpha": ("RMSprop", dict(lr=3e-3, alpha=0.9, eps=1e-4)),
    "rmsprop_decay": ("RMSprop", dict(lr=1e-2, weight_decay=1e-2)),
    "rmsprop_momentum": ("RMSprop", dict(lr=1e-3, momentum=0.9)),
    "rmsprop_centered": ("RMSprop", dict(lr=1e-2, centered=True)),
    "rmsprop_centered_momentum": ("RMSprop", dict(lr=1e-3, centered=True, momentum=0.8, weight_decay=1e-2)),
    "rmsprop_maximize": ("RMSprop", dict(lr=1e-4, maximize=True)),
    "nadam": ("NAdam", dict(lr=1e-2)),
    "nadam_betas": ("NAdam", dict(lr=1e-2, betas=(0.8, 0.99), eps=1e-4, momentum_decay=0.1)),
    "nadam_decay": ("NAdam", dict(lr=1e-2, weight_decay=1e-2)),
    "nadam_decoupled": ("NAdam", dict(lr=1e-2, weight_decay=1e-1, decoupled_weight_decay=True)),
    "nadam_maximize": ("NAdam", dict(lr=1e-4, maximize=True)),
    "radam": ("RAdam", dict(lr=1e-2)),
    "radam_betas": ("RAdam", dict(lr=1e-2, betas=(0.8, 0.9), eps=1e-4)),
    "radam_decay": ("RAdam", dict(lr=1e-2, weight_decay=1e-2)),
    "radam_decoupled": ("RAdam", dict(lr=1e-2, weight_decay=1e-1, decoupled_weight_decay=True)),
    "radam_maximize": ("RAdam", dict(lr=1e-4, maximize=True)),
    "adagrad": ("Adagrad", dict(lr=1e-2)),
    "adagrad_initial": ("Adagrad", dict(lr=5e-2, lr_decay=1e-2, initial_accumulator_value=0.1, eps=1e-4)),
    "adagrad_decay": ("Adagrad", dict(lr=5e-2, weight_decay=1e-2)),
    "adagrad_maximize": ("Adagrad", dict(lr=1e-4, lr_decay=0.5, maximize=True)),
}
SEEDS = {"Adagrad": [0, 1, 2]}  # of the others: 0

_sqrt = torch.Tensor.sqrt


def _nearest_root(x):
    return _sqrt(x.double()).to(x.dtype)


def start(seed):
    return torch.tensor([math.cos(i + seed) for i in range(19)])


def walk(kind, options, dtype, seed):
    """Gradients by hand, the same in every language: a part of 4 bits by seed, step and element, and a pull to the target."""
    p = torch.nn.Parameter(start(seed).to(dtype, copy=True))
    t = TARGET.to(dtype)
    optimizer = getattr(torch.optim, kind)([p], foreach=False, **options)
    track = []
    for step in range(1, STEPS[-1] + 1):
        with torch.no_grad():
            part = (ELEMENT * 7 + (step + 100 * seed) * 13) % 29 - 14
            p.grad = part.to(dtype) / 16 + (p - t) / 4
        optimizer.step()
        if step in STEPS:
            track.append([float(v) for v in p.detach().double()])
    return track


def main():
    torch.Tensor.sqrt = _nearest_root
    torch.Tensor.sqrt_ = lambda x: x.copy_(_nearest_root(x))
    cases = {}
    numbers = lambda tensor: [float(v) for v in tensor.double()]
    for name, (kind, options) in CASES.items():
        for seed in SEEDS.get(kind, [0]):
            case = {"kind": kind, "options": {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()},
                    "fp32": walk(kind, options, torch.float32, seed), "fp64": walk(kind, options, torch.float64, seed)}
            if seed:
                case |= {"seed": seed, "start": numbers(start(seed))}
            cases[f"{name}_seed_{seed}" if seed else name] = case
    print(json.dumps({"torch": torch.__version__, "start": numbers(start(0)), "target": numbers(TARGET), "steps": STEPS, "cases": cases},
                     separators=(",", ":")))


if __name__ == "__main__":
    main()
