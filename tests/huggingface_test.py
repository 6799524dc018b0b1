#!/usr/bin/env python3
"""What demi exports, read by Hugging Face's package transformers: huggingface_test.py DEMI

    pip install torch transformers safetensors tokenizers

Exit code 77 without these packages. Tensors are those that transformers saved; a model that demi made gives the same tokens there, and its
tokenizer the same numbers.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

try:
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import Unigram
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
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


def kept_tokenizer(work):
    """What demi does not read, pieces as SentencePiece's, is what it was; so are the tokens at the ends of a text."""
    source, out = work / "pieces", work / "of_pieces"
    shutil.copytree(MODELS / "llama", source)
    pieces = Tokenizer(Unigram([("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("\u2581to", -1.0), ("\u2581", -2.0), ("b", -3.0), ("e", -3.0)], 0))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<s>", eos_token="</s>", chat_template="{{ messages }}").save_pretrained(source)
    said = json.loads(run("export", source, out, "--json"))
    assert "tokenizer.json" in said["notes"][0] and "tokenizer.json" in said["files"], said
    mine, theirs = AutoTokenizer.from_pretrained(out), AutoTokenizer.from_pretrained(source)
    assert mine("to be</s>")["input_ids"] == theirs("to be</s>")["input_ids"] == [3, 4, 5, 6, 2]
    assert (mine.eos_token, mine.chat_template) == ("</s>", theirs.chat_template)
    ends = AutoModelForCausalLM.from_pretrained(out).generation_config
    assert (ends.bos_token_id, ends.eos_token_id) == (1, 2), ends


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks a hub for: a revision's files, then each file's tag and content."""
    revision, files = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c", sorted(path.name for path in (MODELS / "gpt2").iterdir())

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        name = self.path.split("?")[0].rsplit("/", 1)[1]
        headers = {"Content-Type": "application/json"}
        if self.path.startswith("/api/models/"):
            about = {"id": "someone/small", "modelId": "someone/small", "sha": self.revision, "private": False, "tags": [], "downloads": 0,
                     "likes": 0, "siblings": [{"rfilename": file} for file in self.files]}
            body = json.dumps(about if "/tree/" not in self.path else
                              [{"type": "file", "path": file, "size": (MODELS / "gpt2" / file).stat().st_size, "oid": f"{at:040x}"}
                               for at, file in enumerate(self.files)]).encode()
        else:
            body = (MODELS / "gpt2" / name).read_bytes()
            headers = {"ETag": f'"{self.files.index(name):040x}"', "X-Repo-Commit": self.revision}
        self.send_response(200)
        for header, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(header, str(value))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def from_the_hubs_cache(work):
    """The cache that huggingface_hub writes: its folder of a model, a snapshot, and a file in it mean that model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    fetch = ("import sys; from huggingface_hub import snapshot_download; "
             "print(snapshot_download('someone/small', cache_dir=sys.argv[1]))")
    done = subprocess.run([sys.executable, "-c", fetch, str(work / "hub")], capture_output=True, text=True, check=False,
                          env={**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0",
                               "HF_HOME": str(work / "home"), "HF_HUB_DISABLE_XET": "1", "no_proxy": "127.0.0.1"})
    server.shutdown()
    assert done.returncode == 0, done.stderr
    snapshot = Path(done.stdout.split()[-1])
    assert (snapshot / "model.safetensors").is_symlink(), "the hub's cache has another form"
    words = ("--prompt-tokens", "7,1,200", "--length", "9", "--temperature", "0", "--json")
    wanted = load_file(MODELS / "gpt2" / "answers.safetensors")["greedy"].tolist()
    for named in (work / "hub" / "models--someone--small", snapshot, snapshot / "model.safetensors"):
        assert json.loads(run("generate", named, *words))["samples"][0]["tokens"] == wanted, named


with tempfile.TemporaryDirectory() as folder:
    from_the_hubs_cache(Path(folder))
    same_tensors(Path(folder))
    same_text(Path(folder))
    same_special_tokens(Path(folder))
    kept_tokenizer(Path(folder))
print("the same")
