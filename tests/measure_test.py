#!/usr/bin/env python3
"""What benchmarks/measure.py asks of demi and its peer, and makes of the answers: measure_test.py SOURCE

Scripts stand in for the program, for Python and for nvidia-smi. Also the table of results_table.py: of files from before a figure was
measured, too."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "benchmarks"))
import measure  # noqa: E402
import results_table  # noqa: E402

DEMI = """#!/usr/bin/env -S python3 -SE
import json, sys
if sys.argv[1:3] == ["data", "list"]:
    print(json.dumps({"data_sets": [{"name": "fashion-mnist", "folder": "here"}, {"name": "cifar10", "folder": ""}]}))
elif sys.argv[1:3] == ["bench", "matmul"]:
    print(json.dumps({"rows": [], "peak_tflops": {"fp32": 50, "tf32": 400, "fp16": 800, "bf16": 800}}))
else:
    runs = ["fp32"] + (sys.argv[sys.argv.index("--runs") + 1].split(",") if "--runs" in sys.argv else ["bf16"])
    print(json.dumps({"runs": [{"precision": one, "ms": 100.0 if one == "fp32" else 50.0} for one in runs]}))
"""
# ms by mode of torch.compile and by whether memory is kept.
PEER = """#!/usr/bin/env -S python3 -SE
import json, os, sys
mode = sys.argv[sys.argv.index("--compile") + 1] if "--compile" in sys.argv else None
if mode == "reduce-overhead":
    sys.exit("torch.compile(mode=reduce-overhead) failed: CppCompileError: no g++")
ms = {None: 110.0 if "MALLOC_TOP_PAD_" in os.environ else 150.0, "default": 105.0, "max-autotune": 90.0}[mode]
answer = {"ms": ms, "compile": mode, "compile_seconds": 7.0, "graphs": 1, "flop": 2e12, "data": "loader"}
if "nanogpt_peer.py" in sys.argv[1]:
    answer |= {"ms": {"median": ms}, "attention": ["flash"], "vocabulary": 50304}
    del answer["data"]
if "cuda" in sys.argv:
    answer |= {"cudnn": {"version": 92000, "benchmark": True, "deterministic": False}, "tf32": {"matmul": False, "cudnn": True}}
