#!/usr/bin/env python3
"""Runs the tests of a build folder by ctest, and leaves out what has passed on this content before.

    scripts/run_tests.py BUILD [--part NAME] [--preset NAME] [--label REGEX] [--exclude REGEX] [--tests NAME,...] [--build] [--no-notes]

A test that passed leaves a note in the cache folder (DEMI_CACHE). The note's name is a hash of what the test's result depends on: the
content of its sources, of the modules below them (scripts/layers.txt), of fixtures, cmake/ and scripts/; the compiler, LibTorch, the
system's packages, the processor's flags, CMake's options and the settings in the environment. The next run on this machine takes the
note in place of the test, except for a fifth of the tests, drawn by lot, and for tests that are never noted: those labelled rank,
network or signal, and those that tests/unsteady.txt lists. A test that fails voids the notes of the same content, of whichever build.

    --part NAME      what the run is called where it says what it does
    --preset NAME    CMake's test preset of this build, for its settings
    --label REGEX    tests with such a label; --exclude REGEX: without one of these
    --tests NAMES    these alone
    --build          builds the programs of the unit tests that have to run, and nothing else
    --no-notes       takes no note and leaves none (also DEMI_NOTES=off; DEMI_NOTES=leave takes none and leaves them, as .ci/full does)
    --slowest N      lists the N test cases that took longest

GoogleTest's cases that were skipped must be in tests/skips.txt for this class of machine. DEMI_LOT, a number, draws the lot (printed).
Exit codes: 0 all passed, 1 it could not run, 2 usage, 8 a test failed, or a case skipped that must not.
"""
import argparse
import hashlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What every result depends on. Files that only say how a test is started or noted are among them.
BUILD_FILES = ("CMakeLists.txt", "CMakePresets.json", "cmake/", "scripts/", "demi/CMakeLists.txt", "lab/CMakeLists.txt", "demi/core/")
NEVER_NOTED = {"rank", "network", "signal", "gpu"}
SETTINGS = re.compile(r"^(DEMI_(?!CACHE$|NOTES$|JOBS$|LOT$|CI_MINUTES$)|ATEN_|ONEDNN_|MKL_|OMP_|GOMP_|ASAN_|TSAN_|UBSAN_|LSAN_|GTEST_FILTER)")
DAYS = 30


def say(*words):
    print("run_tests:", *words, file=sys.stderr, flush=True)


def output(*command, cwd=ROOT):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def cache_dir():
    home = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "/")) / ".cache"
    return Path(os.environ.get("DEMI_CACHE") or Path(home) / "demi")


