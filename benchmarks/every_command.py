#!/usr/bin/env python3
"""Runs each command that README, the guides and the results pages name, once, and writes a line for each.

    benchmarks/every_command.py                       whole: hours on two cores
    benchmarks/every_command.py --quick               a few steps of few examples each: minutes
    benchmarks/every_command.py --list                the commands, and nothing is run
    benchmarks/every_command.py --only 'bench|number' those that the pattern finds

The commands are read from the pages, so a new one is run without an entry here. A command that takes more than half an hour on two
cores is run for one epoch of the full data, and one whose epoch takes hours for some steps (SHORTER).
benchmarks/results/every_command.jsonl holds a line for each command: command, exit code, seconds, last figures, day, commit,
processor, and the name of the files of its output in build/every_command; of --quick, all of it lies in build/every_command_quick.
Stopped by Ctrl-C or SIGTERM, it goes on with the command that was running when it is started again, on another machine, too.
--again runs those anew that did not end with 0.

Exit codes: 0 all ended with 0, 1 one did not, 2 usage, 130 and 143 stopped.
"""
import argparse
import glob
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ["README.md", *sorted(glob.glob("docs/guide/*.md", root_dir=ROOT)), "docs/published_results.md",
         *sorted(glob.glob("benchmarks/results/*.md", root_dir=ROOT))]
RECIPES = r"\b(mlp|fashion-cnn|loss-scaling|cifar10-\w+|imdb-lstm|folder-\w+|gpt2|gpt-\w+)\b"
# What stands for a word that pages leave open.
OPEN_WORDS = {"RECIPE": "fashion-cnn", "SEED": "0", "S": "0", "DIR": "pictures", "F": "texts.csv", "FILE": "policy.txt",
              "TEXT": "book.txt", "TOKENS": "train_000001.bin",
              "runs/train-RECIPE-001/op-policy-fp16.txt": "policy.txt"}
# By a part of the command: the model file that it means.
MODELS = {"--graph net.pt2": "net.safetensors", "predict model.safetensors": "resnet50.safetensors",
          "generate model.safetensors": "gpt.safetensors"}
