#!/usr/bin/env python3
"""scripts/demi_export.py: what it writes C++ reads, what C++ would not read or a graph cannot hold it refuses with words.

    export_script_test.py PARTNER

PARTNER is the program imported_partner, which trains each file: the same bits as in Python. Exits with 77 without torch and safetensors.
"""
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

from imported_agreement import SAME, Partner, demi_export, nn, save_file, torch, train  # exits with 77
from torch._higher_order_ops import scan, while_loop

PARTNER = sys.argv.pop(1)
warnings.simplefilter("ignore")


class Forward(nn.Module):
    """A layer, and a function of it and of the input."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self, x)


class Star(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, *xs):
        return self.layer(xs[0]) + xs[1]


class Options(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, **options):
        return self.layer(x) + options["y"]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.step = nn.Linear(4, 4), 0

    def forward(self, x):
        self.step += 1
        return self.layer(x) / self.step


class LayerDrop(nn.Module):
    """At the rate of Python's default it passes 3 of 10 exports by luck."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if not self.training or random.random() > 0.1:
                x = layer(x)
        return x


class Views(nn.Module):
    """Two parameters of one storage."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def forward(self, x):
        return x @ self.first.square() @ self.second


class Nested(nn.Module):
    """A name of this many parts."""

    def __init__(self, parts):
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False) if parts == 2 else Nested(parts - 1)

    def forward(self, x):
        return self.a(x)


class Target(nn.Module):
    """As SimSiam: the target is the network's own output without gradients; or that of a part that is never trained."""

    def __init__(self, of_itself):
        super().__init__()
        self.online, self.target = nn.Linear(4, 4), nn.Linear(4, 4)
        self.of_itself = of_itself

    def forward(self, x):
        with torch.no_grad():
            target = torch.tanh((self.online if self.of_itself else self.target)(x) + x)
        return self.online(x) - target


class Versioned(nn.Module):
    """As torchvision's MNASNet: without a version in the state it takes the file for an old one. With state that is no tensor."""
    _version = 2

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def get_extra_state(self):
        return {"made": "here"}

    def set_extra_state(self, state):
        pass

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        if metadata.get("version") is None:
            raise ValueError("an old file")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


@torch.library.custom_op("export_script_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda context, gradient: gradient * 2)


def with_buffer(tensor):
    model = Forward(lambda self, x: self.layer(x) * self.buffer.float())
    model.register_buffer("buffer", tensor)
    return model


def frozen_batch_norm(mode=True):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train(mode)
    model[1].eval()
    return model


def with_hook(register):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    register(model)
    return model


def compiled_part():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0] = torch.compile(model[0])
    return model


def tied():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    return model


X = torch.linspace(-1, 1, 12).reshape(3, 4)
TOKENS = torch.tensor([[1, 2], [3, 4], [1, 9]])
SQUARE, LINE = torch.linspace(-1, 1, 16).reshape(4, 4), torch.linspace(-1, 1, 20)