class Tree:
    """The content of the checkout: git's blob hash of every file that is tracked, or would be."""

    def __init__(self, root=ROOT):
        self.root = Path(root)
        names = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=self.root).split("\0")
        names = sorted({name for name in names if name and (self.root / name).is_file()})
        hashes = subprocess.run(["git", "hash-object", "--no-filters", "--stdin-paths"], cwd=self.root, text=True, check=True,
                                input="".join(name + "\n" for name in names), stdout=subprocess.PIPE).stdout.split()
        self.files = dict(zip(names, hashes))
        self.modules = self._modules()

    def _modules(self):
        below = {}
        for line in (self.root / "scripts/layers.txt").read_text().splitlines():
            name, _, rest = line.split("#")[0].partition(":")
            if name and name != "lent":
                below[name] = {name}.union(*(below.get(module, {module}) for module in rest.split()))
        return below

    def hash_of(self, prefixes):
        digest = hashlib.sha256()
        for name, blob in self.files.items():
            if any(name == prefix or (prefix.endswith("/") and name.startswith(prefix)) for prefix in prefixes):
                digest.update(f"{name} {blob}\n".encode())
        return digest.hexdigest()

    def _pages_read(self, sources):
        """Files and folders outside of the modules that these sources name."""
        read = set()
        for source in sources:
            text = re.sub(r"^#include .*$", "", (self.root / source).read_text(errors="replace"), flags=re.M)
            for name in re.findall(r"""["'(/ ]((?:docs|examples|benchmarks|tests|lab|demi|cli|scripts|cmake|python)(?:/[\w.-]+)+|\w+\.md)""", text):
                name = name.rstrip(".")
                while name and name not in self.files and not any(file.startswith(name + "/") for file in self.files):
                    name = name.rpartition("/")[0]
                if name:
                    read.add(name if name in self.files else name + "/")
            if ".md" in text:  # a page, whose folder may be said elsewhere
                read |= {"docs/", "benchmarks/results/", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
        return read

    def of_module(self, module):
        """What the unit test of demi/step or lab/data reads."""
        own = [name for name in self.files if name.startswith(module + "/")]
        tests = [name for name in own if "test" in name.rsplit("/", 1)[-1] and name.endswith((".h", ".cpp"))]
        needed = set(self.modules.get(module, {module}))
        for test in tests:
            for include in re.findall(r'^#include "((?:demi|lab|cli)/[^"]*)/[^/"]+"', (self.root / test).read_text(errors="replace"), re.M):
                needed |= self.modules.get("/".join(include.split("/")[:2]), {"/".join(include.split("/")[:2])})
            if '"demi/demi.h"' in (self.root / test).read_text(errors="replace"):
                needed |= self.modules["demi/demi.h"]
        folders = {name + "/" if "." not in name else name for name in needed}
        if "lab/" in folders:  # the folder's own headers
            folders.remove("lab/")
            folders |= {name for name in self.files if re.fullmatch(r"lab/[^/]+\.h", name)}
        return folders | {"tests/fixtures/", "tests/fuzz/corpus/", "benchmarks/peers/"} | self._pages_read(tests)

    def of_test(self, name):
        """What a test reads, as prefixes of paths; conservative where nobody knows."""
        module = module_of(name)
        if module == "cli":
            return {"cli/", "demi/", "lab/"}
        if module:
            return self.of_module(module)
        everything = {"demi/", "lab/", "cli/", "tests/", "examples/", "python/", "benchmarks/peers/"}
        if name.startswith(("example.", "examples.")):
            return {"demi/", "lab/", "examples/", "tests/fixtures/", "docs/"}
        if name.startswith(("package.", "tree.", "tests.site", "kernel.")):
            return set(self.files)
        stem = re.sub(r"^(tests|slow|long)\.", "", name)
        sources = [source for source in self.files if source.startswith("tests/") and source.rsplit("/", 1)[-1].startswith(stem)]
        return everything | self._pages_read(sources)


def module_of(test):
    found = re.fullmatch(r"(?:unit|slow)\.(lab\.)?([a-z_]+)", test)
    if not found:
        return None
    return found[2] if found[2] == "cli" else ("lab/" if found[1] else "demi/") + found[2]


def target_of(test):
    module = module_of(test)
    return None if module is None else "demi_" + module.removeprefix("demi/").replace("/", "_") + "_test"


def facts_of_the_machine(build):
    """What a result depends on and is no content of the tree."""
    cache = (build / "CMakeCache.txt").read_text(errors="replace")
    options = sorted(line for line in cache.splitlines()
                     if re.match(r"(DEMI_|CMAKE_BUILD_TYPE|CMAKE_CXX_FLAGS|CMAKE_CXX_COMPILER:|CMAKE_UNITY_BUILD)", line))
    compiler = re.search(r"^CMAKE_CXX_COMPILER:[A-Z]+=(.*)$", cache, re.M)
    version = output(compiler[1], "--version") if compiler else ""
    torch = re.search(r"^-- LibTorch .* at (.*)$", (build / "configure.log").read_text(errors="replace") if (build / "configure.log").exists() else "", re.M)
    if not torch:
        raise OSError(f"{build}/configure.log does not say which LibTorch this is; scripts/build.sh writes it")
    library = Path(torch[1]) / "libtorch_cpu.so"
    libtorch = f"{library} {library.stat().st_size} {library.stat().st_mtime_ns}"
    packages = subprocess.run(["dpkg-query", "-W"], capture_output=True, text=True).stdout if Path("/usr/bin/dpkg-query").exists() else ""
    flags = re.search(r"^flags.*$", Path("/proc/cpuinfo").read_text(), re.M)
    python = subprocess.run(["python3", "--version"], capture_output=True, text=True).stdout
    facts = [version, libtorch, hashlib.sha256(packages.encode()).hexdigest(), flags[0] if flags else platform.processor(), python]
    root = str(ROOT)
    facts += [option.replace(root, ".") for option in options]
    facts += sorted(f"{name}={value.replace(root, '.')}" for name, value in os.environ.items() if SETTINGS.match(name))
    return facts


class Notes:
    def __init__(self, tree, facts, enabled):
        self.tree, self.facts, self.enabled = tree, facts, enabled
        self.are_taken = os.environ.get("DEMI_NOTES") != "leave"
        self.folder = cache_dir() / "notes"
        self.unsteady = {line.split()[0] for line in (ROOT / "tests/unsteady.txt").read_text().splitlines() if line.strip() and not line.startswith("#")}
        if enabled:
            self._forget_old_ones()

    def _forget_old_ones(self):
        for note in self.folder.glob("*"):
            try:
                if time.time() - note.stat().st_mtime > DAYS * 86400:
                    note.unlink()
            except OSError:
                pass

    @lru_cache(maxsize=None)
    def _content(self, prefixes):
        return self.tree.hash_of(prefixes)

    def content_of(self, test):
        return self._content(tuple(sorted(self.tree.of_test(test["name"]) | set(BUILD_FILES))))

    def file_of(self, test):
        content = self.content_of(test)
        words = [word.replace(str(ROOT), ".") for word in test["command"]] + sorted(test["environment"]) + self.facts
        return self.folder / hashlib.sha256("\n".join([test["name"], content, *words]).encode()).hexdigest()

    def may_be_noted(self, test):
        return self.enabled and not NEVER_NOTED & set(test["labels"]) and test["name"] not in self.unsteady

    def is_green(self, test):
        return self.are_taken and self.may_be_noted(test) and self.file_of(test).exists()

    def passed(self, test, seconds):
        if not self.may_be_noted(test):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix=".", delete=False) as file:
                file.write(json.dumps({"test": test["name"], "content": self.content_of(test), "seconds": seconds}))
            os.replace(file.name, self.file_of(test))
        except OSError as error:
            say(f"no note can be left in {self.folder}: {error.strerror}; the next run repeats these tests")
            self.enabled = False

    def failed(self, test):
        """Returns whether the same content was green before."""
        if not self.enabled:
            return False
        was_green = self.file_of(test).exists()
        self.file_of(test).unlink(missing_ok=True)
        for note in self.folder.glob("*"):
            try:
                if json.loads(note.read_text())["content"] == self.content_of(test):
                    note.unlink()
            except (OSError, ValueError, KeyError):
                note.unlink(missing_ok=True)
        return was_green


