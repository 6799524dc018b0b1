#!/usr/bin/env python3
"""The peers of a training step in Python, in small: peers_test.py SOURCE [--compiled]. Exits with 77 without `pip install torch`.

What they print; that a loader's batches are as demi's; errors for lines that cannot be meant. With --compiled what torch.compile makes of
them, alone: a minute."""
import contextlib
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ["OMP_NUM_THREADS"] = "1"
try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PEERS = Path(sys.argv.pop(1)).resolve() / "benchmarks/peers"
COMPILED = "--compiled" in sys.argv
sys.argv = [word for word in sys.argv if word != "--compiled"]
sys.path.insert(0, str(PEERS))
import nanogpt_peer  # noqa: E402
import recipe_data  # noqa: E402
import recipe_peer  # noqa: E402
import timed_step  # noqa: E402

# In nanoGPT's place: what the peer calls of it.
MODEL = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.n_head
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.embedding.weight
        print("number of parameters: few")

    def get_num_params(self):
        return sum(p.numel() for p in self.parameters())

    def configure_optimizers(self, decay, rate, betas, device):
        return torch.optim.AdamW(self.parameters(), lr=rate, betas=betas, weight_decay=decay)

    def forward(self, x, y):
        x = self.embedding(x)
        b, t, c = x.shape
        q = x.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        x = x + nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(b, t, c)
        logits = self.lm_head(x)
        return logits, nn.functional.cross_entropy(logits.view(-1, logits.size(-1)).float(), y.view(-1))
"""


def answered(main, *options):
    """Exit code, standard output and what was said of a line, in this process."""
    out, said = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", ["peer", *map(str, options)]), mock.patch.object(sys, "stdout", out), \
            mock.patch.object(sys, "path", list(sys.path)), contextlib.redirect_stderr(said):
        try:
            main()
            return 0, out.getvalue(), said.getvalue()
        except SystemExit as end:
            return end.code, out.getvalue(), said.getvalue()


def printed(main, *options):
    code, out, said = answered(main, *options)
    if code != 0:
        raise AssertionError(f"{options} ended with {code}: {said}")
    return json.loads(out)


def printed_compiled(peer, *options):
    """In a process of its own that finds nothing compiled."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = subprocess.run([sys.executable, PEERS / peer, *map(str, options), "--compile", "default"], capture_output=True, text=True,
                              env=environment, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{peer} {options} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


eager = unittest.skipIf(COMPILED, "without --compiled")
compiled = unittest.skipUnless(COMPILED, "with --compiled")


@eager
class RecipeTest(unittest.TestCase):
    SMALL = {"mlp": ["--width", 8], "fashion-cnn": [], "cifar10-resnet50": [], "imdb-lstm": ["--length", 4]}

    def test_each_recipe_with_its_batches(self):
        for recipe, sizes in self.SMALL.items():
            with self.subTest(recipe=recipe):
                precision = "fp32" if recipe == "imdb-lstm" else "bf16"  # oneDNN has no LSTM in bf16 for AVX2
                found = printed(recipe_peer.main, recipe, *sizes, "--batch-size", 2, "--loader", "--warmup", 1, "--steps", 2,
                                "--precision", precision)
                self.assertTrue(0 < found["min_ms"] <= found["ms"] <= found["max_ms"])
                self.assertEqual((found["data"], found["compile"], found["batch_size"]), ("loader", None, 2))
                self.assertEqual(found["flop"] is None, recipe == "imdb-lstm")
                self.assertNotIn("cudnn", found)

    def test_flop_of_three_layers(self):
        found = printed(recipe_peer.main, "mlp", "--width", 8, "--batch-size", 4, "--warmup", 1, "--steps", 1)
        self.assertEqual(found["flop"], 2 * 4 * 8 * 8 * (3 * 3 - 1))  # the first layer's input needs no gradient
        self.assertEqual(found["data"], "resident")

    def test_wrong_lines(self):
        for options, words in {("mlp", "--batch-size", "0"): "0 is no whole number of 1 or more",
                               ("mlp", "--steps", "none"): "none is no whole number of 1 or more",
                               ("mlp", "--warmup", "0"): "0 is no whole number of 1 or more",
                               ("mlp", "--compile", "fast"): "invalid choice", ("resnet", ): "invalid choice",
                               ("imdb-lstm", "--loader", "--batch-size", "641"): "the data set of imdb-lstm has 640 examples",
                               ("mlp", "--cudnn-benchmark"): "--cudnn-benchmark needs --device cuda"}.items():
            with self.subTest(options=options):
                code, _, said = answered(recipe_peer.main, *options)
                self.assertEqual(code, 2)
                self.assertIn(words, said)

    @unittest.skipIf(torch.cuda.is_available(), "here is a GPU")
    def test_no_gpu(self):
        for main, line in ((recipe_peer.main, ["mlp"]), (nanogpt_peer.main, [".", "text", "speed"])):
            code, _, said = answered(main, *line, "--device", "cuda")
            self.assertEqual(code, 2)
            self.assertIn("finds no GPU", said)


