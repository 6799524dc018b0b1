#!/usr/bin/env python3
"""Reads and writes demi's checkpoints in Python PyTorch (pip install torch safetensors).

    import demi_checkpoint
    saved = demi_checkpoint.load("runs/train-mlp-001")      # {"model", "optimizer", "scaler", "scheduler"}: PyTorch's state dicts
    model.load_state_dict(saved["model"])                   # a module of the same structure, strictly
    optimizer.load_state_dict(saved["optimizer"])           # torch.optim.AdamW, Adam or SGD over model.parameters()
    scaler.load_state_dict(saved["scaler"])                 # torch.amp.GradScaler
    scheduler.load_state_dict(saved["scheduler"])           # torch.optim.lr_scheduler's, if the run in C++ had a schedule. In place of
                                                            # the optimizer's and the scheduler's load_state_dict, of a OneCycleLR,
                                                            # SequentialLR or CosineAnnealingWarmRestarts:
    demi_checkpoint.load_scheduler(scheduler, saved["scheduler"], saved["optimizer"])
    ...
    demi_checkpoint.save("from-python", model, optimizer, scaler, step=500, scheduler=scheduler)   # a folder that demi resumes from

As a program:

    demi_checkpoint.py convert WEIGHTS.pt OUT      what torch.save wrote of a state dict; OUT: a .safetensors file, or a folder for
                                                   {"model", "optimizer", "scaler", "scheduler", "step"}, also under the names of
                                                   PyTorch's tutorials (model_state_dict) and of Lightning. Loaded with weights_only: no
                                                   code is run. --without-scheduler leaves a scheduler behind that demi has not
    demi_checkpoint.py export CHECKPOINT OUT.pt    the same, written by torch.save
    demi_checkpoint.py verify CHECKPOINT           compares every checksum

The layout of a checkpoint is described in docs/reference/checkpoint.md.
"""
import argparse
import bisect
import json
import math
import os
import shutil
import struct
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FORMAT, FORMAT_VERSION = "demi checkpoint", 1
MODEL, STATE, MANIFEST = "model.safetensors", "state.safetensors", "manifest.json"
# The options that demi's optimizers have too, by torch.optim's names; the others (foreach, fused ...) choose an implementation.
OPTIONS = {
    "AdamW": ["lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"],
    "Adam": ["lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"],
    "SGD": ["lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"],
    "RMSprop": ["lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"],
    "NAdam": ["lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay", "maximize"],
    "RAdam": ["lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize"],
    "Adagrad": ["lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"],
    "Muon": ["lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps"],
}
ADJUST_LR = ["original", "match_rms_adamw", "spectral_unclamped"]  # Muon's adjust_lr_fn, by the numbers of demi's adjust_lr
ONLY_DEMIS = {"kernel_sides": 0, "polar_express": 0, "muon": 1, "sgd": 0}  # what torch.optim.Muon does not have, as it is there
# What the state dict of each scheduler has beside the steps and the rates: its shape, which the other side is given again, and where
# it has more state, that, too. MultiplicativeLR's is LambdaLR's.
SCHEDULERS = {
    "LambdaLR": set(),
    "StepLR": {"step_size", "gamma"},
    "MultiStepLR": {"milestones", "gamma"},
    "ConstantLR": {"factor", "total_iters"},
    "LinearLR": {"start_factor", "end_factor", "total_iters"},
    "ExponentialLR": {"gamma"},
    "PolynomialLR": {"total_iters", "power"},
    "CosineAnnealingLR": {"T_max", "eta_min"},
    "CosineAnnealingWarmRestarts": {"T_0", "T_i", "T_mult", "T_cur", "eta_min"},
    "OneCycleLR": {"total_steps", "_schedule_phases", "_anneal_func_type", "cycle_momentum", "use_beta1"},
    "SequentialLR": {"_schedulers", "_milestones"},
}
OF_EVERY_SCHEDULER = {"base_lrs", "last_epoch", "verbose", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "lr_lambdas"}
ONE_CYCLE_GROUP = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")  # the shape of a OneCycleLR, which groups have
FLAGS = {"amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov"}
COUNTS = {"growth_interval", "_growth_tracker"}  # whole numbers in torch.amp.GradScaler's state dict


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of another kind."""


# CRC-32C (RFC 3720, appendix B.4), many blocks at a time: a checksum is linear in the bytes and in what stands before them.

_POLYNOMIAL = 0x82F63B78


def _byte_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _byte_table()


def _advance(register, data):
    for byte in data:
        register = _TABLE[(register ^ byte) & 0xFF] ^ register >> 8
    return register


def _zeros_operator(length):
    """What `length` zero bytes make of each bit of the register, as 32 numbers; _apply gives that of a whole register."""
    operator = [1 << bit for bit in range(32)]
    power = [_advance(column, b"\0") for column in operator]
    while length:
        if length & 1:
            operator = [_apply(power, column) for column in operator]
        power = [_apply(power, column) for column in power]
        length >>= 1
    return operator


def _apply(operator, register):
    """Of a number, or of each number of a tensor."""
    result = register & 0
    for bit, column in enumerate(operator):
        result = result ^ (register >> bit & 1) * column
    return result


def crc32c(data):
    """The CRC-32C of bytes-like data."""
    blocks = 1 << 14 if len(data) >= 1 << 20 else 256  # PyTorch computes so few in one thread, which is faster
    each = len(data) // blocks
    register, rest = 0xFFFFFFFF, data
    if each >= 16:
        table = torch.tensor(_TABLE)
        whole = torch.frombuffer(bytearray(data[: each * blocks]), dtype=torch.uint8)
        registers = torch.zeros(blocks, dtype=torch.int64)
        for column in whole.view(blocks, each).t().contiguous():
            registers = table.index_select(0, (registers ^ column) & 0xFF) ^ registers >> 8
        operator = _zeros_operator(each)
        while len(registers) > 1:  # neighbours become one block
            registers = _apply(operator, registers[0::2]) ^ registers[1::2]
            operator = [_apply(operator, column) for column in operator]
        register = _apply(operator, register) ^ int(registers)
        rest = data[each * blocks :]
    return _advance(register, bytes(rest)) ^ 0xFFFFFFFF


# Files.


def _place(file):
    """The header of a safetensors file and where the values begin."""
    size = Path(file).stat().st_size
    with open(file, "rb") as stream:
        first = stream.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if length > size - 8:
            raise CheckpointError(f"{file}: damaged, or no safetensors file: a header of {length} bytes in a file of {size}")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise CheckpointError(f"{file}: damaged: its header is no JSON: {error}") from error
    return header, 8 + length


def _file_record(file, texts=()):
    """Its size and checksums; `texts`: names of those of its metadata that have one."""
    data = Path(file).read_bytes()
    header, start = _place(file)
    sums = {}
    try:
        metadata = header.pop("__metadata__", {})
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            sums[name] = f"{crc32c(memoryview(data)[start + begin : start + end]):08x}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged: its header is not that of a safetensors file: {error!r}") from error
    record = {"bytes": len(data), "crc32c": f"{crc32c(data):08x}", "tensors": sums}
    if texts:
        record["texts"] = {name: f"{crc32c(metadata[name].encode()):08x}" for name in texts if name in metadata}
    return record


def _number_text(value):
    value = float(value)
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _number(value):
    return float(value if not isinstance(value, str) or not value.startswith("nan") else "nan")


def _read_manifest(folder):
    file = Path(folder) / MANIFEST
    text = file.read_bytes()
    cut = text.rfind(b',\n  "crc32c": "')
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{file}: damaged: {error}") from error
    kind = manifest.get("format") if isinstance(manifest, dict) else None
    if kind != FORMAT:
        raise CheckpointError(f"{file}: not a checkpoint of demi's: format {kind!r}")
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(f"{file}: written by a newer demi: format version {version}; this script reads up to {FORMAT_VERSION}")
    if f"{crc32c(text[:cut]):08x}" != manifest.get("crc32c"):
        raise CheckpointError(f"{file}: damaged: its checksum is not that of its text")
    return manifest


def _named_in(file):
    """The checkpoint that a file `last` or `best` names."""
    lines, _, closing = file.read_bytes().rpartition(b"crc32c ")
    if closing.strip() != f"{crc32c(lines):08x}".encode():
        raise CheckpointError(f"{file}: damaged: its checksum is not that of its lines")
    named = file.parent / lines.split(b"\n")[0].decode()
    if not (named / MANIFEST).is_file():
        raise CheckpointError(f"{file}: it names {named.name}, which is not there")
    return named


def _has_manifest(folder):
    """Whether the folder has a manifest of demi's, perhaps a damaged one. Another program's counts as none."""
    if not (folder / MANIFEST).is_file():
        return False
    with open(folder / MANIFEST, "rb") as stream:
        return FORMAT.encode() in stream.read(4096) or all((folder / name).is_file() for name in (MODEL, STATE))


def find(path):
    """The folder of the checkpoint that a path stands for: itself, the last of a folder of checkpoints, the last of a run."""
    path = Path(path)
    if _has_manifest(path):
        return path
    if path.name in ("last", "best") and path.is_file():
        return _named_in(path)
    if (path / "last").is_file():
        return _named_in(path / "last")
    if (path / "checkpoints").is_dir():
        return find(path / "checkpoints")
    raise CheckpointError(f"{path}: no checkpoint: it has neither {MANIFEST} nor a file `last` nor a folder checkpoints")


def verify(path):
    """Compares every checksum of a checkpoint; raises CheckpointError, which names file and tensor. Returns its manifest."""
    folder = find(path)
    manifest = _read_manifest(folder)
    for name, expected in manifest["files"].items():
        _verify_file(folder / name, expected)
    return manifest


def _verify_file(file, expected):
    if file.stat().st_size != expected["bytes"]:
        raise CheckpointError(f"{file}: damaged: {file.stat().st_size} bytes instead of {expected['bytes']}")
    found = _file_record(file, expected.get("texts", ()))
    for part in ("tensors", "texts"):
        for one, checksum in expected.get(part, {}).items():
            if found[part].get(one) != checksum:
                raise CheckpointError(f"{file}: damaged: the checksum of {one} is {found[part].get(one)} instead of {checksum}")
    if found != expected:
        raise CheckpointError(f"{file}: damaged: its checksum is {found['crc32c']} instead of {expected['crc32c']}")


def _verify_in_checkpoint(file):
    """A file of a checkpoint's folder has its checksums in the manifest beside it; another file has none."""
    if _has_manifest(file.parent):
        expected = _read_manifest(file.parent)["files"].get(file.name)
        if expected:
            _verify_file(file, expected)


