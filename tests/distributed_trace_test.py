#!/usr/bin/env python3
"""distributed_trace_test.py PROGRAM: the trace of benchmarks/distributed_bench on two ranks shows buckets under way in backward."""
import json
import os
import subprocess
import sys
import tempfile

from held_port import held_port

RANKS, LAYERS, WIDTH = 2, 4, 64


def start(rank, port, program, path):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    # A bucket a layer, of FP32 numbers.
    command = [program, "fp32", "--layers", str(LAYERS), "--width", str(WIDTH), "--batch", "4", "--steps", "1", "--bucket-kb",
               str(WIDTH * WIDTH * 4 // 1024), "--trace", path]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def main():
    with held_port() as held, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        processes = [start(rank, held.getsockname()[1], sys.argv[1], path) for rank in range(RANKS)]
        codes = [process.wait(timeout=120) for process in processes]
        assert codes == [0] * RANKS, codes
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    assert {event["pid"] for event in events} == set(range(RANKS))
    for rank in range(RANKS):
        ranges = {event["name"]: event for event in events if event["pid"] == rank and event["ph"] == "X"}
        ends = {name: event["ts"] + event["dur"] for name, event in ranges.items()}
        # Since the barrier before the step, by this rank's own clock; computing takes some time on each.
        assert all(event["dur"] >= 0 and 0 <= event["ts"] < 60e6 for event in ranges.values()), ranges
        assert ranges["forward"]["dur"] > 0 and ranges["backward"]["dur"] > 0, ranges
        buckets = [f"all-reduce of bucket {number}" for number in range(1, LAYERS + 1)]
        assert set(ranges) == {"forward", "backward", "wait", "step", *buckets}, set(ranges)
        # The step is one lane, and each bucket another one.
        lanes = {event["tid"]: event["args"]["name"] for event in events if event["pid"] == rank and event["name"] == "thread_name"}
        assert lanes == {0: "step"} | {number: f"link, bucket {number}" for number in range(1, LAYERS + 1)}, lanes
        for name, event in ranges.items():
            assert event["tid"] == (buckets.index(name) + 1 if name in buckets else 0), event
        near = 0.01  # us: the file has three digits
        for before, after in [("forward", "backward"), ("backward", "wait"), ("wait", "step")]:
            assert ends[before] <= ranges[after]["ts"] + near, (before, after)
        for bucket in buckets:
            assert ranges["backward"]["ts"] <= ranges[bucket]["ts"] and ends[bucket] <= ends["wait"] + near, bucket
        # All but the last are sent while backward computes.
        for bucket in buckets[:-1]:
            assert ranges[bucket]["ts"] < ends["backward"], bucket
        assert ranges[buckets[-1]]["ts"] + near >= ends["backward"]
    print("the buckets are under way while backward computes")


if __name__ == "__main__":
    main()