def list_tests(where, label, exclude):
    options = (["-L", label] if label else []) + (["-LE", exclude] if exclude else [])
    listed = json.loads(output("ctest", *where, "--show-only=json-v1", *options))
    tests = []
    for test in listed["tests"]:
        properties = {one["name"]: one["value"] for one in test.get("properties", [])}
        tests.append({"name": test["name"], "labels": properties.get("LABELS", []), "environment": properties.get("ENVIRONMENT", []),
                      "command": test.get("command", [test["name"]])[1:]})
    return tests


def seed_costs(build):
    """ctest starts the long tests first once it knows them: a clean checkout learns them from tests/costs.txt."""
    known = build / "Testing/Temporary/CTestCostData.txt"
    if known.exists():
        return
    known.parent.mkdir(parents=True, exist_ok=True)
    rows = [line.split() for line in (ROOT / "tests/costs.txt").read_text().splitlines() if line.strip() and not line.startswith("#")]
    known.write_text("".join(f"{name} 1 {seconds}\n" for name, seconds in rows) + "---\n")


def classes_of_the_machine(build):
    """The words of tests/skips.txt that hold here."""
    flags = set(re.search(r"^flags.*$", Path("/proc/cpuinfo").read_text(), re.M)[0].split())
    cache = (build / "CMakeCache.txt").read_text(errors="replace")
    classes = {"always", "gpu" if any(Path("/dev").glob("nvidia[0-9]*")) else "no-gpu"}
    lowered = "ONEDNN_MAX_CPU_ISA" in os.environ or "DEMI_KERNELS" in os.environ
    if not flags & {"avx512_bf16", "amx_bf16"} or lowered:
        classes.add("no-bf16")
    sanitizer = re.search(r"^DEMI_SANITIZE:STRING=(.+)$", cache, re.M)
    if sanitizer:
        classes |= {"sanitizer", sanitizer[1].split(",")[0] + "-sanitizer"}
    version = re.search(r"^DEMI_LIBTORCH_VERSION:STRING=2\.(\d+)\.", cache, re.M)
    if version and int(version[1]) < 15:
        classes.add("old-libtorch")
    if os.cpu_count() == 1 or os.environ.get("OMP_NUM_THREADS") == "1":
        classes.add("one-thread")
    if os.geteuid() == 0:
        classes.add("root")
    if not os.environ.get("DEMI_TEST_DATA") and not (ROOT.parent / "shared/data").exists():
        classes.add("no-data")
    if re.search(r"^DEMI_BUILD_EXAMPLES:BOOL=OFF$", cache, re.M):
        classes.add("no-examples")
    return classes


