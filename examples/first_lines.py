"""The first lines of mixed precision in Python: what examples/first_lines.cpp is in C++.

    first_lines.py [DEVICE [DTYPE]]
"""
import sys

import torch
from torch.nn.functional import cross_entropy


def waves(shape, phase):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * 0.7 + phase).float().view(shape)


def make_model(device):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters(), 1):
            parameter.copy_(waves(parameter.shape, number) * 0.3)
    return model.to(device)


def make_batches(device):
    inputs = [waves((64, 16), 10 + step) for step in range(60)]
    return [(x.to(device), x[:, :4].argmax(1).to(device)) for x in inputs]


@torch.no_grad()
def loss_of(model, batches):
    return sum(cross_entropy(model(x), y).item() for x, y in batches) / len(batches)


def train_fp32(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    for x, y in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def train_fp16(model, batches, device):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device)

    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train_bf16(model, batches, device):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    dtype = sys.argv[2] if len(sys.argv) > 2 else "bf16"
    batches = make_batches(device)
    fp32, mixed = make_model(device), make_model(device)
    before = loss_of(fp32, batches)
    train_fp32(fp32, batches)
    (train_fp16 if dtype == "fp16" else train_bf16)(mixed, batches, device)
    print(f"before {before:.4f}\nfp32   {loss_of(fp32, batches):.4f}\nmixed  {loss_of(mixed, batches):.4f}")


if __name__ == "__main__":
    main()
