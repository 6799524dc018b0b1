#!/usr/bin/env python3
"""Reads an event file back with the real TensorBoard: check_events.py FOLDER (written by sample_test with DEMI_REPORT_SAMPLE=FOLDER).

Needs `pip install tensorboard`. Prints what was read and fails where it differs from what sample_test.cpp writes.
"""
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
events.Reload()

scalars = [(e.step, e.value) for e in events.Scalars("loss/train")]
assert len(scalars) == 705, len(scalars)
for step, value in scalars[:-1]:
    assert abs(value - 1 / step) <= 1e-7, (step, value)
assert scalars[-1][0] == 705 and math.isnan(scalars[-1][1]), scalars[-1]
assert [e.step for e in events.Scalars("step/large")] == [2**40], "a step above 32 bits"

tag = [t for t in events.Tags()["tensors"] if t.startswith("configuration")][0]
text = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
assert text == "batch **256**, bf16 × fp32", text
assert events.SummaryMetadata(tag).plugin_data.plugin_name == "text"

histogram = events.Histograms("weights")[0].histogram_value
assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (0, 99, 100, 4950), histogram
assert histogram.sum_squares == 328350 and sum(histogram.bucket) == 100, histogram

print(f"{len(scalars)} scalars, 1 text, 1 histogram read back by TensorBoard: all as written")
