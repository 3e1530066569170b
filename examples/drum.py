"""The lowest modes of a round drum: eigenvectors of a sparse Laplacian.

    python examples/drum.py

Points of a grid inside the circle are unknowns, those outside are held. The frequencies squared
are those of Bessel functions' zeros, up to the grid's error. Writes a picture of the modes, red
above and blue below, to out/drum.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus.png import write_png
from numus.sparse import SparseTensor, diags, eye, kron, linalg

# squares of the zeros of J0, J1, J2, J0, J3, J1: each but J0's twice
BESSEL = (5.7832, 14.6820, 14.6820, 26.3746, 26.3746, 30.4713, 40.7065, 40.7065, 49.2185, 49.2185)


def drum(n: int) -> tuple[SparseTensor, NDArray[Any]]:
    """The Laplacian of the unit disc on a grid of n × n points, and which of them are inside."""
    step = 2.0 / (n + 1)
    line = diags([2.0, -1.0, -1.0], [0, 1, -1], (n, n), dtype=nm.float64) * step**-2
    one = eye(n, dtype=nm.float64)
    square = (kron(line, one) + kron(one, line)).to_csr()
    x = np.linspace(-1 + step, 1 - step, n)
    inside = x[:, None] ** 2 + x[None, :] ** 2 < 1
    keep = np.flatnonzero(inside)
    return square[keep][:, keep].to_csr(), inside


def picture(modes: NDArray[Any], inside: NDArray[Any], columns: int = 5) -> NDArray[np.uint8]:
    n = inside.shape[0]
    rows = -(-modes.shape[1] // columns)
    sheet = np.full((rows * n, columns * n, 3), 255, np.uint8)
    for k in range(modes.shape[1]):
        shape = np.zeros((n, n))
        shape[inside] = modes[:, k] / np.abs(modes[:, k]).max()
        up, down = np.maximum(shape, 0), np.maximum(-shape, 0)
        colours = 1 - np.stack([down, np.abs(shape), up], -1)
        colours[~inside] = 0.93
        top, left = k // columns * n, k % columns * n
        sheet[top : top + n, left : left + n] = (255 * colours).astype(np.uint8)
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=120, help="points of a side")
    parser.add_argument("--modes", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("out/drum.png"))
    options = parser.parse_args()

    a, inside = drum(options.size)
    values, vectors = linalg.eigsh(a, options.modes, sigma=0.0)
    order = np.argsort(values.numpy())
    print(f"unknowns       {a.shape[0]}")
    worst = 0.0
    for k, value in enumerate(values.numpy()[order]):
        wanted = BESSEL[k] if k < len(BESSEL) else None
        off = 0.0 if wanted is None else 100 * abs(value / wanted - 1)
        worst = max(worst, off)
        print(f"mode {k + 1:<9} {value:.3f}" + ("" if wanted is None else f" of {wanted:.3f}"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_png(options.out, picture(vectors.numpy()[:, order], inside))
    print(f"largest error  {worst:.2f} %")
    print(f"picture        {options.out}")


if __name__ == "__main__":
    main()
