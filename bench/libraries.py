"""The benchmarked libraries: input conversion, compilation, synchronisation.

`available` has those that are installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import numus as nm

Function = Callable[..., Any]


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Library:
    """How to run a function of one library's arrays to completion."""

    name: str
    dialect: str  # whose functions it runs: torch.compile runs torch's
    array: Callable[[NDArray[Any]], Any]
    compile: Callable[[Function], Function] = _same
    wait: Callable[[Any], Any] = _same  # for the result

    def bind(self, function: Function, inputs: list[NDArray[Any]]) -> Callable[[], Any]:
        """A closure that computes `function(*inputs)`."""
        arrays = [self.array(value) for value in inputs]
        compiled, wait = self.compile(function), self.wait
        return lambda: wait(compiled(*arrays))


def _numus_array(value: NDArray[Any]) -> Any:
    x = nm.asarray(value)
    nm.eval(x)
    return x


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# JAX demotes float64 to float32 unless this is set before its import.
os.environ.setdefault("JAX_ENABLE_X64", "1")
torch = _module("torch")
jax = _module("jax")
jnp = _module("jax.numpy")


def available(*, torch_compile: bool = False, jitted: bool = False) -> list[Library]:
    """numus and the installed peers, numus first."""
    libraries = [
        Library("numus", "numus", _numus_array, nm.jit if jitted else _same, wait=nm.eval),
        Library("numpy", "numpy", np.asarray),
    ]
    if torch is not None:
        torch.set_num_threads(os.cpu_count() or 1)
        libraries.append(Library("torch", "torch", torch.from_numpy))
        if torch_compile:
            libraries.append(Library("torch.compile", "torch", torch.from_numpy, torch.compile))
    if jax is not None:
        libraries.append(Library("jax", "jax", jnp.asarray, jax.jit, jax.block_until_ready))
    return libraries
