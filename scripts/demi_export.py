#!/usr/bin/env python3
"""Exports a network for demi, and takes weights that were trained there back (needs PyTorch alone, 2.9 or newer).

    import demi_export
    demi_export.export(model, (images,), "model.pt2")           # train and eval mode in one file, weights once
    ...                                                         # C++: demi::ImportedModel model("model.pt2")
    demi_export.load_weights(model, "trained.safetensors")      # strictly, tied weights too

The first dimension of each input is exported as one that may change; give dynamic_shapes for others. The bytes of the file are loaded
and run against the model, outputs, gradients and buffers, before the file is written. A part that was left in the other mode than the
model (model.train(); model.bn.eval()) stays in it. Refused is what demi does not read (READER below), and what a graph cannot hold:
hooks of gradients, numbers that Python draws or counts in forward. As a program:

    demi_export.py NETWORK.py OUT.pt2       NETWORK.py defines make(): a model and a tuple of inputs; it may import what is beside it

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
import os
import pickle
import random
import re
import runpy
import struct
import sys
import traceback
import warnings
import zipfile

import torch
from torch.export.pt2_archive._package import load_pt2, package_pt2

# Of safetensors, which demi writes.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
          "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16,
          "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool}

# What demi reads of a .pt2 file, as JSON: demi/imported/export_script_test.cpp compares it with the reader. Dtypes are the numbers
# of the schema of torch.export.
READER = {
    "higher_order": ["wrap_with_set_grad_enabled", "wrap_with_autocast", "tag_activation_checkpoint"],
    "functions": ["_operator.add", "_operator.sub", "_operator.mul", "_operator.floordiv", "_operator.mod", "_operator.truediv",
                  "_operator.pow", "_operator.eq", "_operator.ne", "_operator.lt", "_operator.le", "_operator.gt", "_operator.ge",
                  "_operator.neg", "_operator.pos", "_operator.and_", "_operator.or_", "torch.sym_not", "torch.sym_max",
                  "torch.sym_min", "torch.sym_int", "torch.sym_float", "torch.sym_ite", "torch.sym_sqrt", "torch._sym_sqrt",
                  "math.trunc", "math.ceil", "math.floor"],
    "namespaces": ["aten", "quantized", "_quantized", "mkldnn", "onednn", "sparse", "mkldnn_prepacked", "mkl"],
    "refused_operators": ["aten::from_file"],
    "inputs": ["user_input", "parameter", "buffer", "tensor_constant", "constant_input"],
    "outputs": ["user_output", "loss_output", "buffer_mutation", "parameter_mutation", "user_input_mutation"],
    "arguments": ["as_none", "as_tensor", "as_tensors", "as_int", "as_ints", "as_float", "as_floats", "as_string", "as_strings",
                  "as_sym_int", "as_sym_ints", "as_scalar_type", "as_memory_format", "as_layout", "as_device", "as_bool", "as_bools",
                  "as_sym_bool", "as_sym_bools", "as_graph", "as_optional_tensors", "as_operator", "as_sym_float", "as_sym_floats",
                  "as_optional_tensor", "as_complex", "as_nested_tensors", "as_int_lists", "as_string_to_argument", "as_float_lists"],
    "dtypes": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 28, 29, 30, 34, 35],
    "layouts": [7],
    "memory_formats": [1, 2, 3, 4],
    "devices": ["cpu", "cuda", "meta"],
    "containers": ["builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.namedtuple",
                   "torch.fx.immutable_collections.immutable_list", "torch.fx.immutable_collections.immutable_dict"],
    "deepest_name": 64,
    "deepest_tree": 64,
    "deepest_graph": 32,
    "most_dimensions": 64
}


class ExportError(ValueError):
    """A network that cannot be exported so that it trains as in Python, or weights that do not fit one."""


def _is_own(file):
    """Whether a file is the user's: not PyTorch's, not Python's own, and no text that was generated or typed in."""
    return not (file.startswith("<") or "-packages/torch/" in file or file in (__file__, random.__file__))


