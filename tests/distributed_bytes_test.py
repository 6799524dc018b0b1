#!/usr/bin/env python3
"""distributed_bytes_test.py PROGRAM FOLDER: bytes that ranks of benchmarks/distributed_bench receive are those of scaling_model.py.

FOLDER holds scaling_model.py. The kernel counts the bytes of each rank's connections; beside tensors they carry Gloo's headers, the
barriers around and the signs of life.
"""
import json
import os
import subprocess
import sys

from held_port import held_port

LAYERS, WIDTH = 12, 256  # 2, 3 and 4 ranks keep equal shares


def run(ranks, program, words):
    with held_port() as held:
        return run_at(held.getsockname()[1], ranks, program, words)


def run_at(port, ranks, program, words):
    command = [program, *words, "--layers", str(LAYERS), "--width", str(WIDTH), "--batch", "2", "--steps", "0"]
    processes = []
    for rank in range(ranks):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, [process.returncode for process in processes]
    return json.loads(outputs[0])


def check(what, received, expected):
    print(what, received, round(expected))
    for one in received:
        assert abs(one - expected) <= 0.005 * expected + 5_000, (what, received, expected)


def main():
    program, folder = sys.argv[1:]
    sys.path.insert(0, folder)
    import scaling_model
    parameters = LAYERS * WIDTH * WIDTH
    for ranks in (2, 3, 4):
        whole = run(ranks, program, ["fp32"])
        shared = run(ranks, program, ["fp32", "--shard", "1"])
        assert whole["bytes"] == shared["bytes"] and 4 * parameters < whole["bytes"] < 4.001 * parameters
        assert shared["kept_elements"] == [parameters // ranks] * ranks, shared
        for result in (whole, shared):
            check(f"{ranks} ranks, backward", result["received_in_backward"], scaling_model.all_reduce_bytes(whole["bytes"], ranks))
        check(f"{ranks} ranks, a step", whole["received_in_step"], 0)
        check(f"{ranks} ranks, a sharded step", shared["received_in_step"], scaling_model.gather_bytes(4 * parameters, ranks))
    half = run(2, program, ["bf16", "--shard", "1", "--half", "1"])
    check("2 ranks, a sharded step of 16-bit parameters", half["received_in_step"], scaling_model.gather_bytes(2 * parameters, 2))


if __name__ == "__main__":
    main()
