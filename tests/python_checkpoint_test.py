#!/usr/bin/env python3
"""Checkpoints between C++ and Python with the real packages: python_checkpoint_test.py PARTNER RESNET DEMI.

A run that changes over from C++ to Python, or back, in the middle ends where the run ends that stays on one side. Needs
`pip install torch safetensors`; exits with 77 without them. torchvision is used where it is installed.
"""
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import demi_checkpoint  # noqa: E402

PARTNER, RESNET, DEMI = sys.argv[1:4]
STEPS, CHANGE = 12, 7
KINDS = {
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw-amsgrad": (torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "amsgrad": True}),
    "adamw-by-adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adam": (torch.optim.Adam, {"lr": 0.02, "weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "sgd-nesterov": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.001}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.9, "centered": True, "alpha": 0.95, "eps": 1e-3}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (torch.optim.RAdam, {"lr": 0.01, "betas": (0.8, 0.9)}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.02, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.01}),
    "adamw-bf16": (torch.optim.AdamW, {"lr": 0.01}),
    "sgd-cosine": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
}
lr = torch.optim.lr_scheduler
SCHEDULES = {  # of an optimizer; checkpoint_partner.cpp has demi's
    "step": lambda of: lr.StepLR(of, 3, 0.5),
    "multi-step": lambda of: lr.MultiStepLR(of, [2, 5, 9], 0.5),
    "exponential": lambda of: lr.ExponentialLR(of, 0.9),
    "cosine": lambda of: lr.CosineAnnealingLR(of, STEPS),
    "cosine-again": lambda of: lr.CosineAnnealingLR(of, 4, 0.001),
    "warm-restarts": lambda of: lr.CosineAnnealingWarmRestarts(of, 3, 1, 0.001),
    "warm-restarts-longer": lambda of: lr.CosineAnnealingWarmRestarts(of, 2, 2),
    "multiplicative": lambda of: lr.MultiplicativeLR(of, lambda t: 0.9),
    "constant": lambda of: lr.ConstantLR(of, 0.5, 8),
    "linear": lambda of: lr.LinearLR(of, 0.1, 1, 9),
    "polynomial": lambda of: lr.PolynomialLR(of, 10, 2),
    "lambda": lambda of: lr.LambdaLR(of, lambda t: 1 / (1 + t)),
    "warm-up": lambda of: lr.SequentialLR(of, [lr.LinearLR(of, 0.1, 1, 4), lr.CosineAnnealingLR(of, 8)], [4]),
    "warm-up-late": lambda of: lr.SequentialLR(of, [lr.LinearLR(of, 0.1, 1, 9), lr.CosineAnnealingLR(of, 3)], [9]),
    "warm-up-restarts": lambda of: lr.SequentialLR(of, [lr.LinearLR(of, 0.1, 1, 3), lr.CosineAnnealingWarmRestarts(of, 2, 2)], [3]),
    "one-cycle": lambda of: lr.OneCycleLR(of, [0.05, 0.004], total_steps=14),
}
BY_LOAD_SCHEDULER = ("warm-", "one-cycle")  # the others by the load_state_dict of PyTorch, too


# No bias before BatchNorm: its gradient would be rounding error alone, which Adam makes as large as any other.
def make_model():
    return torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


class Run:
    """The Python side; checkpoint_partner.cpp is its like."""

    def __init__(self, kind):
        torch.manual_seed(0)
        self.kind, self.model = kind, make_model()
        named = list(self.model.named_parameters())
        weights = [p for name, p in named if name.endswith("weight")]
        biases = [p for name, p in named if not name.endswith("weight")]
        make, options = KINDS[kind if kind in KINDS else "sgd-cosine"]
        # foreach=False: the order of operations that C++ has. The second group has options of its own.
        self.optimizer = make([{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 0.004}], foreach=False, **options)
        schedule = SCHEDULES.get(kind.removeprefix("sgd-"))
        self.scheduler = schedule(self.optimizer) if schedule else None
        self.rates = []  # after each step, by group
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)

    def train(self, first, last):
        for step in range(first, last):
            x = ((torch.arange(32).unsqueeze(1) * 37 + torch.arange(8) * 11 + 101 * step) % 64 - 32).float() / 32
            y = x.sum(1, True) / 2
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.kind.endswith("bf16")):
                loss = torch.nn.functional.mse_loss(self.model(x), y)
            if step == 5:
                loss = loss * 1e30 * 1e30
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.scheduler:
                self.scheduler.step()
                self.rates.append([group["lr"] for group in self.optimizer.param_groups])
        return self

    def save(self, folder, step):
        demi_checkpoint.save(folder, self.model, self.optimizer, self.scaler, step, self.scheduler)

    def load(self, path, by_load_scheduler=False):
        saved = demi_checkpoint.load(path)
        self.model.load_state_dict(saved["model"])
        self.scaler.load_state_dict(saved["scaler"])
        assert ("scheduler" in saved) == bool(self.scheduler)
        if by_load_scheduler:
            demi_checkpoint.load_scheduler(self.scheduler, saved["scheduler"], saved["optimizer"])
            return self
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(saved["scheduler"])
        return self

    def state(self):
        """Every number of the run, by name."""
        saved = self.optimizer.state_dict()
        numbers = {f"model {name}": value for name, value in self.model.state_dict().items()}
        numbers |= {f"state {i} {name}": value for i, of in saved["state"].items() for name, value in of.items() if value is not None}
        if self.scheduler:
            numbers["last_epoch"] = torch.tensor(self.scheduler.last_epoch)
            numbers["base_lrs"] = torch.tensor(self.scheduler.base_lrs)
        numbers |= {f"scaler {name}": torch.tensor(value) for name, value in self.scaler.state_dict().items()}
        for i, group in enumerate(saved["param_groups"]):
            for name in demi_checkpoint.OPTIONS[type(self.optimizer).__name__]:
                numbers[f"group {i} {name}"] = torch.tensor(group[name])
        return numbers