class Cases:
    """GoogleTest's cases, from its XML files."""

    def __init__(self):
        self.ran, self.skipped, self.seconds = 0, {}, []

    def read(self, folder):
        for file in Path(folder).glob("*.xml"):
            try:
                suites = ElementTree.parse(file).getroot()
            except ElementTree.ParseError:
                continue  # of a program that was ended
            for case in suites.iter("testcase"):
                name = f"{case.get('classname')}.{case.get('name')}"
                skipped = case.find("skipped")
                if case.get("status") == "notrun" or ".DISABLED_" in name:  # the second is what a case starts
                    continue
                if skipped is not None:
                    self.skipped[name] = (skipped.get("message") or skipped.text or "").strip()
                else:
                    self.ran += 1
                    self.seconds.append((float(case.get("time") or 0), name))

    def must_not_skip(self, classes):
        allowed = []
        for line in (ROOT / "tests/skips.txt").read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                of, reason = line.split(None, 1)
                if set(of.split(",")) & classes:
                    allowed.append(re.compile(reason))
        return {name: why for name, why in self.skipped.items() if not any(reason.search(why) for reason in allowed)}


def run(where, tests, cases):
    """Returns ctest's exit code and {name: (status, seconds)}, with status run, fail, notrun or disabled as in its JUnit file. A test
    that is skipped is notrun there, and so is one whose program is missing: the exit code tells them apart."""
    with tempfile.TemporaryDirectory(prefix="demi-tests-") as folder:
        names = "^(" + "|".join(re.escape(test["name"]) for test in tests) + ")$"
        junit = Path(folder) / "junit.xml"
        environment = dict(os.environ, GTEST_OUTPUT=f"xml:{folder}/cases/", OMP_WAIT_POLICY="passive")
        # Two tests run at a time. A thread that waits sleeps: one that spins keeps the core that the other test could have.
        command = ["ctest", *where, "--parallel", "2", "--output-on-failure", "--no-label-summary", "--no-tests=error",
                   "--tests-regex", names, "--output-junit", str(junit)]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        cases.read(Path(folder) / "cases")
        if not junit.exists():
            say(f"ctest ended with {code}")
            sys.exit(code or 1)
        results = {}
        for case in ElementTree.parse(junit).getroot().iter("testcase"):
            results[case.get("name")] = (case.get("status"), float(case.get("time") or 0))
        return code, results


