"""Joe and Kuo's direction numbers of Sobol sequences, packed.

    python -m tools.sobol FILE.npz       from arrays `poly` and `vinit` of 21,201 dimensions

writes numus/random/joe_kuo.bin: for each degree the primitive polynomials, whose first and last
coefficients are 1, then the initial numbers; m_k is odd and below 2**k: k - 1 bits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "numus/random/joe_kuo.bin"


def main(path: str) -> None:
    data = np.load(path)
    polynomials, numbers = data["poly"].tolist(), data["vinit"].tolist()
    bits: list[int] = []
    degrees = np.array([p.bit_length() - 1 for p in polynomials])
    for degree in range(1, int(degrees.max()) + 1):
        rows = np.flatnonzero(degrees == degree)
        for row in rows:
            bits += [polynomials[row] >> i & 1 for i in range(1, degree)]
        for row in rows:
            for k in range(2, degree + 1):
                bits += [numbers[row][k - 1] >> i & 1 for i in range(1, k)]
    packed = np.packbits(np.array(bits, np.uint8))
    TARGET.write_bytes(packed.tobytes())
    print(f"{TARGET}: {packed.size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
