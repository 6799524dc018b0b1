"""The Python side of docs/guide/from_python.md: examples/from_python.cpp line by line.

    from_python.py [cpu [DTYPE]]
"""
import os
import sys
import tempfile

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

NAMES = {torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16"}


def waves(shape, phase):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * 0.7 + phase).float().view(shape)


def make_model():
    model = torch.nn.Linear(16, 4)
    with torch.no_grad():
        model.weight.copy_(waves((4, 16), 1))
        model.bias.copy_(waves((4,), 2))
    return model


def show(what, value):
    print(what, NAMES[value.dtype] if isinstance(value, torch.Tensor) else f"{value:.6g}")


def regions(x, dtype):
    model = make_model()
    with torch.autocast("cpu", dtype):
        show("in a region", model(x))
        with torch.autocast("cpu", enabled=False):
            show("in a disabled one", model(x))
    with torch.autocast("cpu", dtype, cache_enabled=False):
        show("without a cache", model(x))
    show("outside", model(x))
    with torch.autocast("cpu", dtype):  # in the worker: Python has no other way
        show("in a thread", model(x))


def loop(x, dtype):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ema.update_parameters(model)  # the first call copies; demi's average starts as the weights
    norm = 0
    for step in range(4):
        with torch.autocast("cpu", dtype):
            loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        ema.update_parameters(model)
    show("scale", scaler.get_scale())
    show("steps since it grew", scaler.state_dict()["_growth_tracker"])
    show("learning rate", schedule.get_last_lr()[0])
    print(f"norm {norm:.2f}")
    print(f"average {ema.module.weight.sum().item():.2f}")


def penalty(x, dtype):
    model = make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=128)
    with torch.autocast("cpu", dtype):
        loss = model(x).pow(2).mean()
    gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    print(f"penalty {(gradients[0] / scaler.get_scale()).norm().item():.2f}")


def conversion():
    model = make_model()
    model.to(torch.bfloat16)
    show("converted", model.weight)


def save_and_load():
    path = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=512)
    objects = {"model": model, "optimizer": optimizer, "scaler": scaler}
    scaler.scale(torch.zeros(()))  # makes the scale, so that it can be set
    torch.save({name: one.state_dict() for name, one in objects.items()}, path)
    scaler.update(2.0)
    [objects[name].load_state_dict(state) for name, state in torch.load(path).items()]
    show("loaded scale", scaler.get_scale())
    os.remove(path)


def settings():
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    show("threads", torch.get_num_threads())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model()
    model.to(device)
    show("on a GPU if there is one", model.weight)


def main():
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[sys.argv[2] if len(sys.argv) > 2 else "bf16"]
    x = waves((8, 16), 3)
    regions(x, dtype)
    loop(x, dtype)
    penalty(x, dtype)
    conversion()
    save_and_load()
    settings()


if __name__ == "__main__":
    main()
