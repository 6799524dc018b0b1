#!/usr/bin/env python3
"""Makes fine_tuning_model.safetensors, the model that examples/fine_tuning.cpp goes on with: trained in Python PyTorch
(pip install torch safetensors) to give the sine of the sum of 8 numbers. Beside the weights stand 16 inputs and what the model makes
of them, so that whoever loads it can tell whether it is the same model.

    fine_tuning_model.py FILE
"""
import sys

import torch
from safetensors.torch import save_file


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.GELU())
        self.head = torch.nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(3000):
    x = torch.randn(256, 8) / 2
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, True).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.5f}")
with torch.no_grad():
    inputs = torch.randn(16, 8) / 2
    save_file({**model.state_dict(), "example.input": inputs, "example.output": model(inputs)}, sys.argv[1], {"format": "pt"})
