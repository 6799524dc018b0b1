"""What the peers of a training step share: their options, warm-up until nothing more is compiled, and which kernels ran."""
import argparse
import statistics
import sys
import time

import torch

MODES = ["default", "reduce-overhead", "max-autotune"]  # torch.compile's
COMPILES_NOTHING = 3  # steps in a row: CUDA graphs are recorded in the second and third step after a compilation
TIRELESS = 100  # steps after which a model that still compiles is given up
# Names of ops and, where CUDA graphs are replayed without them, of kernels, by the backend of scaled_dot_product_attention.
ATTENTION = {
    "flash": ["_scaled_dot_product_flash_attention", "_flash_attention_forward", "flash_fwd"],
    "flash of the CPU": ["_scaled_dot_product_flash_attention_for_cpu"],
    "memory-efficient": ["_scaled_dot_product_efficient_attention", "_efficient_attention_forward", "fmha_cutlass"],
    "cudnn": ["_scaled_dot_product_cudnn_attention", "_cudnn_attention_forward", "cudnn_generated"],
    "math": ["_scaled_dot_product_attention_math"],
}


def whole(least):
    """An argparse type: a whole number of `least` or more."""
    def parse(text):
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is no whole number of {least} or more")
        return number
    return parse


def add_options(parser, warmup, tf32=None):
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--warmup", type=whole(1), default=warmup, help=f"steps that are not timed [{warmup}]; compiled, so many "
                        f"after the last one that compiled anything, {COMPILES_NOTHING} at the least")
    parser.add_argument("--compile", metavar="MODE", choices=MODES, help=f"torch.compile(mode=MODE), of {', '.join(MODES)} [eager]")
    parser.add_argument("--tf32", choices=["on", "off"], default=tf32,
                        help=f"TF32 in FP32's matrix products and convolutions on a GPU [{tf32 or 'as Python has it: convolutions alone'}]")
    parser.add_argument("--cudnn-benchmark", action="store_true", help="cuDNN times its convolutions and takes the fastest")


def prepare(parser, a):
    """Ends the program with a usage error if the device is not here; else sets what the options say of it."""
    if a.device == "cpu":
        if a.cudnn_benchmark:
            parser.error("--cudnn-benchmark needs --device cuda")
        return
    if not torch.cuda.is_available():
        parser.error("--device cuda: this PyTorch finds no GPU")
    if a.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = a.tf32 == "on"
    torch.backends.cudnn.benchmark = a.cudnn_benchmark


def dtype_of(a):
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[a.precision]


def compiled(model, a):
    return torch.compile(model, mode=a.compile) if a.compile else model


def synchronize(a):
    if a.device == "cuda":
        torch.cuda.synchronize()


def compilations():
    """How often this process has compiled anything: a graph's forward, its backward, a graph anew for other shapes."""
    from torch._dynamo.utils import compilation_time_metrics
    return sum(len(times) for times in compilation_time_metrics.values())


def timed(step, a):
    """Milliseconds of one call, from an idle device to an idle device."""
    synchronize(a)
    start = time.perf_counter()
    step()
    synchronize(a)
    return 1e3 * (time.perf_counter() - start)


def warm_up(step, a):
    """Takes steps until a.warmup in a row have compiled nothing. Returns the seconds up to the last that did: those steps' own time is
    in them. Eager: a.warmup steps, and None."""
    if not a.compile:
        for _ in range(a.warmup):
            step()
        return None
    start = end = time.perf_counter()
    quiet = taken = 0
    while quiet < max(a.warmup, COMPILES_NOTHING):
        before = compilations()
        timed(step, a)
        taken, quiet = taken + 1, quiet + 1
        if compilations() > before:
            end, quiet = time.perf_counter(), 0
        if taken == TIRELESS:
            sys.exit(f"torch.compile still compiles after {taken} steps: no step can be timed")
    return end - start


def compilation(seconds, a):
    """What is printed of it. graphs: 0 if torch.compile found nothing that it can compile, and the model ran as it is."""
    if not a.compile:
        return {"compile": None}
    from torch._dynamo.utils import counters
    return {"compile": a.compile, "compile_seconds": round(seconds, 1), "graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values())}


def median_of(times):
    return {"ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}


def attention_that_ran(step, a):
    """The backends of scaled_dot_product_attention in one more step; empty if it has none."""
    activities = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if a.device == "cuda" else [])
    with torch.profiler.profile(activities=activities) as profile:
        step()
        synchronize(a)
    names = [event.key.removeprefix("aten::") for event in profile.key_averages()]
    is_kernel = lambda sign: not sign.startswith("_")
    ran = lambda sign: any(sign in name if is_kernel(sign) else sign == name for name in names)
    return [backend for backend, signs in ATTENTION.items() if any(ran(sign) for sign in signs)]


def device_modes(a):
    """What decides which kernels a GPU runs; nothing on a CPU."""
    if a.device == "cpu":
        return {}
    cudnn = torch.backends.cudnn
    return {"gpu": torch.cuda.get_device_name(), "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": cudnn.allow_tf32},
            "cudnn": {"version": cudnn.version(), "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}}


def run(parser, a, main):
    """main(), with a line instead of a traceback where the machine cannot do what was asked."""
    try:
        return main()
    except torch.OutOfMemoryError:
        sys.exit(f"{parser.prog}: the GPU has too little memory for this size; ask for a smaller batch")
    except Exception as error:  # torch.compile's errors have no common class
        if not a.compile:
            raise
        sys.exit(f"{parser.prog}: torch.compile(mode={a.compile}) failed: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
