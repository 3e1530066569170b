"""The newcomer test of CONTRIBUTING.md: a toy primitive, a function and a GEMM schedule, each in at
most three files, are added to a copy of the package, which then runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Edit:
    """Text put before (or, without an anchor, as) the content of one file."""

    path: str
    text: str
    before: str = ""


PRIMITIVE = (
    Edit(
        "numus/primitives/elementwise/transcendental.py",
        'softsign: Unary = unary("softsign", lambda x: x / (1 + np.abs(x)), _softsign_slope)\n',
        "exp: Unary = ",
    ),
    Edit(
        "numus/primitives/elementwise/transcendental.py",
        "def _softsign_slope(y: Node, x: Node) -> Node:\n"
        "    d = add(_c(1, x), where(lt(x, _c(0, x)), neg(x), x))\n"
        "    return div(_c(1, x), mul(d, d))\n\n",
        "\nsqrt: Unary = ",
    ),
    Edit(
        "numus/compiler/lower/elementwise.py",
        '    "softsign": lambda x: x / (ir.unary("abs", x) + const(1, x.dtype)),\n',
        '    "div": lambda a, b: a / b,',
    ),
    Edit(
        "numus/functions/elementwise/activations.py",
        "def softsign(x: ArrayLike, /) -> Tensor:\n"
        '    return _apply("softsign", x, ew.softsign)\n\n\n',
        "@method()\n@templated_rows(1)\ndef relu(",
    ),
)
FUNCTION = (
    Edit(
        "numus/functions/elementwise/activations.py",
        "def double_relu(x: ArrayLike, /) -> Tensor:\n    return relu(x) * 2\n\n\n",
        "@method()\n@templated_rows(1)\ndef relu(",
    ),
)
SCHEDULE = (
    Edit(
        "numus/kernels/matmul/cpu/naive.py",
        '''"""Textbook GEMM: three loops, a row of C per block."""

from numus import ir
from numus.ir import const


def rows(g, n, k, a, b, store, dtype):
    j, p, total = ir.var("j"), ir.var("p"), ir.Register("total", dtype)
    step = ir.fma(a(g, p), b(p, j), ir.read(total))
    return [
        ir.For(
            j, const(0), n, "serial",
            [
                ir.Set(total, const(0, dtype)),
                ir.For(p, const(0), k, "serial", [ir.Set(total, step)]),
                *store(g, j, ir.read(total)),
            ],
        )
    ]
''',
    ),
    Edit(
        "numus/compiler/lower/matmul/naive.py",
        '''"""Schedule of the textbook GEMM, for float32 matrices without a batch."""

from numus import ir
from numus import dtypes as dt
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.matmul.problem import store_epilogue
from numus.compiler.lower.schedule import InOrder
from numus.kernels.matmul.cpu.naive import rows


class Naive(InOrder):
    name = "naive"

    def supports(self, problem, target):
        return problem.batch == 1 and problem.matmul.dtype is dt.float32

    def lower(self, problem):
        e, g = Emitter(problem.input_layouts), ir.var("g")
        e.extents[g] = e.dim(problem.m)
        zero = ir.const(0)
        body = rows(
            g, e.dim(problem.n), e.dim(problem.k),
            lambda i, p: e.value(problem.a, (zero, i, p)),
            lambda p, j: e.value(problem.b, (zero, p, j)),
            lambda i, j, c: store_epilogue(e, problem.group, (zero, i, j), c),
            problem.matmul.dtype,
        )
        return [e.grid_kernel("naive_gemm", g, body, problem.m, problem.group.notes)]
''',
    ),
    Edit("numus/compiler/lower/matmul/cpu.py", "    Naive(),\n", "    CpuGemv(),\n"),
    Edit(
        "numus/compiler/lower/matmul/cpu.py",
        "from numus.compiler.lower.matmul.naive import Naive\n",
        "from numus.compiler.lower.matmul.problem import",
    ),
)
CHECKS = {
    "primitive": (
        PRIMITIVE,
        "from numus.functions.elementwise.activations import softsign\n"
        "x = nm.asarray([-3.0, 0.5])\n"
        "np.testing.assert_allclose(softsign(x).numpy(), [-0.75, 1 / 3], rtol=1e-6)\n"
        "slope = nm.grad(lambda x: softsign(x).sum())(x)\n"
        "np.testing.assert_allclose(slope.numpy(), [1 / 16, 1 / 2.25], rtol=1e-6)\n",
    ),
    "function": (
        FUNCTION,
        "from numus.functions.elementwise.activations import double_relu\n"
        "assert double_relu(nm.asarray([-1.0, 2.0])).tolist() == [0.0, 4.0]\n",
    ),
    "schedule": (
        SCHEDULE,
        "a, b = np.random.rand(40, 30).astype('f'), np.random.rand(30, 50).astype('f')\n"
        "f = lambda a, b: nm.relu(a @ b + 1)\n"
        "assert 'naive_gemm' in str(nm.explain(f, nm.asarray(a), nm.asarray(b)))\n"
        "c = f(nm.asarray(a), nm.asarray(b)).numpy()\n"
        "np.testing.assert_allclose(c, a @ b + 1, rtol=1e-5)\n",
    ),
}


@pytest.mark.on_cpu("a schedule for CPUs")
def test_a_toy_takes_at_most_three_files(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "numus", tmp_path / "numus", ignore=shutil.ignore_patterns("__pycache__")
    )
    code = "import numpy as np\nimport numus as nm\n"
    code += f"assert nm.__file__.startswith({str(tmp_path)!r})\n"
    for toy, (edits, check) in CHECKS.items():
        assert len({e.path for e in edits}) <= 3, toy
        for edit in edits:
            path = tmp_path / edit.path
            if not edit.before:
                path.write_text(edit.text)
                continue
            text = path.read_text()
            assert text.count(edit.before) == 1, f"{edit.path} has no single {edit.before!r}"
            path.write_text(text.replace(edit.before, edit.text + edit.before))
        code += check
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
