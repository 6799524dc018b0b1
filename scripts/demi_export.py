#!/usr/bin/env python3
"""Exports a network for demi, and takes weights that were trained there back (needs PyTorch alone, 2.8 or newer).

    import demi_export
    demi_export.export(model, (images,), "model.pt2")           # train and eval mode in one file, weights once
    ...                                                         # C++: demi::ImportedModel model("model.pt2")
    demi_export.load_weights(model, "trained.safetensors")      # strictly, tied weights too

The first dimension of each input is exported as one that may change; give dynamic_shapes for others. What was exported is run
against the model, outputs and gradients. As a program:

    demi_export.py NETWORK.py OUT.pt2       NETWORK.py defines make(): a model and a tuple of inputs

The sample inputs are copied, and the model is left as it was.
"""
import argparse
import collections
import contextlib
import copy
import inspect
import io
import json
import logging
import math
import re
import runpy
import struct
import sys
import traceback
import warnings
import zipfile

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.export.pt2_archive._package import package_pt2

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}


class ExportError(ValueError):
    """A network that cannot be exported so that it trains as in Python, or weights that do not fit one."""


def _python_line(frames):
    """The innermost frame that is neither PyTorch's nor this file's."""
    own = [f for f in frames if "-packages/torch/" not in f.filename and f.filename != __file__]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown line"


@contextlib.contextmanager
def _watch_functions(found):
    """Notes each torch.autograd.Function that is called: its name and the Python line."""
    before = next(base.__dict__["apply"] for base in torch.autograd.Function.__mro__ if "apply" in base.__dict__)
    own = "apply" in torch.autograd.Function.__dict__

    def apply(cls, *args, **kwargs):
        found.setdefault(cls.__name__, _python_line(traceback.extract_stack()))
        return before.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        if own:
            torch.autograd.Function.apply = before
        else:
            del torch.autograd.Function.apply


def _refuse_functions(model, args, kwargs, forward_only):
    """Whether the model calls a function of its own, all of which are named as forward_only."""
    found = {}
    with _watch_functions(found):
        copy.deepcopy(model)(*_cloned(args), **_cloned(kwargs))
    for name, line in found.items():
        if name in ("CheckpointFunction",):
            raise ExportError(f"{line}: a reentrant checkpoint would be exported without gradients: give use_reentrant=False")
        if name not in forward_only:
            raise ExportError(
                f"{line}: {name} is a torch.autograd.Function, of which export keeps forward alone: its gradient would be "
                f"autograd's. If that is what you want, name it: forward_only=[{name!r}]; else write it with PyTorch's operations")
    return bool(found)


def _cloned(tree):
    """Two inputs that are one tensor would be exported as one input."""
    return torch.utils._pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)


def _batch_dimensions(tree, rows):
    """Dim.AUTO for the first dimension of each tensor that has as many rows as the first one."""

    def dimensions(x):
        is_batch = isinstance(x, torch.Tensor) and x.dim() > 0 and x.shape[0] == rows
        return {0: torch.export.Dim.AUTO} if is_batch else None

    return torch.utils._pytree.tree_map(dimensions, tree)


def _shapes(args, kwargs):
    tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim() > 0]
    if not tensors:
        return None
    if tensors[0].shape[0] < 2:
        raise ExportError("the sample has one row, which export would take as fixed: give two or more, or dynamic_batch=False")
    return tuple(_batch_dimensions(args, tensors[0].shape[0])) + tuple(_batch_dimensions(kwargs, tensors[0].shape[0]).values())


def _nodes(spec):
    """A tree of containers and those in it."""
    yield spec
    for child in spec.children() if hasattr(spec, "children") else spec.children_specs:
        yield from _nodes(child)


