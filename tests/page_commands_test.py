#!/usr/bin/env python3
"""Runs the commands of README, the guides and the man page as they stand: page_commands_test.py SOURCE BUILD program|package [PAGE...]

A block that is indented by four spaces holds a shell's commands, one a line; a fenced block of sh is one script; any other fenced
block names its language and is not run here. Each page has a fresh folder, in which its commands run in their order, by bash, with
BUILD first in PATH and in build/release. Small data stand in for the sets (DEMI_DATA_DIR), and the environment's settings, which
options overrule, keep each run to a few steps (SHORTER). `program` runs the program's commands, `package` those that install and build.

LEFT_OUT lists what is not run, each with its reason; MEANT what words that pages leave open stand for; BEFORE what has to be there.
An entry that fits no command is an error. Exit codes: 0 all ended with 0, 1 one did not, or an entry is stale.
"""
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE, BUILD = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(SOURCE / "benchmarks"))
import every_command  # benchmarks/every_command.py: stand-ins for pictures, texts and tokens

MANUAL = "demi manual"  # the EXAMPLES of the man page
# By the start of a command: why it is not run.
LEFT_OUT = {
    "./demo": "fetches LibTorch and builds everything",
    "./check": "builds everything and runs the tests, of which this is one",
    "scripts/setup.sh && scripts/build.sh": "fetches LibTorch and builds everything",
    "pip install --no-deps torch": "fetches 0.5 GB",
    "pip install --no-deps ./demi_torch-": "needs the wheel: the test package.wheel installs it",
    "tar -C /opt": "needs the tarball and root: the test package.wheel unpacks it elsewhere",
    "ln -s /path/to/libtorch /opt/libtorch": "needs the tarball and root",
    "/opt/demi-": "needs the tarball and root",
    "cmake -S . -B build -DCMAKE_PREFIX_PATH=/opt/demi-": "needs the tarball and root",
    "docker run": "needs Docker",
    "#!/bin/bash\n#SBATCH": "needs Slurm",
    "demi train gpt-shakespeare --mp --depth 6": "takes minutes: ten million parameters, 20 epochs",
    "demi train gpt2 --from gpt2/": "needs GPT-2's weights: a step of 16,384 tokens has no whole number of the stand-in's 12",
    "demi bench model --width": "takes minutes: products of 4096 x 4096 in two precisions, timed",
    "demi compare cifar10-resnet18 --steps 200": "takes an hour: 600 steps of a ResNet-18",
}
# Words that pages leave open.
MEANT = {"RECIPE": "mlp"}
# By the start of a command: another command that comes before it, in the page's folder.
BEFORE = {
    "demi inspect runs/train-cifar10-cnn-001": "ls runs/train-cifar10-cnn-001",  # that of the lines above it
    "demi predict model.safetensors photographs/": "cp runs/train-folder-resnet50-001/model.safetensors .",
    "demi generate model.safetensors": "demi train gpt-shakespeare && cp runs/train-gpt-shakespeare-001/model.safetensors .",
    "demi export runs/train-gpt2-001 out/": "demi train gpt2 --train-file 'train*.bin' --test-file val.bin",
    "demi train folder-resnet50 --data-dir pictures --from": "demi train folder-resnet50 --data-dir pictures && "
    "mv runs/train-folder-resnet50-001/model.safetensors resnet50.safetensors",
    "demi train RECIPE --precision fp16 --op-policy runs/": "echo 'softmax fp32' >runs/train-RECIPE-001/op-policy-fp16.txt",
    "demi predict model.safetensors cat.jpg --graph net.pt2": "cp runs/train-net-001/model.safetensors .",
    "demi generate runs/train-gpt-shakespeare-001": "ls runs/train-gpt-shakespeare-001",
}
# In the environment, so that an option of the page is stronger.
SHORTER = {"EPOCHS": "1", "STEPS": "2", "BATCH_SIZE": "8", "TEST_BATCH_SIZE": "8", "THREADS": "1"}
SMALL_GPT = {"EVAL_EVERY": "2", "DEPTH": "2", "HEADS": "4", "EMBEDDING": "16", "CONTEXT": "12", "TOKENS_PER_STEP": "192"}  # as gpt2/ is
SMALL_PICTURES = {"IMAGE_SIZE": "32"}
SMALL_MLP = {"IN": "64", "OUT": "64"}