def read(path):
    """A checkpoint as it stands: {"model", "state": tensors by name, "numbers": by part, "text"}. Verified."""
    if Path(path).is_file() and Path(path).name not in ("last", "best"):
        _verify_in_checkpoint(Path(path))
        return {"model": load_file(path), "state": {}, "numbers": {}, "text": {}}
    folder = find(path)
    manifest = verify(folder)
    numbers = {part: {name: _number(value) for name, value in of.items()} for part, of in manifest["numbers"].items()}
    return {"model": load_file(folder / MODEL), "state": load_file(folder / STATE), "numbers": numbers, "text": manifest["text"],
            "parameters": manifest.get("parameters", {})}


# The optimizer: demi's names and PyTorch's.


CODED = (torch.bfloat16, torch.int8, torch.uint8)


def _decoded(tensor, scales):
    """A moment in FP32: of bf16, or of 8 bits in groups of 32 neighbours with a scale each (demi/kernels/codecs/companded.h)."""
    if tensor.dtype not in (torch.int8, torch.uint8):
        return tensor.to(torch.float32)
    code = tensor.flatten().to(torch.float32)
    scale = scales.to(torch.float32).repeat_interleave(32)[: code.numel()]
    if tensor.dtype == torch.int8:
        return (code / (254 - code.abs()) * scale).reshape(tensor.shape)
    return (code * (torch.tensor(1.0) / 255) * scale).square().reshape(tensor.shape)