@eager
class WarmUpTest(unittest.TestCase):
    def steps(self, compiles, warmup, mode="default"):
        """Steps taken for a model that compiles in those, counted from 1."""
        taken, compilations = 0, 0

        def step():
            nonlocal taken, compilations
            taken += 1
            compilations += taken in compiles

        with mock.patch.object(timed_step, "compilations", lambda: compilations):
            seconds = timed_step.warm_up(step, SimpleNamespace(compile=mode, warmup=warmup, device="cpu"))
        return taken, seconds

    def test_it_ends_when_nothing_more_is_compiled(self):
        self.assertEqual(self.steps({1}, 2)[0], 1 + 3)
        self.assertEqual(self.steps({1, 2, 4}, 5)[0], 4 + 5)
        self.assertEqual(self.steps(set(), 2), (3, 0.0))  # nothing that can be compiled
        self.assertEqual(self.steps({1}, 2, mode=None), (2, None))

    def test_a_model_that_never_stops(self):
        with self.assertRaisesRegex(SystemExit, "still compiles after 100 steps"):
            self.steps(set(range(1000)), 2)

    def test_what_torch_compile_cannot_do_is_a_line(self):
        def fail():
            raise ValueError("no g++\nand a long story")

        parser = SimpleNamespace(prog="recipe_peer.py")
        with self.assertRaisesRegex(SystemExit, r"recipe_peer.py: torch.compile\(mode=default\) failed: ValueError: no g\+\+$"):
            timed_step.run(parser, SimpleNamespace(compile="default"), fail)
        with self.assertRaises(ValueError):  # a fault of the peer, not of the machine
            timed_step.run(parser, SimpleNamespace(compile=None), fail)


@eager
class LoaderTest(unittest.TestCase):
    def options(self, recipe, batch_size, **more):
        return SimpleNamespace(recipe=recipe, batch_size=batch_size, device="cpu", **more)

    def test_an_epoch_has_each_example_once_and_the_next_another_order(self):
        a = self.options("imdb-lstm", 100)
        places = list(itertools.islice(recipe_data.chosen(a), 12))  # 640: six batches and 40 left out
        epochs = [torch.cat(places[:6]).tolist(), torch.cat(places[6:]).tolist()]
        for epoch in epochs:
            self.assertEqual(len(set(epoch)), 600)
        self.assertNotEqual(epochs[0], epochs[1])

    def test_rows_are_views_in_order(self):
        batches = list(itertools.islice(recipe_data.rows(self.options("mlp", 4, width=3)), 51))
        self.assertEqual(batches[1][0].data_ptr() - batches[0][0].data_ptr(), 4 * 3 * 4)
        self.assertEqual(batches[50][0].data_ptr(), batches[0][0].data_ptr())
        self.assertEqual([t.shape for t in batches[0]], [(4, 3), (4, 3)])

    def test_pictures_are_normalised_in_channels_last(self):
        for recipe, shape in {"fashion-cnn": (8, 1, 28, 28), "cifar10-resnet50": (8, 3, 32, 32)}.items():
            x, y = next(recipe_data.pictures(self.options(recipe, 8)))
            self.assertEqual((x.shape, x.dtype, y.dtype, y.shape), (shape, torch.float32, torch.int64, (8, )))
            self.assertTrue(x.is_contiguous(memory_format=torch.channels_last))
            _, _, _, classes, mean, deviation, _ = recipe_data.PICTURES[recipe]
            self.assertTrue(0 <= y.min() and y.max() < classes)
            for channel, (m, s) in enumerate(zip(mean, deviation)):
                byte = 255 * (x[:, channel] * s + m)
                torch.testing.assert_close(byte, byte.round(), atol=1e-3, rtol=0)
                self.assertTrue(-1e-3 < byte.min() and byte.max() < 255.001)

    def test_a_crop_is_a_window_of_the_padded_picture(self):
        images = torch.arange(1, 1 + 6 * 2 * 5 * 4).view(6, 2, 5, 4)
        padded = torch.nn.functional.pad(images, [2] * 4)
        seen = set()
        for _ in range(20):
            for picture, crop in zip(padded, recipe_data.cropped(images, 2)):
                windows = {(top, left, mirrored): picture[:, top:top + 5, left:left + 4].flip(2) if mirrored else
                           picture[:, top:top + 5, left:left + 4] for top in range(5) for left in range(5) for mirrored in (0, 1)}
                found = [place for place, window in windows.items() if torch.equal(window, crop)]
                self.assertEqual(len(found), 1)
                seen |= set(found)
        self.assertEqual([{place[i] for place in seen} for i in range(3)], [set(range(5)), set(range(5)), {0, 1}])

    def test_texts(self):
        x, y = next(recipe_data.texts(self.options("imdb-lstm", 3, length=7)))
        self.assertEqual((x.shape, x.dtype, y.shape, y.dtype), ((3, 7), torch.int64, (3, 1), torch.float32))


class WithModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "model.py").write_text(MODEL)
        (self.folder / "text.txt").write_text("To be, or not to be. " * 40)
        (self.folder / "short.txt").write_text("To be")
        self.small = ["--layers", 1, "--heads", 2, "--width", 16, "--context", 8, "--batch", 2]


@eager
class NanoGPTTest(WithModel):
    def test_padded_words_and_the_attention_that_ran(self):
        found = printed(nanogpt_peer.main, self.folder, "-", "speed", *self.small, "--words", 50, "--vocabulary", 64, "--warmup", 1,
                        "--steps", 3)
        self.assertEqual((found["words"], found["vocabulary"], found["parameters"]), (50, 64, 64 * 16))
        self.assertEqual(found["flop"], 2 * 8 * (6 * 64 * 16 + 12 * 1 * 16 * 8))
        self.assertEqual(found["attention"], ["flash of the CPU"])
        self.assertTrue(0 < found["ms"]["min"] <= found["ms"]["median"] <= found["ms"]["max"])

    def test_training(self):
        found = printed(nanogpt_peer.main, self.folder, self.folder / "text.txt", "train", *self.small, "--steps", 60, "--every", 20)
        self.assertEqual(len(found["losses"]), 3)
        self.assertEqual(found["best"], min(found["losses"]))
        self.assertEqual(found["losses"], sorted(found["losses"], reverse=True))

    def test_wrong_lines(self):
        text, speed = self.folder / "text.txt", [*self.small, "--steps", 1, "--warmup", 1]
        for line, words in {("/nowhere", text, "speed"): "holds no model.py", (self.folder, "/nowhere", "speed"): "cannot be read",
                            (self.folder, self.folder / "short.txt", "speed", *speed): "is too short",
                            (self.folder, text, "speed", *speed, "--vocabulary", 3): "is less than the",
                            (self.folder, text, "speed", "--width", 30): "no multiple of --heads 4",
                            (self.folder, text, "speed", "--dropout", 1.5): "--dropout 1.5",
                            (self.folder, text, "speed", "--words", 10): "TEXT is a file, or -",
                            (self.folder, "-", "speed"): "TEXT is a file, or -",
                            (self.folder, "-", "train", "--words", 10): "cannot be learned",
                            (self.folder, text, "train", "--steps", 10): "nothing would be validated",
                            (self.folder, text, "speed", "--context", 0): "0 is no whole number"}.items():
            with self.subTest(line=line):
                code, _, said = answered(nanogpt_peer.main, *line)
                self.assertEqual(code, 2)
                self.assertIn(words, said)


@compiled
class CompiledTest(WithModel):
    def test_a_recipe(self):
        found = printed_compiled("recipe_peer.py", "mlp", "--width", 8, "--batch-size", 4, "--warmup", 3, "--steps", 2)
        self.assertEqual((found["compile"], found["graphs"], found["graph_breaks"]), ("default", 1, 0))
        self.assertGreater(1e3 * found["compile_seconds"], 10 * found["max_ms"])  # none of it was timed

    def test_nanogpt(self):
        found = printed_compiled("nanogpt_peer.py", self.folder, self.folder / "text.txt", "speed", *self.small, "--steps", 2)
        self.assertEqual((found["compile"], found["graphs"]), ("default", 1))
        self.assertEqual(found["attention"], ["flash of the CPU"])


if __name__ == "__main__":
    unittest.main()