def _python_line(frames):
    """The innermost frame that is the user's."""
    own = [f for f in frames if _is_own(f.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown line"


def _plain(model):
    """The module within one of torch.compile."""
    while isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        model = model._orig_mod
    return model


def _copied(model):
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ExportError(f"{_forward_line(model)}: the model cannot be copied: {_first_line(error)}. If it has the older weight_norm or "
                          "spectral_norm: use those of torch.nn.utils.parametrizations") from error


def _some(names):
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _watch_functions(found):
    """Notes each torch.autograd.Function that is called: its name and the Python line."""
    before = next(base.__dict__["apply"] for base in torch.autograd.Function.__mro__ if "apply" in base.__dict__)
    own = "apply" in torch.autograd.Function.__dict__

    def apply(cls, *args, **kwargs):
        # Those of cond, scan and operators that Python defines are in the graph, where READER decides.
        if not cls.__module__.startswith(("torch._higher_order_ops.", "torch._library.")):
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


def _refuse_functions(found, forward_only):
    """Whether the model calls a function of its own, all of which are named as forward_only."""
    for name, line in found.items():
        if name in ("CheckpointFunction",):
            raise ExportError(f"{line}: a reentrant checkpoint would be exported without gradients: give use_reentrant=False")
        if name not in forward_only:
            raise ExportError(
                f"{line}: {name} is a torch.autograd.Function, of which export keeps forward alone: its gradient would be "
                f"autograd's. If that is what you want, name it: forward_only=[{name!r}]; else write it with PyTorch's operations")
    return bool(found)


def _refuse_model(model, file):
    """What is no network with numbers, or no place to write to."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
        raise ExportError(f"PyTorch {torch.__version__} writes weights in a form that demi does not read: 2.9 or newer is needed")
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError("the model is TorchScript, which demi reads as it is: torch.jit.save")
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"the model is a {type(model).__qualname__}: give a torch.nn.Module")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise ExportError(f"{name} has no shape yet: call the model once")
        if tensor.device.type == "meta":
            raise ExportError(f"{name} is on the device meta, without numbers: give it some (to_empty, load_state_dict)")
    folder = os.path.dirname(os.path.realpath(file))
    if not os.path.isdir(folder):
        raise ExportError(f"{folder} is no folder, so {os.path.basename(file)} cannot be written there")


def _refuse_hooks(model):
    """Hooks of forward are traced, those of gradients are not."""
    way_out = "remove it for the export, and do in C++ what it does (register_hook of the parameter)"
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ExportError(f"the parameter {name} has a hook of its gradient, which the file cannot hold: {way_out}")
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise ExportError(f"the module {name or type(module).__qualname__} has a hook of backward, which the file cannot hold: "
                              f"{way_out}")
    of_all = torch.nn.modules.module
    if of_all._global_backward_hooks or of_all._global_backward_pre_hooks:
        raise ExportError(f"there is a hook of backward of all modules, which the file cannot hold: {way_out}")


def _set_mode(model, mode, left):
    """Train or eval mode, but for the parts that were left in the other one while the model was in this one: a frozen batch norm.
    Returns the names of those parts."""
    model.train() if mode == "train" else model.eval()
    is_training = mode == "train"
    if left[""][1] != is_training:
        return []
    parts = [name for name, (module, training) in left.items() if training != is_training]
    for name in parts:
        left[name][0].training = not is_training
    return [name for name in parts if not any(name.startswith(outer + ".") for outer in parts)]


def _cloned(tree):
    """Two inputs that are one tensor would be exported as one input."""
    return torch.utils._pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)


def _batch_dimensions(tree, rows):
    """Dim.AUTO for the first dimension of each tensor that has as many rows as the first one."""

    def dimensions(x):
        is_batch = isinstance(x, torch.Tensor) and x.dim() > 0 and x.shape[0] == rows
        return {0: torch.export.Dim.AUTO} if is_batch else None

    return torch.utils._pytree.tree_map(dimensions, tree)


def _shapes(model, args, kwargs):
    """dynamic_shapes of forward's arguments by name: those of *xs are a tuple, those of **options a dict."""
    tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim() > 0]
    if not tensors:
        return None
    rows = tensors[0].shape[0]
    if rows < 2:
        raise ExportError("the sample has one row, which export would take as fixed: give two or more, or dynamic_batch=False")
    arguments = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: _batch_dimensions(value, rows) for name, value in arguments.items()}


