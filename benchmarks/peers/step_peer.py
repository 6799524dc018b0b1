"""Python PyTorch's side of `demi bench step`: the same clipped, scaled and checked step over fp32 parameters.

    $(benchmarks/peers/make_env.sh) benchmarks/peers/step_peer.py --optimizer adamw --parameters 33554432

Per step, as a training loop with torch.autocast does it: the casts of the weights to bf16 and of the bf16 gradients to fp32
that autocast and its backward perform, GradScaler.unscale_, clip_grad_norm_, GradScaler.step (fused optimizer), update.
Prints one JSON object; times are the least of all rounds.
"""
import argparse
import json
import statistics
import time

import torch

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, fused=True),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--parameters", type=int, default=33554432)
    parser.add_argument("--tensors", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()

    length = options.parameters // options.tensors
    device = options.device
    weights = [torch.nn.Parameter((torch.arange(length, device=device) * 0.37 + i).sin()) for i in range(options.tensors)]
    scaled = [((w.detach() * 1.7).cos() * 65.536).bfloat16() for w in weights]
    optimizer = OPTIMIZERS[options.optimizer](weights)
    scaler = torch.amp.GradScaler(device)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step():
        copies = [w.detach().bfloat16() for w in weights]  # autocast, once a step and weight
        for w, g in zip(weights, scaled):
            w.grad = g.float()  # the cast's backward
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
        return copies

    scaler.scale(torch.zeros((), device=device))
    times = []
    for _ in range(options.rounds + 1):
        for w in weights:
            w.grad = None
        synchronize()
        start = time.perf_counter()
        step()
        synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    times = times[1:]
    print(json.dumps({
        "torch": torch.__version__,
        "optimizer": options.optimizer,
        "parameters": length * options.tensors,
        "device": device,
        "threads": torch.get_num_threads(),
        "ms": min(times),
        "ms_spread": statistics.median(times) / min(times) - 1,
    }))


if __name__ == "__main__":
    main()
