"""Writes benchmarks/results/README.md, the table over all classes of machines, from the results files beside it."""
import glob
import json
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES = ["x86-64-avx2", "x86-64-avx512", "x86-64-avx512-bf16", "x86-64-avx512-bf16-intel", "x86-64-amx", "sm_80", "sm_90", "sm_100"]
PYTHONS = {"python_ms": "Python", "python_kept_ms": "Python that keeps memory"}
RECIPE_PYTHONS = {**PYTHONS, "python_compiled_ms": "Python, compiled"}
DISTURBED = 0.1  # share of the machine that other programs took

HEAD = """# Results by class of machine

Written by `benchmarks/measure.sh` from the JSON files of this folder, which hold every command, its figures, the commit, the
processor and the share of the machine that other programs took meanwhile. An empty cell has not been measured on such a machine.
A figure with ° was measured while other programs took more than a tenth of the machine. Times of one row were taken in turn;
compare ratios, not times, between columns.

"Python" is PyTorch as it is started. glibc then gives large blocks back to the system and takes them again in each step, and the
kernel zeroes their pages each time. The program `demi` tells glibc to keep them. "Python that keeps memory" does so, too, by
`MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456`: what is left against it is what demi computes
faster, and the difference between the two rows is memory that any program can keep. "Python, compiled" keeps memory (on a CPU) and runs
the model under torch.compile, in the best of the modes that were measured. In the GPT rows Python is nanoGPT, with GPT-2's words padded
to 50,304.

A step of demi has its batch in it: drawn, converted and, of pictures, normalised. So has Python's where the row says "drawn as demi's";
figures with "one, repeated" are of a peer that was spared that.

"""


def cell(value, form):
    return form.format(value)


def step_optimizers():
    """Those of `demi bench step`: demi's update rules, SGD with and without momentum."""
    with open(os.path.join(HERE, "..", "demi", "kernels", "rules", "list.h")) as file:
        rules = re.findall(r"^#include DEMI_RULE\((\w+)\)", file.read(), re.MULTILINE)
    at = rules.index("sgd") + 1
    return rules[:at] + ["sgd-momentum"] + rules[at:]


def is_measured(optimizer):
    files = glob.glob(os.path.join(HERE, "results", "*.json"))
    return any(optimizer in json.load(open(one)).get("parts", {}).get("step", {}).get("figures", {}) for one in files)


def step_rows():
    for optimizer in filter(is_measured, step_optimizers()):
        yield "step", f"{optimizer}: step over 33.5 M parameters, ms", lambda f, o=optimizer: cell(f[o]["ms"], "{:.1f}")
        yield "step", f"{optimizer}: share of a copy's bandwidth", lambda f, o=optimizer: cell(f[o]["fraction_of_copy"], "{:.2f}")
        yield "step", f"{optimizer}: share of a pass in place", lambda f, o=optimizer: cell(f[o]["fraction_of_in_place"], "{:.2f}")
        if optimizer in ("sgd", "sgd-momentum", "adam", "adamw"):
            yield ("step", f"{optimizer}: torch::optim / demi",
                   lambda f, o=optimizer: cell(f[o]["torch_optim_ms"] / f[o]["ms"], "{:.1f} ×"))
            for kind, name in PYTHONS.items():
                yield ("step", f"{optimizer}: {name}, fused step / demi",
                       lambda f, o=optimizer, kind=kind: cell(f[o][kind] / f[o]["ms"], "{:.1f} ×"))
        yield "step", f"{optimizer}: 40 small tensors, µs", lambda f, o=optimizer: cell(f[o]["host_us_40_tensors"], "{:.1f}")


def autocast_rows():
    for op in ("linear", "linear no_grad", "addmm no_grad", "mm no_grad", "matmul no_grad", "conv2d no_grad"):
        find = lambda f, op=op: next(one for one in f["ops"] if one["name"] == op)
        yield "autocast", f"{op}: demi's region / plain op", lambda f, find=find: cell(find(f)["demi_over_plain"], "{:.3f}")
        yield ("autocast", f"{op}: LibTorch's region / plain op",
               lambda f, find=find: cell(find(f)["libtorch_ns"] / find(f)["plain_ns"], "{:.3f}"))


def product_rows():
    for dtype in ("bf16", "fp16"):
        for op in ("linear 512 x 2048 to 2048", "linear 64 x 784 to 128", "conv2d 64 x 64 x 32², 3² to 64",
                   "conv2d 64 x 256 x 8², 1² to 1024"):
            find = lambda f, op=op, dtype=dtype: next(one for one in f if (one["op"], one["dtype"]) == (op, dtype))
            yield "products", f"{dtype} {op}: FP32 / demi", lambda f, find=find: cell(find(f)["fp32_ms"] / find(f)["demi_ms"], "{:.2f} ×")
            yield ("products", f"{dtype} {op}: LibTorch / demi",
                   lambda f, find=find: cell(find(f)["libtorch_ms"] / find(f)["demi_ms"], "{:.2f} ×"))