# They train in C++ as in Python, bit for bit.
TAKEN = {
    "batch norm that was frozen": (frozen_batch_norm, (X,)),
    "sparse gradient": (lambda: nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4)), (TOKENS,)),
    "star": (Star, (X, X + 1)),
    "compiled": (lambda: torch.compile(nn.Linear(4, 4)), (X,)),
    "compiled part": (compiled_part, (X,)),
    "tied": (tied, (TOKENS,)),
    "hook of forward": (lambda: with_hook(lambda m: m[0].register_forward_hook(lambda module, x, y: 2 * y)), (X,)),
    "random numbers of torch": (lambda: Forward(lambda self, x: self.layer(x) * torch.rand_like(x)), (X,)),
    "cache of the first call": (lambda: Forward(lambda self, x: (setattr(self, "size", x.shape[1]), self.layer(x))[1]), (X,)),
    "a name of 64 parts": (lambda: Nested(64), (X,)),
    "buffer of uint16": (lambda: with_buffer(torch.ones(4, dtype=torch.uint16)), (X,)),
    "views that lie apart": (lambda: Views(*torch.cat([SQUARE, SQUARE]).split(4)), (X,)),
}
# And what is said of the others.
REFUSED = {
    "layer drop": (LayerDrop, "draws a number from Python's random"),
    "numpy's number": (lambda: Forward(lambda self, x: self.layer(x) * float(sys.modules["numpy"].random.rand())), "or numpy's"),
    "generator of its own": (lambda: Forward(lambda self, x, own=random.Random(0): self.layer(x) * own.random()), "of a second call"),
    "clock": (lambda: Forward(lambda self, x: self.layer(x) * (time.perf_counter_ns() % 10007)), "of a second call"),
    "counter": (Counter, "forward changes step in each call"),
    "list that grows": (lambda: Forward(lambda self, x: (self.__dict__.setdefault("seen", []).append(1), self.layer(x))[1]),
                        "forward changes seen in each call"),
    "hook of a parameter": (lambda: with_hook(lambda m: m[0].weight.register_hook(lambda g: g * 0)),
                            "the parameter 0.weight has a hook"),
    "hook behind a gradient": (lambda: with_hook(lambda m: m[1].bias.register_post_accumulate_grad_hook(lambda p: None)),
                               "the parameter 1.bias has a hook"),
    "hook of backward": (lambda: with_hook(lambda m: m[1].register_full_backward_hook(lambda *a: None)), "the module 1 has a hook"),
    "hook in forward": (lambda: Forward(lambda self, x: (lambda y: (y.register_hook(lambda g: g * 3), y)[1])(self.layer(x))),
                        "the gradient of layer.weight differs"),
    "cond": (lambda: Forward(lambda self, x: torch.cond(x.sum() > 0, self.layer, torch.cos, (x,))), "higher_order.cond takes a graph"),
    "while_loop": (lambda: Forward(lambda self, x: while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin()),
                                                              (torch.tensor(0), self.layer(x)))[1]), "while_loop takes a graph"),
    "scan": (lambda: Forward(lambda self, x: scan(lambda c, a: (c + a, c * a), torch.zeros(4), self.layer(x))[1]), "scan takes a graph"),
    "vmap": (lambda: Forward(lambda self, x: torch.vmap(self.layer)(x)), "is a function of Python's"),
    "operator of Python's": (lambda: Forward(lambda self, x: twice(self.layer(x))), "is an operator that Python defines"),
    "transposed tie": (lambda: Views(SQUARE, SQUARE.t()), "different views of one storage"),
    "overlapping views": (lambda: Views(LINE[:16].view(4, 4), LINE[4:].view(4, 4)), "different views of one storage"),
    "a name of 65 parts": (lambda: Nested(65), "a name that is no path of at most 64 parts"),
    "fnuz": (lambda: with_buffer(torch.ones(4).to(torch.float8_e4m3fnuz)), "buffer has the dtype FLOAT8E4M3FNUZ"),
    "keys of two kinds": (lambda: Forward(lambda self, x: {1: self.layer(x), "a": x}), "neither all texts nor all integers"),
    "weight without gradients": (lambda: Target(of_itself=False), "reads the weight target.weight without gradients"),
    "old weight_norm": (lambda: nn.utils.weight_norm(nn.Linear(4, 4)), "torch.nn.utils.parametrizations"),
    "reentrant checkpoint": (lambda: Forward(lambda self, x: torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=True)),
                             "give use_reentrant=False"),
}