def fresh(kind):
    """A run whose every number and option is another than the checkpoint's."""
    run = Run(kind)
    for parameter in run.model.parameters():
        parameter.data.add_(1)
    for group in run.optimizer.param_groups:
        group["lr"] *= 100
    return run


def partner(kind, source, to, first, last):
    """The rates after each step."""
    said = subprocess.run([PARTNER, kind, str(source), str(to), str(first), str(last)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [[float(rate) for rate in line.split()] for line in said.splitlines()]


def compare(what, seen, expected, tolerance):
    assert seen.keys() == expected.keys(), seen.keys() ^ expected.keys()
    different = 0
    for name, value in expected.items():
        assert seen[name].shape == value.shape, (what, name)
        torch.testing.assert_close(seen[name].double(), value.double(), rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}, {name}: {text}")
        different += not torch.equal(seen[name], value.to(seen[name].dtype))
    print(f"{what}: {'the same bits' if not different else f'{different} of {len(expected)} differ within {tolerance}'}")


def tolerance_of(kind):
    """FP32's rounding over twelve steps. RMSprop's momentum sums about ten quotients of about 1, each with its rounding."""
    return 0.05 if kind.endswith("bf16") else 2e-5 if kind == "rmsprop" else 2e-6


def round_trips(folder):
    for kind in KINDS:
        tolerance = tolerance_of(kind)
        at = folder / kind
        Run(kind).save(at / "start", 0)
        partner(kind, at / "start", at / "cpp", 0, STEPS)
        partner(kind, at / "start", at / "cpp-begins", 0, CHANGE)
        unbroken, python = fresh(kind).load(at / "cpp"), Run(kind).train(0, STEPS)
        compare(f"{kind}, C++ beside Python", unbroken.state(), python.state(), tolerance)
        compare(f"{kind}, C++ then Python", fresh(kind).load(at / "cpp-begins").train(CHANGE, STEPS).state(), unbroken.state(), tolerance)
        Run(kind).train(0, CHANGE).save(at / "python-begins", CHANGE)
        partner(kind, at / "python-begins", at / "python-then-cpp", CHANGE, STEPS)
        compare(f"{kind}, Python then C++", fresh(kind).load(at / "python-then-cpp").state(), python.state(), tolerance)
        # Without this project's script: the file as it is, strictly.
        make_model().load_state_dict(load_file(next((at / "cpp").glob("step-*")) / "model.safetensors"))


def names(folder):
    """demi's partner has its groups by kind; a checkpoint of one group in another order finds the same parameters."""
    kind, expected = "adamw", [["0.weight", "1.weight", "3.weight"], ["1.bias", "3.bias"]]
    at = folder / "names"
    run = Run(kind).train(0, 4)
    run.save(at / "python", 4)
    assert demi_checkpoint.read(at / "python")["parameters"] == {"optimizer": expected}
    partner(kind, at / "python", at / "cpp", 4, 8)
    saved = demi_checkpoint.load(at / "cpp")
    assert [group["param_names"] for group in saved["optimizer"]["param_groups"]] == expected
    demi_checkpoint.save(at / "again", saved["model"], saved["optimizer"], saved["scaler"], 8)
    assert demi_checkpoint.read(at / "again")["parameters"] == {"optimizer": expected}
    # The same state with the parameters of each group the other way round: C++ ends with the same weights.
    turned = {"state": {}, "param_groups": []}
    for group in saved["optimizer"]["param_groups"]:
        turned["param_groups"].append({**group, "param_names": group["param_names"][::-1]})
        for number, was in zip(group["params"], group["params"][::-1]):
            turned["state"][number] = saved["optimizer"]["state"][was]
    demi_checkpoint.save(at / "turned", saved["model"], turned, saved["scaler"], 8)
    for name in ("again", "turned"):
        partner(kind, at / name, at / f"{name}-cpp", 8, STEPS)
    straight, round_about = (demi_checkpoint.load(at / f"{name}-cpp")["model"] for name in ("again", "turned"))
    assert all(torch.equal(straight[name], round_about[name]) for name in straight)


class Mlp(torch.nn.Module):
    """The recipe's, with its names."""

    def __init__(self):
        super().__init__()
        linear = [torch.nn.Linear(8, 8) for _ in range(3)]
        self.layers = torch.nn.Sequential(linear[0], torch.nn.ReLU(), linear[1], torch.nn.ReLU(), linear[2])


def start(folder):
    """`demi train --from` with --from-state has the weights and the moments of Python's run, whose groups are others. With a rate of 0
    the weights stay, and one step from the moments and one without have the same gradient g: m' = b m + (1 - b) g."""
    model = Mlp()
    biases, weights = ([p for n, p in model.named_parameters() if n.endswith(kind)] for kind in ("bias", "weight"))
    optimizer = torch.optim.AdamW([{"params": biases}, {"params": weights, "lr": 0.01}], foreach=False)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.sin(torch.arange(32.0).view(4, 8) + step)
        model.layers(x).pow(2).sum().backward()
        optimizer.step()
    at = folder / "start"
    demi_checkpoint.save(at, model, optimizer, step=3)
    expected = {n: optimizer.state[p] for n, p in model.named_parameters()}

    def moments(name, *options):
        command = [DEMI, "train", "mlp", "--in", "8", "--out", "8", "--batches", "1", "--batch-size", "4", "--optimizer", "adamw", "--lr", "0",
                   "--steps", "1", "--device", "cpu", "--from", str(at), "--run-dir", str(folder / name), *options]
        said = subprocess.run(command, capture_output=True, text=True)
        assert said.returncode == 0 and "the weights of step 3" in said.stderr, said
        saved = demi_checkpoint.load(folder / name / "train-mlp-001")
        for n, value in model.state_dict().items():
            assert torch.equal(saved["model"][n], value), n
        groups = saved["optimizer"]["param_groups"]
        numbers = {n: i for group in groups for n, i in zip(group["param_names"], group["params"])}
        return {n: saved["optimizer"]["state"][i] for n, i in numbers.items()}

    from_state, fresh_state = moments("from-state", "--from-state"), moments("fresh")
    for n, was in expected.items():
        assert from_state[n]["step"] == was["step"] + 1 and fresh_state[n]["step"] == 1, n
        for name, beta in (("exp_avg", 0.9), ("exp_avg_sq", 0.999)):
            torch.testing.assert_close(from_state[n][name], beta * was[name] + fresh_state[n][name], rtol=1e-6, atol=1e-9)
    print("demi train --from: Python's weights and moments")


def coded(folder):
    """A run whose moments are bf16 or 8 bits: after one step they are those of the FP32 run, rounded. Of a group's greatest, codes of a
    first moment are 1/63.5 apart at most, and those of a second moment's root 1/255."""

    def moments(form):
        run = folder / f"coded-{form}"
        subprocess.run([DEMI, "train", "mlp", "--in", "64", "--out", "64", "--batches", "1", "--batch-size", "4", "--optimizer", "adamw", "--precision",
                        "fp32", "--steps", "1", "--device", "cpu", "--moments", form, "--run-dir", str(run)], check=True, capture_output=True)
        return demi_checkpoint.load(run / "train-mlp-001")["optimizer"]["state"]

    exact = moments("fp32")
    for form, first, second in (("bf16", 1 / 128, 1 / 128), ("int8", 1 / 60, 1 / 120)):
        seen, narrow = moments(form), 0
        for number, state in exact.items():
            assert seen[number].keys() == state.keys(), number
            for name, part in (("exp_avg", first), ("exp_avg_sq", second)):
                assert seen[number][name].dtype == torch.float32, name
                values, rounded = state[name].flatten(), seen[number][name].flatten()
                narrow += not torch.equal(values, rounded)
                groups = torch.nn.functional.pad(values.abs(), (0, -len(values) % 32)).view(-1, 32)
                greatest = groups.amax(1).repeat_interleave(32)[: len(values)]
                if name == "exp_avg_sq":
                    assert (rounded >= 0).all()
                    values, rounded, greatest = values.sqrt(), rounded.sqrt(), greatest.sqrt()
                assert ((values - rounded).abs() <= part * greatest).all(), (form, number, name)
        assert narrow > 0, form
    print("moments in bf16 and in 8 bits: those of FP32, rounded")


def refused(call, words):
    try:
        call()
    except demi_checkpoint.CheckpointError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def damage(folder):
    at = folder / "damaged"
    Run("adamw").train(0, 3).save(at, 3)
    for name in ("model.safetensors", "state.safetensors", "manifest.json"):
        file = at / name
        data = file.read_bytes()
        # In the values or the checksums; in the header's length; in its JSON or the manifest's.
        for place in (len(data) - 40, 6, 20):
            file.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
            refused(lambda: demi_checkpoint.load(at), str(file))
            inspected = subprocess.run([DEMI, "inspect", at, "--verify"], capture_output=True, text=True)
            assert inspected.returncode == 3 and name in inspected.stderr, inspected
        file.write_bytes(data[:5])
        refused(lambda: demi_checkpoint.load(at), str(file))
        if name == "model.safetensors":  # alone, too
            file.write_bytes(data[:-40] + bytes([data[-40] ^ 0x41]) + data[-39:])
            refused(lambda: demi_checkpoint.load(file), "the checksum of")
        file.write_bytes(data)
    demi_checkpoint.load(at)
    refused(lambda: demi_checkpoint.load(folder), "no checkpoint")
    others = folder / "others"
    others.mkdir()
    (others / "manifest.json").write_text('{"name": "app"}')
    save_file({"weight": torch.ones(3)}, others / "model.safetensors")
    assert torch.equal(demi_checkpoint.load(others / "model.safetensors")["model"]["weight"], torch.ones(3))
    refused(lambda: demi_checkpoint.load(others), "no checkpoint")
    refused(lambda: Run("adamw").save(at, 3), "there already")
    refused(lambda: demi_checkpoint.save(folder / "lbfgs", {}, torch.optim.LBFGS([torch.zeros(1)])), "AdamW, Adam, SGD")
    mixed = [{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "decoupled_weight_decay": True}]
    for adam in (torch.optim.Adam(mixed), torch.optim.Adam(mixed[::-1]).state_dict()):
        refused(lambda: demi_checkpoint.save(folder / "lbfgs", {}, adam), "decoupled_weight_decay")
    assert not (folder / "lbfgs").exists() and not list(folder.glob("*.tmp"))


def script(*arguments):
    return subprocess.run([sys.executable, demi_checkpoint.__file__, *map(str, arguments)], capture_output=True, text=True)


def converter(folder):
    run = Run("adamw").train(0, CHANGE)
    torch.save(run.model.state_dict(), folder / "plain.pt")
    torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(), "scaler": run.scaler.state_dict()}, folder / "all.pt")
    torch.save({"state_dict": run.model.state_dict(), "epoch": 3}, folder / "lightning.pt")
    tutorial = {"model_state_dict": run.model.state_dict(), "optimizer_state_dict": run.optimizer.state_dict(), "scaler_state_dict":
                run.scaler.state_dict(), "loss": 0.5}  # pytorch.org, "Saving and loading a general checkpoint"
    torch.save(tutorial, folder / "tutorial.pt")
    cosine = Run("sgd-cosine").train(0, CHANGE)
    torch.save({"state_dict": cosine.model.state_dict(), "optimizer_states": [cosine.optimizer.state_dict()], "global_step": CHANGE, "epoch": 1,
                "lr_schedulers": [cosine.scheduler.state_dict()], "MixedPrecision": cosine.scaler.state_dict()}, folder / "fit.ckpt")
    torch.save([1, 2], folder / "list.pt")
    for name in ("plain", "lightning"):
        out = folder / f"{name}.safetensors"
        assert script("convert", folder / f"{name}.pt", out).returncode == 0
        make_model().load_state_dict(load_file(out))
        listed = json.loads(subprocess.run([DEMI, "inspect", out, "--json"], capture_output=True, check=True).stdout)
        assert {one["name"]: one["shape"] for one in listed["tensors"]} == {name: list(value.shape) for name, value in run.model.state_dict().items()}
    assert script("convert", folder / "all.pt", folder / "all").returncode == 0
    partner("adamw", folder / "all", folder / "all-then-cpp", CHANGE, STEPS)
    compare("torch.save, then C++", fresh("adamw").load(folder / "all-then-cpp").state(), run.train(CHANGE, STEPS).state(), 2e-6)
    said = script("convert", folder / "tutorial.pt", folder / "tutorial")
    assert said.returncode == 0 and said.stdout.endswith("left out: loss\n"), said
    assert (folder / "tutorial/state.safetensors").read_bytes() == (folder / "all/state.safetensors").read_bytes()
    said = script("convert", folder / "fit.ckpt", folder / "fit")
    assert said.returncode == 0 and said.stdout.endswith("left out: epoch\n"), said
    partner("sgd-cosine", folder / "fit", folder / "fit-then-cpp", CHANGE, STEPS)
    compare("Lightning, then C++", fresh("sgd-cosine").load(folder / "fit-then-cpp").state(), cosine.train(CHANGE, STEPS).state(), 2e-6)
    # The commonest scheduler of Lightning's, and one that demi has not.
    warm_up = Run("sgd-warm-up").train(0, CHANGE)
    chained = lr.ChainedScheduler([lr.StepLR(cosine.optimizer, 3)])
    for name, scheduler in (("warm-up", warm_up.scheduler), ("chained", chained)):
        torch.save({"state_dict": warm_up.model.state_dict(), "optimizer_states": [warm_up.optimizer.state_dict()], "global_step": CHANGE,
                    "lr_schedulers": [scheduler.state_dict()]}, folder / f"{name}.ckpt")
    assert script("convert", folder / "warm-up.ckpt", folder / "warm-up").returncode == 0
    numbers = demi_checkpoint.read(folder / "warm-up")["numbers"]["schedule"]
    assert numbers == {"last_epoch": CHANGE, "base_lrs.0": 0.05, "base_lrs.1": 0.004}, numbers
    said = script("convert", folder / "chained.ckpt", folder / "chained")
    assert said.returncode == 3 and "--without-scheduler" in said.stderr and not (folder / "chained").exists(), said
    said = script("convert", folder / "chained.ckpt", folder / "chained", "--without-scheduler")
    assert said.returncode == 0 and said.stdout.endswith("left out: lr_schedulers\n"), said
    # Adam's state dict of a PyTorch before 2.7 has AdamW's options.
    older = torch.load(folder / "all.pt", weights_only=True)
    for group in older["optimizer"]["param_groups"]:
        del group["decoupled_weight_decay"]
    torch.save(older, folder / "older.pt")
    said = script("convert", folder / "older.pt", folder / "older")
    assert said.returncode == 3 and "--optimizer AdamW" in said.stderr and not (folder / "older").exists(), said
    assert script("convert", folder / "older.pt", folder / "older", "--optimizer", "Adam").returncode == 0
    assert demi_checkpoint.read(folder / "older")["text"] == {"demi.optimizer": "Adam"}
    assert script("export", folder / "all-then-cpp", folder / "back.pt").returncode == 0
    assert torch.load(folder / "back.pt", weights_only=True).keys() == {"model", "optimizer", "scaler"}
    for arguments in (("convert", folder / "list.pt", folder / "x"), ("convert", folder / "none.pt", folder / "x"), ("verify", folder / "none")):
        failed = script(*arguments)
        assert failed.returncode == 3 and "Traceback" not in failed.stderr, failed
    assert "whole" in script("verify", folder / "all-then-cpp").stdout


