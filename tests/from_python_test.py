#!/usr/bin/env python3
"""The programs of the guides print in C++ what they print in Python: from_python_test.py EXAMPLES FOLDER.

EXAMPLES is examples/ of the sources, FOLDER holds the built programs. Exits with 77 without `pip install torch`.
"""
import subprocess
import sys
from pathlib import Path

try:
    import torch  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SOURCES, PROGRAMS = Path(sys.argv[1]), Path(sys.argv[2])
# Products of 16-bit numbers are rounded in another order there: a few units of bf16's last digit, 2^-8.
TOLERANCE = 3 * 2.0**-8


def lines_of(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stdout.splitlines()


def same(ours, theirs):
    name, _, value = ours.rpartition(" ")
    other_name, _, other = theirs.rpartition(" ")
    if name.strip() != other_name.strip():
        return False
    try:
        return abs(float(value) - float(other)) <= TOLERANCE * max(abs(float(other)), 0.01)
    except ValueError:
        return value == other


failed = 0
for program in ("first_lines", "from_python"):
    for dtype in ("bf16", "fp16"):
        ours = lines_of([str(PROGRAMS / program), "cpu", dtype])
        theirs = lines_of([sys.executable, str(SOURCES / (program + ".py")), "cpu", dtype])
        if len(ours) != len(theirs) or not all(map(same, ours, theirs)):
            failed += 1
            print(f"{program} {dtype}: C++ prints\n  " + "\n  ".join(ours) + "\nPython\n  " + "\n  ".join(theirs))
        else:
            print(f"{program} {dtype}: {len(ours)} lines agree")
sys.exit(failed)