def describe_failure(lot):
    flags = re.search(r"^model name.*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    say(f"processor {flags[1] if flags else platform.processor()}, {os.cpu_count()} cores, load {' '.join(f'{load:.1f}' for load in os.getloadavg())}, DEMI_LOT={lot}, DEMI_SEED={os.environ.get('DEMI_SEED', '')}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--part", default="")
    parser.add_argument("--preset")
    parser.add_argument("--label")
    parser.add_argument("--exclude")
    parser.add_argument("--tests")
    parser.add_argument("--build", dest="build_first", action="store_true")
    parser.add_argument("--no-notes", action="store_true")
    parser.add_argument("--slowest", type=int, default=0)
    a = parser.parse_args()
    build = a.build.resolve()
    if not (build / "CTestTestfile.cmake").exists():
        say(f"{a.build} is no configured build folder with tests; scripts/build.sh configures one")
        return 2

    lot = int(os.environ.pop("DEMI_LOT", "") or random.SystemRandom().randrange(1 << 31))
    enabled = not a.no_notes and os.environ.get("DEMI_NOTES") != "off"
    try:
        notes = Notes(Tree(), facts_of_the_machine(build), enabled)
    except (OSError, subprocess.CalledProcessError) as error:  # no git, no checkout
        if enabled:
            say(f"no notes are taken: {error}")
        notes = None
    where = ["--preset", a.preset] if a.preset else ["--test-dir", str(build)]
    tests = list_tests(where, a.label, a.exclude)
    if a.tests:
        wanted = a.tests.split(",")
        missing = set(wanted) - {test["name"] for test in tests}
        if missing:
            say(f"no such test: {', '.join(sorted(missing))}")
            return 2
        tests = [test for test in tests if test["name"] in wanted]
    draw = random.Random(lot)
    green = [test for test in tests if notes and notes.is_green(test)]
    repeated = [test for test in green if draw.random() < 0.2]
    left_out = [test for test in green if test not in repeated]
    to_run = [test for test in tests if test not in left_out]
    name = a.part or a.build.name
    if left_out:
        say(f"{name}: {len(left_out)} of {len(tests)} tests passed on this content before and are left out; {len(repeated)} more did and run again by lot (DEMI_LOT={lot})")
    if not to_run:
        say(f"{name}: nothing to run")
        print(f"\n100% tests passed, 0 tests failed out of 0 ({len(left_out)} passed on this content before)")
        return 0
    if a.build_first:
        targets = sorted({target_of(test["name"]) for test in to_run} - {None})
        jobs = output("bash", "-c", ". scripts/say.sh; compilers_at_once").strip()
        say(f"{name}: building {', '.join(targets)}")
        if subprocess.run(["cmake", "--build", str(build), "-j", jobs, "--target", *targets], stdout=sys.stderr).returncode:
            say(f"building {a.build} failed")
            return 1

    seed_costs(build)
    cases = Cases()
    start = time.monotonic()
    code, results = run(where, to_run, cases)
    red = [test for test in to_run if results.get(test["name"], ("fail", 0))[0] == "fail"]
    if notes:
        for test in to_run:
            status, seconds = results.get(test["name"], ("fail", 0))
            if status == "run":
                notes.passed(test, seconds)
        for test in red:
            if notes.failed(test):
                say(f"{test['name']} was green and is red on one content: add it to tests/unsteady.txt until its cause is found")
    if a.slowest:
        for seconds, case in sorted(cases.seconds, reverse=True)[:a.slowest]:
            print(f"{seconds:9.2f} s  {case}")
    wrong = cases.must_not_skip(classes_of_the_machine(build))
    for case, why in sorted(wrong.items()):
        say(f"{case} was skipped, which tests/skips.txt does not allow on this class of machine: {' '.join(why.split())}")
    print(f"{name}: {cases.ran} cases ran, {len(cases.skipped)} skipped, in {time.monotonic() - start:.0f} s; "
          f"{len(left_out)} of {len(tests)} tests had passed on this content before")
    if red or wrong or code:
        describe_failure(lot)
        return 8
    return 0


if __name__ == "__main__":
    sys.exit(main())