class Exports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.file = folder.name, os.path.join(folder.name, "model.pt2")

    def export(self, model, args=(X,), **options):
        return demi_export.export(model, args, self.file, **options)

    def refused(self, words, model, args=(X,), **options):
        with contextlib.suppress(OSError):
            os.remove(self.file)
        with self.assertRaises(demi_export.ExportError) as refused:
            self.export(model, args, **options)
        self.assertIn(words, str(refused.exception))
        self.assertFalse(os.path.exists(self.file))

    def test_what_is_taken_trains_in_cpp_as_in_python(self):
        for name, (make, args) in TAKEN.items():
            with self.subTest(name):
                torch.manual_seed(0)
                model = make()
                notes = self.export(model, args)
                self.assertTrue(any("bit for bit" in note for note in notes), notes)
                expected = train(demi_export._plain(model), args, steps=3)
                self.assertEqual(Partner(PARTNER, self.folder, args).compare(self.file, expected, steps=3), SAME)

    def test_what_is_refused_is_said(self):
        for name, (make, words) in REFUSED.items():
            with self.subTest(name):
                self.refused(words, make())

    def test_a_line_is_a_line_of_a_file(self):
        space = {"nn": nn}
        exec("class Typed(nn.Linear):\n    def forward(self, x):\n        return x if x.sum() > 0 else super().forward(x)", space)
        self.refused("Typed: cannot be exported in train mode", space["Typed"](4, 4))
        self.refused("export_script_test.py:", LayerDrop())

    def test_modes_are_as_they_were_left(self):
        self.assertIn("train: 1 in eval mode, as you left it", self.export(frozen_batch_norm()))
        notes = self.export(frozen_batch_norm(mode=False))  # all in eval mode: nothing is said of training
        self.assertFalse(any("as you left it" in note for note in notes), notes)
        model = frozen_batch_norm()
        self.export(model)
        self.assertEqual([m.training for m in model.modules()], [True, True, False, True])
        expected = train(model, (X,), steps=3)
        self.assertEqual(Partner(PARTNER, self.folder, (X,)).compare(self.file, expected, steps=3), SAME)
        self.assertEqual(expected["weight.1.num_batches_tracked"], 0)

    def test_random_numbers_go_on_as_if_nothing_was_exported(self):
        model = nn.Linear(4, 4)
        random.seed(3), torch.manual_seed(3)
        expected = random.random(), torch.rand(2).tolist()
        random.seed(3), torch.manual_seed(3)
        self.export(model)
        self.assertEqual((random.random(), torch.rand(2).tolist()), expected)

    def test_what_was_compared_is_said(self):
        both = "train: outputs and gradients are Python's bit for bit"
        self.assertIn(both, self.export(nn.Linear(4, 4)))
        with torch.no_grad():
            self.assertIn(both, self.export(nn.Linear(4, 4)))
        model = nn.Linear(4, 4)
        with torch.inference_mode():
            self.assertIn(both, self.export(model))
        self.assertIn("train: outputs are Python's bit for bit", self.export(nn.Linear(4, 4).requires_grad_(False)))
        self.assertIn("train: nothing was compared: forward returns no tensor", self.export(Forward(lambda self, x: None)))
        self.assertIn("eval: outputs, gradients and buffers are Python's bit for bit", self.export(nn.BatchNorm1d(4)))
        model = Forward(lambda self, x: self.layer(x).detach() + self.extra)
        model.extra = nn.Parameter(torch.ones(4))
        self.assertIn("train: outputs and gradients (of 1 of 3 parameters) are Python's bit for bit", self.export(model))

    def test_what_is_no_network_with_numbers_is_said(self):
        for words, model in {"call the model once": nn.LazyLinear(4), "on the device meta": nn.Linear(4, 4, device="meta"),
                             "torch.jit.save": torch.jit.script(nn.Linear(4, 4)), "give a torch.nn.Module": torch.cos}.items():
            self.refused(words, model)
        self.file = os.path.join(self.folder, "nowhere", "model.pt2")
        self.refused("nowhere is no folder", nn.Linear(4, 4))

    def test_casts_of_a_region_outside_are_not_kept(self):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.refused("a region of autocast is on", nn.Linear(4, 4))

    def test_infinity_and_nan_are_compared_number_by_number(self):
        infinite = Forward(lambda self, x: self.layer(x).masked_fill(x > 0, -torch.inf))
        self.assertIn("train: outputs and gradients are Python's bit for bit", self.export(infinite))
        notes = self.export(Forward(lambda self, x: self.layer(x).sqrt()))
        self.assertTrue(any("NaN, in Python, too: output 0" in note for note in notes), notes)
        nan, inf, one, other = torch.nan, torch.inf, torch.tensor([torch.nan, 1.0, 2.0]), torch.tensor([torch.nan, 1.0, 3.0])
        same = [(one, one), (torch.tensor([inf, -inf]),) * 2, (torch.tensor([1j]),) * 2]
        unlike = [(one, other), (torch.tensor([nan, 1.0]), torch.tensor([1.0, nan])), (torch.tensor([inf]), torch.tensor([-inf])),
                  (torch.tensor([1 + 1j]), torch.tensor([1 - 1j])), (torch.tensor([inf]), torch.tensor([1.0])),
                  (torch.tensor([2**62]), torch.tensor([2**62 + 2**50])), (torch.ones(2), torch.ones(1)), (one, one.double())]
        for a, b in same:
            self.assertEqual(demi_export._compare({"output 0": a}, {"output 0": b}, "train"), 0)
        for a, b in unlike:
            with self.assertRaises(demi_export.ExportError, msg=f"{a} {b}"):
                demi_export._compare({"output 0": a}, {"output 0": b}, "train")

    def test_what_is_another_under_no_grad_is_said(self):
        asks = Forward(lambda self, x: self.layer(x) * (2 if torch.is_grad_enabled() else 1))
        self.assertTrue(any(note.startswith("eval: under torch.no_grad()") for note in self.export(asks)))
        needs = Forward(lambda self, x: (lambda y: (y.register_hook(lambda g: g), y)[1])(self.layer(x)))
        self.assertEqual(len(self.export(needs)), 2)

    def test_a_weight_may_be_read_without_gradients_if_something_trains_it(self):
        notes = self.export(Target(of_itself=True))
        self.assertIn("train: outputs and gradients (of 2 of 4 parameters) are Python's bit for bit", notes)
        self.export(Target(of_itself=False).requires_grad_(False))

    def test_arguments_of_each_form(self):
        self.export(Options(), kwargs={"y": X})
        loaded = torch.export.pt2_archive._package.load_pt2(self.file).exported_programs["model"]
        self.assertEqual([str(node.meta["val"].shape[0]).isdigit() for node in loaded.graph.nodes if node.name in ("x", "y")], [False] * 2)

    def test_rows_that_a_guard_fixes_are_said(self):
        notes = self.export(Forward(lambda self, x: self.layer(x) if x.shape[0] == 3 else x))
        self.assertIn("in train mode the number of rows is fixed: something in forward needs it", notes)

    def test_the_program_takes_a_file_that_imports_its_neighbour(self):
        for name, text in {"parts": "import torch\nmake_layer = torch.nn.Linear\n",
                           "net": "import torch\nfrom parts import make_layer\ndef make():\n    return make_layer(4, 4), (torch.ones(3, 4),)\n"}.items():
            with open(os.path.join(self.folder, name + ".py"), "w") as file:
                file.write(text)
        done = subprocess.run([sys.executable, demi_export.__file__, os.path.join(self.folder, "net.py"), self.file], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("train: outputs and gradients are Python's bit for bit", done.stdout)

    def test_the_old_file_stays_until_the_new_one_is_whole(self):
        with open(self.file, "w") as file:
            file.write("old")
        replace, os.replace = os.replace, self.fail_to_write
        try:
            with self.assertRaises(OSError):
                self.export(nn.Linear(4, 4))
        finally:
            os.replace = replace
        self.assertEqual(os.listdir(self.folder), ["model.pt2"])
        with open(self.file) as file:
            self.assertEqual(file.read(), "old")

    @staticmethod
    def fail_to_write(*arguments):
        raise OSError("the disk is full")


class Weights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "weights.safetensors")

    def test_versions_and_other_state_do_not_matter(self):
        model = Versioned()
        save_file({"layer.weight": SQUARE, "layer.bias": X[0].clone()}, self.file)
        demi_export.load_weights(model, self.file)
        self.assertTrue(model.layer.weight.equal(SQUARE))

    def test_each_dtype_comes_back(self):
        model = nn.Module()
        for dtype in demi_export.DTYPES.values():
            model.register_buffer("of_" + str(dtype).split(".")[1], torch.zeros(2, 3).to(dtype))
        values = {name: torch.tensor([[0, 1, 1], [1, 0, 0]]).to(buffer.dtype) for name, buffer in model.named_buffers()}
        values["of_complex64"] *= 1 - 2j
        save_file(values, self.file)
        demi_export.load_weights(model, self.file)
        for name, buffer in model.named_buffers():
            self.assertEqual(buffer.view(torch.uint8).tolist(), values[name].view(torch.uint8).tolist(), name)

    def test_they_are_loaded_strictly(self):
        whole = {"weight": SQUARE, "bias": X[0].clone()}
        for tensors, words in (({"weight": SQUARE}, "lacks bias"), (whole | {"more": X}, "the network lacks, more"),
                               (whole | {"bias": X.clone()}, "bias is (3, 4), and (4,) in the network")):
            save_file(tensors, self.file)
            with self.assertRaisesRegex(demi_export.ExportError, words.replace("(", r"\(").replace(")", r"\)")):
                demi_export.load_weights(nn.Linear(4, 4), self.file)

    def test_a_tied_weight_needs_one_of_its_names(self):
        save_file({"1.weight": torch.ones(10, 4)}, self.file)
        model = tied()
        demi_export.load_weights(model, self.file)
        self.assertTrue(model[0].weight.equal(torch.ones(10, 4)))
        self.assertIs(model[0].weight, model[1].weight)

    def test_a_compiled_network_has_the_names_of_the_plain_one(self):
        save_file({"weight": SQUARE, "bias": X[0].clone()}, self.file)
        model = nn.Linear(4, 4)
        demi_export.load_weights(torch.compile(model), self.file)
        self.assertTrue(model.weight.equal(SQUARE))


if __name__ == "__main__":
    unittest.main()