def _part(kind, index):
    """demi's name of the first, second ... optimizer or schedule: optimizer, optimizer.1 ..."""
    return kind if index == 0 else f"{kind}.{index}"


def _python_optimizer(part, state, numbers, kind=None, names=None, base_lrs=()):
    """torch.optim's state dict from "optimizer/0.exp_avg" ... and the numbers "optimizer/group.0" ... of the optimizer `part`. `names`: of
    the parameters, by group, as `param_names`, which PyTorch keeps and does not use. `base_lrs`: its schedule's, by group, which PyTorch
    keeps as `initial_lr`. Groups with different rules have each its kind, by comma."""
    groups, first, kinds = [], 0, (kind or "").split(", ")
    while f"{part}/group.{len(groups)}" in numbers:
        options = numbers[f"{part}/group.{len(groups)}"]
        group = {name: bool(value) if name in FLAGS else value for name, value in options.items() if "." not in name}
        for name in ("betas", "ns_coefficients"):
            if f"{name}.0" in options:
                group[name] = tuple(options[f"{name}.{i}"] for i in range(sum(key.startswith(f"{name}.") for key in options)))
        kind = kinds[len(groups)] if len(kinds) > 1 else kinds[0]
        if kind == "Muon":
            _pythons_muon(group)
        count = int(numbers[part][f"parameters.{len(groups)}"])
        group["params"] = list(range(first, first + count))
        if kind in ("Adam", "AdamW"):
            group["decoupled_weight_decay"] = kind == "AdamW"  # by which PyTorch tells them apart
        if names:
            group["param_names"] = list(names[len(groups)])
        if base_lrs:
            group["initial_lr"] = base_lrs[len(groups)]
        first += count
        groups.append(group)
    if not groups:
        return None
    by_parameter = {}
    for name, tensor in state.items():
        parameter, _, entry = name.removeprefix(f"{part}/").partition(".")
        if not name.startswith(f"{part}/") or not parameter.isdigit() or entry in ("master", "remainder"):
            continue  # PyTorch's optimizers know no master weights
        if entry.endswith("_scale"):
            continue  # of a moment in 8 bits
        if entry == "step" or tensor.dtype in CODED:  # PyTorch computes in the dtype of the moments
            tensor = _decoded(tensor, state.get(name + "_scale"))
        by_parameter.setdefault(int(parameter), {})[entry] = tensor
    for entries in by_parameter.values():
        if entries.keys() <= {"step", "momentum_buffer"}:
            entries.pop("step", None)  # SGD counts no steps
    return {"state": {parameter: of for parameter, of in sorted(by_parameter.items()) if of}, "param_groups": groups}


