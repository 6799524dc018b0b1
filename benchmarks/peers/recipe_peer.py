"""Python PyTorch's own time for the recipes of `demi bench recipe`: the same model, sizes and optimizer.

    $(benchmarks/peers/make_env.sh) benchmarks/peers/recipe_peer.py mlp --precision bf16 --loader [--compile MODE]

Prints one JSON object: ms a step (median, minimum, maximum), after warm-up. Precision fp32, bf16 (torch.autocast), or on a GPU fp16
(torch.autocast and torch.amp.GradScaler).

A step is forward, backward and update. `--loader` has the batch in it, too, drawn as demi's Trainer draws it, whose time in `demi bench
recipe` has its data: so both sides time the same. Without it one batch is repeated. The peer has the option rather than demi, since a
training has its data in each step. What is left: demi counts right answers as well.
"""
import argparse
import json

import recipe_data
import timed_step
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

BATCH_SIZES = {"mlp": 512, "fashion-cnn": 256, "cifar10-resnet50": 32, "synthetic-resnet50": 32, "imdb-lstm": 64}


class Bottleneck(nn.Module):
    def __init__(self, inner, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50():
    layers, inner = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(inner, width, stride if i == 0 else 1))
            inner = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


class FashionCNN(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for inner, width, pool in ((1, 32, False), (32, 32, True), (32, 64, False), (64, 64, True), (64, 128, False)):
            layers += [nn.Conv2d(inner, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2)] if pool else []
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(128, 10)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class LSTMClassifier(nn.Module):
    def __init__(self, vocabulary=100683):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 100)
        self.lstm = nn.LSTM(100, 256, batch_first=True)
        self.classifier = nn.Linear(256, 1)

    def forward(self, tokens):
        return self.classifier(self.lstm(self.embedding(tokens))[0][:, -1])


def workload(a):
    """Model, input, target, loss, optimizer."""
    torch.manual_seed(0)
    if a.recipe == "mlp":
        model = nn.Sequential(nn.Linear(a.width, a.width), nn.ReLU(), nn.Linear(a.width, a.width), nn.ReLU(),
                              nn.Linear(a.width, a.width))
        data = torch.randn(a.batch_size, a.width), torch.randn(a.batch_size, a.width)
        return model, *data, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 1e-3)
    if a.recipe == "fashion-cnn":
        model = FashionCNN().to(memory_format=torch.channels_last)
        x = torch.randn(a.batch_size, 1, 28, 28).contiguous(memory_format=torch.channels_last)
        return model, x, torch.randint(0, 10, (a.batch_size,)), nn.functional.cross_entropy, torch.optim.AdamW(
            model.parameters(), 1e-3, weight_decay=1e-2)
    if a.recipe == "cifar10-resnet50":
        model = resnet50().to(memory_format=torch.channels_last)
        x = torch.randn(a.batch_size, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
        return model, x, torch.randint(0, 10, (a.batch_size,)), nn.functional.cross_entropy, optimizer
    if a.recipe == "synthetic-resnet50":
        import torchvision  # no other recipe needs it
        model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
        x = torch.randn(a.batch_size, 3, 224, 224).contiguous(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.0125, momentum=0.9, weight_decay=1e-4)
        return model, x, torch.randint(0, 1000, (a.batch_size,)), nn.functional.cross_entropy, optimizer
    model = LSTMClassifier()
    x = torch.randint(0, 100683, (a.batch_size, a.length))
    y = torch.randint(0, 2, (a.batch_size, 1)).float()
    return model, x, y, nn.functional.binary_cross_entropy_with_logits, torch.optim.Adam(model.parameters(), 1e-3)


def arguments():
    parser = argparse.ArgumentParser(prog="recipe_peer.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=list(BATCH_SIZES))
    parser.add_argument("--batch-size", type=timed_step.whole(1), help="[the recipe's]")
    parser.add_argument("--width", type=timed_step.whole(1), default=4096, help="of mlp [4096]")
    parser.add_argument("--length", type=timed_step.whole(1), default=256, help="of imdb-lstm's texts [256]")
    parser.add_argument("--steps", type=timed_step.whole(1), default=8, help="timed steps [8]")
    parser.add_argument("--loader", action="store_true", help="a step draws its batch from a data set in memory [one batch is repeated]")
    parser.add_argument("--flush-denormal", action="store_true",
                        help="torch.set_flush_denormal(True), which is off in Python by default and on in demi")
    timed_step.add_options(parser, warmup=2)
    a = parser.parse_args()
    timed_step.prepare(parser, a)
    a.batch_size = a.batch_size or BATCH_SIZES[a.recipe]
    if a.loader and a.batch_size > recipe_data.examples(a):
        parser.error(f"--batch-size {a.batch_size}: the data set of {a.recipe} has {recipe_data.examples(a)} examples")
    return parser, a


def flop_of(model, loss_of, x, y):
    """Of the products and convolutions of a step as PyTorch counts them; None of an LSTM, which its counter does not know."""
    if isinstance(model, LSTMClassifier):
        return None
    with FlopCounterMode(display=False) as counter:
        loss_of(model(x), y).backward()
    model.zero_grad()
    return counter.get_total_flops()


def measure(parser, a):
    torch.set_flush_denormal(a.flush_denormal)
    try:
        model, x, y, loss_of, optimizer = workload(a)
    except ImportError as missing:
        parser.error(f"{a.recipe} needs a package that this Python does not have: {missing}")
    model, x, y = model.to(a.device), x.to(a.device), y.to(a.device)
    flop = flop_of(model, loss_of, x, y)
    model = timed_step.compiled(model, a)
    batches = recipe_data.loader(a) if a.loader else recipe_data.resident(x, y)
    next(batches)  # the data set is made here
    dtype = timed_step.dtype_of(a)
    scaler = torch.amp.GradScaler(a.device, enabled=a.precision == "fp16")
    loss = None

    def step():
        nonlocal loss
        inputs, targets = next(batches)
        with torch.autocast(a.device, dtype, enabled=dtype is not None):
            output = model(inputs)
        loss = loss_of(output.float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    seconds = timed_step.warm_up(step, a)
    times = [timed_step.timed(step, a) for _ in range(a.steps)]
    return {"recipe": a.recipe, "precision": a.precision, "batch_size": a.batch_size, "data": "loader" if a.loader else "resident",
            **timed_step.compilation(seconds, a), "flush_denormal": a.flush_denormal, **timed_step.median_of(times), "loss": loss.item(),
            "flop": flop, **timed_step.device_modes(a), "torch": torch.__version__, "threads": torch.get_num_threads()}


def main():
    parser, a = arguments()
    print(json.dumps(timed_step.run(parser, a, lambda: measure(parser, a))))


if __name__ == "__main__":
    main()