def settings_of(command):
    """What the environment says for a command: a setting without an effect in its run would be refused."""
    settings = dict(SHORTER)
    for pattern, more in ((r"train gpt", SMALL_GPT), (r"train folder|--data folder", SMALL_PICTURES), (r" mlp\b", SMALL_MLP),
                          (r"(train|compare|profile|recipe) .*net\.pt2", {"MODEL_OUTPUT": "logits"}),  # of the stand-in's two
                          (r"--from resnet50", {"WARMUP_EPOCHS": "0"})):
        settings |= more if re.search(pattern, command) else {}
    return {f"DEMI_{name}": value for name, value in settings.items()}


def fences_and_blocks(text):
    """(language, lines) of each block; the language of an indented block is None."""
    block, language, fence = [], None, ""
    before = ""  # the line above
    for line in [*text.splitlines(), ""]:
        mark = re.match(r"( *)(```+)(.*)$", line)
        if fence:
            if mark and mark[2] == fence:
                yield language, block
                block, fence = [], ""
            else:
                block.append(line)
        elif mark:
            fence, language = mark[2], mark[3].strip()
        elif re.match(r" {4,}[^ ]", line) and (block or not before.strip()) and not re.match(r" *([-*]|\d+\.) ", line):
            block.append(line.strip())
        elif block:
            yield None, block
            block = []
        before = line


def commands_of(page):
    """Those of the page, and how many are left to the test of pages that show output, cli_pages_test."""
    commands, shown = [], 0
    for language, lines in fences_and_blocks((SOURCE / page).read_text(encoding="utf-8")):
        if language is None:
            commands += [line for line in "\n".join(lines).replace("\\\n", "").split("\n") if not line.startswith("# ")]
        elif language in ("sh", "bash", "shell"):
            commands.append("\n".join(lines))
        elif language == "console":
            shown += 1
        elif not language:
            sys.exit(f"{page}: a fenced block names no language: {lines[:1]}")
    return commands, shown


def examples_of_manual():
    """The commands of the man page's EXAMPLES."""
    page = subprocess.run([BUILD / "demi", "manual"], check=True, stdout=subprocess.PIPE, text=True).stdout
    section = page.partition("\n.SH EXAMPLES\n")[2].partition("\n.SH ")[0]
    return [line[3:-3].replace("\\-", "-") for line in section.splitlines() if line.startswith("\\fBdemi ")]


def entry_for(table, command):
    return next((start for start in table if command.startswith(start)), None)


def builds(command):
    """Whether it is one of those that install demi or build a project with it."""
    return not re.match(r"([A-Z_]+=\S* )*demi ", command)


def make_idx(path, magic, sizes, data):
    path.write_bytes(struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + data)


def make_sets(folder):
    """A few examples of each set that recipes train on, in its own files."""
    fashion, cifar, shakespeare = (folder / name for name in ("fashion-mnist", "cifar10", "shakespeare"))
    for one in (fashion, cifar, shakespeare):
        one.mkdir(parents=True)
    for stem, count in (("train", 64), ("t10k", 32)):
        pixels = bytes((7 * i * i + 31 * i) % 256 for i in range(count * 784))
        make_idx(fashion / f"{stem}-images-idx3-ubyte", 0x803, (count, 28, 28), pixels)
        make_idx(fashion / f"{stem}-labels-idx1-ubyte", 0x801, (count,), bytes(i % 10 for i in range(count)))
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (cifar / f"{name}.bin").write_bytes(b"".join(bytes([i % 10]) + bytes((i * j) % 256 for j in range(3072)) for i in range(16)))
    words = [f"word{(7 * i * i + 31 * i) % 500}" for i in range(4000)]
    (shakespeare / "tinyshakespeare.txt").write_text("ROMEO:\n" + " ".join(words), encoding="utf-8")
    for part in ("train/neg", "train/pos", "test/neg", "test/pos"):
        reviews = folder / "imdb" / part
        reviews.mkdir(parents=True)
        for i in range(16):
            (reviews / f"{i}_7.txt").write_text(" ".join(words[40 * i:40 * i + 30]), encoding="utf-8")


def make_inputs(folder):
    """What the program's commands name."""
    every_command.PYTHON = ""  # net.pt2 comes from the fixtures
    every_command.make_inputs(str(folder))
    shutil.copy(SOURCE / "tests/fixtures/imported/pictures.pt2", folder / "net.pt2")
    every_command.make_tokens(str(folder / "val.bin"), 300)
    (folder / "DIR").symlink_to("pictures")