def _pythons_muon(group):
    """The options of demi's Muon as torch.optim.Muon's."""
    others = [name for name, value in ONLY_DEMIS.items() if group.pop(name, value) != value]
    choice = int(group.pop("adjust_lr", 0))
    if choice >= len(ADJUST_LR):
        others.append("adjust_lr none")
    if others:
        warnings.warn(f"torch.optim.Muon has no {', '.join(others)}: it will go another way", stacklevel=4)
    group["ns_steps"] = int(group["ns_steps"])
    group["adjust_lr_fn"] = ADJUST_LR[choice] if choice < len(ADJUST_LR) else None


def _by_kind(saved, kinds):
    """The state dict of an optimizer whose groups have different rules as one for each rule, in the order in which they come first."""
    parts = []
    for kind in dict.fromkeys(kinds):
        groups = [dict(group) for group, its in zip(saved["param_groups"], kinds) if its == kind]
        state, first = {}, 0
        for group in groups:
            numbers, group["params"] = group["params"], list(range(first, first + len(group["params"])))
            state |= {new: saved["state"][old] for old, new in zip(numbers, group["params"]) if old in saved["state"]}
            first += len(numbers)
        parts.append({"state": state, "param_groups": groups})
    return parts


def _by_decay(groups):
    """AdamW if these groups of an Adam have decoupled_weight_decay, by which PyTorch tells the two apart, else Adam."""
    decoupled = {bool(group.get("decoupled_weight_decay")) for group in groups}
    if len(decoupled) > 1:
        raise CheckpointError("the groups differ in decoupled_weight_decay, and are Adam's and AdamW's: give each an optimizer of its own")
    return "AdamW" if decoupled == {True} else "Adam"


def _kind_of(optimizer, saved):
    """The name of demi's optimizer: of the object's class or of one above it, else by the options of its state dict."""
    for one in type(optimizer).__mro__:
        if one.__name__ in OPTIONS:
            return _by_decay(saved["param_groups"]) if one.__name__ == "Adam" else one.__name__
    kind = None
    for group in saved["param_groups"]:
        kind = next((kind for kind, names in OPTIONS.items() if all(name in group for name in names)), None)
        if kind is None:
            raise CheckpointError(f"the options {sorted(group)} are not those of {', '.join(OPTIONS)}")
        if kind == "AdamW" and "decoupled_weight_decay" not in group:
            raise CheckpointError("the state dict is that of Adam or of AdamW, which had the same options in this version of PyTorch; name it: "
                                  "save(..., kind=\"AdamW\"), or convert --optimizer AdamW")
    return _by_decay(saved["param_groups"]) if kind == "AdamW" else kind


