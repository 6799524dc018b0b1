"""The peers' side of benchmarks/muon_bench: the time of a step over the hidden weights of GPT-2 (torch.optim.Muon) or of ResNet-50
(ultralytics' MuSGD).

    muon_step.py [--network gpt2|resnet50] [--rounds 5] [--folder FOLDER]    (FOLDER: as for muon_peers.py)
"""
import argparse
import statistics
import time

import torch

from muon_peers import of_folder


def shapes(network):
    if network == "gpt2":
        return [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 12
    found, entering, width = [(64, 3, 7, 7)], 64, 64
    for blocks in (3, 4, 6, 3):
        for block in range(blocks):
            found += [(width, entering, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                found.append((4 * width, entering, 1, 1))
            entering = 4 * width
        width *= 2
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=["gpt2", "resnet50"], default="gpt2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes(options.network)]
    if options.network == "gpt2":
        optimizer = torch.optim.Muon(weights, lr=0.02)
    else:
        musgd = of_folder(options.folder)[1]
        optimizer = musgd([{"params": weights, "lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4, "use_muon": True}],
                          muon=0.2, sgd=1.0)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(options.rounds + 1):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        synchronize()
        start = time.perf_counter()
        optimizer.step()
        synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    times = times[1:]
    print(f"{type(optimizer).__name__} {options.network}, {torch.get_num_threads()} threads: least {min(times):.1f} ms, "
          f"median {statistics.median(times):.1f} ms, most {max(times):.1f} ms")


if __name__ == "__main__":
    main()