def _name_containers(program, line):
    """Names each namedtuple, without which it cannot be saved, and refuses containers that demi does not know."""
    known = {tuple, list, dict, collections.OrderedDict, collections.namedtuple, immutable_list, immutable_dict}
    pytree = torch.utils._pytree
    for node in (*_nodes(program.call_spec.in_spec), *_nodes(program.call_spec.out_spec)):
        if node.is_leaf():
            continue
        if node.type not in known:
            raise ExportError(f"{line}: {node.type.__module__}.{node.type.__qualname__} is a container that demi cannot take or return: "
                              "let forward take and return tuple, list, dict, OrderedDict and namedtuple")
        if node.type is collections.namedtuple:
            registered = pytree.SUPPORTED_SERIALIZED_TYPES.get(node.context)
            if registered is None or registered.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
                pytree._register_namedtuple(node.context,
                                            serialized_type_name=f"{node.context.__module__}.{node.context.__qualname__}")


def _forward_line(model):
    try:
        return f"{inspect.getsourcefile(type(model))}:{inspect.getsourcelines(type(model).forward)[1]}"
    except (OSError, TypeError):  # no source: typed in, or generated
        return type(model).__qualname__


def _export_one(model, args, kwargs, shapes, mode):
    try:
        # What it prints of a graph that it gave up on is no help: the line is said below.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return torch.export.export(model, _cloned(args), _cloned(kwargs), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        text = str(error)
        lines = re.findall(r'File "([^"]+)", line (\d+)', text) or [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        own = [f"{file}:{line}" for file, line in lines if "-packages/torch/" not in file and file != __file__]
        where = own[-1] if own else "an unknown line"
        raise ExportError(f"{where}: cannot be exported in {mode} mode: {text.strip().splitlines()[0]}") from error


def _is_dynamic(program):
    """Whether the first dimension of the first input may change."""
    first = program.graph_signature.user_inputs[0] if program.graph_signature.user_inputs else None
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name == first and isinstance(node.meta["val"], torch.Tensor):
            value = node.meta["val"]
            return value.dim() == 0 or not isinstance(value.shape[0], int)
    return True


def _with_weights_once(data):
    """The archive whose graph "eval" reads the records of "model": its own copies of them are left out."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    root = archive.namelist()[0].split("/")[0]
    contents = {name[len(root) + 1:]: archive.read(name) for name in archive.namelist()}
    used = set()
    for folder, kind in (("data/weights/", "weights"), ("data/constants/", "constants")):
        configs = [f"{folder}{name}_{kind}_config.json" for name in ("model", "eval")]
        first, second = (json.loads(contents[name])["config"] for name in configs)
        for name, entry in second.items():
            same = name in first and first[name]["tensor_meta"] == entry["tensor_meta"]
            if same and contents[folder + first[name]["path_name"]] == contents[folder + entry["path_name"]]:
                entry["path_name"] = first[name]["path_name"]
        contents[configs[1]] = json.dumps({"config": second}).encode()
        used |= {folder + entry["path_name"] for config in (first, second) for entry in config.values()} | set(configs)
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    for name, content in contents.items():
        is_spare = name.startswith(("data/weights/", "data/constants/")) and name not in used
        if not is_spare and name not in ("version", ".data/version", "byteorder", ".data/serialization_id"):
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return buffer.getvalue()


def _tensors(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _run(model, args, kwargs, parameters):
    """Outputs, and the gradients of the sum of their squares."""
    torch.manual_seed(0)
    outputs = _tensors(model(*_cloned(args), **_cloned(kwargs)))
    real = [x for x in outputs if x.requires_grad]
    gradients = torch.autograd.grad(sum(x.float().square().sum() for x in real), parameters, allow_unused=True) if real and parameters else []
    return [x.detach() for x in outputs], list(gradients)


def _verify(model, program, args, kwargs, mode, gradients):
    """The exported graph against the model: the largest difference."""
    eager, exported = copy.deepcopy(model), copy.deepcopy(program).module()
    names = [name for name, p in eager.named_parameters() if p.requires_grad and gradients]
    exported_by_name, eager_by_name = dict(exported.named_parameters(remove_duplicate=False)), dict(eager.named_parameters())
    seen = _run(exported, args, kwargs, [exported_by_name[name] for name in names])
    expected = _run(eager, args, kwargs, [eager_by_name[name] for name in names])
    if len(seen[0]) != len(expected[0]):
        raise ExportError(f"in {mode} mode there are {len(seen[0])} outputs, and {len(expected[0])} in Python")
    worst = 0.0
    for what, a, b in [("output", *pair) for pair in zip(seen[0], expected[0])] + \
                      [(f"gradient of {name}", *pair) for name, *pair in zip(names, seen[1], expected[1])]:
        if (a is None) != (b is None):
            raise ExportError(f"in {mode} mode the {what} is there in one of the exported network and Python's alone")
        if a is None or a.numel() == 0:
            continue
        difference = (a.double() - b.double()).abs().max().item()
        limit = 1e-4 * max(1.0, b.double().abs().max().item())
        if math.isnan(difference) != bool(b.isnan().any()) or difference > limit:
            raise ExportError(f"in {mode} mode the {what} differs from Python's by {difference:g}")
        worst = max(worst, 0.0 if math.isnan(difference) else difference)
    return worst


def export(model, args, file, kwargs=None, dynamic_batch=True, dynamic_shapes=None, forward_only=()):
    """Writes the model's graphs in train and eval mode, and verifies both. Returns what to know about the file, as lines."""
    kwargs = kwargs or {}
    if isinstance(args, torch.Tensor):
        raise ExportError("the inputs are one tensor, whose rows would be taken as arguments: give a tuple, (tensor,)")
    args = tuple(args)
    modes = [(module, module.training) for module in model.modules()]
    shapes = dynamic_shapes if dynamic_shapes is not None else _shapes(args, kwargs) if dynamic_batch else None
    notes, programs, has_functions = [], {}, False
    try:
        for name, mode in (("model", "train"), ("eval", "eval")):
            model.train(mode == "train")
            if mode == "train":
                has_functions = _refuse_functions(model, args, kwargs, forward_only)
            programs[name] = _export_one(model, args, kwargs, shapes, mode)
            _name_containers(programs[name], _forward_line(model))
            if shapes is not None and dynamic_shapes is None and not _is_dynamic(programs[name]):
                notes.append(f"in {mode} mode the number of rows is fixed: something in forward needs it")
            worst = _verify(model, programs[name], args, kwargs, mode, not has_functions)
            what = "outputs" if has_functions else "outputs and gradients"
            notes.append(f"{mode}: {what} are Python's " +
                         ("bit for bit" if worst == 0 else f"to {worst:.2g}"))
    finally:
        for module, mode in modes:
            module.training = mode
    buffer = io.BytesIO()
    package_pt2(buffer, exported_programs=programs)
    with open(file, "wb") as out:
        out.write(_with_weights_once(buffer.getvalue()))
    return notes


def _read_safetensors(file):
    """Format: https://github.com/huggingface/safetensors."""
    with open(file, "rb") as f:
        data = f.read()
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else len(data)
    if length > len(data) - 8:
        raise ExportError(f"{file} is no safetensors file")
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] not in DTYPES:
            raise ExportError(f"{file}: {name} has the dtype {entry['dtype']}, which is not read here")
        raw = bytearray(data[begin:end])
        flat = torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]) if raw else torch.empty(0, dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def load_weights(model, file):
    """Loads a safetensors file of demi into the module, strictly; a tied weight may stand there under one of its names."""
    tensors = _read_safetensors(file)
    by_place = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in tensors:
            by_place.setdefault(id(tensor), tensors[name])
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in tensors and id(tensor) in by_place:
            tensors[name] = by_place[id(tensor)]
    model.load_state_dict(tensors, strict=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="a Python file that defines make(): a model and a tuple of inputs")
    parser.add_argument("out", help="the .pt2 file to write")
    parser.add_argument("--fixed-batch", action="store_true", help="the number of rows never changes")
    parser.add_argument("--forward-only", action="append", default=[], metavar="NAME",
                        help="an autograd.Function whose gradient may be autograd's")
    options = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # what cannot be exported is said below, in a line
    warnings.simplefilter("ignore")
    try:
        defined = runpy.run_path(options.network)
        if "make" not in defined:
            raise ExportError(f"{options.network} defines no make(), which returns a model and a tuple of inputs")
        model, inputs = defined["make"]()
        for note in export(model, inputs, options.out, dynamic_batch=not options.fixed_batch,
                           forward_only=options.forward_only):
            print(note)
    except (ExportError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