def _demi_optimizer(part, saved, step, kind):
    """The reverse: tensors and numbers under demi's names."""
    if kind not in OPTIONS:
        raise CheckpointError(f"there is no optimizer {kind!r}; known: {', '.join(OPTIONS)}")
    tensors, numbers, taken = {}, {}, 0
    for parameter, entries in saved["state"].items():
        count = int(entries.get("step", step or 1))
        taken = max(taken, count)
        tensors[f"{part}/{parameter}.step"] = torch.tensor(count)
        for name, value in entries.items():
            if name != "step" and value is not None:  # demi's moments are FP32, or FP64 beside such parameters
                tensors[f"{part}/{parameter}.{name}"] = value if value.dtype == torch.float64 else value.to(torch.float32)
    if not saved["state"]:  # SGD without momentum has none
        taken = step or 0
    tensors[f"{part}/taken"] = torch.tensor(taken)
    sizes = {}
    for index, group in enumerate(saved["param_groups"]):
        missing = [name for name in OPTIONS[kind] if name not in group]
        if missing:
            raise CheckpointError(f"the options {sorted(group)} are not those of {kind}, which has {', '.join(missing)}, too")
        options = numbers[f"{part}/group.{index}"] = {}
        for name in OPTIONS[kind]:
            if name in ("betas", "ns_coefficients"):
                options |= {f"{name}.{i}": float(value) for i, value in enumerate(group[name])}
            else:
                options[name] = float(group[name])
        if kind == "Muon":
            options["adjust_lr"] = float(ADJUST_LR.index(group.get("adjust_lr_fn") or "original"))
        sizes[f"parameters.{index}"] = float(len(group["params"]))
    numbers[part] = sizes
    return tensors, numbers


def _scheduler_kind(saved, name):
    """The class that a state dict is of, by its entries. `name`: of the object's class, for messages."""
    own = {entry for entry, value in saved.items() if entry not in OF_EVERY_SCHEDULER and not (isinstance(value, str) and value == LOADED_BY)}
    if "num_bad_epochs" in own:
        raise CheckpointError("the scheduler has no base_lrs, as a schedule of demi's has; ReduceLROnPlateau is demi::optim::lr::Plateau, which "
                              "takes its state_dict(): best, num_bad_epochs, cooldown_counter, last_epoch")
    if "total_steps" in own:
        own |= {"use_beta1"}  # there where the momentum is scheduled, too
    for kind, shape in SCHEDULERS.items():
        if own == shape and ("base_lrs" in saved or kind == "SequentialLR"):
            return kind
    raise CheckpointError(
        f"the scheduler {name or f'with {sorted(own)}'} is none of those that move to and from C++: {', '.join(SCHEDULERS)}. If its rates "
        'follow from the steps and the first rates alone, hand over {"last_epoch": steps, "base_lrs": first rates} in its place, and write the '
        "rule in C++ (demi::optim::lr::lambda); else leave it out (convert --without-scheduler)")


def _demi_schedule(saved, name, groups):
    """A torch.optim.lr_scheduler's state dict under demi's names: the steps that it has taken, and each group's first rate. `groups`: of
    its optimizer's state dict."""
    kind = _scheduler_kind(saved, name)
    if kind == "CosineAnnealingWarmRestarts" and saved["T_cur"] != int(saved["T_cur"]):
        raise CheckpointError(f"the scheduler CosineAnnealingWarmRestarts stands between two steps (T_cur {saved['T_cur']}): a schedule of demi's "
                              "counts whole ones")
    rates = _first_rates(saved)
    if kind == "OneCycleLR":  # its base_lrs are the peak / div_factor, and demi's the peak
        if any("max_lr" not in group for group in groups):
            raise CheckpointError("the scheduler OneCycleLR has no max_lr in its optimizer's groups; give the optimizer that it was made with")
        rates = [group["max_lr"] for group in groups]
    return {"last_epoch": float(saved["last_epoch"])} | {f"base_lrs.{i}": float(rate) for i, rate in enumerate(rates)}