print(json.dumps(answer))
"""
NVIDIA_SMI = """#!/bin/sh
case $1 in *compute_cap*) echo 9.0 ;; *) echo "NVIDIA H200" ;; esac
"""


class MeasureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, text in {"demi": DEMI, "python": PEER, "nvidia-smi": NVIDIA_SMI, "nanogpt/model.py": "", "results/x": ""}.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        self.results = self.folder / "results"

    def run_measure(self, *options):
        """Exit code, figures by part, commands by part, standard output, what was said."""
        out, said = io.StringIO(), io.StringIO()
        line = ["measure.py", "--program", str(self.folder / "demi"), "--peer", str(self.folder / "python"), *options]
        path = f"{self.folder}:{os.environ['PATH']}"
        with mock.patch.object(measure, "RESULTS", str(self.results)), mock.patch.object(sys, "argv", line), \
                mock.patch.dict(os.environ, {"PATH": path}), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            try:
                code = measure.main()
            except SystemExit as end:
                code = end.code
        written = [json.loads(path.read_text()) for path in self.results.glob("*.json")]
        parts = written[0]["parts"] if written else {}
        commands = {part: [one["command"] for one in found["commands"]] for part, found in parts.items()}
        return code, {part: found["figures"] for part, found in parts.items()}, commands, out.getvalue(), said.getvalue()

    def test_a_recipe_has_each_way_of_python_and_the_best_mode(self):
        code, figures, commands, out, _ = self.run_measure("--only", "mlp", "--rounds", "2", "--compile", "default,max-autotune")
        self.assertEqual(code, 0)
        fp32 = figures["mlp"]["fp32"]
        self.assertEqual([fp32[name] for name in ("demi_ms", "python_ms", "python_kept_ms", "python_compiled_ms")],
                         [100.0, 150.0, 110.0, 90.0])
        self.assertEqual((fp32["python_compiled_mode"], fp32["python_graphs"], fp32["data"]), ("max-autotune", 1, "loader"))
        self.assertIn("mlp, bf16: demi 50.0 ms, Python 150.0, Python that keeps memory 110.0, Python, compiled 90.0 (max-autotune, 7 s",
                      out)
        peer = [one for one in commands["mlp"] if "recipe_peer" in one]
        self.assertEqual(len(peer), 2 * 2 * 4)  # rounds, precisions, ways
        self.assertTrue(all("--loader" in one for one in peer))
        self.assertTrue(all("MALLOC_TOP_PAD_" in one for one in peer if "--compile" in one))
        self.assertNotIn("tf32", " ".join(commands["mlp"]))

    def test_without_torch_compile(self):
        code, figures, commands, _, _ = self.run_measure("--only", "mlp", "--rounds", "1", "--compile", "none")
        self.assertEqual(code, 0)
        self.assertNotIn("python_compiled_ms", figures["mlp"]["fp32"])
        self.assertNotIn("--compile", " ".join(commands["mlp"]))

    def test_a_mode_that_fails_leaves_the_rest_of_its_part(self):
        code, figures, commands, _, said = self.run_measure(
            "--only", "fashion-cnn", "--rounds", "3", "--compile", "reduce-overhead,default")
        self.assertEqual(code, 1)
        self.assertEqual(figures["fashion-cnn"]["bf16"]["python_compiled_mode"], "default")
        self.assertIn("not measured: fashion-cnn bf16, torch.compile reduce-overhead", said)
        self.assertNotIn("reduce-overhead", " ".join(commands["fashion-cnn"]))
        self.assertEqual(said.count("measure: MALLOC"), 2 * 3 * 2 + 2)  # kept and default in each round, the other mode once a precision

    def test_where_every_mode_fails_there_is_no_figure(self):
        code, figures, _, _, _ = self.run_measure("--only", "mlp", "--rounds", "1", "--compile", "reduce-overhead")
        self.assertEqual(code, 1)
        self.assertNotIn("python_compiled_ms", figures["mlp"]["fp32"])
        self.assertEqual(figures["mlp"]["fp32"]["python_kept_ms"], 110.0)

    def test_a_gpu_has_tf32_the_peak_and_the_kernels_that_ran(self):
        code, figures, commands, out, _ = self.run_measure(
            "--device", "cuda", "--only", "matmul,fashion-cnn,gpt2", "--rounds", "1", "--nanogpt", str(self.folder / "nanogpt"))
        self.assertEqual(code, 0)
        rows = figures["fashion-cnn"]
        self.assertEqual(list(rows), ["fp32", "tf32", "fp16", "bf16"])
        self.assertNotIn("python_kept_ms", rows["fp32"])
        self.assertEqual([rows[one]["peak_tflops"] for one in rows], [50, 400, 800, 800])
        self.assertAlmostEqual(results_table.share_of_peak(rows["fp32"]), 2e12 / 0.1 / 50e12)
        self.assertIn("40 % of the peak", out)
        peer = [one for one in commands["fashion-cnn"] if "recipe_peer" in one and "--compile" not in one]
        self.assertEqual([one[one.index("--precision"):].split(" --steps")[0] for one in peer],
                         ["--precision fp32 --tf32 off", "--precision fp32 --tf32 on", "--precision fp16", "--precision bf16"])
        self.assertTrue(all("--cudnn-benchmark" in one for one in peer))
        gpt = commands["gpt2"]
        self.assertIn("--vocabulary-size 50257", gpt[0])
        self.assertIn("--words 50257 --vocabulary 50304", gpt[1])
        self.assertEqual(figures["gpt2"]["bf16"]["attention"], ["flash"])
        self.assertEqual(figures["gpt2"]["bf16"]["python_ms"], 150.0)
        table = (self.results / "README.md").read_text().replace("°", "")  # of a busy machine
        self.assertIn("| fashion-cnn, TF32: share of the peak |  |  |  |  |  |  | 10 % |  |", table)
        self.assertIn("| fashion-cnn, FP32: Python's cuDNN |  |  |  |  |  |  | 92000, fastest, TF32 cudnn |  |", table)
        self.assertIn("| gpt2, mixed: nanoGPT's attention |  |  |  |  |  |  | flash |  |", table)

    def test_the_peak_is_that_of_the_same_processor(self):
        matmul = {"conditions": {"processor": "NVIDIA H100"}, "figures": {"peak_tflops": {"fp32": 50}}}
        self.assertEqual(measure.peak_of("fp32", {"matmul": matmul}, "NVIDIA H100"), 50)
        self.assertIsNone(measure.peak_of("fp32", {"matmul": matmul}, "NVIDIA H200"))
        self.assertIsNone(measure.peak_of("bf16", {"matmul": matmul}, "NVIDIA H100"))
        self.assertIsNone(measure.peak_of("fp32", {}, "NVIDIA H100"))

    def test_a_gpt_without_nanogpt_is_demi_alone(self):
        code, figures, commands, _, _ = self.run_measure("--only", "gpt-shakespeare", "--rounds", "1")
        self.assertEqual(code, 0)
        self.assertEqual(figures["gpt-shakespeare"], {"fp32": {"demi_ms": 100.0}, "bf16": {"demi_ms": 50.0}})
        self.assertEqual(len(commands["gpt-shakespeare"]), 1)

    def test_a_wrong_line_is_refused_before_anything_runs(self):
        for options, words in {("--compile", "fastest"): "no such mode", ("--compile", ""): "no such mode",
                               ("--compile", "default,none"): "no such mode", ("--nanogpt", "/nowhere"): "holds no model.py",
                               ("--rounds", "0"): "less than 1", ("--steps", "-1"): "less than 1", ("--only", "gpt3"): "no such part",
                               ("--peer", "/nowhere/python"): "is no program"}.items():
            with self.subTest(options=options):
                code, figures, _, _, said = self.run_measure(*options)
                self.assertEqual((code, figures), (2, {}))
                self.assertIn(words, said)


class TableTest(unittest.TestCase):
    def table(self, figures, part="mlp", others=0.0):
        results = {"x86-64-amx": {"parts": {part: {"figures": figures, "commands": [{"others": others}]}}}, "sm_90": {}}
        rows = results_table.table_of(results_table.recipe_rows(), results)
        return {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1] for row in rows[2:]}

    def test_a_file_from_before_the_compiled_peer(self):
        rows = self.table({"fp32": {"demi_ms": 100.0, "python_ms": 150.0, "python_kept_ms": 120.0},
                           "bf16": {"demi_ms": 50.0, "python_ms": 60.0, "python_kept_ms": 45.0}})
        self.assertEqual(rows["mlp: Python that keeps memory, autocast / demi mixed"], "**0.90 ×**")
        self.assertEqual(rows["mlp: strongest peer / demi, FP32"], "1.20 × (Python that keeps memory)")
        self.assertEqual(rows["mlp: Python's batches"], "one, repeated")
        self.assertFalse([title for title in rows if "compiled" in title or "torch.compile" in title or "TF32" in title or "peak" in title])

    def test_the_compiled_peer(self):
        row = {"demi_ms": 100.0, "python_ms": 150.0, "python_kept_ms": 120.0, "python_compiled_ms": 90.0, "python_compiled_mode": "default",
               "data": "loader"}
        rows = self.table({"fp32": row, "bf16": {**row, "demi_ms": 50.0, "python_compiled_mode": "max-autotune"}}, others=0.2)
        self.assertEqual(rows["mlp: Python, compiled, FP32 / demi FP32"], "0.90 ×°")
        self.assertEqual(rows["mlp: Python, compiled, autocast / demi mixed"], "**1.80 ×**°")
        self.assertEqual(rows["mlp: torch.compile's mode, FP32 and mixed"], "default and max-autotune°")
        self.assertEqual(rows["mlp: strongest peer / demi, mixed"], "1.80 × (Python, compiled)°")
        self.assertEqual(rows["mlp: Python's batches"], "drawn as demi's°")

    def test_demi_alone(self):
        rows = self.table({"fp32": {"demi_ms": 100.0}, "bf16": {"demi_ms": 50.0}})
        self.assertEqual(set(rows), {"mlp, a step: FP32, ms", "mlp, a step: mixed, ms", "mlp: FP32 / mixed"})

    def test_the_page_of_the_tree_is_that_of_its_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (SOURCE / "benchmarks/results").glob("*"):
                (Path(folder) / path.name).write_bytes(path.read_bytes())
            results_table.write(folder)
            figures = lambda page: page.read_text().split("## Measured by hand")[0]
            self.assertEqual(figures(Path(folder) / "README.md"), figures(SOURCE / "benchmarks/results/README.md"),
                             "benchmarks/measure.sh --table writes it")


if __name__ == "__main__":
    unittest.main()