def schedules(folder):
    run = Run("sgd-cosine").train(0, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        demi_checkpoint.save(folder / "no-schedule", run.model, run.optimizer, step=4)
    assert len(said) == 1 and "scheduler=scheduler" in str(said[0].message), said
    warned = subprocess.run([PARTNER, "sgd-cosine", folder / "no-schedule", folder / "anew", "4", "4"], capture_output=True, text=True, check=True)
    assert "holds no schedule: schedule begins at its step 0" in warned.stderr, warned
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(run.optimizer)
    refused(lambda: demi_checkpoint.save(folder / "plateau", run.model, run.optimizer, scheduler=plateau), "demi::optim::lr::Plateau")


    refused(lambda: demi_checkpoint.save(folder / "chained", run.model, run.optimizer, scheduler=lr.ChainedScheduler([run.scheduler])),
            "the scheduler ChainedScheduler is none of those that move to and from C++: LambdaLR, StepLR")
    cyclic = lr.CyclicLR(Run("sgd-cosine").optimizer, 0.01, 0.1)
    refused(lambda: demi_checkpoint.save(folder / "cyclic", run.model, run.optimizer, scheduler=cyclic), "the scheduler CyclicLR is none")
    refused(lambda: demi_checkpoint.load_scheduler(cyclic, {}, {}), "the scheduler CyclicLR is none")
    between = lr.CosineAnnealingWarmRestarts(Run("sgd-cosine").optimizer, 2)
    between.step(1.5)
    refused(lambda: demi_checkpoint.save(folder / "between", run.model, run.optimizer, scheduler=between), "between two steps (T_cur 1.5)")
    one_cycle = Run("sgd-one-cycle")
    refused(lambda: demi_checkpoint.save(folder / "cycle", run.model, run.optimizer, scheduler=one_cycle.scheduler), "no max_lr")
    within = lr.SequentialLR(one_cycle.optimizer, [one_cycle.scheduler, lr.ConstantLR(one_cycle.optimizer)], [14])
    refused(lambda: demi_checkpoint.save(folder / "within", run.model, one_cycle.optimizer, scheduler=within), "within a SequentialLR")
    # The cure that the refusal names.
    demi_checkpoint.save(folder / "by-hand", run.model, run.optimizer, run.scaler, 4, {"last_epoch": 4, "base_lrs": [0.05, 0.004]})
    expected = {"last_epoch": 4, "base_lrs.0": 0.05, "base_lrs.1": 0.004}
    assert demi_checkpoint.read(folder / "by-hand")["numbers"]["schedule"] == expected
    # SGD without momentum has no state: the steps are those that save() is given.
    plain = Run("sgd").train(0, 4)
    demi_checkpoint.save(folder / "no-state", plain.model, plain.optimizer, step=500)
    assert int(demi_checkpoint.read(folder / "no-state")["state"]["optimizer/taken"]) == 500
    warned = subprocess.run([PARTNER, "sgd-cosine", folder / "no-state", folder / "begins", "4", "4"], capture_output=True, text=True, check=True)
    assert "begins at its step 0, in a run that has taken 500" in warned.stderr, warned


def moved_schedules(folder):
    """The rates of a run that moves are those of one that does not, whichever way it moves."""
    for name in SCHEDULES:
        kind, at = f"sgd-{name}", folder / f"schedule-{name}"
        expected = Run(kind).train(0, STEPS)

        def check(what, seen):
            both = [torch.tensor(rates, dtype=torch.float64) for rates in (seen, expected.rates[len(expected.rates) - len(seen) :])]
            torch.testing.assert_close(*both, rtol=1e-9, atol=1e-12, msg=lambda text: f"{name}, {what}: {text}")

        Run(kind).save(at / "start", 0)
        check("C++ alone", partner(kind, at / "start", at / "cpp", 0, CHANGE) + partner(kind, at / "cpp", at / "cpp-ends", CHANGE, STEPS))
        for by_load_scheduler in (True,) if name.startswith(BY_LOAD_SCHEDULER) else (True, False):
            moved = fresh(kind).load(at / "cpp", by_load_scheduler).train(CHANGE, STEPS)
            check(f"C++ then Python, {by_load_scheduler}", moved.rates)
            assert moved.scheduler.last_epoch == STEPS
            for seen, group in zip(moved.optimizer.param_groups, expected.optimizer.param_groups):
                torch.testing.assert_close(seen["momentum"], group["momentum"], rtol=1e-9, atol=0)
            moved.save(at / f"back-{by_load_scheduler}", STEPS)  # as it was loaded, it is known again
            numbers, known = (demi_checkpoint.read(at / end)["numbers"]["schedule"] for end in (f"back-{by_load_scheduler}", "cpp-ends"))
            assert numbers == known, (numbers, known)
        Run(kind).train(0, CHANGE).save(at / "python", CHANGE)
        check("Python then C++", partner(kind, at / "python", at / "python-then-cpp", CHANGE, STEPS))
    # Loaded by load_state_dict, what counts steps of its own throws: it would begin anew.
    for name in ("warm-restarts", "warm-up", "one-cycle"):
        try:
            fresh(f"sgd-{name}").load(folder / f"schedule-{name}/cpp").train(CHANGE, STEPS)
        except (KeyError, TypeError):
            continue
        raise AssertionError(f"{name} goes on")
    print(f"{len(SCHEDULES)} schedules: the same rates after either move")


def several(folder):
    """Two optimizers, of which the second has FP64 moments and no schedule: each comes back as it was."""
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).double()]
    optimizers = [torch.optim.Adam(models[0].parameters(), lr=0.1), torch.optim.AdamW(models[1].parameters(), lr=0.3)]
    for model, optimizer in zip(models, optimizers):
        model(torch.ones(1, 3, dtype=model.weight.dtype) / 3).sum().backward()
        optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 5)
    both = torch.nn.ModuleList(models)
    demi_checkpoint.save(folder / "two", both, optimizers, scheduler=[scheduler, None])
    assert demi_checkpoint.read(folder / "two")["text"] == {"demi.optimizer": "Adam", "demi.optimizer.1": "AdamW"}
    saved = demi_checkpoint.load(folder / "two")
    assert saved["scheduler"][1] is None and saved["scheduler"][0]["base_lrs"] == [0.1]
    for optimizer, found in zip(optimizers, saved["optimizer"]):
        for number, entries in optimizer.state_dict()["state"].items():
            for name, value in entries.items():
                assert torch.equal(found["state"][number][name].to(value.dtype), value), name
                assert name == "step" or found["state"][number][name].dtype == value.dtype, name
    refused(lambda: demi_checkpoint.save(folder / "other", both, optimizers, scheduler=[scheduler]), "1 schedulers of 2 optimizers")


