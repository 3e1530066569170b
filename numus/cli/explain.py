"""`numus explain FILE`: the kernels that a program becomes."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numus as nm
from numus.tensor import Tensor

__all__ = ["run"]


def run(file: Path, arguments: Sequence[str] = (), *, source: bool = False) -> None:
    """Run a Python file, evaluate its global tensors, and print the kernels that ran."""
    if not file.is_file():
        raise SystemExit(f"numus explain: there is no file {file}")

    def program() -> list[Any]:
        before = sys.argv, sys.path
        sys.argv = [str(file), *arguments]
        sys.path = [str(file.resolve().parent), *sys.path]  # as Python does for programs
        try:
            names = runpy.run_path(str(file), run_name="__main__")
        except SystemExit as end:  # which ends the program, not this one
            if end.code not in (None, 0):
                print(f"{file} ended with {end.code}")
            return []
        finally:
            sys.argv, sys.path = before
        return [x for x in nm.tree.leaves(names) if isinstance(x, Tensor)]

    found = nm.explain(program)
    if not found.kernels:
        print(f"{file} computes nothing with numus")
        return
    print(found)
    if source:
        for kernel in {k.ir: k for k in found.kernels}.values():
            print(f"-- {kernel.name} {'-' * max(76 - len(kernel.name), 2)}\n{kernel.ir}")