# 124 million parameters on tokens that are not here: a small one on a few.
SMALL_GPT2 = "--depth 2 --heads 2 --embedding 128 --context 64 --batch-size 8 --tokens-per-step 1024 --eval-every 10 --epochs 2"
# How the model files, and the folders of runs, are made that commands read and no command before them has made here.
MADE_BY = {
    "resnet50.safetensors": "train folder-resnet50 --data-dir pictures --image-size 64 --epochs 1 --steps 2",
    "gpt.safetensors": "train gpt-shakespeare --eval-every 2 --steps 2",
    "net.safetensors": "train net.pt2 --data folder --data-dir pictures --image-size 32 --steps 2",
    "runs/train-cifar10-cnn-001": "train cifar10-cnn --mp --limit 6000 --steps 20",
    "runs/train-net-001": "train net.pt2 --data folder --data-dir pictures --mp --image-size 32 --steps 2",
    "runs/train-gpt-shakespeare-001": "train gpt-shakespeare --mp --eval-every 2 --steps 2",
    "runs/train-gpt2-001": "train gpt2 --train-file train*.bin --test-file val.bin " + SMALL_GPT2,
}
NET = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import demi_export
layers = [layer for a, b in ((3, 16), (16, 32)) for layer in (torch.nn.Conv2d(a, b, 3, 2, 1), torch.nn.BatchNorm2d(b), torch.nn.ReLU())]
net = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10))
demi_export.export(net, (torch.randn(2, 3, 32, 32),), "net.pt2")
"""
# By a part of the command: settings that make it one epoch of the full data, or some steps.
SHORTER = {
    "compare --runs fp32,bf16,fp16:no-scaler": "--epochs 1",  # 20 epochs
    "OMP_NUM_THREADS=1 demi compare cifar10-cnn": "--epochs 1",
    # At the 10 to 12 images a second of two cores without bf16 instructions an epoch of both runs would take some three hours.
    "compare cifar10-resnet50 --epochs 200": "--epochs 1 --steps 10 --test-limit 1000",
    "compare cifar10-resnet50 --published": "--epochs 1 --steps 10 --test-limit 1000",
    "train cifar10-resnet18": "--epochs 1",
    "compare cifar10-resnet18": "--epochs 1",
    "train imdb-lstm": "--epochs 1",
    "compare imdb-lstm": "--epochs 1",
    "train folder-resnet50": "--epochs 1",
    "--from resnet50.safetensors": "--epochs 15",  # all that fine-tuning sets
    # Three runs without fp16 instructions take hours. A rate of 0.1 in its first steps overflows fp16 in validation.
    "fp32-part=stages.7": "--steps 20 --lr 0.01 --test-limit 2000",
    "train gpt-shakespeare --mp --depth 6": "--epochs 1 --eval-every 25",
    "train gpt2": SMALL_GPT2,
    "--from gpt2/": "--heads 4 --embedding 16 --context 12 --tokens-per-step 192",  # the shape of the folder's model
    "train net.pt2 --data folder": "--image-size 32",
}
SHORTER_QUICK = {
    "--from resnet50.safetensors": "--warmup-epochs 0",
    "bench memory --model gpt-shakespeare": "--input 2,32",
    "train gpt2": "--eval-every 2",
    "train gpt-shakespeare": "--eval-every 2",
}
# In quick mode, by the words after `demi`.
QUICK = {
    "train": "--steps 2 --epochs 1", "train mlp": "--steps 10", "compare": "--steps 2 --epochs 1", "bench recipe": "--rounds 1 --steps 1 --warmup 2",
    "bench model": "--width 64 --rounds 1 --steps 1 --warmup 2", "bench step": "--parameters 100000",
    "bench memory": "--batch-size 4", "bench matmul": "--rounds 1", "profile": "--steps 1",
}
QUICK_EXAMPLES = "--limit 128 --batch-size 32"  # of recipes whose data are a set
SECONDS = 7200  # after which a command is ended: room for two runs of an epoch of a ResNet-50 without bf16 instructions
# The environment's PEER, or that of the peers; "": there is none.
PYTHON = os.environ.get("PEER") or subprocess.run(
    [os.path.join(ROOT, "benchmarks", "peers", "make_env.sh"), "--if-ready"], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def missing_for(command):
    """What this machine lacks for a command; "": nothing."""
    if "--device cuda" in command and not glob.glob("/dev/nvidia[0-9]*"):
        return "a GPU"
    if "net.pt2" in command and not os.access(PYTHON, os.X_OK):
        return "Python's PyTorch, which exports net.pt2: benchmarks/peers/make_env.sh"
    return ""


def is_set_of_examples(command):
    named = re.search(RECIPES, command)
    return not named or not named[1].startswith(("mlp", "loss-scaling", "folder", "gpt"))


def commands_of(page):
    """Those of indented and `$ ` lines, and in the text those that name a recipe or print published figures."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        text = re.sub(r"\\\n *", " ", file.read())
    loop = {}  # by the name of a shell variable, its values
    for line in text.splitlines():
        if each := re.match(r" *for (\w+) in (.*); do", line):
            loop["$" + each[1]] = each[2].split()
        typed = re.match(r"(?: {4,}|\$ )((?:[A-Z_]+=\S+ +)*demi [a-z].*)$", line)
        if typed:
            command = re.split(r" {3,}| > |; done", re.sub(r" *\[[^\]]*\]", "", typed[1]))[0]
            name = next((name for name in loop if name in command), "")
            yield from (command.replace(name, value) if name else command for value in loop.get(name, [""]))
        else:
            for found in re.findall(r"`((?:[A-Z_]+=\S+ )*demi [a-z][^`]*)`", line):
                if re.search(RECIPES + "|--published", found):
                    yield found


def of_braces(word):
    """As a shell: a{b,c} is ab and ac."""
    found = re.search(r"\{([^}]*,[^}]*)\}", word)
    return [word[:found.start()] + one + word[found.end():] for one in found[1].split(",")] if found else [word]


def with_option(words, option, value):
    """`words` with that value of the option, wherever it stands."""
    kept = list(words)
    if option in kept:
        at = kept.index(option)
        del kept[at:at + 2]
    return [*kept, option, value]


def with_options(words, options):
    pairs = options.split()
    for option, value in zip(pairs[::2], pairs[1::2]):
        words = with_option(words, option, value)
    return words


def runnable(command, a):
    """The command as it is run: open words filled in, and not too long."""
    words = [re.sub(r"\bRECIPE\b", OPEN_WORDS["RECIPE"], OPEN_WORDS.get(word, word))
             for given in shlex.split(command) for word in of_braces(given)]
    if "--help" in words or "--list" in words:
        return words
    for part, file in MODELS.items():
        if part in command:
            words = [file if word == "model.safetensors" else word for word in words]
    for part, options in [*SHORTER.items(), *(SHORTER_QUICK.items() if a.quick else ())]:
        if part in command:
            words = with_options(words, options)
    text = " ".join(words)
    after = text[text.index("demi ") + len("demi "):]
    if a.quick:
        words = [re.sub(r"--layers=\d+", "--layers=2", word) for word in words]
    for start, options in QUICK.items():
        if a.quick and after.startswith(start) and after != "compare --published" and "--input" not in words:
            words = with_options(words, options)
            takes_limit = start in ("train", "compare", "bench recipe", "profile") and "--train-file" not in words
            if takes_limit and is_set_of_examples(after):
                words = with_options(words, QUICK_EXAMPLES)
    return words


