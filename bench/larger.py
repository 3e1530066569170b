"""Larger models, with the layers of PyTorch or `numus.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .gpt import WORDS, gpt_module
from .training import Model, mlp_module

CLASSES = 10


def _resnet(t: Any) -> Any:
    """Three stages of two blocks, each with two convolutions and a skip connection."""

    def unit(n: int, m: int, stride: int) -> Any:
        return t.Sequential(t.Conv2d(n, m, 3, stride, 1, bias=False), t.BatchNorm2d(m))

    class Block(t.Module):
        def __init__(self, n: int, m: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = unit(n, m, stride), unit(m, m, 1)
            self.skip = unit(n, m, stride) if stride > 1 else t.Identity()

        def forward(self, x: Any) -> Any:
            y = self.second(t.functional.relu(self.first(x)))
            return t.functional.relu(y + self.skip(x))

    stages = [Block(32, 32, 1), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)]
    stages += [Block(64, 128, 2), Block(128, 128, 1)]
    return t.Sequential(
        *(unit(3, 32, 1), t.ReLU(), *stages),
        *(t.AdaptiveAvgPool2d(1), t.Flatten(), t.Linear(128, CLASSES)),
    )


def _lstm(t: Any) -> Any:
    class Reader(t.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = t.LSTM(64, 256, 2, batch_first=True)
            self.out = t.Linear(256, CLASSES)

        def forward(self, x: Any) -> Any:
            found, _ = self.lstm(x)
            return self.out(found[:, -1])

    return Reader()


def _model(
    name: str,
    module: Callable[[Any], Any],
    inputs: tuple[int, ...],
    targets: tuple[int, ...],
    words: int = 0,
) -> Model:
    """A model on random numbers, or on random tokens."""

    def data(rng: np.random.Generator) -> Any:
        return rng.integers(0, words, inputs) if words else rng.standard_normal(inputs, np.float32)

    return Model(
        *(name, lambda rng: None, _no_function, module, data),
        lambda rng: rng.integers(0, words or CLASSES, targets),
    )


def _no_function(xp: Any, p: Any, x: Any) -> Any:
    raise TypeError("this model has no functional form")


MODELS = [
    _model("train_mlp_1024x784", mlp_module, (1024, 784), (1024,)),
    _model(
        "train_gpt_6L256d_8x128",
        lambda t: gpt_module(t, width=256, layers=6, length=128),
        *((8, 128), (8, 128), WORDS),
    ),
    _model("train_resnet_32x3x32x32", _resnet, (32, 3, 32, 32), (32,)),
    _model("train_lstm_32x64x64", _lstm, (32, 64, 64), (32,)),
]