def _nodes(spec):
    """A tree of containers and those in it."""
    yield spec
    for child in spec.children() if hasattr(spec, "children") else spec.children_specs:
        yield from _nodes(child)


def _name_containers(program, line):
    """Names each namedtuple, without which it cannot be saved, and refuses containers that demi does not know."""
    pytree = torch.utils._pytree
    for node in (*_nodes(program.call_spec.in_spec), *_nodes(program.call_spec.out_spec)):
        if node.is_leaf():
            continue
        if f"{node.type.__module__}.{node.type.__qualname__}" not in READER["containers"]:
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
        own = [f"{file}:{line}" for file, line in lines if _is_own(file)]
        where = own[-1] if own else _forward_line(model)
        raise ExportError(f"{where}: cannot be exported in {mode} mode: {_first_line(error)}") from error


def _is_dynamic(program):
    """Whether the first dimension of the first input may change."""
    first = program.graph_signature.user_inputs[0] if program.graph_signature.user_inputs else None
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name == first and isinstance(node.meta["val"], torch.Tensor):
            value = node.meta["val"]
            # A guard leaves a symbol that holds one number.
            return value.dim() == 0 or not torch.fx.experimental.symbolic_shapes.is_concrete_int(value.shape[0])
    return True


def _records(programs):
    """What torch.export.save writes, by name of the record. The graph "eval" reads the weights of "model": its own copies of them are
    left out."""
    buffer = io.BytesIO()
    try:
        package_pt2(buffer, exported_programs=programs)
    except Exception as error:
        raise ExportError(f"PyTorch cannot save the exported graph: {_first_line(error)}") from error
    archive = zipfile.ZipFile(buffer)
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
    return {name: content for name, content in contents.items()
            if not name.startswith(("data/weights/", "data/constants/")) or name in used}


def _archive(records):
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    for name, content in records.items():
        if name not in ("version", ".data/version", "byteorder", ".data/serialization_id"):  # the writer's own
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return buffer.getvalue()