def make_project(folder, page, wheel):
    """A project of the page's own CMakeLists.txt and Makefile, where it shows them, and a built checkout around it."""
    projects = SOURCE / "tests/consumer"
    shutil.copy(projects / "consumer.cpp", folder / "main.cpp")
    shutil.copy(projects / "find_package/CMakeLists.txt", folder)
    shutil.copy(projects / "pkg_config/Makefile", folder)
    for language, lines in fences_and_blocks((SOURCE / page).read_text(encoding="utf-8")):
        text = "\n".join(lines) + "\n"
        if language == "cmake" and "find_package(demi" in text and "add_executable" in text and "find_package(Torch" not in text:
            (folder / "CMakeLists.txt").write_text(text)
        if language == "make":
            (folder / "Makefile").write_text(text)
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(BUILD)
    if not wheel.exists():
        subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={wheel}/demi_torch", "-DDEMI_INSTALL_LIBTORCH=OFF", "-P", f"{BUILD}/cmake_install.cmake"],
                       check=True, stdout=subprocess.DEVNULL)
        for file in (SOURCE / "python/demi_torch").glob("*.py"):
            shutil.copy(file, wheel / "demi_torch")


def run(command, folder, environment):
    """(exit code, what it said)."""
    words = re.sub("|".join(rf"\b{word}\b" for word in MEANT), lambda found: MEANT[found[0]], command)
    done = subprocess.run(["bash", "-c", words], cwd=folder, env=environment | settings_of(words), text=True, encoding="utf-8", errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def run_page(page, kind, work):
    """(how many ran, how many are left out, how many failed, which entries of the tables were used)."""
    commands, shown = (examples_of_manual(), 0) if page == MANUAL else commands_of(page)
    folder = work / page.replace("/", "-")
    folder.mkdir()
    is_package = kind == "package"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DEMI_", "OMP_", "GTEST_"))}
    environment |= {"PATH": f"{BUILD}:{os.environ['PATH']}", "HOME": str(work), "LC_ALL": "C.UTF-8"}
    if is_package:
        if not any(builds(command) and not entry_for(LEFT_OUT, command) for command in commands):
            return 0, 0, 0, set()
        make_project(folder, page, work / "wheel")
        environment["PYTHONPATH"] = str(work / "wheel")
    else:
        make_inputs(folder)
        environment |= {"DEMI_DATA_DIR": str(work / "sets"), "DEMI_CACHE": str(work / "cache")}
    ran = left_out = failed = 0
    used = set()
    for command in commands:
        start = entry_for(LEFT_OUT, command)
        used |= {start, *(word for word in MEANT if re.search(rf"\b{word}\b", command))}
        if builds(command) != is_package:
            continue
        if start:
            left_out += 1
            print(f"{page}: left out, {LEFT_OUT[start]}: {command.splitlines()[0]}", flush=True)
            continue
        before = entry_for(BEFORE, command)
        used.add(before)
        began = time.monotonic()
        code, said = run(BEFORE[before], folder, environment) if before else (0, "")
        if code == 0:
            code, said = run(command, folder, environment)
        ran += 1
        failed += code != 0
        print(f"{page}: {'exit ' + str(code) if code else 'ok'}, {time.monotonic() - began:.1f} s: {command}", flush=True)
        if code:
            print(said[-4000:], flush=True)
    shutil.rmtree(folder)
    if shown and not is_package:
        print(f"{page}: {shown} commands with their output are cli_pages_test's")
    return ran, left_out, failed, used


def main():
    kind = sys.argv[3]
    pages = sys.argv[4:] or ["README.md", *sorted(f"docs/guide/{page.name}" for page in (SOURCE / "docs/guide").glob("*.md")), MANUAL]
    with tempfile.TemporaryDirectory(prefix="demi-page-commands-") as name:
        work = Path(name)
        make_sets(work / "sets")
        totals, used = [0, 0, 0], set()
        for page in pages:
            *counts, of_page = run_page(page, kind, work)
            totals = [a + b for a, b in zip(totals, counts)]
            used |= of_page
    ran, left_out, failed = totals
    reads_all = not sys.argv[4:] and kind == "program"
    stale = [entry for entry in (*LEFT_OUT, *MEANT, *BEFORE) if reads_all and entry not in used]
    for entry in stale:
        print(f"no page has a command for this entry of {Path(__file__).name}: {shlex.quote(entry)}")
    print(f"{ran} commands ran, {failed} failed, {left_out} were left out, {len(stale)} entries are stale")
    return 1 if failed or stale or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
