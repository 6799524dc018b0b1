#!/usr/bin/env python3
"""Restarts under torchrun with two agents: torchrun_restarts_test.py DEMI [KILLS].

Starts `DEMI train mlp --resume auto` on two ranks, each below an agent of its own with --max-restarts, kills a rank
KILLS times (3), each time after another checkpoint was saved, now of one agent and now of the other, and expects the
job to end well, with every step in the history once. The agents keep one store for all restarts, and each counts the
restarts for itself. Needs Python's torch; exits with 77 without it.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from held_port import held_port

try:
    import torch.distributed.run  # noqa: F401
except ImportError:
    print("skipped: Python's torch is not installed")
    sys.exit(77)

EPOCHS, BATCHES = 12, 100
LIMIT = 400  # seconds


def ranks_below(agent):
    """The agent's workers, by rank."""
    found = {}
    children = Path(f"/proc/{agent}/task/{agent}/children")
    for child in children.read_text().split() if children.exists() else []:
        try:
            for variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = int(child)
        except OSError:
            pass  # it has just ended
    return found


def last_step(folder):
    last = next(iter(folder.glob("*/checkpoints/last")), None)
    try:
        return int(last.read_text().split()[0].split("-")[1]) if last else 0
    except (OSError, IndexError, ValueError):
        return 0


def main(program, kills=3):
    with held_port() as held, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        train = [program, "train", "mlp", "--in", "64", "--out", "64", "--device", "cpu", "--batch-size", "64",
                 "--batches", str(BATCHES), "--epochs", str(EPOCHS), "--checkpoint-every", "10", "--resume", "auto",
                 "--run-dir", name]
        agents = []
        for node in (0, 1):
            log = open(folder / f"agent{node}.log", "w")
            agents.append(subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
                 "--max-restarts", str(kills), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "demi",
                 "--no-python", *train], stdout=log, stderr=subprocess.STDOUT, cwd=name,
                env={**os.environ, "OMP_NUM_THREADS": "1"}))
        began = time.monotonic()
        seen, killed = 0, 0
        while any(agent.poll() is None for agent in agents) and time.monotonic() < began + LIMIT:
            time.sleep(0.1)
            step = last_step(folder)
            if killed == kills or step < seen + 20:
                continue
            workers = ranks_below(agents[killed % 2].pid)
            if not workers:
                continue
            rank, process = next(iter(workers.items()))
            os.kill(process, signal.SIGKILL)
            seen, killed = step, killed + 1
            print(f"after step {step}: killed rank {rank} of agent {(killed - 1) % 2}", flush=True)
        codes = [agent.poll() for agent in agents]
        for agent in agents:
            if agent.poll() is None:
                agent.kill()
        logs = "".join(f"--- agent {node}\n{(folder / f'agent{node}.log').read_text()}" for node in (0, 1))
        assert codes == [0, 0], f"{codes} after {killed} kills\n{logs}"
        assert killed == kills, f"it ended before {kills} kills\n{logs}"
        assert "twice" not in logs, logs
        steps = []
        for line in next(iter(folder.glob("*/metrics.jsonl"))).read_text().splitlines():
            entry = json.loads(line)
            if "step" in entry and "loss" in entry:
                steps.append(entry["step"])
        assert steps == list(range(1, EPOCHS * BATCHES + 1)), f"steps {steps[:3]} ... {steps[-3:]}, {len(steps)} in all"
        print(f"{len(steps)} steps after {killed} kills, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
