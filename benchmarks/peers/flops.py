#!/usr/bin/env python3
"""Floating point operations of a forward and a backward pass as PyTorch counts them (torch.utils.flop_counter).

    $(benchmarks/peers/make_env.sh) benchmarks/peers/flops.py > benchmarks/peers/flops.json

lab/profiler/flops_of_passes_test.cpp makes the same passes and compares. Attention is the op that PyTorch decomposes
(SDPBackend.MATH), since its counter adds the recomputation of the scores to the backward of a fused kernel. The LSTM and
the GRU are LibTorch's own, of products, since the counter knows no fused recurrent layer; all that a pass reads has a
gradient, so that no product of backward is left out. Convolutions have no groups: of the weight's gradient the counter
counts each output channel by all inputs, whatever the groups.
"""

import json

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted(run):
    with FlopCounterMode(display=False) as counter:
        run().sum().backward()
    return counter.get_total_flops()


def rand(*sizes):
    return torch.rand(*sizes, requires_grad=True)


def attention(queries, keys, causal):
    q, k, v = rand(2, 4, queries, 8), rand(2, 4, keys, 8), rand(2, 4, keys, 8)
    with sdpa_kernel(SDPBackend.MATH):
        return counted(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal))


def recurrent(layer, state):
    x = rand(7, 3, 24)
    with torch.backends.mkldnn.flags(enabled=False):
        return counted(lambda: layer(x, state)[0])


def passes():
    x = rand(5, 24)
    picture = rand(2, 4, 9, 9)
    return {
        "linear": counted(lambda: nn.Linear(24, 16)(x)),
        "batched product": counted(lambda: rand(3, 5, 24) @ rand(3, 24, 7)),
        "convolution": counted(lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1)(picture)),
        "transposed convolution": counted(lambda: nn.ConvTranspose2d(4, 8, 3, stride=2)(picture)),
        "attention": attention(16, 32, False),
        "causal attention": attention(32, 32, True),
        "lstm": recurrent(nn.LSTM(24, 16, 2), (rand(2, 3, 16), rand(2, 3, 16))),
        "gru": recurrent(nn.GRU(24, 16, 2), rand(2, 3, 16)),
    }


if __name__ == "__main__":
    print(json.dumps({"torch": torch.__version__.split("+")[0], "flops": passes()}, indent=1))
