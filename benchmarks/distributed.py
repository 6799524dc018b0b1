#!/usr/bin/env python3
"""Several ranks over a link of a chosen bandwidth, demi's DistributedDataParallel and Python's in turn.

    benchmarks/distributed.py [--ranks N] [--mbit N,... | --ratio R,...] [--precisions fp32,bf16] [--peer PYTHON]
                              [--layers N] [--width N] [--batch N] [--steps N] [--bucket-kb N] [--rounds N] [--trace FILE]

Each rank runs in a network namespace of its own, and a token bucket filter (tc tbf) limits what it sends: root is needed, and
Linux's iproute2. Without --mbit the link is chosen so that sending FP32 gradients takes R times as long as computing them [1].
--mbit 0: no namespaces, the loopback as it is. The program is build/release/benchmarks/distributed_bench.
--trace: one step of demi in the first precision on all ranks, as a Chrome trace (https://ui.perfetto.dev opens it).

Prints JSON: an object, or a list of one object for each link. Beside what a run measured:
  bucket_ms      sending one bucket alone
  limit_ms       1.2 x the longer of computation and communication + one bucket
  step_of_limit  the step's part of it
  least_ms       no schedule is faster that sends a gradient once backward has made it, and updates once all have come:
                 forward + communication, or computation
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(os.path.dirname(HERE), "build", "release", "benchmarks", "distributed_bench")
PEER = os.path.join(HERE, "peers", "distributed_peer.py")
PORT = 29611


def sh(command, check=True):
    subprocess.run(command.split(), check=check, capture_output=not check)


class Network:
    """A bridge, and a namespace with one limited link a rank; without a limit none of it."""

    def __init__(self, ranks, mbit):
        self.ranks, self.mbit = ranks, mbit

    def __enter__(self):
        if self.mbit:
            self.__exit__()
            sh("ip link add demibr type bridge")
            sh("ip link set demibr up")
            for rank in range(self.ranks):
                sh(f"ip netns add demi{rank}")
                sh(f"ip link add demiv{rank} type veth peer name eth0 netns demi{rank}")
                sh(f"ip link set demiv{rank} master demibr up")
                inside = f"ip netns exec demi{rank}"
                sh(f"{inside} ip link set lo up")
                sh(f"{inside} ip address add 10.77.0.{rank + 1}/24 dev eth0")
                sh(f"{inside} ip link set eth0 up")
                sh(f"{inside} tc qdisc add dev eth0 root tbf rate {self.mbit}mbit burst 256kb latency 100ms")
        return self

    def __exit__(self, *_):
        if self.mbit:
            for rank in range(self.ranks):
                sh(f"ip netns delete demi{rank}", check=False)
                sh(f"ip link delete demiv{rank}", check=False)
            sh("ip link delete demibr", check=False)

    def run(self, command):
        """All ranks; what rank 0 prints."""
        address = "10.77.0.1" if self.mbit else "127.0.0.1"
        processes = []
        for rank in range(self.ranks):
            inside = ["ip", "netns", "exec", f"demi{rank}"] if self.mbit else []
            environment = {**os.environ, "MASTER_ADDR": address, "MASTER_PORT": str(PORT), "RANK": str(rank), "LOCAL_RANK": "0",
                           "WORLD_SIZE": str(self.ranks), "OMP_NUM_THREADS": "1",
                           "GLOO_SOCKET_IFNAME": "eth0" if self.mbit else "lo"}
            processes.append(subprocess.Popen([*inside, *command], env=environment, stdout=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=500)[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit(f"{' '.join(command)} ended with {[process.returncode for process in processes]}")
        return json.loads(outputs[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mbit", type=numbers(int), help="of each rank's link")
    parser.add_argument("--ratio", type=numbers(float), default=[1.0], help="of communication to computation in FP32 [1]")
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=["fp32", "bf16"])
    parser.add_argument("--peer", default="", metavar="PYTHON", help="a Python with torch")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--bucket-kb", type=int, default=0, help="of demi and of Python [each one's own]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", default="", metavar="FILE", help="of one step of all ranks")
    a = parser.parse_args()
    size = [word for name in ("layers", "width", "batch", "steps") for word in (f"--{name}", str(getattr(a, name)))]
    links = a.mbit
    if links is None:
        with Network(a.ranks, 0) as network:
            free = network.run([PROGRAM, "fp32", *size])
        sent = 2 * (a.ranks - 1) / a.ranks * free["bytes"]  # of a ring's all-reduce, each rank
        links = [max(1, round(sent * 8 / free["compute_ms"] / 1e3 / ratio)) for ratio in a.ratio]
    bucket = ["--bucket-kb", str(a.bucket_kb)]
    commands = {f"demi {precision}": [PROGRAM, precision, *size, *bucket] for precision in a.precisions}
    if a.peer:
        commands |= {f"python {precision}": [a.peer, PEER, precision, *size, *bucket] for precision in ("fp32", "bf16", "bf16-hook")}
    results = [{"ranks": a.ranks, "mbit": mbit, "cores": os.cpu_count(), "size": " ".join(size + bucket), "runs": measure(a, mbit, commands)}
               for mbit in links]
    print(json.dumps(results if len(results) > 1 else results[0], indent=1))


def numbers(kind):
    return lambda text: [kind(word) for word in text.split(",")]


def measure(a, mbit, commands):
    """Medians over the rounds, by command."""
    results = {name: [] for name in commands}
    with Network(a.ranks, mbit) as network:
        for _ in range(a.rounds):
            for name, command in commands.items():
                results[name].append(network.run(command))
        if a.trace:
            network.run([*commands[f"demi {a.precisions[0]}"], "--trace", os.path.abspath(a.trace)])
    return {name: with_limits({key: round(statistics.median(one[key] for one in rounds), 3)
                               for key, value in rounds[0].items() if not isinstance(value, list)})
            for name, rounds in results.items()}


def with_limits(run):
    if "communication_ms" not in run:
        return run
    bucket = run["communication_ms"] / run["buckets"]
    limit = 1.2 * max(run["compute_ms"], run["communication_ms"]) + bucket
    least = max(run["compute_ms"], run["forward_ms"] + run["communication_ms"])
    return run | {"bucket_ms": round(bucket, 3), "limit_ms": round(limit, 3), "step_of_limit": round(run["step_ms"] / limit, 3),
                  "least_ms": round(least, 3)}


if __name__ == "__main__":
    main()
