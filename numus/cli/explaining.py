"""`numus explain FILE`: the kernels that a program becomes."""

from __future__ import annotations

import runpy
from pathlib import Path

from rich.console import Console

import numus as nm

__all__ = ["run_file"]


def run_file(file: Path, *, source: bool = False) -> None:
    """Run a Python file as a program, then print the kernels that ran."""
    console = Console(highlight=False)
    if not file.is_file():
        raise SystemExit(f"numus explain: there is no file {file}")

    def program() -> None:
        runpy.run_path(str(file), run_name="__main__")

    found = nm.explain(program)
    console.print(str(found), markup=False)
    if source:
        for kernel in found.kernels:
            console.rule(kernel.name)
            console.print(kernel.ir, markup=False)
