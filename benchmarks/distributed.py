#!/usr/bin/env python3
"""Several ranks over a link of a chosen bandwidth, demi's DistributedDataParallel and Python's in turn.

    benchmarks/distributed.py [--ranks N] [--mbit N] [--peer PYTHON] [--layers N] [--width N] [--batch N] [--bucket-kb N] [--rounds N] [--trace FILE]

Each rank runs in a network namespace of its own, and a token bucket filter (tc tbf) limits what it sends: root is needed, and
Linux's iproute2. Without --mbit the link is chosen so that sending FP32 gradients takes as long as computing them. --mbit 0: no
namespaces, the loopback as it is. The program is build/release/benchmarks/distributed_bench.
--trace: one step of demi in FP32 on all ranks, as a Chrome trace (https://ui.perfetto.dev opens it).
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
    parser.add_argument("--mbit", type=int, help="of each rank's link [as long as computing takes]")
    parser.add_argument("--peer", default="", metavar="PYTHON", help="a Python with torch")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--bucket-kb", type=int, default=0, help="of demi and of Python [each one's own]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", default="", metavar="FILE", help="of one FP32 step of all ranks")
    a = parser.parse_args()
    size = [word for name in ("layers", "width", "batch", "steps") for word in (f"--{name}", str(getattr(a, name)))]
    mbit = a.mbit
    if mbit is None:
        with Network(a.ranks, 0) as network:
            free = network.run([PROGRAM, "fp32", *size])
        sent = 2 * (a.ranks - 1) / a.ranks * free["bytes"]  # of a ring's all-reduce, each rank
        mbit = max(1, round(sent * 8 / free["compute_ms"] / 1e3))
    bucket = ["--bucket-kb", str(a.bucket_kb)]
    commands = {f"demi {precision}": [PROGRAM, precision, *size, *bucket] for precision in ("fp32", "bf16")}
    if a.peer:
        commands |= {f"python {precision}": [a.peer, PEER, precision, *size, *bucket] for precision in ("fp32", "bf16", "bf16-hook")}
    results = {name: [] for name in commands}
    with Network(a.ranks, mbit) as network:
        for _ in range(a.rounds):
            for name, command in commands.items():
                results[name].append(network.run(command))
        if a.trace:
            network.run([*commands["demi fp32"], "--trace", os.path.abspath(a.trace)])
    summary = {name: {key: round(statistics.median(one[key] for one in rounds), 3) for key in rounds[0]}
               for name, rounds in results.items()}
    print(json.dumps({"ranks": a.ranks, "mbit": mbit, "cores": os.cpu_count(), "size": " ".join(size + bucket), "runs": summary}, indent=1))


if __name__ == "__main__":
    main()
