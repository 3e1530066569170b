"""Calibration: statistics of the inputs of layers, gathered by hooks while a model runs on data."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.tensor import Tensor


@dataclass
class InputStatistics:
    """Of the inputs of one layer: Σ x xᵀ, the mean and the largest of |x|, rows seen."""

    hessian: np.ndarray[Any, Any]
    magnitude: np.ndarray[Any, Any]
    largest: np.ndarray[Any, Any]
    rows: int = 0

    @staticmethod
    def empty(columns: int) -> InputStatistics:
        zeros = np.zeros(columns)
        return InputStatistics(np.zeros((columns, columns)), zeros, zeros.copy())

    def add(self, x: Tensor) -> None:
        flat = x.detach().reshape(-1, x.shape[-1]).astype(nm.float32)
        self.hessian += np.asarray(flat.T @ flat, dtype=np.float64)
        size = nm.abs(flat)
        total, rows = self.magnitude * self.rows, flat.shape[0]
        self.rows += rows
        self.magnitude = (total + np.asarray(nm.sum(size, axis=0), np.float64)) / self.rows
        self.largest = np.maximum(self.largest, np.asarray(nm.max(size, axis=0), np.float64))


def _call(model: Module, batch: Any) -> None:
    if isinstance(batch, dict):
        model(**batch)
    elif isinstance(batch, tuple | list):
        model(*batch)
    else:
        model(batch)


def gather(
    model: Module, layers: Mapping[str, Linear], data: Iterable[Any]
) -> dict[str, InputStatistics]:
    """Statistics of the inputs of some layers, over all batches of `data`."""
    found = {name: InputStatistics.empty(layer.in_features) for name, layer in layers.items()}

    def hook(name: str) -> Any:
        def see(module: Module, args: tuple[Any, ...], *rest: Any) -> None:
            found[name].add(nm.asarray(args[0]))

        return see

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    try:
        with nm.no_grad():
            for batch in data:
                _call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    unseen = [name for name, s in found.items() if not s.rows]
    if unseen:
        raise ValueError(
            f"calibration: the data never reached {', '.join(unseen)}; give batches that the model "
            "takes, or leave these layers out by filter="
        )
    return found


def show(done: int, total: int, name: str) -> None:
    """A progress line on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r[{done}/{total}] {name:<40.40}", end=end, file=sys.stderr, flush=True)
