#!/usr/bin/env python3
"""Networks of PyTorch and torchvision, trained in Python and by demi::ImportedModel on this machine:
imported_agreement.py PARTNER [--table] [--no-script] [NAME...]

PARTNER is the program imported_partner. Each network is exported by scripts/demi_export.py and trained for 20 steps of SGD in FP32 from the
same weights and seed, in train mode. A line a network: outputs and gradients of the first step, weights after the last one, and outputs
in eval mode then are "the same bits", or their largest difference; one network has to be refused. Then the first step in bf16, without dropout: each output and gradient may be
twice as far from FP64 as that of Python's autocast. The line has the greatest ratio of the two distances. What torch.jit.script takes is trained as
TorchScript, too, in FP32 beside Python and in bf16 beside the .pt2 file: the same bits; --no-script leaves that out. --table prints Markdown.
Needs PyTorch and safetensors; networks of torchvision are left out without it.
"""
import collections
import contextlib
import copy
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file
except ImportError:
    print("skipped: this Python has no torch or no safetensors")
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))
import demi_export  # noqa: E402

STEPS = 20
ROUNDING = 2.0 ** -9  # of a bf16 number, relative: where Python happens to round to FP64's value
# Random numbers are others in FP64 than in FP32.
OTHER_NUMBERS = {"vae"}
KINDS = ("output", "grad", "weight", "eval")
SAME = ", ".join(f"{kind}s: the same bits" for kind in KINDS)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = self.up(F.relu(self.down2(F.max_pool2d(a, 2))))
        return self.last(torch.cat([a, F.interpolate(b, size=a.shape[2:], mode="bilinear")], 1))


class Classifier(nn.Module):
    """Of sequences, by an LSTM or a GRU."""

    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.rnn = kind(16, 16, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(32, 3)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0].mean(1))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), 1)
        return self.attention(x, x, x, attn_mask=mask)[0]


class Gpt(nn.Module):
    """Two blocks with tied embedding and head."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.dropout = nn.Embedding(40, 16), nn.Embedding(12, 16), 0.1
        self.blocks = nn.ModuleList(nn.ModuleDict({"n1": nn.LayerNorm(16), "qkv": nn.Linear(16, 48), "out": nn.Linear(16, 16),
                                                   "n2": nn.LayerNorm(16), "a": nn.Linear(16, 64), "b": nn.Linear(64, 16)})
                                    for _ in range(2))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            q, k, v = (t.view(*t.shape[:2], 4, 4).transpose(1, 2) for t in block["qkv"](block["n1"](x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
            x = x + block["out"](y.transpose(1, 2).reshape(x.shape))
            x = x + block["b"](F.gelu(block["a"](block["n2"](x))))
        return self.head(x)


class Nano(nn.Module):
    """A block as nanochat's: RMS norm without weights, rotary positions, squared ReLU, soft-capped logits."""

    def __init__(self):
        super().__init__()
        self.embedding, self.qkv, self.out = nn.Embedding(40, 16), nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.a, self.b, self.head = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False), nn.Linear(16, 40, bias=False)
        angle = torch.outer(torch.arange(12).float(), 10000 ** (-torch.arange(2).float() / 2))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos + b * self.sin, b * self.cos - a * self.sin], -1)

    def forward(self, tokens):
        x = F.rms_norm(self.embedding(tokens), (16,))
        q, k, v = (t.view(*t.shape[:2], 4, 4).transpose(1, 2) for t in self.qkv(F.rms_norm(x, (16,))).chunk(3, -1))
        q, k = (F.rms_norm(self.rotate(t), (4,)) for t in (q, k))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        x = x + self.b(F.relu(self.a(F.rms_norm(x, (16,)))).square())
        return 15 * torch.tanh(self.head(F.rms_norm(x, (16,))) / 15)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