def _first_rates(saved):
    if "_schedulers" not in saved:
        return saved["base_lrs"]
    kinds = [_scheduler_kind(one, None) for one in saved["_schedulers"]]
    if "OneCycleLR" in kinds:
        raise CheckpointError("a OneCycleLR within a SequentialLR has first rates of its own, which a schedule of demi's has not")
    return [_first_rates(one) for one in saved["_schedulers"]][0]


def _python_schedule(numbers, groups):
    """The reverse, as load_state_dict of a scheduler takes it, which keeps what it was made with; None without a schedule."""
    if numbers is None:
        return None
    last, rates = int(numbers["last_epoch"]), [group["lr"] for group in groups]
    return {"last_epoch": last, "_step_count": last + 1, "base_lrs": [group["initial_lr"] for group in groups], "_last_lr": rates,
            "lr_lambdas": [None] * len(groups),  # LambdaLR's functions are its own
            "T_cur": LOADED_BY}  # so that a CosineAnnealingWarmRestarts which load_state_dict was called of throws, and does not begin anew


LOADED_BY = "demi_checkpoint.load_scheduler"  # in the place of a number that load() cannot know


def load_scheduler(scheduler, saved, saved_optimizer):
    """Puts load()'s "scheduler" and "optimizer" into a scheduler and its optimizer, which were made as for a new run: in place of both
    load_state_dict(), which does for the classes of SCHEDULERS whose whole state is the steps and the rates. A OneCycleLR has its shape in
    the optimizer's groups, which keep it; a SequentialLR and a CosineAnnealingWarmRestarts count steps of their own. Raises CheckpointError
    for a class that is not in SCHEDULERS, and then changes nothing."""
    kind = _scheduler_kind(scheduler.state_dict(), type(scheduler).__name__)
    if kind == "SequentialLR":
        _first_rates(scheduler.state_dict())  # may refuse it
    groups = scheduler.optimizer.param_groups
    shape = [{name: group[name] for name in ONE_CYCLE_GROUP if name in group} for group in groups]
    scheduler.optimizer.load_state_dict(saved_optimizer)
    if kind == "OneCycleLR":
        for group, its in zip(scheduler.optimizer.param_groups, shape):
            group.update(its)
        saved = {**saved, "base_lrs": scheduler.base_lrs}
    _put_at(scheduler, saved["last_epoch"], saved)


def _put_at(scheduler, step, saved):
    """As after so many steps; -1: not begun."""
    kind = _scheduler_kind(scheduler.state_dict(), None)
    scheduler.last_epoch, scheduler._last_lr = step, list(saved["_last_lr"])
    if kind == "SequentialLR":
        begins = [0, *scheduler._milestones]
        now = bisect.bisect_right(scheduler._milestones, step)
        for i, one in enumerate(scheduler._schedulers):
            _put_at(one, step - begins[i] if i == now else -1, saved)
        return
    scheduler._step_count, scheduler.base_lrs = step + 1, list(saved["base_lrs"])
    if kind == "CosineAnnealingWarmRestarts":
        scheduler.T_cur, scheduler.T_i = max(step, 0), scheduler.T_0
        while scheduler.T_cur >= scheduler.T_i:
            scheduler.T_cur -= scheduler.T_i
            scheduler.T_i *= scheduler.T_mult


