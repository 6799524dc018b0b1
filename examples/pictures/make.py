#!/usr/bin/env python3
"""Writes the pictures of examples/own_pictures.cpp beside itself: checks of warm and of cold colours, as PNG."""
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


def channel(is_high):
    return random.randrange(150, 256) if is_high else random.randrange(100)


random.seed(0)
for part, count in (("train", 16), ("val", 4)):
    for name in ("cold", "warm"):
        folder = Path(__file__).parent / part / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, count + 1):
            one, other = ([channel(name == "warm"), random.randrange(256), channel(name == "cold")] for _ in range(2))
            width = random.choice((3, 4, 5))
            rows = [[one if (x // width + y // width) % 2 else other for x in range(SIZE)] for y in range(SIZE)]
            (folder / f"{number:02}.png").write_bytes(png(rows))