def checksums():
    # RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
    for data, checksum in ((b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        assert demi_checkpoint.crc32c(data) == checksum, data
    for size in (4095, 4096, 1 << 20, (1 << 20) + 3):
        data = bytes(i * 7 % 251 for i in range(size))
        assert demi_checkpoint.crc32c(data) == demi_checkpoint._advance(0xFFFFFFFF, data) ^ 0xFFFFFFFF, size


def resnet18():
    """torchvision's, or one with its names and structure (torchvision/models/resnet.py: BasicBlock)."""
    try:
        import torchvision

        return torchvision.models.resnet18(num_classes=10)
    except ImportError:
        pass
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)) if before != width else nn.Identity()

        def forward(self, x):
            return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.downsample(x)).relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            for i, width in enumerate((64, 128, 256, 512)):
                self.add_module(f"layer{i + 1}", nn.Sequential(Block(max(64, width // 2), width, 1 + (i > 0)), Block(width, width, 1)))
            self.fc = nn.Linear(512, 10)

        def forward(self, x):
            x = self.maxpool(self.bn1(self.conv1(x)).relu())
            for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
                x = layer(x)
            return self.fc(x.mean((2, 3)))

    return Net()


def muon(folder):
    """torch.optim.Muon there and back, and the state of Muon and AdamW in one optimizer of demi's as one state dict each."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(4, 2, bias=False))
    optimizer = torch.optim.Muon(model.parameters(), lr=0.1, adjust_lr_fn="match_rms_adamw", ns_steps=4)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    demi_checkpoint.save(folder / "muon", model, optimizer, step=1)
    numbers = demi_checkpoint.read(folder / "muon")["numbers"]["optimizer/group.0"]
    assert numbers["adjust_lr"] == 1 and numbers["ns_coefficients.2"] == 2.0315 and "adjust_lr_fn" not in numbers, numbers
    found = demi_checkpoint.load(folder / "muon")["optimizer"]
    expected = optimizer.state_dict()
    for name, value in expected["param_groups"][0].items():
        assert found["param_groups"][0][name] == value, name
    for i, entries in expected["state"].items():
        assert found["state"][i].keys() == entries.keys() and torch.equal(found["state"][i]["momentum_buffer"], entries["momentum_buffer"])
    optimizer.load_state_dict(found)
    adamw = {"lr": 0.3, "betas.0": 0.9, "betas.1": 0.99, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": 0.0, "maximize": 0.0}
    numbers |= {"polar_express": 1.0, "kernel_sides": 0.0, "muon": 1.0, "sgd": 0.0}
    state = {f"optimizer/{i}.{name}": torch.full((2,), float(i)) for i, name in enumerate(["exp_avg", "momentum_buffer", "exp_avg"])}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        both = demi_checkpoint._python_optimizer(
            "optimizer", state, {"optimizer/group.0": adamw, "optimizer/group.1": numbers, "optimizer/group.2": adamw,
                                 "optimizer": {f"parameters.{i}": 1.0 for i in range(3)}}, "AdamW, Muon, AdamW")
    assert len(said) == 1 and "polar_express" in str(said[0].message), said
    of_adamw, of_muon = demi_checkpoint._by_kind(both, ["AdamW", "Muon", "AdamW"])
    assert [group["params"] for group in of_adamw["param_groups"]] == [[0], [1]] and of_adamw["param_groups"][0]["decoupled_weight_decay"]
    assert [float(of_adamw["state"][i]["exp_avg"][0]) for i in (0, 1)] == [0, 2], of_adamw
    assert of_muon["param_groups"][0]["params"] == [0] and float(of_muon["state"][0]["momentum_buffer"][0]) == 1


def torchvisions_network(folder):
    torch.manual_seed(0)
    model = resnet18()
    with torch.no_grad():
        x = torch.randn(8, 3, 64, 64)
        for _ in range(3):
            model(x)  # running statistics of its own
        model.eval()
        file = folder / "resnet18.safetensors"
        save_file({**model.state_dict(), "example.input": x, "example.output": model(x)}, file)
    said = subprocess.run([RESNET, "cpu", "bf16", file], capture_output=True, text=True)
    assert said.returncode == 0 and "output is Python's" in said.stdout, said
    print(f"{type(model).__module__}: {said.stdout.strip()}")


with tempfile.TemporaryDirectory() as name:
    checksums()
    round_trips(Path(name))
    names(Path(name))
    start(Path(name))
    coded(Path(name))
    damage(Path(name))
    schedules(Path(name))
    moved_schedules(Path(name))
    several(Path(name))
    muon(Path(name))
    converter(Path(name))
    torchvisions_network(Path(name))
