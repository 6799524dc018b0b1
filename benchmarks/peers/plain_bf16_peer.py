"""What plain 16 bits lose: weights in bf16 without a master in any form, in Python PyTorch, beside FP32.

    $(benchmarks/peers/make_env.sh) benchmarks/peers/plain_bf16_peer.py [--lr X] [--epochs N] [--seeds N]

The network of recipe fashion-cnn on its data, AdamW, batches of 256. Each seed has initial weights and an order of its own, the same
for all: FP32; bf16 by autocast over FP32 weights; plain, the model converted to bf16 but for its BatchNorms and under the same autocast,
so that the weights of convolutions and of the last layer alone differ. demi has no such mode: its 16-bit weights have FP32 masters,
a remainder or stochastic rounding. Prints a line for each: test accuracy of each seed, mean difference from FP32 in points, and the share
of those weights that the training changed.
"""
import argparse
import copy
import statistics

import torch
from fashion_mnist import read
from recipe_peer import FashionCNN

BATCH = 256


def wide_weights(model):
    return [p for p in model.parameters() if p.dim() > 1]


def train(a, kind, seed, data):
    torch.manual_seed(seed)
    model = FashionCNN().to(memory_format=torch.channels_last)
    if kind == "plain":
        for module in model.modules():
            if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
                module.to(torch.bfloat16)
    before = copy.deepcopy(wide_weights(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-2)
    (x, y), (tx, ty) = data
    region = torch.autocast("cpu", torch.bfloat16, enabled=kind != "fp32")
    for _ in range(a.epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            with region:
                loss = torch.nn.functional.cross_entropy(model(x[rows]).float(), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad(), region:
        right = sum((model(tx[i:i + 1000]).argmax(1) == ty[i:i + 1000]).sum().item() for i in range(0, len(ty), 1000))
    changed = sum((p != q).sum().item() for p, q in zip(wide_weights(model), before)) / sum(p.numel() for p in before)
    return 100 * right / len(ty), changed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    a = parser.parse_args()
    torch.set_flush_denormal(True)
    data = read("train"), read("t10k")
    fp32 = []
    for kind in ("fp32", "autocast", "plain"):
        ends = [train(a, kind, seed, data) for seed in range(a.seeds)]
        seen = [accuracy for accuracy, _ in ends]
        fp32 = fp32 or seen
        mean = statistics.mean(x - y for x, y in zip(seen, fp32))
        print(f"{kind:9} {', '.join(f'{x:.2f}' for x in seen)} %   {mean:+.2f}   {100 * statistics.mean(c for _, c in ends):.1f} % of the weights changed",
              flush=True)


if __name__ == "__main__":
    main()