class _Reading:
    """Refuses what demi would not read of the file, with the Python line, as its reader does."""

    def __init__(self, records, mode):
        name = "model" if mode == "train" else mode
        self.mode, self.libraries = mode, set()
        program = json.loads(records[f"models/{name}.json"])["graph_module"]
        self.weights, constants = (json.loads(records[f"data/{kind}/{name}_{kind}_config.json"])["config"]
                                   for kind in ("weights", "constants"))
        for name, entry in (*self.weights.items(), *constants.items()):
            self.where = name
            if entry["use_pickle"]:
                self.refuse("is of a Python class of its own")
            if "tensor_meta" in entry:
                self.tensor(entry["tensor_meta"])
        self.where = "the graph"
        self.graph(program["graph"], 0)
        for kind, specs in (("inputs", "input_specs"), ("outputs", "output_specs")):
            for spec in program["signature"][specs]:
                self.require(kind, next(iter(spec)), f"an {kind[:-1]} of the kind {{}}")
        call = next(entry["signature"] for entry in program["module_call_graph"] if entry["fqn"] == "")
        for spec in ("in_spec", "out_spec"):
            self.tree(json.loads(call[spec])[1], 0)
        self.names()
        self.overlaps()
        if mode == "train":
            self.lost_gradients(program)

    def refuse(self, what, advice=""):
        raise ExportError(f"{self.where} {what}, which demi does not read (in {self.mode} mode)" + (advice and f": {advice}"))

    def require(self, kind, seen, what):
        if seen not in READER[kind]:
            self.refuse(f"has {what.format(seen)}")

    def graph(self, graph, depth):
        if depth > READER["deepest_graph"]:
            self.refuse(f"has graphs nested deeper than {READER['deepest_graph']}")
        for argument in (*graph["inputs"], *graph["outputs"]):
            self.argument(argument, depth)
        for argument in graph["inputs"]:
            meta = graph["tensor_values"].get(argument["as_tensor"]["name"]) if "as_tensor" in argument else None
            if meta is not None:
                self.tensor(meta)
        for node in graph["nodes"]:
            outside, self.where = self.where, self.place(node)
            self.operator(node["target"])
            for argument in (*(one["arg"] for one in node["inputs"]), *node["outputs"]):
                self.argument(argument, depth)
            self.where = outside

    def place(self, node):
        """As `net.py:12: torch.ops.aten.add.Tensor`."""
        frames = [(file, line) for file, line in re.findall(r'File "([^"]+)", line (\d+)', node["metadata"].get("stack_trace", ""))
                  if _is_own(file)]
        return (f"{frames[-1][0]}:{frames[-1][1]}: " if frames else "") + node["target"]

    def operator(self, target):
        otherwise = "write that line with PyTorch's operations"
        space, _, rest = target.removeprefix("torch.ops.").partition(".")
        name = f"{space}::{rest.rpartition('.')[0]}"
        if not target.startswith("torch.ops."):
            if target not in READER["functions"]:
                self.refuse("is a function of Python's", otherwise)
        elif space == "higher_order":
            if rest not in READER["higher_order"]:
                self.refuse("takes a graph as its argument", otherwise)
        elif name in READER["refused_operators"]:
            self.refuse("reads files", otherwise)
        elif space not in READER["namespaces"]:
            schema = torch._C._dispatch_dump(name if rest.endswith(".default") else f"{space}::{rest}")
            if not re.search(r"registered at \S+\.(cpp|cc|cxx|cu|h|hpp):", schema):
                self.refuse("is an operator that Python defines", otherwise)
            self.libraries.add(space)

    def argument(self, argument, depth):
        kind, value = next(iter(argument.items()))
        self.require("arguments", kind, "an argument of the kind {}")
        if kind == "as_graph":
            self.graph(value["graph"], depth + 1)
        elif kind == "as_string_to_argument":
            for one in value.values():
                self.argument(one, depth + 1)
        elif kind == "as_scalar_type":
            self.dtype(value)
        elif kind == "as_device":
            self.require("devices", value["type"], "an argument on the device {}")
        elif kind == "as_layout":
            self.require("layouts", value, "an argument that is not dense")
        elif kind == "as_memory_format":
            self.require("memory_formats", value, "an argument of the memory format {}")

    def dtype(self, number):
        names = {kind.value: kind.name for kind in torch._export.serde.schema.ScalarType}
        self.require("dtypes", number, f"the dtype {names.get(number, number)}")

    def tensor(self, meta):
        self.dtype(meta["dtype"])
        self.require("layouts", meta["layout"], "a layout that is not dense")
        if len(meta["sizes"]) > READER["most_dimensions"]:
            self.refuse(f"has more than {READER['most_dimensions']} dimensions")

    def tree(self, spec, depth):
        if depth > READER["deepest_tree"]:
            self.refuse(f"has arguments or results nested deeper than {READER['deepest_tree']}")
        if spec["type"] is None:
            return
        self.require("containers", spec["type"], "the container {}")
        keys = json.loads(spec["context"]) if spec["type"].endswith(("dict", "Dict")) else []
        if not (all(isinstance(key, str) for key in keys) or all(type(key) is int for key in keys)):
            self.refuse("has a dict whose keys are neither all texts nor all integers")
        for child in spec["children_spec"]:
            self.tree(child, depth + 1)

    def names(self):
        folders = {name.rsplit(".", end)[0] for name in self.weights for end in range(1, name.count(".") + 1)}
        for name in self.weights:
            self.where = f"the parameter or buffer {name}"
            if "" in name.split(".") or name.count(".") >= READER["deepest_name"]:
                self.refuse(f"has a name that is no path of at most {READER['deepest_name']} parts")
            if name in folders:
                self.refuse("has the name of a module")

    def overlaps(self):
        """What shares a record either is one tensor or lies apart in it."""
        by_record = collections.defaultdict(list)
        for name, entry in self.weights.items():
            meta = entry["tensor_meta"]
            sizes, strides = ([one["as_int"] for one in meta[key]] for key in ("sizes", "strides"))
            begin = meta["storage_offset"]["as_int"]
            end = 0 if 0 in sizes else begin + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
            by_record[entry["path_name"]].append((begin, end, (sizes, strides), name))
        for tensors in by_record.values():
            tensors.sort()
            for before, after in zip(tensors, tensors[1:]):
                if (before[0], before[2]) != (after[0], after[2]) and after[0] < before[1]:
                    self.where = f"{before[3]} and {after[3]}"
                    self.refuse("are different views of one storage", "give each its own (clone), or one tensor both names")

    def lost_gradients(self, program):
        """A weight to be trained that every operation reads without gradients, and none writes to."""
        names = {spec["parameter"]["arg"]["name"]: spec["parameter"]["parameter_name"]
                 for spec in program["signature"]["input_specs"] if "parameter" in spec}
        places = {name: (entry["path_name"], json.dumps(entry["tensor_meta"])) for name, entry in self.weights.items()
                  if entry["tensor_meta"]["requires_grad"]}
        reached, lost = set(), {}
        reached |= set(self.uses(program["graph"], names, True, reached, lost))
        reached = {places.get(name) for name in reached}
        for name, where in lost.items():
            if name in places and places[name] not in reached:
                raise ExportError(f"{where} reads the weight {name} without gradients, and nothing else reads it: it would never be "
                                  "trained. Freeze it before the export, or give a checkpoint use_reentrant=False")

    def uses(self, graph, names, has_gradients, reached, lost):
        """Which weights a graph reads with gradients or writes to, and which without, and where. `names` are Python's names of its values.
        Those of its outputs."""
        for node in graph["nodes"]:
            inputs = [one["arg"] for one in node["inputs"]]
            place = next((i for i, argument in enumerate(inputs) if "as_graph" in argument), None)
            if place is None:
                for value in _values(inputs):
                    if value in names and has_gradients:
                        reached.add(names[value])
                    elif value in names:
                        lost.setdefault(names[value], self.place(node))
                operator = node["target"].split(".")[-2]
                first = next(_values(inputs[:1]), None)
                if operator.endswith("_") and not operator.endswith("__") and first in names:
                    reached.add(names[first])
                    names |= {result: names[first] for result in _values(node["outputs"])}
            else:
                inner, outside = inputs[place]["as_graph"]["graph"], inputs[place + 1:]
                within = {a: names[b] for a, b in zip(_values(inner["inputs"]), _values(outside)) if b in names}
                enabled = inputs[0]["as_bool"] if node["target"].endswith("wrap_with_set_grad_enabled") else has_gradients
                outputs = self.uses(inner, within, enabled, reached, lost)
                names |= {a: b for a, b in zip(_values(node["outputs"]), outputs) if b}
        return [names.get(value, "") for value in _values(graph["outputs"])]


