"""Runs every benchmark of demi and its peer in turn, and writes one results file for this class of machine.

    benchmarks/measure.sh                                     the benchmarks that need no peer
    benchmarks/measure.sh --peer $(benchmarks/peers/make_env.sh)    with Python PyTorch beside them: as it is started, with memory
                                                                    that glibc keeps, and under torch.compile with that memory
    benchmarks/measure.sh --peer ... --nanogpt FOLDER         and nanoGPT, of which FOLDER is a checkout: gpt-shakespeare, gpt2
    benchmarks/measure.sh --table                             only benchmarks/results/README.md, from all results files

The program is build/release/demi, which is built first if it is missing. The results file is benchmarks/results/CLASS.json, where
CLASS is x86-64-avx2, x86-64-avx512, x86-64-avx512-bf16, x86-64-avx512-bf16-intel (whose AMX a guest hides), x86-64-amx, or sm_NN for an NVIDIA GPU. A part that was measured replaces
the same part of an older file; the others stay. Each part is written as soon as it is measured. A part whose data set is not here, or
whose program fails, is left out; the last lines name it with the reason. Exit codes: 0 done, 1 a part failed, 2 usage, 3 no part
failed and the data of one is missing.

Each command's share of the machine is written beside its figures: `others` is the CPU time that other programs took while it ran,
over the CPU time of all cores (from /proc/stat; time stolen by the host of a virtual machine counts). A part with more than a
tenth of that is marked in the table.

In a recipe's part both sides time the same: forward, backward, update and the batch, which the peer draws as demi's Trainer does
(recipe_peer.py --loader). Of the modes of torch.compile the best one's figure is kept, with its name; a mode that fails is named at the
end, and the rest of its part is kept. On a GPU there is TF32 beside FP32, cuDNN times its convolutions on both sides where demi's
recipe has it so, and a step's share of the peak: of the fastest product of its dtype in the part matmul of the same processor.
"""
import argparse
import datetime
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import results_table  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PEERS = os.path.join(HERE, "peers")
RESULTS = os.path.join(HERE, "results")
GPTS = ["gpt-shakespeare", "gpt2"]
PARTS = ["step", "autocast", "products", "matmul", "mlp", "fashion-cnn", "cifar10-resnet50", "imdb-lstm", *GPTS, "compare", "memory",
         "profile"]
# What a level below the machine's own sets, so that LibTorch, oneDNN, MKL and demi all use no newer instructions.
LEVELS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
             "DEMI_KERNELS": "avx2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
}
# The data set that a part trains on.
DATA = {"fashion-cnn": "fashion-mnist", "cifar10-resnet50": "cifar10", "compare": "fashion-mnist", "profile": "fashion-mnist"}
ON_CPU_ONLY = {"autocast", "products"}
STEP_PEERS = {"sgd", "sgd-momentum", "adam", "adamw"}
# Python as it is started, and with glibc told to keep memory, as the program `demi` tells it (cli/program.cpp): by default glibc gives
# blocks above 32 MiB back to the system and takes them anew, whose pages are zeroed by the kernel each time.
PYTHONS = {
    "python_ms": {},
    "python_kept_ms": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"},
}
MODES = ["default", "reduce-overhead", "max-autotune"]  # torch.compile's
CUDNN_BENCHMARK = {"fashion-cnn", "cifar10-resnet50"}  # as these recipes set it
WORDS, TEXTS, LENGTH = 100_681, 640, 256  # with the two marks, IMDB's vocabulary of 100,683
# GPT-2's words, and as nanoGPT's train.py pads them. demi pads for the products alone.
GPT2_WORDS, GPT2_PADDED = 50_257, 50_304


def pythons(a):
    return PYTHONS if a.device == "cpu" else {"python_ms": {}}


def compiled_memory(a):
    return PYTHONS["python_kept_ms"] if a.device == "cpu" else {}


def cpu_words(field):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [line for line in file if line.startswith(field)]
    return set(lines[0].split(":")[1].split()) if lines else set()


def cpu_class(level):
    flags = cpu_words("flags")
    if level:
        return f"x86-64-{level}"
    if "amx_bf16" in flags:
        return "x86-64-amx"
    if "avx512_bf16" in flags:
        return "x86-64-avx512-bf16" + ("-intel" if "GenuineIntel" in cpu_words("vendor_id") else "")
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "x86-64-avx512"
    return "x86-64-avx2" if "avx2" in flags else platform.machine()