class TwoIn(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(3, 5)

    def forward(self, x, y):
        a, b = self.a(x), self.b(y)
        return a + b, [a * b, a.mean()]


class Dict(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        y = self.linear(x)
        return {"y": y, "z": {"square": y * y}}


Pair = collections.namedtuple("Pair", "y square")


class Named(nn.Module):
    """Returns a type of its own, which only demi_export.py gives a name in the file."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        y = self.linear(x)
        return Pair(y, y * y)


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x, target):
        return F.cross_entropy(self.linear(x), target, label_smoothing=0.1)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class StraightThrough(nn.Module):
    """Must be refused: export would give it the gradient of sign."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return Sign.apply(self.linear(x))


REFUSED = {"straight_through": "Sign is a torch.autograd.Function"}


def images(size=64):
    return (torch.randn(4, 3, size, size),)


def tokens(most=40):
    return (torch.randint(0, most, (4, 12)),)


def networks():
    own = {
        "unet": lambda: (UNet(), images(16)),
        "lstm": lambda: (Classifier(nn.LSTM), tokens()),
        "gru": lambda: (Classifier(nn.GRU), tokens()),
        "transformer_encoder": lambda: (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
                                        (torch.randn(4, 12, 16),)),
        "masked_attention": lambda: (Masked(), (torch.randn(4, 12, 16),)),
        "gpt2": lambda: (Gpt(), tokens()),
        "nanochat": lambda: (Nano(), tokens()),
        "vae": lambda: (Vae(), (torch.randn(4, 12),)),
        "two_inputs": lambda: (TwoIn(), (torch.randn(4, 4), torch.randn(4, 3))),
        "dict": lambda: (Dict(), (torch.randn(4, 4),)),
        "namedtuple": lambda: (Named(), (torch.randn(4, 4),)),
        "straight_through": lambda: (StraightThrough(), (torch.randn(4, 4),)),
        "loss_inside": lambda: (Loss(), (torch.randn(4, 4), torch.randint(0, 5, (4,)))),
    }
    try:
        from torchvision import models
    except ImportError:
        return own

    def of(make, size=64, **options):
        return lambda: (make(weights=None, num_classes=10, **options), images(size))

    def vit():
        model, inputs = of(models.vit_b_32, image_size=64)()
        nn.init.normal_(model.heads.head.weight, std=0.02)  # zeros, through which no gradient goes
        return model, inputs

    def vgg():
        model, inputs = of(models.vgg11_bn, 32)()
        for layer in (0, 3, 6):  # with its own weights it diverges on four pictures
            nn.init.normal_(model.classifier[layer].weight, std=0.003)
        return model, inputs

    return own | {
        "alexnet": of(models.alexnet), "vgg11_bn": vgg, "resnet18": of(models.resnet18),
        "resnet50": of(models.resnet50), "mobilenet_v3": of(models.mobilenet_v3_small), "efficientnet_b0": of(models.efficientnet_b0),
        "convnext_tiny": of(models.convnext_tiny), "regnet": of(models.regnet_y_400mf), "shufflenet": of(models.shufflenet_v2_x0_5),
        "densenet": of(models.densenet121), "googlenet": of(models.googlenet, aux_logits=True, init_weights=False),
        "swin_t": of(models.swin_t), "vit_b_32": vit,
    }


def tensors_of(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def in_bf16():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def first_step(model, inputs, region):
    """Outputs and gradients."""
    torch.manual_seed(1)
    with region:
        outputs = tensors_of(model(*inputs))
    sum(output.square().mean() if output.dtype == torch.float64 else output.float().square().mean()
        for output in outputs if output.requires_grad).backward()
    return {f"output.{i}": output.detach() for i, output in enumerate(outputs)} | {
        f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}


def without_dropout(model):
    """A copy: attention in a region draws other numbers than Python's."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def distances(seen, model, inputs):
    """The greatest ratio of demi's distance from FP64 to that of Python, over outputs and gradients."""
    try:
        python = first_step(copy.deepcopy(model), inputs, in_bf16())
    except RuntimeError as error:  # oneDNN's LSTM, of processors without BF16 instructions
        return None, f"Python {str(error).splitlines()[0]}"
    torch.set_default_dtype(torch.float64)  # of masks that forward makes
    try:
        exact = first_step(copy.deepcopy(model).double(), [x.double() if x.is_floating_point() else x for x in inputs],
                           contextlib.nullcontext())
    finally:
        torch.set_default_dtype(torch.float32)
    worst, where = 0.0, ""
    for name, reference in exact.items():
        if name not in seen:
            return float("inf"), name
        mine, theirs = ((tensors[name].double() - reference).norm().item() for tensors in (seen, python))
        ratio = mine / max(theirs, ROUNDING * reference.norm().item(), 1e-30)
        worst, where = max((worst, where), (ratio, name))
    return worst, where


def train(model, inputs, steps=STEPS):
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, foreach=False)
    out = {}
    torch.manual_seed(1)
    for step in range(steps):
        optimizer.zero_grad()
        outputs = tensors_of(model(*inputs))
        loss = torch.zeros(())
        for output in outputs:
            if output.requires_grad:
                loss = loss + output.square().mean()
        loss.backward()
        if step == 0:
            out |= {f"output.{i}": output.detach().clone() for i, output in enumerate(outputs)}
            out |= {f"grad.{name}": p.grad.to_dense().clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    out |= {f"weight.{name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return out | {f"eval.{i}": output.detach().clone() for i, output in enumerate(tensors_of(model.eval()(*inputs)))}


def compare(seen, expected):
    if not any(value.any() for name, value in expected.items() if name.startswith("grad.")):
        return "all gradients are zero: nothing is compared"
    text = []
    for kind in KINDS:
        names = [name for name in expected if name.startswith(kind + ".")]
        missing = [name for name in names if name not in seen]
        if missing:
            text.append(f"{kind}: {missing[0]} is missing")
            continue
        if not all(expected[name].isfinite().all() for name in names):
            text.append(f"{kind}s: Python's are not finite")
            continue
        worst = max((0.0 if torch.equal(seen[n], expected[n]) else (seen[n].double() - expected[n].double()).abs().max().item()
                     for n in names), default=0.0)
        text.append(f"{kind}s: " + ("the same bits" if worst == 0 else f"{worst:.2g}"))
    return ", ".join(text)


class Partner:
    """Runs the program on a network's file."""

    def __init__(self, program, folder, inputs):
        self.program, self.out = program, os.path.join(folder, "out.safetensors")
        self.data = os.path.join(folder, "in.safetensors")
        save_file({str(i): x for i, x in enumerate(inputs)}, self.data)

    def run(self, file, steps, region):
        """What it computed, and what went wrong."""
        done = subprocess.run([self.program, file, self.data, self.out, str(steps), region], capture_output=True, text=True)
        return (None, done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else (load_file(self.out), "")

    def compare(self, file, expected, steps=STEPS):
        seen, problem = self.run(file, steps, "fp32")
        return problem or compare(seen, expected)


def script_of(model, file):
    """Whether there is a TorchScript file of the model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.script(copy.deepcopy(model)), file)
    except (RuntimeError, OSError, TypeError, AttributeError):
        return False
    return True


def agree(name, make, program, with_script):
    """A row: FP32, bf16, TorchScript; and whether all is as it has to be. Models are made anew where they are needed: large ones have
    half a gigabyte of weights."""

    def made():
        torch.manual_seed(0)
        model, inputs = make()
        return model.train(), inputs

    model, inputs = made()
    with tempfile.TemporaryDirectory() as folder:
        file, script = os.path.join(folder, "model.pt2"), os.path.join(folder, "model.pt")
        partner = Partner(program, folder, inputs)
        try:
            demi_export.export(model, inputs, file)
        except demi_export.ExportError as error:
            return (str(error), "", ""), name in REFUSED and REFUSED[name] in str(error)
        has_script = with_script and script_of(model, script)
        expected = train(model, inputs)
        del model
        fp32, as_script = partner.compare(file, expected), "not scripted" if with_script else "not tried"
        if has_script:
            as_script = "FP32: " + partner.compare(script, expected)
        del expected
        is_right, bf16 = fp32 == SAME, "random numbers differ from FP64's"
        plain = without_dropout(made()[0])
        demi_export.export(plain, inputs, file)
        in_bf16, problem = partner.run(file, 1, "bf16")
        if has_script:
            script_of(plain, script)
            seen, other_problem = partner.run(script, 1, "bf16")
            same = not problem and not other_problem and all(torch.equal(seen[key], value) for key, value in in_bf16.items())
            del seen
            as_script += ", bf16: " + (other_problem or ("those of the .pt2 file" if same else "others than of the .pt2 file"))
            is_right = is_right and as_script == f"FP32: {SAME}, bf16: those of the .pt2 file"
        if name not in OTHER_NUMBERS:
            ratio, where = (float("inf"), problem) if problem else distances(in_bf16, plain, inputs)
            bf16 = where if ratio is None else f"{ratio:.2f} of Python's distance" + (f" ({where})" if ratio > 1 else "")
            is_right = is_right and (ratio is None or ratio <= 2)
    return (fp32, bf16, as_script), is_right


def main():
    program, *chosen = sys.argv[1:]
    version = subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()
    if torch.__version__.split("+")[0] != version:
        print(f"skipped: PyTorch {torch.__version__} and LibTorch {version} may round differently")
        sys.exit(77)
    is_table, with_script = "--table" in chosen, "--no-script" not in chosen
    chosen = [name for name in chosen if not name.startswith("--")]
    all_networks, failed = networks(), []
    if is_table:
        print("| network | FP32 beside Python | bf16 | TorchScript |\n|---|---|---|---|")
    for name in chosen or all_networks:
        row, is_right = agree(name, all_networks[name], program, with_script)
        if not is_right:
            failed.append(name)
        text = "; ".join(part for part in row if part)
        print(f"| {name} | {' | '.join(row)} |" if is_table else f"{name}: {text}", flush=True)
    if failed:
        print("not as it has to be: " + ", ".join(failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
