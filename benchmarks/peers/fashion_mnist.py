"""Fashion-MNIST for the peers in Python."""
import gzip
import pathlib

import numpy
import torch

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")


def read(part):
    """Pictures (N, 1, 28, 28) in FP32, normalised as demi does, in channels_last, and labels, of "train" or "t10k"."""
    images = numpy.frombuffer(gzip.open(DATA / f"{part}-images-idx3-ubyte.gz").read(), numpy.uint8, offset=16)
    labels = numpy.frombuffer(gzip.open(DATA / f"{part}-labels-idx1-ubyte.gz").read(), numpy.uint8, offset=8)
    x = (torch.from_numpy(images.copy()).view(-1, 1, 28, 28).float() / 255 - 0.286) / 0.353
    return x.contiguous(memory_format=torch.channels_last), torch.from_numpy(labels.copy()).long()
