#!/usr/bin/env python3
"""Random networks, called in Python and by demi::ImportedModel on this machine: imported_random_test.py PARTNER [SEEDS...]

PARTNER is the program imported_calls_partner. For each seed 15 networks of random blocks are exported, as files of two graphs or of one: batch and
instance norms, some in two places, some frozen; dropout; LSTM; weights under no_grad, clamped ones and teachers; limits of a dtype; outputs by key and
number, some in training alone. Each is called some eight times: in both modes, with frozen parts, a selected output, one row, in bf16. In FP32 outputs,
gradients and state have to be the same bits as Python's; what Python refuses, and an output that one mode lacks, has to be refused. Needs PyTorch and
safetensors.
"""
import copy
import os
import random
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file
    from torch.export.pt2_archive._package import package_pt2
except ImportError:
    print("skipped: this Python has no torch or no safetensors")
    sys.exit(77)

NETWORKS, WIDTH = 15, 4


class Norm(nn.Module):
    """A batch or instance norm, of which some have no running statistics and some stand in two places."""

    def __init__(self, draw):
        super().__init__()
        self.is_batch, self.twice = draw.random() < 0.7, draw.random() < 0.3
        tracks = draw.random() < 0.75
        self.norm = (nn.BatchNorm1d if self.is_batch else nn.InstanceNorm1d)(WIDTH, affine=draw.random() < 0.7, track_running_stats=tracks)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        def one(x):
            return self.norm(x) if self.is_batch else self.norm(torch.stack([x, x * 2, x.cos()], 2)).sum(2)

        return one(self.linear(one(x))) if self.twice else one(self.linear(x))


class Dropped(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(draw.choice([0.0, 0.3]))
        self.by_hand = draw.random() < 0.5

    def forward(self, x):
        x = self.dropout(torch.tanh(self.linear(x)))
        return F.dropout(x, 0.25, self.training) if self.by_hand else x


class Recurrent(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=draw.choice([0.0, 0.3]))

    def forward(self, x):
        return self.lstm(torch.stack([x, -x], 1))[0][:, -1]


class Taught(nn.Module):
    """Weights under no_grad: read, clamped, and followed."""

    def __init__(self, draw):
        super().__init__()
        self.student, self.teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.tensor(draw.uniform(0.5, 3.0)))
        self.clamps, self.follows = draw.random() < 0.5, draw.random() < 0.5
        self.teacher.requires_grad_(draw.random() < 0.5)

    def forward(self, x):
        with torch.no_grad():
            if self.clamps:
                self.scale.clamp_(0.0, 2.0)
            if self.follows:
                self.teacher.weight.mul_(0.9).add_(self.student.weight, alpha=0.1)
            target = self.teacher(x) + self.student(x) if self.follows else self.student(x)
        return self.scale * (self.student(x) - target) + self.teacher(x)


class Masked(nn.Module):
    """Limits of a dtype, after which nothing is as large."""

    def __init__(self, draw):
        super().__init__()
        self.linear, self.kind = nn.Linear(WIDTH, WIDTH), draw.randrange(4)
        self.register_buffer("mask", torch.tensor([True] + [draw.random() < 0.5 for _ in range(WIDTH - 2)] + [False]))

    def forward(self, x):
        scores = self.linear(x)
        least = torch.finfo(scores.dtype).min
        if self.kind == 0:
            scores = scores.masked_fill(self.mask, least)
        if self.kind == 1:
            scores = torch.where(self.mask, scores, least)
        if self.kind == 2:
            scores = F.pad(scores[:, 1:], (1, 0), value=least)
        if self.kind == 3:
            scores = torch.full_like(scores, least).clamp(max=-least) * 0.0 + scores
        return torch.softmax(scores, 1) + x


BLOCKS = [Norm, Norm, Norm, Dropped, Dropped, Recurrent, Taught, Masked, Masked]
FORMS = ["tensor", "tuple", "keys", "numbers", "nested"]


class Network(nn.Module):
    def __init__(self, draw, has_auxiliary):
        super().__init__()
        self.blocks = nn.ModuleList(kind(draw) for kind in draw.choices(BLOCKS, k=draw.randint(2, 4)))
        self.blocks.append(Dropped(draw))  # whose flags say the mode
        self.head, self.other = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 2)
        self.form, self.has_auxiliary = draw.choice(FORMS), has_auxiliary

    def forward(self, x):
        rows = x.shape[0]
        for block in self.blocks:
            x = block(x)
        main, other = self.head(x), self.other(x)
        results = {"tensor": main + other.sum(), "tuple": (main, rows, other), "keys": {"logits": main, "rest": (other, rows)},
                   "numbers": {"1": main, "0": other, "2": rows}, "nested": ([main, {"a": other}], None, x)}
        result = results[self.form]
        if not self.has_auxiliary or not self.training:
            return result
        return {**result, "auxiliary": x} if isinstance(result, dict) else (result, x)


def tensors_of(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def select(tree, output):
    """The tensor of that name, or None."""
    if isinstance(tree, dict) and output in tree:
        found = tensors_of(tree[output])
        return found[0] if len(found) == 1 else None
    found = tensors_of(tree)
    return found[int(output)] if output.isdigit() and int(output) < len(found) else None


def export(model, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(copy.deepcopy(model), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))


def set_modes(model, mode, frozen):
    model.train(mode == "train")
    if mode == "train":
        for name in frozen:
            model.get_submodule(name).eval()
    return model


def expect(model, call, frozen_at_export):
    """What Python computes; nothing if it refuses."""
    model = set_modes(copy.deepcopy(model), call["mode"], frozen_at_export + call["frozen"])
    torch.manual_seed(1)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=call["region"] == "bf16"):
            result = model(call["x"])
    except ValueError:  # one value has no variance
        return None
    except RuntimeError:  # oneDNN's LSTM, of processors without BF16 instructions
        if call["region"] == "fp32":
            raise
        return {}
    outputs = [select(result, call["output"])] if call["output"] else tensors_of(result)
    loss = torch.zeros(())
    for output in outputs:
        if output.requires_grad:
            loss = loss + output.float().square().mean()
    if loss.requires_grad:
        loss.backward()
    return {f"output.{i}": output.detach() for i, output in enumerate(outputs)} | {
        f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None} | {
        f"state.{name}": tensor for name, tensor in model.state_dict().items()}