def matmul_rows():
    for dtype in ("fp32", "tf32", "bf16", "fp16"):
        for size in (1001, 1024, 4096):
            def find(f, in_region, dtype=dtype, size=size):
                return next(one for one in f["rows"]
                            if (one["dtype"], one["size"], one["in_region"]) == (dtype, size, in_region))
            if dtype not in ("fp32", "tf32"):
                yield ("matmul", f"{dtype} {size} in a region: speedup over FP32",
                       lambda f, find=find: cell(find(f, True)["speedup"], "{:.2f} ×"))
            yield ("matmul", f"{dtype} {size}, LibTorch's own: speedup over FP32",
                   lambda f, find=find: cell(find(f, False)["speedup"], "{:.2f} ×"))
            yield ("matmul", f"{dtype} {size}, LibTorch's own: share of the roofline",
                   lambda f, find=find: cell(100 * find(f, False)["of_peak"], "{:.0f} %"))


def mixed_of(f):
    return f.get("fp16") or f["bf16"]


def share_of_peak(row):
    return row["flop"] / (1e-3 * row["demi_ms"]) / (1e12 * row["peak_tflops"])


def strongest_peer(row):
    """Its time over demi's, and its name."""
    kind = min((kind for kind in RECIPE_PYTHONS if kind in row), key=row.get, default=None)
    if not kind:
        raise KeyError("measured without a peer")
    return cell(row[kind] / row["demi_ms"], "{:.2f} ×") + f" ({RECIPE_PYTHONS[kind]})"


def data_of_peer(row):
    if "vocabulary" in row:
        return "drawn as demi's"
    return {"loader": "drawn as demi's", "resident": "one, repeated"}[row.get("data", "resident")] if "python_ms" in row else ""


def cudnn_of(row):
    tf32 = [place for place, allowed in row["tf32"].items() if allowed]
    return f"{row['cudnn']['version']}, {'fastest' if row['cudnn']['benchmark'] else 'by rule'}, TF32 {' and '.join(tf32) or 'off'}"


def recipe_rows():
    for recipe in ("mlp", "fashion-cnn", "cifar10-resnet50", "imdb-lstm", "gpt-shakespeare", "gpt2"):
        yield recipe, f"{recipe}, a step: FP32, ms", lambda f: cell(f["fp32"]["demi_ms"], "{:.1f}")
        yield recipe, f"{recipe}, a step: TF32, ms", lambda f: cell(f["tf32"]["demi_ms"], "{:.1f}")
        yield recipe, f"{recipe}, a step: mixed, ms", lambda f: cell(mixed_of(f)["demi_ms"], "{:.1f}")
        yield recipe, f"{recipe}: FP32 / mixed", lambda f: cell(f["fp32"]["demi_ms"] / mixed_of(f)["demi_ms"], "**{:.2f} ×**")
        for kind, name in RECIPE_PYTHONS.items():
            yield (recipe, f"{recipe}: {name}, FP32 / demi FP32",
                   lambda f, kind=kind: cell(f["fp32"][kind] / f["fp32"]["demi_ms"], "{:.2f} ×"))
            yield (recipe, f"{recipe}: {name}, TF32 / demi TF32",
                   lambda f, kind=kind: cell(f["tf32"][kind] / f["tf32"]["demi_ms"], "{:.2f} ×"))
            yield (recipe, f"{recipe}: {name}, autocast / demi mixed",
                   lambda f, kind=kind: cell(mixed_of(f)[kind] / mixed_of(f)["demi_ms"], "**{:.2f} ×**"))
        yield (recipe, f"{recipe}: torch.compile's mode, FP32 and mixed",
               lambda f: f["fp32"]["python_compiled_mode"] + " and " + mixed_of(f)["python_compiled_mode"])
        yield recipe, f"{recipe}: strongest peer / demi, FP32", lambda f: strongest_peer(f["fp32"])
        yield recipe, f"{recipe}: strongest peer / demi, mixed", lambda f: strongest_peer(mixed_of(f))
        yield recipe, f"{recipe}: Python's batches", lambda f: data_of_peer(f["fp32"])
        yield recipe, f"{recipe}, FP32: share of the peak", lambda f: cell(100 * share_of_peak(f["fp32"]), "{:.0f} %")
        yield recipe, f"{recipe}, TF32: share of the peak", lambda f: cell(100 * share_of_peak(f["tf32"]), "{:.0f} %")
        yield recipe, f"{recipe}, mixed: share of the peak", lambda f: cell(100 * share_of_peak(mixed_of(f)), "{:.0f} %")
        yield recipe, f"{recipe}, mixed: nanoGPT's attention", lambda f: ", ".join(mixed_of(f)["attention"])
        yield recipe, f"{recipe}, FP32: Python's cuDNN", lambda f: cudnn_of(f["fp32"])


