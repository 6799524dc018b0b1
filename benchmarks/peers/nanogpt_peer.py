"""nanoGPT in Python PyTorch beside `demi bench recipe gpt-shakespeare` and `demi train gpt-shakespeare`.

    $(benchmarks/peers/make_env.sh) benchmarks/peers/nanogpt_peer.py FOLDER TEXT speed --precision bf16
    $(benchmarks/peers/make_env.sh) benchmarks/peers/nanogpt_peer.py FOLDER TEXT train --seed 0

FOLDER holds nanoGPT's model.py, TEXT is tinyshakespeare. The training is nanoGPT's own for a CPU (its readme): 4 layers, 4 heads,
width 128, context 64, batches of 12, 2,000 iterations, no dropout, AdamW 0.9/0.99, rate 1e-3 to 1e-4 after 100 of warm-up, decay 0.1,
clipping 1; in 16 bits under torch.autocast; --compile MODE for torch.compile, which nanoGPT's train.py does by default. `speed`: ms an iteration (median, minimum, maximum) after warm-up. `train`: the
best loss over the whole validation split, which is read as demi reads it: windows one after another, each token predicted once.
Prints one JSON object.
"""
import argparse
import contextlib
import json
import math
import statistics
import sys
import time

import torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("what", choices=["speed", "train"])
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=0, help="tokens of the head [those of the text]")
    parser.add_argument("--steps", type=int, default=0, help="iterations [speed: 30, train: 2000]")
    parser.add_argument("--warmup", type=int, default=5, help="iterations that are not timed")
    parser.add_argument("--every", type=int, default=250, help="iterations between two validations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", metavar="MODE", choices=["default", "reduce-overhead", "max-autotune"],
                        help="torch.compile(mode=MODE) of the model [eager]")
    return parser.parse_args()


def tokens_of(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([numbers[character] for character in text])
    share = int(0.9 * len(tokens))
    return tokens[:share], tokens[share:], len(numbers)


def random_windows(tokens, a):
    starts = torch.randint(len(tokens) - a.context, (a.batch,))
    return (torch.stack([tokens[i:i + a.context] for i in starts]), torch.stack([tokens[i + 1:i + 1 + a.context] for i in starts]))


def rate(iteration):
    if iteration < 100:
        return 1e-3 * (iteration + 1) / 101
    if iteration > 2000:
        return 1e-4
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * (iteration - 100) / 1900)) * 9e-4


@torch.no_grad()
def validation_loss(model, tokens, context, region):
    model.eval()
    total = 0.0
    whole = (len(tokens) - 1) // context * context
    inputs, targets = tokens[:whole].view(-1, context).split(64), tokens[1:whole + 1].view(-1, context).split(64)
    rest = [(tokens[whole:-1].view(1, -1), tokens[whole + 1:].view(1, -1))] if whole < len(tokens) - 1 else []
    for x, y in [*zip(inputs, targets), *rest]:
        with region():
            x, y = x.to(model.lm_head.weight.device), y.to(model.lm_head.weight.device)
            total += model(x, y)[1].item() * y.numel()
    model.train()
    return total / (len(tokens) - 1)


def main():
    a = arguments()
    sys.path.insert(0, a.folder)
    sys.stdout, out = sys.stderr, sys.stdout  # nanoGPT prints
    from model import GPT, GPTConfig
    train, validation, characters = tokens_of(a.text)
    torch.manual_seed(a.seed)
    model = GPT(GPTConfig(block_size=a.context, vocab_size=a.vocabulary or characters, n_layer=a.layers, n_head=a.heads,
                          n_embd=a.width, dropout=a.dropout, bias=False)).to(a.device)
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), a.device)
    if a.compile:
        model = torch.compile(model, mode=a.compile)
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[a.precision]
    region = lambda: torch.autocast(a.device, dtype) if dtype else contextlib.nullcontext()
    scaler = torch.amp.GradScaler(a.device, enabled=a.precision == "fp16")
    synchronize = torch.cuda.synchronize if a.device == "cuda" else lambda: None

    def step(iteration):
        for group in optimizer.param_groups:
            group["lr"] = rate(iteration)
        x, y = (batch.to(a.device) for batch in random_windows(train, a))
        with region():
            loss = model(x, y)[1]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    result = {"precision": a.precision, "seed": a.seed, "compile": a.compile, "parameters": sum(p.numel() for p in model.parameters())}
    if a.what == "speed":
        times = []
        for iteration in range(a.warmup + (a.steps or 30)):
            synchronize()
            start = time.perf_counter()
            step(iteration)
            synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        times = times[a.warmup:]
        result["ms"] = {"median": statistics.median(times), "min": min(times), "max": max(times)}
    else:
        losses = []
        for iteration in range(1, (a.steps or 2000) + 1):
            step(iteration - 1)
            if iteration % a.every == 0:
                losses.append(validation_loss(model, validation, a.context, region))
                print(f"iteration {iteration}: {losses[-1]:.4f}", flush=True)
        result["losses"], result["best"] = losses, min(losses)
    sys.stdout = out
    print(json.dumps(result))


if __name__ == "__main__":
    main()
