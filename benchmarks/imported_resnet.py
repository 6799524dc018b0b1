#!/usr/bin/env python3
"""The recipe's ResNet-50 written in Python, exported with demi's initial weights, and trained beside the one in C++:
imported_resnet.py IMPORTED_RESNET_BENCH DATA_DIR [BATCH ROUNDS]

DATA_DIR has CIFAR-10. Needs PyTorch and safetensors.
"""
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
from safetensors.torch import load_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import demi_export  # noqa: E402


def convolution(a, b, kernel, stride=1):
    return nn.Conv2d(a, b, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            convolution(before, width, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            convolution(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            convolution(width, after, 1), nn.BatchNorm2d(after))
        if before != after or stride != 1:
            self.shortcut = nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x):
        return self.body(x).add_(self.shortcut(x) if hasattr(self, "shortcut") else x).relu_()


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        blocks, before = [], 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            for block in range(depth):
                blocks.append(Block(before, 64 << stage, 2 if stage > 0 and block == 0 else 1))
                before = 256 << stage
        self.stages = nn.Sequential(*blocks)
        self.classifier = nn.Linear(2048, 10)

    def forward(self, x):
        return self.classifier(self.stages(self.stem(x)).mean((2, 3)))


def main():
    bench, data, batch, rounds = (*sys.argv[1:3], *(sys.argv[3:5] or ("32", "5")))
    with tempfile.TemporaryDirectory() as folder:
        weights, file = os.path.join(folder, "weights.safetensors"), os.path.join(folder, "resnet50.pt2")
        subprocess.run([bench, "weights", weights], check=True)
        model = ResNet50()
        model.load_state_dict(load_file(weights), strict=True)
        demi_export.export(model, (torch.randn(2, 3, 32, 32),), file)
        done = subprocess.run([bench, "train", file, data, batch, rounds])
    print(f"again: {sys.executable} benchmarks/imported_resnet.py {bench} {data} {batch} {rounds}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
