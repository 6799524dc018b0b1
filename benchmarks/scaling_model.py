#!/usr/bin/env python3
"""How long a step of data parallel training takes on N devices: the model of docs/scaling.md.

    benchmarks/scaling_model.py                    the tables of docs/scaling.md
    benchmarks/scaling_model.py --check FILE...    beside what benchmarks/distributed.py printed
    benchmarks/scaling_model.py --page docs/scaling.md [--write]    whether the page has these tables

Forward takes a third of the computation and backward two thirds, layer by layer, each as long as its share of the parameters. A
bucket is sent when its last gradient is there and the bucket before it has arrived; the last one at the end of backward. With a
sharded optimizer state the parameters follow after the step: see Cluster.gather and gather_in_pieces.
"""
import argparse
import dataclasses
import json
import math
import sys

MIB = 2**20


def all_reduce_bytes(size, n):
    """What each of n ranks receives in an all-reduce of `size` bytes, as in a ring."""
    return 2 * (n - 1) / n * size


def gather_bytes(size, n):
    """What each of n ranks receives of `size` bytes, of which it has an n-th itself."""
    return (n - 1) / n * size


@dataclasses.dataclass
class Link:
    """An all-reduce among n: a latency for each of 2 log2(n) hops (double binary trees), bytes as in a ring."""
    bytes_per_second: float
    latency: float

    def all_reduce(self, size, n):
        if n == 1:
            return 0.0
        return 2 * math.log2(n) * self.latency + all_reduce_bytes(size, n) / self.bytes_per_second

    def gather(self, size, n):
        """Half of an all-reduce: the way back alone."""
        return math.log2(n) * self.latency + gather_bytes(size, n) / self.bytes_per_second


