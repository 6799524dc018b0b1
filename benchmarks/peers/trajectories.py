"""Writes trajectories.json: what Python PyTorch's GradScaler, schedules and optimizers do, for demi's tests to compare with.

    python trajectories.py > trajectories.json        (torch 2.15.0, CPU)
"""
import json
import math
import warnings

import torch

warnings.filterwarnings("ignore")


def scaler(overflows, **options):
    """Scale and growth tracker after each update; `overflows` is a string of . (clean) and x (Inf)."""
    s = torch.amp.GradScaler("cpu", **options)
    p = torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([p], lr=0.0)
    track = []
    for mark in overflows:
        s.scale(p.sum())
        p.grad = torch.tensor([math.inf if mark == "x" else 1.0])
        s.step(sgd)
        s.update()
        track.append([s.get_scale(), s._get_growth_tracker()])
    return {"overflows": overflows, "options": options, "track": track}


def schedule(make, steps, momentum=0.9):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=momentum)
    s = make(sgd)
    rates, momenta = [], []
    for _ in range(steps):
        rates.append(sgd.param_groups[0]["lr"])
        momenta.append(sgd.param_groups[0]["momentum"])
        sgd.step()
        s.step()
    return {"lr": rates, "momentum": momenta}


def plateau(metrics, **options):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    s = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, **options)
    rates = []
    for metric in metrics:
        s.step(metric)
        rates.append(sgd.param_groups[0]["lr"])
    return {"metrics": metrics, "options": options, "lr": rates}


def schedules():
    m = torch.optim.lr_scheduler
    made = {
        "step": schedule(lambda o: m.StepLR(o, 7, 0.5), 40),
        "multi_step": schedule(lambda o: m.MultiStepLR(o, [5, 11, 12], 0.1), 30),
        "exponential": schedule(lambda o: m.ExponentialLR(o, 0.9), 40),
        "cosine": schedule(lambda o: m.CosineAnnealingLR(o, 25, 0.001), 40),
        "cosine_warm_restarts": schedule(lambda o: m.CosineAnnealingWarmRestarts(o, 5, 2, 0.001), 60),
        "cosine_warm_restarts_1": schedule(lambda o: m.CosineAnnealingWarmRestarts(o, 6), 30),
        "linear": schedule(lambda o: m.LinearLR(o, 0.25, 1.0, 8), 20),
        "polynomial": schedule(lambda o: m.PolynomialLR(o, 20, 2.0), 30),
        "lambda": schedule(lambda o: m.LambdaLR(o, lambda t: 1.0 / (1 + t)), 30),
        "sequential": schedule(
            lambda o: m.SequentialLR(o, [m.LinearLR(o, 0.1, 1.0, 5), m.ExponentialLR(o, 0.9)], [6]), 30),
        "one_cycle": schedule(lambda o: m.OneCycleLR(o, 0.5, total_steps=40), 40),
        "one_cycle_linear": schedule(
            lambda o: m.OneCycleLR(o, 0.5, total_steps=40, pct_start=0.25, anneal_strategy="linear", div_factor=10,
                                   final_div_factor=100, base_momentum=0.8, max_momentum=0.9), 40),
        "one_cycle_three_phase": schedule(lambda o: m.OneCycleLR(o, 0.5, total_steps=40, three_phase=True), 40),
    }
    flat = [1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
    made["plateau"] = [
        plateau(flat, factor=0.5, patience=2),
        plateau(flat, factor=0.5, patience=1, cooldown=3),
        plateau([-v for v in flat], mode="max", factor=0.1, patience=2, threshold=0.05, threshold_mode="abs", min_lr=0.02),
    ]
    return made


TARGET = [math.sin(3.0 * i) for i in range(16)]


def optimize(make, dtype, steps=1000, every=100):
    """Rosenbrock-like: curved, so that each step depends on all before it. Gradients by hand: the same in every language."""
    p = torch.nn.Parameter(torch.tensor([math.cos(i) for i in range(16)], dtype=dtype))
    t = torch.tensor(TARGET, dtype=dtype)
    o = make([p])
    track = []
    for step in range(1, steps + 1):
        with torch.no_grad():
            d = p - t
            p.grad = d * 2 + d * d * d * 4
        o.step()
        if step % every == 0:
            track.append([float(v) for v in p.detach().double()])
    return track


def optimizers():
    made = {}
    cases = {
        "sgd": (torch.optim.SGD, dict(lr=1e-3)),
        "sgd_momentum": (torch.optim.SGD, dict(lr=1e-3, momentum=0.9, dampening=0.1, weight_decay=1e-2)),
        "sgd_nesterov": (torch.optim.SGD, dict(lr=1e-3, momentum=0.9, nesterov=True)),
        "sgd_maximize": (torch.optim.SGD, dict(lr=1e-5, maximize=True)),
        "adam": (torch.optim.Adam, dict(lr=1e-2, weight_decay=1e-2)),
        "adam_amsgrad": (torch.optim.Adam, dict(lr=1e-2, amsgrad=True)),
        "adamw": (torch.optim.AdamW, dict(lr=1e-2, weight_decay=1e-2)),
        "adamw_amsgrad": (torch.optim.AdamW, dict(lr=1e-2, amsgrad=True, betas=(0.8, 0.99))),
    }
    for name, (kind, options) in cases.items():
        made[name] = {"exact": optimize(lambda p: kind(p, **options), torch.float64)}
        for how in ("foreach", "fused", "loop"):
            flags = {"foreach": how == "foreach", "fused": how == "fused"}
            made[name][how] = optimize(lambda p: kind(p, **options, **flags), torch.float32)[-1]
    return made


def main():
    print(json.dumps({
        "torch": torch.__version__,
        "scaler": [
            scaler("......x..xx.........", growth_interval=3),
            scaler("x" * 20, init_scale=2.0**20),
            scaler("...........", init_scale=2.0**120, growth_interval=1, growth_factor=4.0),
            scaler("..x....x...", init_scale=1000.0, growth_interval=2, growth_factor=1.7, backoff_factor=0.3),
            scaler("x.x.x...", init_scale=3.0, growth_interval=1, growth_factor=2.0, backoff_factor=0.5),
        ],
        "schedules": schedules(),
        "optimizers": optimizers(),
    }, indent=None, separators=(",", ":")))


if __name__ == "__main__":
    main()
