"""nanoGPT in Python PyTorch beside `demi bench recipe gpt-shakespeare` and `demi train gpt-shakespeare`.

    $(benchmarks/peers/make_env.sh) benchmarks/peers/nanogpt_peer.py FOLDER TEXT speed --precision bf16 [--compile MODE]
    $(benchmarks/peers/make_env.sh) benchmarks/peers/nanogpt_peer.py FOLDER - speed --words 50257 --vocabulary 50304 ...
    $(benchmarks/peers/make_env.sh) benchmarks/peers/nanogpt_peer.py FOLDER TEXT train --seed 0

FOLDER holds nanoGPT's model.py, TEXT is tinyshakespeare. The training is nanoGPT's own for a CPU (its readme): 4 layers, 4 heads,
width 128, context 64, batches of 12, 2,000 iterations, no dropout, AdamW 0.9/0.99, rate 1e-3 to 1e-4 after 100 of warm-up, decay 0.1,
clipping 1; in 16 bits under torch.autocast. nanoGPT's train.py compiles its model (`--compile default`), has GPT-2's 50,257 words
padded to 50,304 (`--words 50257 --vocabulary 50304`: random tokens, of the words alone) and allows TF32 (the default here, too).
`speed`: ms an iteration (median, minimum, maximum) after warm-up. `train`: the best loss over the whole validation split, which is read
as demi reads it: windows one after another, each token predicted once.
Prints one JSON object, with the attention's backend that ran.
"""
import argparse
import contextlib
import json
import math
import os
import sys

import timed_step
import torch


def arguments():
    parser = argparse.ArgumentParser(prog="nanogpt_peer.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", help="with nanoGPT's model.py")
    parser.add_argument("text", metavar="TEXT", help="a file, or - with --words")
    parser.add_argument("what", choices=["speed", "train"])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--layers", type=timed_step.whole(1), default=4)
    parser.add_argument("--heads", type=timed_step.whole(1), default=4)
    parser.add_argument("--width", type=timed_step.whole(1), default=128)
    parser.add_argument("--context", type=timed_step.whole(1), default=64)
    parser.add_argument("--batch", type=timed_step.whole(1), default=12)
    parser.add_argument("--words", type=timed_step.whole(2), help="speed: random tokens, so many different ones, instead of a text")
    parser.add_argument("--vocabulary", type=timed_step.whole(2), help="rows of the head; more than there are words: padded [the words]")
    parser.add_argument("--steps", type=timed_step.whole(1), help="iterations [speed: 30, train: 2000]")
    parser.add_argument("--every", type=timed_step.whole(1), default=250, help="iterations between two validations")
    parser.add_argument("--seed", type=int, default=0)
    timed_step.add_options(parser, warmup=5, tf32="on")
    a = parser.parse_args()
    timed_step.prepare(parser, a)
    a.steps = a.steps or (30 if a.what == "speed" else 2000)
    check(parser, a)
    return parser, a


def check(parser, a):
    if not os.path.exists(os.path.join(a.folder, "model.py")):
        parser.error(f"{a.folder} holds no model.py: FOLDER is a checkout of nanoGPT")
    if a.width % a.heads:
        parser.error(f"--width {a.width} is no multiple of --heads {a.heads}")
    if not 0 <= a.dropout < 1:
        parser.error(f"--dropout {a.dropout} is not from 0 to below 1")
    if (a.text == "-") != bool(a.words):
        parser.error("TEXT is a file, or - with --words")
    if a.words and a.what == "train":
        parser.error("--words: random tokens cannot be learned; train needs a text")
    if a.what == "train" and a.steps < a.every:
        parser.error(f"--steps {a.steps} are fewer than --every {a.every}: nothing would be validated")


def tokens_for(parser, a):
    """Training and validation tokens; sets a.words and a.vocabulary where they follow from the text."""
    if a.words:
        train = validation = torch.randint(a.words, (1_000_000,))
    else:
        try:
            train, validation, a.words = tokens_of(a.text)
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"{a.text} cannot be read as a text: {error}")
        if len(validation) <= a.context:
            parser.error(f"{a.text} is too short: a tenth of it is validated, {len(validation)} characters for a context of {a.context}")
    a.vocabulary = a.vocabulary or a.words
    if a.vocabulary < a.words:
        parser.error(f"--vocabulary {a.vocabulary} is less than the {a.words} words that there are")
    return train, validation


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


def placed(batch, device):
    """As train.py does: from pinned memory, while the GPU computes."""
    return batch.pin_memory().to(device, non_blocking=True) if device == "cuda" else batch


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


def measure(parser, a):
    torch.manual_seed(a.seed)
    train, validation = tokens_for(parser, a)
    sys.path.insert(0, a.folder)
    from model import GPT, GPTConfig
    torch.manual_seed(a.seed)
    model = GPT(GPTConfig(block_size=a.context, vocab_size=a.vocabulary, n_layer=a.layers, n_head=a.heads, n_embd=a.width,
                          dropout=a.dropout, bias=False)).to(a.device)
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), a.device)
    # Per token: 6 for each parameter, the embedding once since it is the head, and 12 L T d (Chowdhery et al. 2022), as demi counts.
    flop = a.batch * a.context * (6 * model.get_num_params() + 12 * a.layers * a.width * a.context)
    model = timed_step.compiled(model, a)
    dtype = timed_step.dtype_of(a)
    region = lambda: torch.autocast(a.device, dtype) if dtype else contextlib.nullcontext()
    scaler = torch.amp.GradScaler(a.device, enabled=a.precision == "fp16")
    iteration = 0

    def step():
        nonlocal iteration
        for group in optimizer.param_groups:
            group["lr"] = rate(iteration)
        iteration += 1
        x, y = (placed(batch, a.device) for batch in random_windows(train, a))
        with region():
            loss = model(x, y)[1]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    result = {"precision": a.precision, "seed": a.seed, "parameters": sum(p.numel() for p in model.parameters()), "words": a.words,
              "vocabulary": a.vocabulary, "flop": flop}
    if a.what == "speed":
        seconds = timed_step.warm_up(step, a)
        times = timed_step.median_of([timed_step.timed(step, a) for _ in range(a.steps)])
        result |= timed_step.compilation(seconds, a)
        result["ms"] = {"median": times["ms"], "min": times["min_ms"], "max": times["max_ms"]}
    else:
        losses = []
        while iteration < a.steps:
            step()
            if iteration % a.every == 0:
                losses.append(validation_loss(model, validation, a.context, region))
                print(f"iteration {iteration}: {losses[-1]:.4f}", flush=True)
        result |= {"compile": a.compile, "losses": losses, "best": min(losses)}
    return result | {"attention": timed_step.attention_that_ran(step, a), **timed_step.device_modes(a)}


def main():
    parser, a = arguments()
    sys.stdout, out = sys.stderr, sys.stdout  # nanoGPT prints
    result = timed_step.run(parser, a, lambda: measure(parser, a))
    print(json.dumps(result), file=out)


if __name__ == "__main__":
    main()