def with_data(words, data_dir):
    """The words, with the folder of data for a command that reads some of it."""
    text = " ".join(words)
    after = text[text.index("demi ") + len("demi "):]
    reads_data = after.startswith(("train", "compare", "eval", "profile", "bench recipe")) and "--train-file" not in words and \
        "--help" not in words and "--list" not in words
    if data_dir and reads_data and " --data text" not in after and \
            re.search(r"\b(cifar10-\w+|imdb-lstm|gpt-shakespeare)\b| --data cifar10\b", after):
        return with_option(words, "--data-dir", data_dir)
    return words


def conditions():
    """Of a line of the record: the day, the last commit of what the program is made of, and the processor."""
    commit = subprocess.run(["git", "log", "-1", "--format=%h", "--", "CMakeLists.txt", "cmake", "demi", "lab", "cli"], cwd=ROOT,
                            capture_output=True, text=True, check=False).stdout
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        named = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit.strip(), "processor": named[1] if named else "",
            "cores": os.cpu_count()}


def picture(side, grey):
    """A PNG of one shade."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes([grey] * 3) * side) * side
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_model(folder, program, name, data_dir):
    """A model file, or a run's folder, that a command reads, from some steps of training."""
    path = os.path.join(folder, name)
    if os.path.exists(path):
        return
    is_run = name.startswith("runs/")
    runs = os.path.dirname(path) if is_run else path + ".runs"
    if not is_run:
        shutil.rmtree(runs, ignore_errors=True)
    words = [program, *MADE_BY[name].split(), "--run-dir", runs]
    if data_dir and "--data-dir" not in words and "--train-file" not in words:
        words += ["--data-dir", data_dir]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    if not is_run:
        os.replace(glob.glob(os.path.join(runs, "*", "model.safetensors"))[0], path)
        shutil.rmtree(runs)


def make_tokens(path, count):
    """A token file in llm.c's form for GPT-2: a header of 256 int32, then uint16."""
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
        file.write(struct.pack(f"<{count}H", *((7 * i * i + 31 * i) % 50257 for i in range(count))))


def make_inputs(folder):
    """What DIR, F and FILE stand for, and the files that commands name: pictures of ten classes, texts, tokens, networks, and a policy."""
    for split, count in (("train", 12), ("val", 4)):
        for number in range(10):
            name = f"shade-{number}"
            os.makedirs(os.path.join(folder, "pictures", split, name), exist_ok=True)
            for i in range(count):
                with open(os.path.join(folder, "pictures", split, name, f"{i}.png"), "wb") as file:
                    file.write(picture(64, 20 + 20 * number + i))
    with open(os.path.join(folder, "cat.jpg"), "wb") as file:
        file.write(picture(64, 100))
    with open(os.path.join(folder, "texts.csv"), "w", encoding="utf-8") as file:
        file.write("label,text\n")
        for i in range(640):
            file.write(f"{i % 2},{' '.join(f'word{(7 * i + 31 * j) % 5000}' for j in range(256))}\n")
    with open(os.path.join(folder, "book.txt"), "w", encoding="utf-8") as file:
        file.write(" ".join(f"word{(7 * i * i + 31 * i) % 5000}" for i in range(20000)))
    shutil.copytree(os.path.join(folder, "pictures", "val", "shade-0"), os.path.join(folder, "photographs"), dirs_exist_ok=True)
    shutil.copytree(os.path.join(ROOT, "tests", "fixtures", "huggingface", "gpt2"), os.path.join(folder, "gpt2"), dirs_exist_ok=True)
    if os.access(PYTHON, os.X_OK) and not os.path.exists(os.path.join(folder, "net.pt2")):
        subprocess.run([PYTHON, "-c", NET, os.path.join(ROOT, "scripts")], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for name in ("train_000001.bin", "train_000002.bin", "val.bin"):
        make_tokens(os.path.join(folder, name), 20000)
    with open(os.path.join(folder, "policy.txt"), "w", encoding="utf-8") as file:
        file.write("softmax fp32\n")


def last_of_json(value):
    """The numbers of the last entry of its first list, or its own."""
    lists = [one for one in value.values() if isinstance(one, list) and one and isinstance(one[-1], dict)]
    row = lists[0][-1] if lists else value
    return ", ".join(f"{name} {one}" for name, one in row.items() if isinstance(one, (int, float, str)))[:200]


def last_figures(output):
    """The last row of the first table, or of the JSON's first list; else the last line."""
    if output.startswith("{"):
        return last_of_json(json.loads(output))
    lines = [line.rstrip() for line in output.splitlines()]
    for at, line in enumerate(lines):
        if line and not line.strip("─-|: "):
            end = lines.index("", at) if "" in lines[at:] else len(lines)
            rows = [row for row in lines[at + 1:end] if row]
            if rows:
                return re.sub(r"\s{2,}", "  ", rows[-1].strip())
    filled = [line for line in lines if line]
    return filled[-1][:200] if filled else ""


class Stopped(Exception):
    def __init__(self, number):
        super().__init__()
        self.number = number


def stop(number, _frame):
    raise Stopped(number)


def run(words, program, folder, output):
    """Its words go to OUTPUT.out and OUTPUT.err. Ends the command, and raises Stopped, if a signal comes."""
    names = [word for word in words if re.match(r"[A-Z_]+=", word)]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **dict(name.split("=", 1) for name in names)}
    arguments = [program, *words[len(names) + 1:]]
    start = time.monotonic()
    with open(os.path.join(folder, output + ".out"), "w+", encoding="utf-8") as out, \
            open(os.path.join(folder, output + ".err"), "w", encoding="utf-8") as err:
        process = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            code = process.wait(SECONDS)
        except (Stopped, subprocess.TimeoutExpired) as reason:
            os.killpg(process.pid, signal.SIGTERM)  # it saves a checkpoint
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(reason, Stopped):
                raise
            code = 124
        out.seek(0)
        return code, round(time.monotonic() - start, 1), last_figures(out.read())