def compare_rows():
    run = lambda f, i: f["runs"][i]
    yield "compare", "fashion-cnn, 3 epochs: FP32, s an epoch", lambda f: cell(run(f, 0)["seconds_per_epoch"], "{:.1f}")
    yield "compare", "fashion-cnn, 3 epochs: mixed, s an epoch", lambda f: cell(run(f, 1)["seconds_per_epoch"], "{:.1f}")
    yield "compare", "fashion-cnn, 3 epochs: speedup", lambda f: cell(run(f, 0)["seconds"] / run(f, 1)["seconds"], "**{:.2f} ×**")
    yield "compare", "fashion-cnn: peak memory of tensors, mixed / FP32", lambda f: cell(run(f, 1)["peak_bytes"] / run(f, 0)["peak_bytes"], "{:.2f}")
    yield "compare", "fashion-cnn: model file, mixed / FP32", lambda f: cell(run(f, 1)["model_bytes"] / run(f, 0)["model_bytes"], "{:.2f}")
    yield "compare", "fashion-cnn: test accuracy, FP32 and mixed", lambda f: cell(100 * run(f, 0)["test_accuracy"], "{:.2f}") + cell(100 * run(f, 1)["test_accuracy"], " and {:.2f} %")


def memory_rows():
    for recipe in ("mlp", "fashion-cnn", "cifar10-resnet18", "cifar10-resnet50", "imdb-lstm"):
        fp32 = lambda f, r=recipe: next(one for one in f[r] if one["precision"] == "fp32")
        mixed = lambda f, r=recipe: next(one for one in f[r] if one["precision"] in ("bf16", "fp16"))
        yield "memory", f"{recipe}: FP32, MB", lambda f, fp32=fp32: cell(fp32(f)["peak_bytes"] / 1e6, "{:.0f}")
        yield ("memory", f"{recipe}: mixed / FP32",
               lambda f, fp32=fp32, mixed=mixed: cell(mixed(f)["peak_bytes"] / fp32(f)["peak_bytes"], "{:.3f}"))
        yield ("memory", f"{recipe}: predicted / measured, FP32 and mixed",
               lambda f, fp32=fp32, mixed=mixed: cell(fp32(f)["predicted_bytes"] / fp32(f)["peak_bytes"], "{:.3f}")
               + cell(mixed(f)["predicted_bytes"] / mixed(f)["peak_bytes"], " and {:.3f}"))


def profile_rows():
    for recipe in ("mlp", "fashion-cnn"):
        mixed = lambda f, r=recipe: f[r].get("fp16") or f[r]["bf16"]
        yield "profile", f"{recipe}, mixed: share of 16 bits in FLOPs", lambda f, mixed=mixed: cell(100 * mixed(f)["low_flops_share"], "{:.0f} %")
        yield "profile", f"{recipe}, mixed: share of 16 bits in time", lambda f, mixed=mixed: cell(100 * mixed(f)["low_time_share"], "{:.0f} %")
        yield "profile", f"{recipe}, mixed: casts a step", lambda f, mixed=mixed: cell(mixed(f)["casts"], "{:.0f}")
        yield "profile", f"{recipe}: what the profiler costs, FP32", lambda f, r=recipe: cell(100 * f[r]["fp32"]["overhead"], "{:+.0f} %")
        yield "profile", f"{recipe}: what the profiler costs, mixed", lambda f, mixed=mixed: cell(100 * mixed(f)["overhead"], "{:+.0f} %")


SECTIONS = [("Training step, bf16 on a CPU, fp16 on CUDA", recipe_rows), ("The main job: `demi compare`", compare_rows),
            ("The optimizer step", step_rows), ("Host cost of an autocast op", autocast_rows),
            ("Peak memory of tensors in training", memory_rows), ("What a step does: `demi profile`", profile_rows),
            ("Products of square matrices", matmul_rows),
            ("Products on processors without instructions for 16 bits", product_rows)]


def disturbed(part):
    return any(command["others"] > DISTURBED for command in part["commands"])


def table_of(rows, results):
    """Without the rows that no class has."""
    lines = ["| | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    for part, title, figure in rows:
        cells = []
        for one in results.values():
            measured = one.get("parts", {}).get(part)
            try:
                text = figure(measured["figures"]) if measured else ""
            except (KeyError, IndexError, StopIteration):  # this part was measured without the peer, or before it had that figure
                text = ""
            cells.append(text + ("°" if text and disturbed(measured) else ""))
        if any(cells):
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def conditions_of(results):
    lines = ["| class | processor | cores | newest instructions allowed | measured | commits |", "|---|---|---|---|---|---|"]
    for name, one in results.items():
        parts = [part["conditions"] for part in one.get("parts", {}).values()]
        show = lambda key: ", ".join(sorted({str(part[key]) for part in parts if part[key]}))
        lines.append(f"| {name} | {show('processor')} | {show('cores')} | {show('limited_to') or ('all' if parts else '')} | "
                     f"{show('date')} | {show('commit')} |")
    return lines


def write(folder):
    results = {}
    for name in CLASSES:
        path = os.path.join(folder, name + ".json")
        results[name] = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                results[name] = json.load(file)
    text = HEAD + "\n".join(conditions_of(results)) + "\n"
    for title, rows in SECTIONS:
        text += f"\n## {title}\n\n" + "\n".join(table_of(rows(), results)) + "\n"
    others = sorted(name for name in os.listdir(folder) if name.endswith(".md") and name != "README.md")
    if others:
        text += "\n## Measured by hand\n\n" + "\n".join(f"- [{name}]({name})" for name in others) + "\n"
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write(text)