def calls_of(model, draw, x):
    """Of a network, with the outputs that both modes have."""
    modes = ["train", "eval"]
    results = [set_modes(copy.deepcopy(model), mode, [])(x) for mode in ("train", "eval")]
    names = [str(i) for i in range(4)] + [key for result in results if isinstance(result, dict) for key in result] + ["9", "nothing"]
    parts = [name for name, module in model.named_modules() if name and any(True for _ in module.parameters())]
    plain = {"output": "", "frozen": [], "region": "fp32", "x": x}
    calls = [plain | {"mode": mode} for mode in modes]
    calls += [plain | {"mode": "train", "frozen": [draw.choice(parts)]} for _ in range(2)]
    for mode in modes:
        name = draw.choice(names)
        is_there = all(select(result, name) is not None for result in results)
        calls.append(plain | {"mode": mode, "output": name, "is_refused": not is_there})
    calls += [plain | {"mode": draw.choice(modes), "x": x[:1]}, plain | {"mode": "eval", "region": "bf16"}]
    return calls


def compare(seen, expected, region):
    if region == "bf16":  # an op may have another precision in demi's table
        expected = {name: tensor for name, tensor in expected.items() if name.startswith("output.")}
    for name, tensor in expected.items():
        if name not in seen:
            return f"{name} is missing"
        mine = seen[name]
        if mine.shape != tensor.shape:
            return f"{name} has the shape {tuple(mine.shape)}, and {tuple(tensor.shape)} in Python"
        if region == "bf16":
            if not torch.allclose(mine.float(), tensor.float(), rtol=0.1, atol=0.1):
                return f"{name} is off by {(mine.float() - tensor.float()).abs().max().item():.2g}"
        elif not torch.equal(mine, tensor):
            return f"{name} has other bits: off by {(mine.double() - tensor.double()).abs().max().item():.2g}"
    more = [name for name in seen if name.startswith("grad.") and name not in expected and region == "fp32"]
    return f"{more[0]} is there here alone" if more else ""


def make(seed, folder):
    """The calls of a seed: files are written."""
    draw, calls = random.Random(seed), []
    for number in range(NETWORKS):
        torch.manual_seed(1000 * seed + number)
        kind = draw.choice(["two", "two", "train", "eval"])
        model = Network(draw, has_auxiliary=kind == "two" and draw.random() < 0.4)
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.InstanceNorm1d)) and module.running_mean is not None:
                nn.init.normal_(module.running_mean, std=0.3)
        norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d)]
        frozen = [name for name in norms if kind != "eval" and draw.random() < 0.2]
        x = torch.randn(6, WIDTH)
        programs = {"model": export(set_modes(model, "eval" if kind == "eval" else "train", frozen), x)}
        if kind == "two":
            programs["eval"] = export(set_modes(model, "eval", frozen), x)
        file = os.path.join(folder, f"{number}.pt2")
        package_pt2(file, exported_programs=programs)
        for call in calls_of(model, draw, x):
            inputs, outputs = (os.path.join(folder, f"{len(calls)}.{what}.safetensors") for what in ("in", "out"))
            save_file({"x": call["x"].contiguous()}, inputs)
            expected = None if call.get("is_refused") else expect(model, call, frozen)
            about = f"seed {seed}, network {number} ({kind}, {model.form}, {[type(b).__name__ for b in model.blocks]}), " \
                    f"{call['mode']}, output {call['output']!r}, frozen {call['frozen']} after {frozen}, {call['region']}, {len(call['x'])} rows"
            line = "\t".join([file, inputs, outputs, call["mode"], call["output"], ",".join(call["frozen"]), call["region"]])
            calls.append((line, outputs, expected, call["region"], about))
    return calls


def main():
    program, *seeds = sys.argv[1:]
    version = subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()
    if torch.__version__.split("+")[0] != version:
        print(f"skipped: PyTorch {torch.__version__} and LibTorch {version} may round differently")
        sys.exit(77)
    count = refused = 0
    wrong = []
    for seed in [int(seed) for seed in seeds] or [1, 2, 3]:
        with tempfile.TemporaryDirectory() as folder:
            calls = make(seed, folder)
            plan = os.path.join(folder, "plan")
            with open(plan, "w") as file:
                file.writelines(line + "\n" for line, *_ in calls)
            done = subprocess.run([program, plan], capture_output=True, text=True)
            said = done.stdout.splitlines()
            if done.returncode or len(said) != len(calls):
                sys.exit(f"the partner ended with {done.returncode} after {len(said)} of {len(calls)} calls: {done.stderr}")
            for (_, out, expected, region, about), refusal in zip(calls, said):
                count += 1
                refused += expected is None
                if expected is None:
                    problem = "" if refusal.startswith("refused: ") else refusal or "it was taken"
                else:
                    problem = refusal or compare(load_file(out), expected, region)
                if problem:
                    wrong.append(f"{about}: {problem}")
    print(f"{count} calls, {refused} of them refused as in Python, {len(wrong)} wrong")
    print("\n".join(wrong))
    sys.exit(1 if wrong or count < 100 else 0)


if __name__ == "__main__":
    main()