def _values(arguments):
    """The names of the tensors in arguments of the file."""
    if isinstance(arguments, dict):
        if set(arguments) == {"name"}:
            yield arguments["name"]
        arguments = list(arguments.values())
    for one in arguments if isinstance(arguments, list) else ():
        yield from _values(one)


def _tensors(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _gradients(outputs, parameters):
    """Of the sum of squares of the outputs' finite numbers, by name: for a tied weight the sum of what its names have."""

    def place(parameter):
        return (parameter.data_ptr(), parameter.stride()) if parameter.numel() else id(parameter)

    loss = 0
    for x in outputs:
        if x.requires_grad:
            x = torch.view_as_real(x) if x.is_complex() else x
            loss = loss + torch.where(x.isfinite(), x, 0).to(torch.promote_types(x.dtype, torch.float32)).square().sum()
    if not torch.is_tensor(loss) or not parameters:
        return {}
    once, sums = list({id(p): p for p in parameters.values()}.values()), {}
    for parameter, gradient in zip(once, torch.autograd.grad(loss, once, allow_unused=True)):
        if gradient is not None:
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            sums[place(parameter)] = sums[place(parameter)] + gradient if place(parameter) in sums else gradient
    return {name: sums.get(place(parameter)) for name, parameter in parameters.items()}


def _module(program):
    """Without PyTorch's check of the inputs, which cannot name those of **options."""
    has_check = "check_guards" in inspect.signature(program.module).parameters
    return program.module(**({"check_guards": False} if has_check else {}))


def _run(model, args, kwargs, with_gradients):
    """Outputs, gradients and buffers by what a message calls them."""
    torch.manual_seed(0)
    with torch.compiler.set_stance("force_eager"):
        outputs = _tensors(model(*_cloned(args), **_cloned(kwargs)))
    parameters = {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    gradients = _gradients(outputs, parameters if with_gradients else {})
    return ({f"output {i}": x.detach() for i, x in enumerate(outputs)} |
            {f"gradient of {name}": gradient for name, gradient in gradients.items()} |
            {f"buffer {name}": x.detach().clone() for name, x in model.named_buffers()})


def _difference(seen, expected):
    """The largest difference of numbers that are not the same, Inf and NaN included; NaN if one of two is NaN."""
    seen, expected = (torch.view_as_real(x) if x.is_complex() else x for x in (seen, expected))
    seen, expected = (x.float() if x.is_floating_point() and x.element_size() == 1 else x for x in (seen, expected))
    same = seen == expected
    if seen.is_floating_point():
        same |= seen.isnan() & expected.isnan()
    if same.all():
        return 0.0
    return (seen.double() - expected.double())[~same].abs().max().item()


def _compare(seen, expected, mode, than="Python's"):
    """The largest difference, which is refused if it is more than rounding."""
    worst = 0.0
    for what, b in expected.items():
        a = seen.get(what)
        if (a is None) != (b is None):
            raise ExportError(f"in {mode} mode the {what} is there in one of the exported network and Python's alone")
        if a is None:
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ExportError(f"in {mode} mode the {what} is {tuple(a.shape)} {a.dtype}, and {tuple(b.shape)} {b.dtype} in Python")
        difference = _difference(a, b)
        finite = b[b.isfinite()] if b.is_floating_point() or b.is_complex() else b
        limit = 1e-4 * max(1.0, finite.abs().max().item() if finite.numel() and difference else 0.0)
        if not difference <= limit:
            raise ExportError(f"in {mode} mode the {what} differs from {than} by {difference:g}")
        worst = max(worst, difference)
    return worst


def _drawn():
    """The states of Python's generators."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), pickle.dumps(numpy.random.get_state()) if numpy else None


def _line_of_draw(model, args, kwargs):
    lines, kinds = [], (random.Random, *((sys.modules["numpy"].random.RandomState,) if "numpy" in sys.modules else ()))

    def note(frame, event, function):
        if event == "c_call" and not lines and isinstance(getattr(function, "__self__", None), kinds):
            lines.append(_python_line(traceback.extract_stack(frame)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        _copied(model)(*_cloned(args), **_cloned(kwargs))
    finally:
        sys.setprofile(before)
    return lines[0] if lines else _forward_line(model)


def _numbers(model):
    """What modules keep beside tensors, by name, as texts."""

    def text(value, depth=0):
        if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
            return repr(value)
        if isinstance(value, random.Random):
            return repr(value.getstate())
        if hasattr(value, "bit_generator"):  # numpy's
            return repr(value.bit_generator.state)
        if isinstance(value, (list, tuple, set, collections.deque)) and depth < 4:
            return repr([text(one, depth + 1) for one in value])
        if isinstance(value, dict) and depth < 4:
            return repr([(text(key), text(one, depth + 1)) for key, one in value.items()])
        return ""

    own = set(torch.nn.Module().__dict__)
    return {f"{name}.{key}".lstrip("."): text(value) for name, module in model.named_modules()
            for key, value in module.__dict__.items() if key not in own}


def _observe(model, args, kwargs, mode, with_gradients):
    """What Python computes, the functions of its own that it calls, and notes. Refuses a model whose second call, from the same weights,
    buffers and seed, is another one."""
    twice, found, notes = _copied(model), {}, []
    state = [(tensor, tensor.detach().clone()) for tensor in (*twice.parameters(), *twice.buffers())]
    buffers = [(module, dict(module._buffers)) for module in twice.modules()]

    def call_again():
        with torch.no_grad():
            for tensor, value in state:
                tensor.copy_(value)
        for module, of_module in buffers:
            module._buffers.update(of_module)
        return _run(twice, args, kwargs, with_gradients=False)

    before = _drawn()
    with _watch_functions(found):
        expected = _run(twice, args, kwargs, with_gradients)
    if _drawn() != before:
        raise ExportError(f"{_line_of_draw(model, args, kwargs)}: forward draws a number from Python's random or numpy's, and the graph "
                          "would keep the one of the export: draw it with torch.rand, and compute with the tensor")
    numbers, again = _numbers(twice), call_again()
    for name, value in _numbers(twice).items():
        if numbers.get(name) != value:
            raise ExportError(f"{_forward_line(model)}: forward changes {name} in each call, and the graph would keep what it is now: "
                              "make it a buffer (register_buffer) and compute with the tensor, or leave it out")
    outputs = {what: value for what, value in expected.items() if what.startswith("output ")}
    apart = _compare(again, outputs, mode, than="that of a second call (forward depends on what Python keeps, draws or measures)")
    if apart:
        notes.append(f"{mode}: in Python a second call of the same weights and seed differs by {apart:.2g}")
    if mode == "eval":
        try:
            with torch.no_grad():
                _compare(call_again(), outputs, mode, than="that under no_grad")
        except ExportError:
            notes.append("eval: under torch.no_grad() Python computes something else, and the graph what it computes without: forward asks "
                         "whether gradients are enabled")
        except Exception:
            pass  # a forward that needs gradients
    return expected, found, notes


def _what_is_said(expected, worst, mode):
    """In words what was compared, and what of it are no numbers in Python either."""
    gradients = {what: value for what, value in expected.items() if what.startswith("gradient ")}
    reached = [what for what, value in gradients.items() if value is not None and value.any()]
    what = ["outputs"] if any(name.startswith("output ") for name in expected) else []
    if reached:
        what.append("gradients" if len(reached) == len(gradients) else f"gradients (of {len(reached)} of {len(gradients)} parameters)")
    if any(name.startswith("buffer ") for name in expected):
        what.append("buffers")
    if not what:
        return [f"{mode}: nothing was compared: forward returns no tensor"]
    text = what[0] if len(what) == 1 else ", ".join(what[:-1]) + " and " + what[-1]
    lines = [f"{mode}: {text} are Python's " + ("bit for bit" if worst == 0 else f"to {worst:.2g}")]
    odd = [name for name, value in expected.items() if value is not None and value.is_floating_point() and value.isnan().any()]
    if odd:
        lines.append(f"{mode}: NaN, in Python, too: {_some(odd)}")
    return lines


def _write(data, file):
    """The whole file or the one that was there."""
    file = os.path.realpath(file)
    part = f"{file}.part{os.getpid()}"
    try:
        with open(part, "wb") as out:
            out.write(data)
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise


@contextlib.contextmanager
def _as_it_was(model):
    """Gives the modes of all modules, and puts them and the states of random numbers back."""
    left = {name: (module, module.training) for name, module in model.named_modules()}
    numpy, state = sys.modules.get("numpy"), random.getstate()
    of_numpy = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.inference_mode(False), torch.enable_grad():
            yield left
    finally:
        for module, mode in left.values():
            module.training = mode
        random.setstate(state)
        if numpy:
            numpy.random.set_state(of_numpy)


def export(model, args, file, kwargs=None, dynamic_batch=True, dynamic_shapes=None, forward_only=()):
    """Writes the model's graphs in train and eval mode, and verifies both. Returns what to know about the file, as lines."""
    kwargs, model = kwargs or {}, _plain(model)
    if isinstance(args, torch.Tensor):
        raise ExportError("the inputs are one tensor, whose rows would be taken as arguments: give a tuple, (tensor,)")
    args = tuple(args)
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ExportError("a region of autocast is on, whose casts the file would keep: export outside of it")
    _refuse_model(model, file)
    _refuse_hooks(model)
    shapes = dynamic_shapes if dynamic_shapes is not None else _shapes(model, args, kwargs) if dynamic_batch else None
    notes, programs, expected, has_functions = [], {}, {}, False
    with _as_it_was(model) as left:
        for name, mode in (("model", "train"), ("eval", "eval")):
            parts = _set_mode(model, mode, left)
            if parts:
                notes.append(f"{mode}: {_some(parts)} in {'eval' if mode == 'train' else 'train'} mode, as you left it")
            expected[mode], found, observed = _observe(model, args, kwargs, mode, not has_functions)
            notes += observed
            has_functions |= _refuse_functions(found, forward_only)
            programs[name] = _export_one(model, args, kwargs, shapes, mode)
            _name_containers(programs[name], _forward_line(model))
            if shapes is not None and dynamic_shapes is None and not _is_dynamic(programs[name]):
                notes.append(f"in {mode} mode the number of rows is fixed: something in forward needs it")
        records, libraries = _records(programs), set()
        del programs
        for mode in expected:
            libraries |= _Reading(records, mode).libraries
        data = _archive(records)
        del records
        loaded = load_pt2(io.BytesIO(data)).exported_programs
        for name, mode in (("model", "train"), ("eval", "eval")):
            seen = _run(_module(loaded.pop(name)), args, kwargs, not has_functions)
            # Without buffers that no operation reads and that are not saved.
            expected[mode] = {what: x for what, x in expected[mode].items()
                              if not (has_functions and what.startswith("gradient ")) and (what in seen or not what.startswith("buffer "))}
            if sum(what.startswith("output ") for what in seen) != sum(what.startswith("output ") for what in expected[mode]):
                raise ExportError(f"in {mode} mode the exported network has another number of outputs than Python's")
            notes += _what_is_said(expected[mode], _compare(seen, expected[mode], mode), mode)
    notes += [f"the C++ program has to load the library of the operators {space}::" for space in sorted(libraries)]
    _write(data, file)
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
        flat = torch.frombuffer(raw, dtype=torch.uint8).view(DTYPES[entry["dtype"]]) if raw else torch.empty(0, dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def load_weights(model, file):
    """Loads a safetensors file of demi into the module's parameters and saved buffers, strictly; a tied weight may stand there under
    one of its names."""
    model, tensors = _plain(model), _read_safetensors(file)
    own = dict(model.named_parameters(remove_duplicate=False))
    for name, module in model.named_modules(remove_duplicate=False):
        own |= {f"{name}.{key}".lstrip("."): buffer for key, buffer in module._buffers.items()
                if buffer is not None and key not in module._non_persistent_buffers_set}
    by_place = {id(own[name]): tensor for name, tensor in tensors.items() if name in own}
    for kind, names in (("lacks", [name for name in own if id(own[name]) not in by_place]),
                        ("has, and the network lacks,", [name for name in tensors if name not in own])):
        if names:
            raise ExportError(f"{file} {kind} {_some(names)}")
    for name, tensor in own.items():
        if by_place[id(tensor)].shape != tensor.shape:
            raise ExportError(f"{file}: {name} is {tuple(by_place[id(tensor)].shape)}, and {tuple(tensor.shape)} in the network")
    with torch.no_grad():
        for tensor in own.values():
            tensor.copy_(by_place[id(tensor)])


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
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.network)))
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