@dataclasses.dataclass
class Cluster:
    """Nodes of devices: reduce-scatter in the node, all-reduce of a share between nodes, all-gather in the node."""
    per_node: int
    inside: Link
    between: Link

    def all_reduce(self, size, n):
        local = min(n, self.per_node)
        nodes = max(1, n // self.per_node)
        return self.inside.all_reduce(size, local) + self.between.all_reduce(size / local, nodes)

    def gather(self, size, n):
        """Each device's share to those of other nodes that have its number, then inside the node."""
        local = min(n, self.per_node)
        return self.between.gather(size / local, max(1, n // self.per_node)) + self.inside.gather(size, local)


def gather_in_pieces(network, size, n, bucket):
    """A gather as ShardedOptimizerState does it: one all-gather for each `bucket` bytes, one behind the other with their latencies.
    The next one is packed and enqueued while one is under way, so the link is idle between them only if two are over before the
    host asks again."""
    pieces = math.ceil(size / bucket)
    return pieces * max(network.gather(size / pieces, n), ASKED / 2)


def buckets(layers, layer_bytes, limit, first):
    """Layers of each bucket, from the last layer on: closed once it has reached its limit."""
    result, now = [], 0
    for _ in range(layers):
        now += 1
        if now * layer_bytes >= (limit if result else first):
            result.append(now)
            now = 0
    if now:
        result.append(now)
    end = max(1, int(first // layer_bytes))  # what waits for the end of backward
    if result[-1] > end and result[-1] * layer_bytes > 2 * first:
        result[-1:] = [result[-1] - end, end]
    return result


def step_seconds(compute, layers, layer_bytes, all_reduce, limit, first=MIB):
    forward, a_layer = compute / 3, compute * 2 / 3 / layers
    sent, done = 0, 0.0
    plan = buckets(layers, layer_bytes, limit, first)
    for number, count in enumerate(plan):
        sent += count
        ready = compute if number == len(plan) - 1 else forward + sent * a_layer
        done = max(done, ready) + all_reduce(count * layer_bytes)
    return max(done, compute)


# Assumptions, named on the page.
CLUSTERS = {
    "NVLink, 400 Gbit/s a device": Cluster(8, Link(360e9, 3e-6), Link(40e9, 8e-6)),
    "PCIe, 100 Gbit/s a node": Cluster(8, Link(20e9, 5e-6), Link(1.25e9, 15e-6)),
}
JITTER = 0.01  # standard deviation of a device's computation; a step waits for the slowest
WORKLOADS = {  # parameters, layers, FLOP of a step on one device, FLOP/s that it sustains
    "ResNet-50, 64 images a device": (25.6e6, 54, 64 * 3 * 8.2e9, 60e12),
    "GPT of 1.3 G parameters, 8,192 tokens a device": (1.3e9, 98, 6 * 1.3e9 * 8192, 400e12),
}
DEVICES = (8, 64, 512, 4096)
ASKED = 50e-6  # after so long the host asks again whether a collective of a GPU is over
GATHERED = [("ResNet-50", 25.6e6), ("GPT", 1.3e9)]  # 16-bit parameters


def slowest(compute, n):
    """The greatest of n normal deviates is sqrt(2 ln n) deviations above the mean, for large n."""
    return compute * (1 + JITTER * math.sqrt(2 * math.log(n)))


def tables():
    lines = []
    for name, (parameters, layers, flop, rate) in WORKLOADS.items():
        compute = flop / rate
        lines += [f"**{name}**, {1e3 * compute:.0f} ms of computation", "",
                  "| cluster | gradients | bucket | " + " | ".join(f"{n:,} devices" for n in DEVICES) + " |",
                  "|---|---|---|" + "---:|" * len(DEVICES)]
        for cluster, network in CLUSTERS.items():
            for dtype, size in (("FP32", 4), ("16 bits", 2)):
                for limit in (4, 25):
                    times = [step_seconds(slowest(compute, n), layers, parameters * size / layers,
                                          lambda b, n=n, network=network: network.all_reduce(b, n), limit * MIB)
                             for n in DEVICES]
                    shares = " | ".join(f"{100 * compute / t:.0f} %" for t in times)
                    lines.append(f"| {cluster} | {dtype} | {limit} MiB | {shares} |")
        lines.append("")
    return "\n".join([*lines, *gather_table(), ""])


def gather_table():
    lines = ["**The gather of 16-bit parameters**, after each step of a sharded optimizer state, in ms", "",
             "| cluster | parameters | bytes | " + " | ".join(f"{n:,} devices" for n in DEVICES) + " |",
             "|---|---|---|" + "---:|" * len(DEVICES)]
    for cluster, network in CLUSTERS.items():
        for name, parameters in GATHERED:
            size = 2 * parameters
            bytes_alone = " | ".join(f"{1e3 * network.gather(size, n):.1f}" for n in DEVICES)
            lines.append(f"| {cluster} | {name} | as one collective | {bytes_alone} |")
            for bucket in (4 * MIB, 64 * MIB):
                times = [gather_in_pieces(network, size, n, bucket) for n in DEVICES]
                cells = " | ".join(f"{1e3 * t:,.1f}" for t in times)
                lines.append(f"| {cluster} | {name} | `bucket_bytes` of {bucket // MIB} MiB | {cells} |")
    return lines


def check(path):
    with open(path, encoding="utf-8") as file:
        results = json.load(file)
    for result in results if isinstance(results, list) else [results]:
        check_link(result)


def check_link(result):
    words = result["size"].split()
    size = {words[i]: int(words[i + 1]) for i in range(0, len(words), 2)}
    for name, run in result["runs"].items():
        if "communication_ms" not in run:
            continue
        rate = run["bytes"] / (run["communication_ms"] / 1e3)  # of the same run: latency is in it
        limit = size.get("--bucket-kb", 0) * 1024
        predicted = 1e3 * step_seconds(run["compute_ms"] / 1e3, size["--layers"], run["bytes"] / size["--layers"],
                                       lambda b, rate=rate: b / rate, limit or 4 * MIB, limit or MIB)
        print(f"{name}, {run['buckets']:.0f} buckets: predicted {predicted:.0f} ms, measured {run['step_ms']:.0f} ms, "
              f"{100 * (run['step_ms'] / predicted - 1):+.0f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", metavar="FILE")
    parser.add_argument("--page")
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    if a.check:
        for path in a.check:
            check(path)
    elif a.page:
        begin, end = "<!-- tables -->\n\n", "<!-- end of tables -->"
        with open(a.page, encoding="utf-8") as file:
            text = file.read()
        head, rest = text.split(begin)
        new = head + begin + tables() + "\n" + end + rest.split(end)[1]
        if a.write:
            with open(a.page, "w", encoding="utf-8") as file:
                file.write(new)
        elif new != text:
            sys.exit(f"{a.page} does not have the model's tables: benchmarks/scaling_model.py --page {a.page} --write")
    else:
        print(tables())


if __name__ == "__main__":
    main()
