#!/usr/bin/env python3
"""Make the golden vectors of tests/unit/quant from the real ggml. Run by hand, never by make.

    make_quant.py LIBGGML.so OUTDIR

LIBGGML.so is ggml-quants.c and ggml.c of llama.cpp as a shared object, built without contraction of
a*b+c (-ffp-contract=off). Needs numpy. Files written (all little-endian, no header):
    input.f32       rows of 256 floats: ties, zeros, -0, subnormals, outliers, normal weights
    T.enc           input.f32 quantised to type T by ggml's reference quantiser
    T.blk, T.dec    random blocks of T, scales finite, and the floats ggml decodes them to
"""
import ctypes
import sys

import numpy as np

# name: (elements, bytes, offsets of half-precision scales)
TYPES = {
    "q8_0": (32, 34, [0]), "q4_0": (32, 18, [0]), "q4_1": (32, 20, [0, 2]),
    "q5_0": (32, 22, [0]), "q5_1": (32, 24, [0, 2]), "q2_K": (256, 84, [80, 82]),
    "q3_K": (256, 110, [108]), "q4_K": (256, 144, [0, 2]), "q5_K": (256, 176, [0, 2]),
    "q6_K": (256, 210, [208]), "iq4_nl": (32, 18, [0]), "mxfp4": (32, 17, []),
}


def inputs():
    rng = np.random.default_rng(20261129)
    rows = []
    f = np.float32

    def add(row):
        rows.append(np.asarray(row, dtype=f).reshape(256))

    add(np.zeros(256))
    add(np.full(256, -0.0))
    add(np.where(np.arange(256) % 2 == 0, 0.0, -0.0))
    # Exact ties of every linear format: multiples of half a step, the largest of either sign.
    add(np.tile((np.arange(32) - 16) / 2.0, 8))
    add(np.tile(-(np.arange(32) - 16) / 2.0, 8))
    add(np.tile(np.concatenate([[127.0, -127.0], (np.arange(30) - 15) + 0.5]), 8))
    add(np.tile(np.concatenate([[-8.0, 8.0], (np.arange(30) - 15) / 2]), 8))
    add(np.tile(np.concatenate([[8.0, -8.0], (np.arange(30) - 15) / 2]), 8))
    add(np.arange(256) / 255.0)
    add(-np.arange(256) / 255.0 - 0.25)
    add(np.full(256, 1.0))
    add(np.full(256, -3.0))
    # Small numbers: scales that are subnormal halves, halves that vanish, subnormal floats.
    add(rng.standard_normal(256) * 1e-5)
    add(rng.standard_normal(256) * 2e-7)
    add(rng.standard_normal(256) * 1e-12)
    add(rng.standard_normal(256) * 1e-30)
    add(np.concatenate([[-1e-37], np.zeros(255)]))
    # One outlier, first and last, either sign.
    for at, v in ((0, 50.0), (255, -50.0), (31, -4.0), (32, 4.0)):
        r = rng.standard_normal(256) * 0.02
        r[at] = v
        add(r)
    r = np.zeros(256)
    r[77] = -1.0
    add(r)
    # Large values near the largest half.
    add(rng.standard_normal(256) * 6000.0)
    # What weights look like.
    for s in (0.02, 0.05, 1.0, 0.3):
        add(rng.standard_normal(256) * s)
    add(rng.laplace(size=256) * 0.04)
    add(np.abs(rng.standard_normal(256)) * 0.1)
    add(-np.abs(rng.standard_normal(256)) * 0.1)
    add(rng.standard_normal(256) * np.repeat(np.exp2(np.arange(16) - 12.0), 16))
    add(np.round(rng.standard_normal(256) * 4) / 8)
    return np.concatenate(rows)


def main():
    lib = ctypes.CDLL(sys.argv[1])
    out = sys.argv[2]
    x = inputs()
    x.tofile(f"{out}/input.f32")
    rng = np.random.default_rng(7)
    for name, (block, size, scales) in TYPES.items():
        n = x.size
        enc = np.zeros(n // block * size, np.uint8)
        getattr(lib, f"quantize_row_{name}_ref")(
            x.ctypes.data_as(ctypes.c_void_p), enc.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(n))
        low = name.lower()
        if name == "iq4_nl":  # ggml leaves the levels of a zero block unset
            blocks = enc.reshape(-1, size)
            blocks[(blocks[:, 0] == 0) & (blocks[:, 1] == 0), 2:] = 0
        enc.tofile(f"{out}/{low}.enc")
        count = 2048 // block
        blk = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for at in scales:
            d = rng.standard_normal(count) * np.exp2(rng.integers(-20, 4, count))
            d = d.astype(np.float16)
            d[0], d[1] = np.float16(-0.0), np.float16(6e-8)
            blk[:, at:at + 2] = d.view(np.uint8).reshape(count, 2)
        if name == "mxfp4":
            blk[:6, 0] = [0, 1, 2, 127, 254, 255]
        blk.tofile(f"{out}/{low}.blk")
        dec = np.zeros(2048, np.float32)
        getattr(lib, f"dequantize_row_{name}")(
            blk.ctypes.data_as(ctypes.c_void_p), dec.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(2048))
        dec.tofile(f"{out}/{low}.dec")


main()
