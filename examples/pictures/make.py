#!/usr/bin/env python3
"""Writes the pictures of examples/picture_folder.cpp beside itself: stripes and checks in colours of their own, as PNG."""
import random
import struct
import zlib
from pathlib import Path

SIZE = 40


def png(rows):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    pixels = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 9)) + chunk(b"IEND", b"")


random.seed(0)
for part, count in (("train", 16), ("val", 4)):
    for name in ("checks", "stripes"):
        folder = Path(__file__).parent / part / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, count + 1):
            one, other = ([random.randrange(256) for _ in range(3)] for _ in range(2))
            width, start = random.choice((3, 4, 5)), random.randrange(8)
            rows = [[one if ((x + start) // width + (y // width if name == "checks" else 0)) % 2 else other for x in range(SIZE)]
                    for y in range(SIZE)]
            (folder / f"{number:02}.png").write_bytes(png(rows))