def _parameter_names(model, optimizer):
    """Those of the optimizer's parameters, by group: from the module, or from a state dict's own `param_names`; None where neither knows."""
    if isinstance(model, torch.nn.Module) and isinstance(optimizer, torch.optim.Optimizer):
        known = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = [[known.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
    else:
        groups = [group.get("param_names", [None]) for group in _state_dict(optimizer)["param_groups"]]
    return groups if all(name is not None for group in groups for name in group) else None


def load(path):
    """{"model", "optimizer", "scaler", "scheduler"}: PyTorch's state dicts of the checkpoint that `path` stands for; those that it has.
    Of several optimizers "optimizer" and "scheduler" are lists, with None for one without a schedule; an optimizer whose groups have
    different rules, as Muon and AdamW, is one for each rule. A single safetensors file is a model
    alone. Every checksum is compared; a file outside of a checkpoint has none. Raises CheckpointError."""
    saved = read(path)
    found, optimizers, schedules = {"model": saved["model"]}, [], []
    index = 0
    while f"{_part('optimizer', index)}/group.0" in saved["numbers"]:
        part = _part("optimizer", index)
        schedule = saved["numbers"].get(_part("schedule", index))
        index += 1
        base_lrs = [schedule[f"base_lrs.{i}"] for i in range(sum(name.startswith("base_lrs.") for name in schedule or ()))]
        kind = saved["text"].get(f"demi.{part}")
        whole = _python_optimizer(part, saved["state"], saved["numbers"], kind, saved.get("parameters", {}).get(part), base_lrs)
        kinds = (kind or "").split(", ")
        for one in _by_kind(whole, kinds) if len(kinds) > 1 else [whole]:
            optimizers.append(one)
            schedules.append(_python_schedule(schedule, one["param_groups"]))
    if optimizers:
        found["optimizer"] = optimizers if len(optimizers) > 1 else optimizers[0]
    if any(schedules):
        found["scheduler"] = schedules if len(schedules) > 1 else schedules[0]
    if "scaler" in saved["numbers"]:
        scaler = saved["numbers"]["scaler"]
        found["scaler"] = {name: int(value) if name in COUNTS else value for name, value in scaler.items()}
    return found


def _state_dict(thing):
    return thing if thing is None or isinstance(thing, dict) else thing.state_dict()


def _own(tensors):
    """Tensors that safetensors can hold: on the CPU, contiguous, none in the memory of another."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _list(thing):
    return list(thing) if isinstance(thing, (list, tuple)) else [] if thing is None else [thing]


def _optimizers(model, optimizers, step, kind):
    """Tensors, numbers, texts and the names of parameters of all optimizers, and the most steps that one has taken."""
    tensors, numbers, texts, names, taken = {}, {}, {}, {}, 0
    for index, optimizer in enumerate(optimizers):
        part, saved = _part("optimizer", index), _state_dict(optimizer)
        texts[f"demi.{part}"] = kind or _kind_of(optimizer, saved)
        more_tensors, more_numbers = _demi_optimizer(part, saved, step, texts[f"demi.{part}"])
        tensors |= more_tensors
        numbers |= more_numbers
        taken = max(taken, *(int(entries.get("step", 0)) for entries in saved["state"].values()), 0)
        found = _parameter_names(model, optimizer)
        if found:
            names[part] = found
    return tensors, numbers, texts, names, taken


def save(path, model, optimizer=None, scaler=None, step=None, scheduler=None, kind=None):
    """Writes the folder `path`, from which demi resumes; it must not exist yet. `model`, `optimizer` (AdamW, Adam, SGD, RMSprop, NAdam,
    RAdam, Adagrad or Muon), `scaler` and `scheduler` (of SCHEDULERS) are objects or their state dicts; optimizers and schedulers also
    lists of the same length, in the order of the job in C++, with None for an optimizer without a schedule. `step`: the steps taken;
    without it those that an optimizer has counted. `kind`: the optimizers' name, where state dicts of an older PyTorch do not tell Adam
    from AdamW. It is written beside, synchronised and renamed: whole or not at all."""
    path = Path(path)
    if path.exists():
        raise CheckpointError(f"{path}: is there already; name a folder that is not")
    optimizers, schedulers = _list(optimizer), _list(scheduler)
    if schedulers and len(schedulers) != len(optimizers):
        raise CheckpointError(f"{len(schedulers)} schedulers of {len(optimizers)} optimizers: give one for each, or None in its place")
    tensors, numbers, texts, names, taken = _optimizers(model, optimizers, step, kind)
    step = taken if step is None else step
    for index, one in enumerate(schedulers):
        if one is not None:
            name = None if isinstance(one, dict) else type(one).__name__
            numbers[_part("schedule", index)] = _demi_schedule(_state_dict(one), name, _state_dict(optimizers[index])["param_groups"])
    if not schedulers and any("initial_lr" in group for one in optimizers for group in _state_dict(one)["param_groups"]):
        warnings.warn("the optimizer has a scheduler (initial_lr in its groups), which is not saved: in C++ the schedule would begin anew; "
                      "save(..., scheduler=scheduler)", stacklevel=2)
    if scaler is not None and _state_dict(scaler):
        numbers["scaler"] = {name: float(value) for name, value in _state_dict(scaler).items()}
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.mkdir(parents=True)
    try:
        save_file(_own(_state_dict(model)), beside / MODEL, {"format": "pt"})
        save_file(_own(tensors), beside / STATE)
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "demi": "demi_checkpoint.py",
            "libtorch": torch.__version__,
            "step": int(step),
            "text": texts,
            "numbers": {part: {name: _number_text(value) for name, value in of.items()} for part, of in numbers.items()},
            "files": {name: _file_record(beside / name) for name in (MODEL, STATE)},
        }
        if names:  # demi hands the state to the parameters of these names, in whatever order it has them
            manifest["parameters"] = names
        body = json.dumps(manifest, indent=2)[:-2].encode()  # without the last brace
        (beside / MANIFEST).write_bytes(body + f',\n  "crc32c": "{crc32c(body):08x}"\n}}\n'.encode())
        for name in (MODEL, STATE, MANIFEST, "."):
            _sync(beside / name)
        beside.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


# The program.


# What a training program saves, by the names that it is saved under: PyTorch's tutorials have model_state_dict, Lightning has lists.
NAMES = {
    "model": ("model", "state_dict", "model_state_dict"),
    "optimizer": ("optimizer", "optimizer_states", "optimizer_state_dict"),
    "scaler": ("scaler", "MixedPrecision", "MixedPrecisionPlugin", "scaler_state_dict"),
    "scheduler": ("scheduler", "lr_schedulers", "lr_scheduler", "scheduler_state_dict"),
    "step": ("step", "global_step", "iteration", "iter_num"),
}


def convert(source, out, kind=None, with_scheduler=True):
    loaded = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{source}: holds a {type(loaded).__name__}; a state dict is wanted: torch.save(model.state_dict(), file)")
    is_tensors = lambda entry: isinstance(entry, dict) and entry and all(isinstance(value, torch.Tensor) for value in entry.values())
    parts = {"model": loaded} if is_tensors(loaded) else {}
    taken = set(loaded) if parts else set()
    for part, names in NAMES.items():
        for name in names if "model" not in parts or part != "model" else ():
            if name in loaded and part not in parts and (part != "model" or is_tensors(loaded[name])):
                parts[part] = loaded[name]
                taken.add(name)
    if "model" not in parts:
        raise CheckpointError(f"{source}: no state dict: neither tensors by name, nor such under {', '.join(NAMES['model'])}; it has {list(loaded)[:10]}")
    model = parts.pop("model")
    if str(out).endswith(".safetensors"):
        save_file(_own(model), out, {"format": "pt"})
        taken -= {name for names in NAMES.values() for name in names} - set(NAMES["model"])
    else:
        if not with_scheduler:
            parts.pop("scheduler", None)
            taken -= set(NAMES["scheduler"])
        save(out, model, parts.get("optimizer"), parts.get("scaler"), parts.get("step"), parts.get("scheduler") or None, kind)
    left = [str(name) for name in loaded if name not in taken]
    print(f"{out}: {len(model)} tensors of the model" + (f"; left out: {', '.join(left)}" if left else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="The functions load and save are described in this file.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, arguments, words in (
        ("convert", ["source", "out"], "torch.save's file of state dicts to safetensors, or to a checkpoint's folder"),
        ("export", ["checkpoint", "out"], "a checkpoint's model, optimizer and scaler as torch.save writes them"),
        ("verify", ["checkpoint"], "compares every checksum"),
    ):
        command = commands.add_parser(name, help=words)
        for argument in arguments:
            command.add_argument(argument)
        if name == "convert":
            command.add_argument("--optimizer", choices=list(OPTIONS), help="which it is, where the file of an older PyTorch does not say so")
            command.add_argument("--without-scheduler", action="store_true", help="leaves it behind: its schedule would begin anew in C++")
    given = parser.parse_args()
    try:
        if given.command == "convert":
            convert(given.source, given.out, given.optimizer, not given.without_scheduler)
        elif given.command == "export":
            torch.save(load(given.checkpoint), given.out)
        else:
            print(f"{find(given.checkpoint)}: whole, {sum(len(of['tensors']) for of in verify(given.checkpoint)['files'].values())} tensors")
    except (CheckpointError, OSError, RuntimeError) as error:
        print(f"demi_checkpoint.py: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
