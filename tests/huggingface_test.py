#!/usr/bin/env python3
"""What demi exports, read by Hugging Face's package transformers: huggingface_test.py DEMI

    pip install torch transformers safetensors tokenizers

Exit code 77 without these packages. Tensors are those that transformers saved; a model that demi made gives the same tokens there, and its
tokenizer the same numbers.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

MODELS = Path(__file__).parent / "fixtures" / "huggingface"
demi = sys.argv[1]


def run(*words):
    done = subprocess.run([demi, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def greedy(folder, prompt, length):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(length):
            text = torch.cat((text, model(text).logits[:, -1].argmax(-1, keepdim=True)), 1)
    return text[0, len(prompt):].tolist()


def tensors(folder):
    return {name: t for file in folder.glob("model*.safetensors") for name, t in load_file(file).items()}


def same_tensors(work):
    for name in ("gpt2", "gpt2_untied", "llama", "llama_tied"):
        run("export", MODELS / name, work / name, "--shard-size", "2e-5")
        mine, theirs = tensors(work / name), tensors(MODELS / name)
        assert mine.keys() == theirs.keys(), name
        assert all(mine[key].dtype == t.dtype and torch.equal(mine[key], t) for key, t in theirs.items()), name
        wanted = load_file(MODELS / name / "answers.safetensors")["greedy"].tolist()
        assert greedy(work / name, [7, 1, 200], 9) == wanted, name


# Of each form, with what it can have: other eps, base of rotary positions, heads, width, head.
FORMS = {"gpt2": [], "no_bias": ["--no-bias", "--feed-forward", "24"],
         "llama": ["--block", "llama", "--key-heads", "2", "--rope-theta", "300", "--norm-eps", "0.01", "--tied-head", "on"]}


def same_text(work):
    text = work / "text.txt"
    text.write_text("to be, or not to be: that is the question.\n" * 9)
    for name, options in FORMS.items():
        run("train", "gpt2", "--data", "text", "--train-file", text, "--tokenizer", MODELS / "gpt2", "--depth", "2", "--heads", "4",
            "--embedding", "16", "--context", "12", "--steps", "20", "--batch-size", "4", "--tokens-per-step", "0", "--lr", "0.05",
            "--warmup-steps", "0", "--run-dir", work / "runs" / name, *options)
        file = work / "runs" / name / "train-gpt2-001"
        run("export", file, work / ("of_" + name))
        wrote = json.loads(run("generate", file, "--prompt", "not to", "--length", "6", "--temperature", "0", "--json"))
        prompt = wrote["prompt_tokens"]
        assert greedy(work / ("of_" + name), prompt, 6) == wrote["samples"][0]["tokens"], name
        assert Tokenizer.from_file(str(work / ("of_" + name) / "tokenizer.json")).encode("not to").ids == prompt
        assert AutoTokenizer.from_pretrained(work / ("of_" + name))("not to")["input_ids"] == prompt, name


def same_special_tokens(work):
    """A token that is text is written and read as one; blanks are kept, also by what takes its class from the model's type."""
    text, source = work / "few.txt", MODELS.parent / "tokenizers" / "transformers_5"
    text.write_text("hello the world\n" * 9)
    run("train", "gpt2", "--data", "text", "--train-file", text, "--tokenizer", source, "--block", "llama", "--depth", "1", "--heads", "2",
        "--embedding", "16", "--context", "12", "--steps", "1", "--batch-size", "2", "--tokens-per-step", "0", "--run-dir", work / "few")
    run("export", work / "few" / "train-gpt2-001", work / "of_few")
    mine, theirs = AutoTokenizer.from_pretrained(work / "of_few"), AutoTokenizer.from_pretrained(source)
    for line in ("  hello\n\n the world's", "hello<|endoftext|>the <pad><x> , <y>"):
        numbers = theirs(line)["input_ids"]
        assert mine(line)["input_ids"] == numbers, line
        assert mine.decode(numbers) == line and mine.decode(numbers, skip_special_tokens=True) == theirs.decode(numbers, skip_special_tokens=True)


with tempfile.TemporaryDirectory() as folder:
    same_tensors(Path(folder))
    same_text(Path(folder))
    same_special_tokens(Path(folder))
print("the same")
