#!/usr/bin/env python3
"""What scripts/run_tests.py takes a note for, and what voids it: run_tests_test.py SOURCE. Exit code 77 without git."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

os.environ.pop("DEMI_NOTES", None)  # as .ci/full sets it
SOURCE = Path(sys.argv.pop(1)).resolve()
if not shutil.which("git"):
    print("skipped: no git, without which nothing is noted")
    sys.exit(77)


def load(root):
    spec = importlib.util.spec_from_file_location("run_tests", SOURCE / "scripts/run_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = root
    return module


class NoteTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name) / "tree"
        for name, text in {
            "scripts/layers.txt": "demi/core:\ndemi/tensor: demi/core\ndemi/step: demi/core demi/tensor\ndemi/train: demi/core demi/step\n",
            "demi/core/error.h": "core", "demi/tensor/dtype.h": "tensor", "demi/step/step.cpp": "step",
            "demi/step/step_test.cpp": '#include "demi/step/step.h"\nread("docs/reference/step.md");', "demi/train/train.cpp": "train",
            "demi/step/other_testing.h": "", "cmake/DemiModule.cmake": "cmake", "CMakeLists.txt": "top", "CMakePresets.json": "{}",
            "tests/fixtures/numbers.json": "1", "tests/unsteady.txt": "# none\nunit.train 2026-01-01 unknown\n", "tests/skips.txt": "",
            "tests/fuzz/corpus/json/kinds.json": "[]",
            "docs/reference/step.md": "page", "lab/CMakeLists.txt": "", "demi/CMakeLists.txt": "", "lab/data/kind.h": "kind"}.items():
            self.write(name, text)
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        self.build = self.root / "build"
        self.torch = self.root.parent / "torch"
        self.torch.mkdir()
        (self.torch / "libtorch_cpu.so").write_text("2.15")
        self.compiler = self.root.parent / "g++"
        self.set_compiler("12.2")
        self.set_flags("-O3")
        os.environ["DEMI_CACHE"] = str(self.root.parent / "cache")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def set_compiler(self, version):
        self.compiler.write_text(f"#!/bin/sh\necho {version}\n")
        self.compiler.chmod(0o755)

    def set_flags(self, flags):
        self.write("build/CMakeCache.txt", f"CMAKE_CXX_COMPILER:STRING={self.compiler}\nCMAKE_CXX_FLAGS:STRING={flags}\n")
        self.write("build/configure.log", f"-- LibTorch 2.15.0 at {self.torch}\n")

    def notes(self):
        run_tests = load(self.root)
        return run_tests.Notes(run_tests.Tree(self.root), run_tests.facts_of_the_machine(self.build), True)

    def one(self, name="unit.step", labels=("unit",), environment=()):
        return {"name": name, "labels": list(labels), "environment": list(environment), "command": []}

    def is_green_after(self, change, test=None):
        """A note is left, then something changes: is it taken?"""
        test = test or self.one()
        notes = self.notes()
        notes.passed(test, 1.0)
        self.assertTrue(self.notes().is_green(test), "nothing changed")
        change()
        return self.notes().is_green(test)

    def test_what_the_module_reads_voids_its_note(self):
        for name in ("demi/step/step.cpp", "demi/step/step_test.cpp", "demi/step/other_testing.h", "demi/tensor/dtype.h", "demi/core/error.h",
                     "cmake/DemiModule.cmake", "CMakeLists.txt", "tests/fixtures/numbers.json", "tests/fuzz/corpus/json/kinds.json",
                     "docs/reference/step.md"):
            with self.subTest(name):
                text = (self.root / name).read_text()
                self.assertFalse(self.is_green_after(lambda: self.write(name, text + "// changed")))
        with self.subTest("a new file"):
            self.assertFalse(self.is_green_after(lambda: self.write("demi/step/new.h", "")))
        with self.subTest("a removed one"):
            self.assertFalse(self.is_green_after(lambda: (self.root / "demi/step/other_testing.h").unlink()))

    def test_what_it_does_not_read_leaves_it(self):
        for name in ("demi/train/train.cpp", "examples/other.cpp", "lab/data/kind.h"):
            with self.subTest(name):
                self.assertTrue(self.is_green_after(lambda: self.write(name, "changed")))

    def test_the_text_that_a_change_takes_back_is_green_again(self):
        self.assertFalse(self.is_green_after(lambda: self.write("demi/step/step.cpp", "other")))
        self.write("demi/step/step.cpp", "step")
        self.assertTrue(self.notes().is_green(self.one()))

    def test_the_machine_voids_it(self):
        with self.subTest("compiler's version"):
            self.assertFalse(self.is_green_after(lambda: self.set_compiler("13.1")))
        with self.subTest("flags"):
            self.assertFalse(self.is_green_after(lambda: self.set_flags("-O2")))
        with self.subTest("LibTorch"):
            self.assertFalse(self.is_green_after(lambda: (self.torch / "libtorch_cpu.so").write_text("2.15.1")))

        def other_compiler():
            self.compiler = self.root.parent / "clang++"
            self.set_compiler("13.1")
            self.set_flags("-O2")
        with self.subTest("compiler's path"):
            self.assertFalse(self.is_green_after(other_compiler))

        def level():
            os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
        with self.subTest("a level of instructions"):
            self.assertFalse(self.is_green_after(level))
        del os.environ["ATEN_CPU_CAPABILITY"]

    def test_some_are_never_noted(self):
        for test in (self.one(labels=["unit", "rank"]), self.one(labels=["network"]), self.one(labels=["signal"]), self.one("unit.train")):
            notes = self.notes()
            notes.passed(test, 1.0)
            self.assertFalse(notes.is_green(test), test)

    def test_a_test_that_fails_voids_the_notes_of_its_content(self):
        notes = self.notes()
        elsewhere = self.one(environment=["OTHER=build"])
        for test in (self.one(), elsewhere, self.one("unit.tensor")):
            notes.passed(test, 1.0)
        self.assertTrue(notes.failed(self.one()), "it was green on this content")
        self.assertFalse(notes.is_green(self.one()))
        self.assertFalse(notes.is_green(elsewhere), "of the same content")
        self.assertTrue(notes.is_green(self.one("unit.tensor")), "of another content")
        self.assertFalse(notes.failed(self.one()), "it is red, and no longer noted as green")

    def test_a_cache_that_cannot_be_written_or_read_notes_nothing(self):
        for spoil in (lambda folder: folder.write_text("a file"), lambda folder: None):
            folder = Path(os.environ["DEMI_CACHE"])
            spoil(folder)
            notes = self.notes()
            notes.folder = Path("/proc/nowhere") if not folder.exists() else folder / "notes"
            notes.passed(self.one(), 1.0)
            self.assertFalse(notes.is_green(self.one()))
            folder.unlink(missing_ok=True)

    def test_cases_that_skip_for_another_reason_are_named(self):
        run_tests = load(self.root)
        self.write("tests/skips.txt", "# why\nno-gpu finds no CUDA device\nno-bf16,sanitizer no AVX512_BF16\n")
        cases = run_tests.Cases()
        (self.root / "cases").mkdir()
        case = '<testcase name="{0}" classname="S" status="run" result="{1}">{2}</testcase>'
        (self.root / "cases/one.xml").write_text("<testsuites><testsuite>" + case.format("ran", "completed", "") + case.format(
            "gpu", "skipped", '<skipped message="x.cpp:1&#x0A;LibTorch finds no CUDA device"/>') + case.format(
            "bf16", "skipped", '<skipped message="x.cpp:2&#x0A;no AVX512_BF16"/>') + case.format(
            "other", "skipped", '<skipped message="x.cpp:3&#x0A;I do not feel like it"/>') + "</testsuite></testsuites>")
        cases.read(self.root / "cases")
        self.assertEqual(cases.ran, 1)
        self.assertEqual(set(cases.must_not_skip({"no-gpu", "sanitizer"})), {"S.other"})
        self.assertEqual(set(cases.must_not_skip({"gpu"})), {"S.gpu", "S.bf16", "S.other"})

    def run_with(self, status, code):
        """The exit code of a run in which ctest says this of its one test."""
        self.write("bin/ctest", f"""#!/usr/bin/env python3