def gpu(what):
    query = subprocess.run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return query.stdout.splitlines()[0].strip()


def gpu_class():
    return "sm_" + gpu("compute_cap").replace(".", "")


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()


def busy_seconds():
    """CPU time of all programs since the start of the machine: everything but idle and waiting for a disk."""
    with open("/proc/stat", encoding="utf-8") as file:
        fields = [int(word) for word in file.readline().split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class PartFailed(Exception):
    """A command of a part ended with an exit code that is not 0."""


class Measurement:
    """Runs commands in turn and keeps what they cost and what they met."""

    def __init__(self, environment):
        self.environment = {**os.environ, **environment}
        self.commands = []
        self.failed = []  # what was left out of a part, with the reason

    def run(self, command, extra=None):
        extra = extra or {}
        shown = " ".join([f"{name}={value}" for name, value in extra.items()] + command).replace(ROOT + "/", "")
        print(f"measure: {shown}", file=sys.stderr, flush=True)
        before, busy, start = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds(), time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**self.environment, **extra})
        wall = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if done.returncode != 0:
            print(f"{done.stderr}{done.stdout[-2000:]}", file=sys.stderr, flush=True)
            raise PartFailed(f"{shown} ended with exit code {done.returncode}")
        capacity = wall * os.cpu_count()
        self.commands.append({
            "command": re.sub(r"(?<!\S)/\S*/", "", shown), "seconds": round(wall, 2), "cores_used": round(own / wall, 2),
            "others": round(max(0.0, busy_seconds() - busy - own) / capacity, 3),
            "involuntary_switches": after.ru_nivcsw - before.ru_nivcsw})
        return done.stdout

    def json(self, command, extra=None):
        text = self.run(command, extra)
        return json.loads(text[text.index("{"):])


def measure_step(m, a):
    rows = {}
    for optimizer in results_table.step_optimizers():
        size = ["--optimizer", optimizer, "--parameters", str(a.parameters), "--device", a.device]
        rows[optimizer] = m.json([a.program, "bench", "step", *size, "--json"])
        if a.peer and optimizer in STEP_PEERS:
            for kind, memory in pythons(a).items():
                rows[optimizer][kind] = m.json([a.peer, os.path.join(PEERS, "step_peer.py"), *size], memory)["ms"]
    return rows


def measure_autocast(m, a):
    return m.json([a.program, "bench", "autocast", "--json"])


def measure_products(m, a):
    result = m.json([a.program, "bench", "matmul", "--layers", "--rounds", "3", "--json"])
    return [{name: row[name] for name in ("op", "dtype", "fp32_ms", "demi_ms", "libtorch_ms")} for row in result["layers"]]


def measure_matmul(m, a):
    return m.json([a.program, "bench", "matmul", "--device", a.device, "--json"])


