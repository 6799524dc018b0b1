"""Writes muon.json: steps of torch.optim.Muon, of the package muon-optimizer (convolutions) and of ultralytics' MuSGD, and of Muon's formula
in FP64, for demi's tests to compare with.

    python muon_peers.py [FOLDER] > muon.json    (torch 2.15.0, CPU; FOLDER: where muon-optimizer 0.1.0 and ultralytics 8.4.190 are installed,
        pip install --no-deps --target FOLDER muon-optimizer==0.1.0 ultralytics==8.4.190)

LibTorch's operators for processors without FMA (ATEN_CPU_CAPABILITY=default) and one thread, as rules.py: the bits of the cases of torch
are those of a program in the same state. The matrices are small, so that no product goes to a library. MuSGD is run, from the file that
defines it; nothing of it is copied. Numbers are written so that they read back as the same FP32 (or FP64) numbers.
"""
import importlib.util
import json
import math
import os
import sys

if __name__ == "__main__":  # muon_step.py times the operators of the processor
    os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch  # noqa: E402

STEPS = [1, 2, 10, 50]
ABC = (3.4445, -4.7750, 2.0315)
POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462), (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393), (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323)]

TORCH = {
    "wide": ([6, 10], {}),
    "tall": ([10, 6], {}),
    "square": ([8, 8], dict(lr=1e-2)),
    "row": ([1, 9], {}),
    "plain": ([6, 10], dict(nesterov=False, weight_decay=0.0, lr=2e-2)),
    "momentum": ([9, 7], dict(momentum=0.3)),
    "steps": ([9, 7], dict(ns_steps=3, ns_coefficients=(2.0, -1.5, 0.5), eps=1e-3)),
    "match_rms_adamw": ([10, 6], dict(adjust_lr_fn="match_rms_adamw")),
    "spectral_unclamped": ([6, 10], dict(adjust_lr_fn="spectral_unclamped")),
}
CONVOLUTIONS = {"wide": [4, 3, 3, 2], "tall": [12, 2, 2, 1]}


def values(shape, seed, of):
    return torch.tensor([of(i + 0.37 * seed) for i in range(math.prod(shape))]).reshape(shape)


def start(shape, seed):
    return values(shape, seed, math.cos)


def target(shape, seed):
    return values(shape, seed, lambda x: math.sin(3.0 * x))


def gradient(p, goal, step, seed):
    """By hand, the same in every language: a part of 4 bits by step and element, and a pull to the target."""
    part = (torch.arange(p.numel()) * 7 + step * 13 + seed * 5) % 29 - 14
    return part.reshape(p.shape).to(p.dtype) / 16 + (p - goal) / 4


def walk(make, shape, seed, dtype=torch.float32):
    p = torch.nn.Parameter(start(shape, seed).to(dtype))
    goal = target(shape, seed).to(dtype)
    optimizer, track = make(p), []
    for step in range(1, STEPS[-1] + 1):
        with torch.no_grad():
            p.grad = gradient(p, goal, step, seed)
        optimizer.step()
        if step in STEPS:
            digits = 9 if dtype == torch.float32 else 17
            track.append([float(f"{v:.{digits}g}") for v in p.detach().double().flatten().tolist()])
    return track


class Formula:
    """Jordan et al. 2024 in FP64, of a matrix (rows, product of the other sizes)."""

    def __init__(self, p, lr=1e-3, weight_decay=0.1, momentum=0.95, polar_express=False, sgd=0.0, muon=1.0):
        self.p, self.lr, self.decay, self.mu = p, lr, weight_decay, momentum
        self.polar_express, self.sgd, self.muon = polar_express, sgd, muon
        self.buffer, self.second = torch.zeros_like(p), torch.zeros_like(p)

    def step(self):
        with torch.no_grad():
            g, p = self.p.grad.clone(), self.p
            self.buffer.mul_(self.mu).add_((1 - self.mu) * g)
            x = ((1 - self.mu) * g + self.mu * self.buffer).reshape(p.shape[0], -1)
            rows, columns = x.shape
            x = x / (x.norm() * 1.02 + 1e-6) if self.polar_express else x / max(float(x.norm()), 1e-7)
            for a, b, c in POLAR_EXPRESS if self.polar_express else [ABC] * 5:
                gram = x @ x.T
                x = a * x + (b * gram + c * gram @ gram) @ x
            if not self.sgd:
                p.mul_(1 - self.lr * self.decay)
            p.sub_(self.lr * self.muon * math.sqrt(max(1, rows / columns)) * x.reshape(p.shape))
            if self.sgd:
                g = g + self.decay * p
                self.second.mul_(self.mu).add_(g)
                p.sub_(self.lr * self.sgd * (g + self.mu * self.second))


class OfUpdate:
    """SingleDeviceMuon of muon-optimizer with its update of a convolution in the weight's shape, which its step() of 0.1.0 forgets."""

    def __init__(self, p, update):
        self.p, self.update, self.buffer = p, update, torch.zeros_like(p)

    def step(self):
        with torch.no_grad():
            update = self.update(self.p.grad, self.buffer, beta=0.95)
            self.p.mul_(1 - 2e-2 * 1e-2)
            self.p.add_(update.reshape(self.p.shape), alpha=-2e-2)


def of_folder(folder):
    """The peers' classes; None without a folder."""
    if folder is None:
        return None, None
    sys.path.insert(0, folder)
    from muon import muon_update
    root = importlib.util.find_spec("ultralytics").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("ultralytics_muon", os.path.join(root, "optim", "muon.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return muon_update, module.MuSGD


def main():
    torch.set_num_threads(1)
    muon_update, musgd = of_folder(sys.argv[1] if len(sys.argv) > 1 else None)
    musgd_options = dict(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2, use_muon=True)
    written = {"torch": torch.__version__, "steps": STEPS, "muon": [], "fp64": [], "convolutions": [], "musgd": []}
    for name, (shape, options) in TORCH.items():
        for seed in range(3 if not options else 1):
            track = walk(lambda p: torch.optim.Muon([p], **options), shape, seed)
            plain = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
            written["muon"].append({"name": name, "shape": shape, "seed": seed, "options": plain, "fp32": track})
    for options in [{}, dict(lr=1e-2, polar_express=True), dict(lr=1e-2, momentum=0.9, weight_decay=1e-2, sgd=1.0, muon=0.2)]:
        for shape in [[6, 10], [10, 6], [4, 3, 3, 2]]:
            track = walk(lambda p: Formula(p, **options), shape, 0, torch.float64)
            written["fp64"].append({"shape": shape, "seed": 0, "options": options, "fp64": track})
    for name, shape in CONVOLUTIONS.items() if musgd else []:
        for seed in range(3):
            track = walk(lambda p: OfUpdate(p, muon_update), shape, seed)
            written["convolutions"].append({"name": name, "shape": shape, "seed": seed, "fp32": track})
            track = walk(lambda p: musgd([{"params": [p], **musgd_options}], muon=0.2, sgd=1.0), shape, seed)
            written["musgd"].append({"name": name, "shape": shape, "seed": seed, "fp32": track})
    print(json.dumps(written, separators=(",", ":")))


if __name__ == "__main__":
    main()
