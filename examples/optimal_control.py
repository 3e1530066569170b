"""Heat a plate so that it takes a wanted temperature: optimal control through a sparse solve.

    python examples/optimal_control.py

The temperature u solves -Δu = f on a square that is cold at its border. The heat f may be put into
its left half alone, and costs something: J(f) = ½‖u - wanted‖² + ½ α ‖f‖². `nm.grad`
differentiates through the solution by one more solution, of the adjoint system, with the same
factors; the product of the Hessian with a vector is the derivative of that. J is quadratic, so
conjugate gradients with such products find the minimum. Writes wanted temperature, temperature and
heat to out/control.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import numus as nm
from numus.png import mosaic, write_png
from numus.sparse import diags, eye, kron, linalg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=80, help="points of a side")
    parser.add_argument("--cost", type=float, default=1e-6, help="of heat")
    parser.add_argument("--out", type=Path, default=Path("out/control.png"))
    options = parser.parse_args()

    n = options.size
    line = diags([2.0, -1.0, -1.0], [0, 1, -1], (n, n), dtype=nm.float64) * float((n + 1) ** 2)
    one = eye(n, dtype=nm.float64)
    lu = linalg.splu((kron(line, one) + kron(one, line)).to_csr())
    x = np.arange(1, n + 1) / (n + 1)
    shape = np.exp(-40 * ((x[:, None] - 0.5) ** 2 + (x[None, :] - 0.35) ** 2))
    wanted = nm.asarray(shape.ravel())
    heated = nm.asarray(np.broadcast_to(x < 0.5, (n, n)).ravel().astype(np.float64))

    def temperature(f: nm.Tensor) -> nm.Tensor:
        return lu.solve(heated * f)

    def objective(f: nm.Tensor) -> nm.Tensor:
        off = temperature(f) - wanted
        return 0.5 * (nm.sum(off * off) + options.cost * nm.sum(f * f))

    slope = nm.grad(objective)

    def curvature(v: nm.Tensor) -> nm.Tensor:
        return nm.jvp(slope, (nm.zeros_like(v),), (v,))[1]

    start = nm.zeros(n * n, dtype=nm.float64)
    hessian = linalg.LinearOperator((n * n, n * n), curvature, curvature, dtype=nm.float64)
    found = linalg.cg(hessian, -slope(start), rtol=1e-8, maxiter=500)
    f, u = found.x, temperature(found.x)
    before, after = float(objective(start)), float(objective(f))
    gradient = float(nm.linalg.norm(slope(f)) / nm.linalg.norm(slope(start)))
    print(f"unknowns       {n * n}")
    print(f"iterations     {int(found.iterations)}")
    print(f"objective      {before:.4f} -> {after:.4f}")
    print(f"gradient       {gradient:.1e} of the first")
    print(
        f"off by         {100 * float(nm.linalg.norm(u - wanted) / nm.linalg.norm(wanted)):.1f} %"
    )
    images = [v.numpy().reshape(n, n) for v in (wanted, u, heated * f)]
    images = [(i - i.min()) / max(float(np.ptp(i)), 1e-12) for i in images]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_png(options.out, mosaic(np.stack(images), 3, zoom=2))
    print(f"picture        {options.out}")


if __name__ == "__main__":
    main()