def random_texts(folder):
    """Random texts of one length that hold every word at least once."""
    import random
    words = [f"w{i % WORDS}" for i in range(TEXTS * LENGTH)]
    random.Random(0).shuffle(words)
    path = os.path.join(folder, "texts.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write("label,text\n")
        for i in range(TEXTS):
            file.write(f"{i % 2},{' '.join(words[i * LENGTH:(i + 1) * LENGTH])}\n")
    return path


def shakespearean(folder):
    """A text of 65 different characters, as many as tinyshakespeare has."""
    import random
    path = os.path.join(folder, "text.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(random.Random(0).choices([chr(ord("0") + i) for i in range(65)], k=1_000_000)))
    return path


def random_tokens(folder):
    """A token file in nanoGPT's form: uint16."""
    import array
    import random
    path = os.path.join(folder, "train.bin")
    with open(path, "wb") as file:
        array.array("H", random.Random(0).choices(range(GPT2_WORDS), k=1_000_000)).tofile(file)
    return path


def gpt_sizes(recipe, a):
    """Layers, heads, width, context, batch, dropout."""
    if recipe == "gpt2":
        return (12, 12, 768, 1024, 16, 0) if a.device != "cpu" else (2, 12, 768, 256, 4, 0)
    return (6, 6, 384, 256, 64, 0.2) if a.device != "cpu" else (4, 4, 128, 64, 12, 0)


def recipe_options(recipe, a, folder):
    """Of `demi bench recipe`, and the peer's command without its precision; the latter is empty where there is none."""
    device = ["--device", a.device]
    layers, heads, width, context, batch, dropout = map(str, gpt_sizes(recipe, a))
    nanogpt = [os.path.join(PEERS, "nanogpt_peer.py"), a.nanogpt]
    sizes = ["--layers", layers, "--heads", heads, "--width", width, "--context", context, "--batch", batch, "--dropout", dropout, *device]
    if recipe == "gpt-shakespeare":
        text = shakespearean(folder)
        return (["--data", "text", "--train-file", text, "--test-file", text, *device],
                nanogpt + [text, "speed", *sizes] if a.nanogpt else [])
    if recipe == "gpt2":
        tokens = random_tokens(folder)
        return (["--train-file", tokens, "--test-file", tokens, "--depth", layers, "--heads", heads, "--embedding", width,
                 "--context", context, "--batch-size", batch, "--vocabulary-size", str(GPT2_WORDS), "--tokens-per-step", "0", "--no-bias",
                 *device],
                nanogpt + ["-", "speed", "--words", str(GPT2_WORDS), "--vocabulary", str(GPT2_PADDED), *sizes] if a.nanogpt else [])
    options = ["--clip-norm", "0"]
    if recipe == "imdb-lstm":
        path = random_texts(folder)
        options += ["--data", "csv", "--train-file", path, "--test-file", path]
    if recipe == "cifar10-resnet50":
        options += ["--batch-size", "32"] + (["--data-dir", a.data_dir] if a.data_dir else [])
    benchmark = ["--cudnn-benchmark"] if a.device != "cpu" and recipe in CUDNN_BENCHMARK else []
    return options + device, [os.path.join(PEERS, "recipe_peer.py"), recipe, *device, "--loader", "--flush-denormal", *benchmark]


def of_precision(precision, a):
    """The peer's options for a run of demi. TF32 is what a GPU makes FP32 of, if it may."""
    tf32 = {"fp32": ["--tf32", "off"], "tf32": ["--tf32", "on"]}.get(precision, []) if a.device != "cpu" else []
    return ["--precision", "fp32" if precision == "tf32" else precision, *tf32]


def steps_of(recipe, a):
    """A step of the smallest network takes some 20 ms, so it takes more of them."""
    return a.steps * (4 if recipe == "gpt-shakespeare" else 1)


def peer_runs(recipe, m, a, command, precision):
    """What Python's ways print, one by one: by column and mode of torch.compile. A mode that fails is not tried again."""
    ways = {(kind, None): memory for kind, memory in pythons(a).items()}
    ways |= {("python_compiled_ms", mode): compiled_memory(a) for mode in a.compile}
    given_up = {one["run"] for one in m.failed}
    for (kind, mode), memory in ways.items():
        run = f"{recipe} {precision}, torch.compile {mode}"
        if run in given_up:
            continue
        try:
            yield (kind, mode), m.json([a.peer, *command, *of_precision(precision, a), "--steps", str(steps_of(recipe, a)),
                                        *(["--compile", mode] if mode else [])], memory)
        except PartFailed as failure:
            if not mode:
                raise
            m.failed.append({"run": run, "reason": str(failure)})


def milliseconds(printed):
    return printed["ms"]["median"] if isinstance(printed["ms"], dict) else printed["ms"]


def python_figures(printed):
    """From what the peer printed, by column and mode of torch.compile a list of the rounds: the median of the rounds' medians; of the
    modes the best one's."""
    median = lambda way: statistics.median(milliseconds(one) for one in printed[way])
    figures = {kind: median((kind, mode)) for kind, mode in printed if not mode}
    modes = [way for way in printed if way[1]]
    if modes:
        best = min(modes, key=median)
        figures |= {best[0]: median(best), "python_compiled_mode": best[1], "python_graphs": printed[best][0]["graphs"],
                    "python_compile_seconds": max(one["compile_seconds"] for one in printed[best])}
    first = next(iter(printed.values()))[0]
    figures |= {name: first[name] for name in ("data", "flop", "vocabulary", "attention", "cudnn", "tf32") if first.get(name)}
    return figures


def peak_of(precision, parts, processor):
    """FLOP a second, in 10^12, of the fastest product of that dtype, if the part matmul was measured on this processor."""
    matmul = parts.get("matmul")
    if not matmul or matmul["conditions"]["processor"] != processor:
        return None
    return matmul["figures"].get("peak_tflops", {}).get(precision)


def measure_recipe(m, a, recipe):
    """demi and the peers of all kinds in turn, each precision; the median of the rounds' medians."""
    with tempfile.TemporaryDirectory() as folder:
        options, peer = recipe_options(recipe, a, folder)
        options += ["--warmup", "2", "--steps", "1", "--rounds", str(steps_of(recipe, a))]
        if a.device != "cpu":
            options += ["--runs", "tf32,fp16,bf16"]
        demi, printed = {}, {}
        for _ in range(a.rounds):
            for run in m.json([a.program, "bench", "recipe", recipe, *options, "--json"])["runs"]:
                demi.setdefault(run["precision"], []).append(run["ms"])
            for precision in demi if a.peer and peer else []:
                for way, one in peer_runs(recipe, m, a, peer, precision):
                    printed.setdefault(precision, {}).setdefault(way, []).append(one)
    rows = {precision: {"demi_ms": statistics.median(ms)} for precision, ms in demi.items()}
    for precision, row in rows.items():
        row |= python_figures(printed[precision]) if precision in printed else {}
        if a.device != "cpu" and "flop" in row and (peak := peak_of(precision, a.parts, gpu("name"))):
            row["peak_tflops"] = peak
    print_recipe(recipe, rows)
    return rows


def print_recipe(recipe, rows):
    for precision, row in rows.items():
        shown = [f"demi {row['demi_ms']:.1f} ms"]
        shown += [f"{name} {row[kind]:.1f}" for kind, name in results_table.RECIPE_PYTHONS.items() if kind in row]
        if "python_compiled_mode" in row:
            shown[-1] += f" ({row['python_compiled_mode']}, {row['python_compile_seconds']:.0f} s to compile)"
        if "peak_tflops" in row:
            shown.append(f"{100 * results_table.share_of_peak(row):.0f} % of the peak")
        print(f"{recipe}, {precision}: {', '.join(shown)}", flush=True)


def measure_compare(m, a):
    with tempfile.TemporaryDirectory() as folder:
        return m.json([a.program, "compare", *a.compare_arguments, "--device", a.device, "--run-dir", folder, "--json"])


def measure_memory(m, a):
    """By recipe: rows of FP32, the 16-bit model and mixed precision."""
    rows = {}
    for recipe in ("mlp", "fashion-cnn", "cifar10-resnet18", "cifar10-resnet50", "imdb-lstm"):
        result = m.json([a.program, "bench", "memory", "--model", recipe, "--device", a.device, "--json"])
        rows[recipe] = [{name: run[name] for name in ("precision", "batch_size", "peak_bytes", "predicted_bytes")}
                        for run in result["runs"]]
    return rows


def measure_profile(m, a):
    """By recipe: what a step does in each precision, and what the profiler costs."""
    rows = {}
    for recipe in ("mlp", "fashion-cnn"):
        with tempfile.TemporaryDirectory() as folder:
            result = m.json([a.program, "profile", recipe, "--precision", "fp32,bf16" if a.device == "cpu" else "fp32,fp16,bf16",
                             "--steps", str(a.steps), "--device", a.device, "--output", folder, "--json"])
        rows[recipe] = {run["precision"]: {name: run[name] for name in (
            "step_ms", "recorded_ms", "overhead", "low_time_share", "low_flops_share", "casts", "cast_ms", "idle_share")}
            for run in result["runs"]}
    return rows


def measured(part, m, a):
    measures = {"step": measure_step, "autocast": measure_autocast, "products": measure_products, "matmul": measure_matmul,
                "compare": measure_compare, "memory": measure_memory, "profile": measure_profile}
    return measures[part](m, a) if part in measures else measure_recipe(m, a, part)


def without_data(a):
    """The parts whose data set is not here, each with the reason. Asked before anything is measured."""
    folders = {}
    for name, data_dir in (("fashion-mnist", ""), ("cifar10", a.data_dir)):
        listed = subprocess.run([a.program, "data", "list", "--json"] + (["--data-dir", data_dir] if data_dir else []),
                                capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            sys.exit(f"measure: {a.program} data list ended with exit code {listed.returncode}\n{listed.stderr}")
        folders |= {one["name"]: one["folder"] for one in json.loads(listed.stdout)["data_sets"] if one["name"] == name}
    return {part: f"{DATA[part]} is not here: `demi data list` says how to get it"
            for part in a.only if part in DATA and not folders[DATA[part]]}


def commit():
    found = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def arguments():
    parser = argparse.ArgumentParser(prog="benchmarks/measure.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="", metavar="PYTHON", help="a Python with torch of the same version")
    parser.add_argument("--compile", default="default", metavar="MODES",
                        help=f"modes in which the peer is measured under torch.compile, too, of {','.join(MODES)}, or none [default]")
    parser.add_argument("--nanogpt", default="", metavar="FOLDER", help=f"a checkout of nanoGPT, the peer of {','.join(GPTS)}")
    parser.add_argument("--program", default="", help="[build/release/demi, built if it is missing]")
    parser.add_argument("--only", default="", metavar="PARTS", help=f"of {','.join(PARTS)} [all that the device has]")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--level", choices=LEVELS, default="",
                        help="use no newer instructions than these, and file the results under that class")
    parser.add_argument("--data-dir", default="", help="folder with CIFAR-10's files, where demi does not find them by itself")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each program in a recipe's part, in turn [2]")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of such a run [5]")
    parser.add_argument("--parameters", type=int, default=33554432, help="of the step's part [33554432]")
    parser.add_argument("--limit", type=int, default=0, help="pictures of the part compare [all]")
    parser.add_argument("--table", action="store_true", help="only write benchmarks/results/README.md")
    a = parser.parse_args()
    possible = [part for part in PARTS if a.device == "cpu" or part not in ON_CPU_ONLY]
    a.only = a.only.split(",") if a.only else possible
    for part in a.only:
        if part not in possible:
            parser.error(f"no such part on {a.device}: {part}; there are {', '.join(possible)}")
    if a.program and not os.access(a.program, os.X_OK):
        parser.error(f"--program {a.program} is no program; without it build/release/demi is measured, and built if it is missing")
    if a.peer and not shutil.which(a.peer):
        parser.error(f"--peer {a.peer} is no program; benchmarks/peers/make_env.sh makes one")
    a.compile = [] if a.compile == "none" else a.compile.split(",")
    for mode in a.compile:
        if mode not in MODES:
            parser.error(f"--compile {mode}: no such mode; there are {', '.join(MODES)}, or none")
    if a.nanogpt and not os.path.exists(os.path.join(a.nanogpt, "model.py")):
        parser.error(f"--nanogpt {a.nanogpt} holds no model.py: it is a checkout of nanoGPT")
    for name in ("rounds", "steps", "parameters"):
        if getattr(a, name) < 1:
            parser.error(f"--{name} {getattr(a, name)} is less than 1")
    a.compare_arguments = ["--limit", str(a.limit)] if a.limit else []
    return a


def built_program():
    """build/release/demi. `./check --quick` builds the tests alone, so it may be missing."""
    program = os.path.join(ROOT, "build", "release", "demi")
    if not os.access(program, os.X_OK):
        build = [os.path.join(ROOT, "scripts", "build.sh"), "release", "release", "--target=demi_program"]
        if subprocess.run(build, check=False).returncode != 0:
            sys.exit(f"measure: {program} is missing and cannot be built; ./check sets up what the build needs")
    return program


def measure_parts(a):
    """Writes the results file after each part. Returns the parts that were left out: by name, the reason."""
    name = gpu_class() if a.device != "cpu" else cpu_class(a.level)
    path = os.path.join(RESULTS, name + ".json")
    results = {"class": name, "parts": {}}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
    missing, failed = without_data(a), {}
    for part, reason in missing.items():
        print(f"measure: {part} will be left out: {reason}", file=sys.stderr, flush=True)
    for part in a.only:
        if part in missing:
            continue
        m = Measurement(LEVELS.get(a.level, {}))
        a.parts = results["parts"]
        try:
            figures = measured(part, m, a)
        except PartFailed as failure:
            failed[part] = str(failure)
            continue
        failed |= {one["run"]: one["reason"] for one in m.failed}
        results["parts"][part] = {
            "conditions": {"date": datetime.date.today().isoformat(), "commit": commit(),
                           "processor": cpu_name() if a.device == "cpu" else gpu("name"),
                           "cores": os.cpu_count(), "limited_to": a.level or None},
            "commands": m.commands, "figures": figures}
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
        os.replace(path + ".new", path)
        results_table.write(RESULTS)
        print(f"measure: wrote {part} to {os.path.relpath(path)}", file=sys.stderr, flush=True)
    return missing, failed


def main():
    a = arguments()
    if a.table:
        results_table.write(RESULTS)
        return 0
    a.program = a.program or built_program()
    missing, failed = measure_parts(a)
    for part, reason in {**missing, **failed}.items():
        print(f"measure: not measured: {part}: {reason}", file=sys.stderr)
    return 1 if failed else 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
