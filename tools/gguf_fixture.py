"""Blocks of every GGUF type as the `gguf` package writes and reads them, for the tests.

python -m tools.gguf_fixture    writes tests/fixtures/gguf_blocks.npz; needs `pip install gguf`
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

PATH = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "gguf_blocks.npz"
WITH_ENCODER = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]  # the package only decodes the others
DECODED = [*WITH_ENCODER, "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def special_rows(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Normal values, and rows of zeros, ties, single values and extreme scales."""
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    x[0], x[1], x[2] = 0, 1, -3
    x[3] *= 1e4
    x[4] *= 1e-6
    x[5] = 0
    x[5, 3] = -2
    x[6] = np.round(x[6] * 4) / 4
    return x


def main() -> None:
    import gguf

    rng, found = np.random.default_rng(0), {}
    for name in DECODED:
        kind = getattr(gguf.GGMLQuantizationType, name)
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        if name in WITH_ENCODER:
            x = special_rows(rng, 12, 2 * block)
            found[f"{name}.x"], found[f"{name}.encoded"] = x, gguf.quants.quantize(x, kind)
        raw = rng.integers(0, 256, (8, nbytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            found[f"{name}.raw"], found[f"{name}.decoded"] = raw, gguf.quants.dequantize(raw, kind)
    np.savez_compressed(PATH, **found)


if __name__ == "__main__":
    main()