import json, sys
if "--show-only=json-v1" in sys.argv:
    print(json.dumps({{"tests": [{{"name": "unit.step", "command": ["step_test"], "properties": []}}]}}))
    sys.exit(0)
open(sys.argv[sys.argv.index("--output-junit") + 1], "w").write('<testsuite><testcase name="unit.step" status="{status}" time="1"/></testsuite>')
sys.exit({code})
""")
        (self.root / "bin/ctest").chmod(0o755)
        self.write("build/CTestTestfile.cmake", "")
        self.write("tests/costs.txt", "")
        run_tests, path, argv = load(self.root), os.environ["PATH"], sys.argv
        try:
            os.environ["PATH"], sys.argv = f"{self.root}/bin:{path}", ["run_tests.py", str(self.build), "--no-notes"]
            return run_tests.main()
        finally:
            os.environ["PATH"], sys.argv = path, argv

    def test_what_failed_is_red_and_so_is_a_program_that_is_missing(self):
        self.assertEqual(self.run_with("run", 0), 0)
        self.assertEqual(self.run_with("notrun", 0), 0, "skipped")
        self.assertEqual(self.run_with("fail", 8), 8)
        self.assertEqual(self.run_with("notrun", 8), 8, "its program is missing")

    def test_a_build_that_does_not_say_its_libtorch_is_not_noted(self):
        (self.build / "configure.log").unlink()
        with self.assertRaises(OSError):
            self.notes()

    def test_a_note_says_what_it_is_of(self):
        notes = self.notes()
        notes.passed(self.one(), 2.5)
        note = json.loads(notes.file_of(self.one()).read_text())
        self.assertEqual((note["test"], note["seconds"]), ("unit.step", 2.5))


if __name__ == "__main__":
    unittest.main()