def pattern(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is no regular expression: {error}")


def arguments():
    parser = argparse.ArgumentParser(prog="benchmarks/every_command.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps of few examples each")
    parser.add_argument("--list", action="store_true", help="print the commands and end")
    parser.add_argument("--only", default="", type=pattern, metavar="PATTERN", help="a regular expression [all]")
    parser.add_argument("--again", action="store_true", help="run those anew that did not end with 0")
    parser.add_argument("--data-dir", default="", help="folder of CIFAR-10 and IMDB, where demi does not find them by itself")
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "release", "demi"), help="[build/release/demi]")
    a = parser.parse_args()
    a.program = os.path.abspath(a.program)
    a.data_dir = a.data_dir and os.path.abspath(a.data_dir)
    if not a.list and not os.access(a.program, os.X_OK):
        parser.error(f"{a.program} is missing: ./demo builds it, or scripts/build.sh release release --target=demi_program")
    return a


def main():
    a = arguments()
    commands = {}  # as it is run: in the order of the pages, each once
    for page in PAGES:
        for command in commands_of(page):
            commands.setdefault(shlex.join(runnable(command, a)), page)
    commands = {command: page for command, page in commands.items() if re.search(a.only, command)}
    if a.list:
        print("\n".join(f"{page}: {command}" for command, page in commands.items()))
        return 0
    folder = os.path.join(ROOT, "build", "every_command" + ("_quick" if a.quick else ""))
    os.makedirs(folder, exist_ok=True)
    make_inputs(folder)
    path = os.path.join(*((folder, "commands.jsonl") if a.quick else (ROOT, "benchmarks", "results", "every_command.jsonl")))
    done = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            done = {one["command"]: one for one in map(json.loads, file)}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    failed = left_out = 0
    for number, (command, page) in enumerate(commands.items(), 1):
        if lack := missing_for(command):
            left_out += 1
            print(f"{number}/{len(commands)}  left out: needs {lack}: {command}", flush=True)
            continue
        one = done.get(command)
        if not one or (a.again and one["exit_code"] != 0):
            try:
                for name in (name for name in MADE_BY if re.search(rf"(^| ){re.escape(name)}(/| |$)", command)):
                    make_model(folder, a.program, name, a.data_dir)
                output = f"{zlib.crc32(command.encode()):08x}"
                code, seconds, figures = run(with_data(shlex.split(command), a.data_dir), a.program, folder, output)
            except Stopped as stopped:
                print(f"stopped in: {command}; start it again to go on", file=sys.stderr)
                return 128 + stopped.number
            one = {"command": command, "page": page, "exit_code": code, "seconds": seconds, "figures": figures,
                   "output": output, **conditions()}
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(one, ensure_ascii=False) + "\n")
        failed += one["exit_code"] != 0
        print(f"{number}/{len(commands)}  exit {one['exit_code']}  {one['seconds']} s  {command}\n        {one['figures']}", flush=True)
    print(f"{len(commands) - left_out - failed} of {len(commands) - left_out} commands ended with 0, {left_out} were left out; "
          f"{os.path.relpath(path)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
