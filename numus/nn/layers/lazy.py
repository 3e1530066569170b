"""Layers that learn how many inputs they have from the first they are given.

A lazy layer becomes an ordinary one when it is called for the first time, or when it loads a state
dict. Its parameters are there from the beginning, empty, and stay the same objects.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numus as nm
from numus.errors import TracingError
from numus.graph import current_trace
from numus.nn.layers import conv, norm
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.parameter import Parameter, replace
from numus.tensor import Tensor

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d",
    "LazyConv3d", "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d",
    "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear",
    "UninitializedParameter",
]  # fmt: skip

Shapes = Mapping[str, tuple[int, ...]]


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet; it becomes an ordinary one."""

    __slots__ = ()

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(nm.empty((0,), device=device, dtype=dtype or nm.float32), requires_grad)

    def __repr__(self) -> str:
        return "UninitializedParameter()"


class LazyLayer(Module, ABC):
    """A layer that takes the arguments of the one it becomes, all but its number of inputs."""

    _becomes: ClassVar[type[Any]]
    _size: ClassVar[str]  # the argument that is not known
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, becomes: type[Module] | None = None) -> None:
        super().__init_subclass__()
        if becomes is not None:
            whole = inspect.signature(becomes)
            rest = [x for name, x in whole.parameters.items() if name != cls._size]
            cls._becomes, cls.__signature__ = becomes, whole.replace(parameters=rest)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            given = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        given.apply_defaults()
        self._arguments = dict(given.arguments)
        self._options = {k: self._arguments.pop(k) for k in ("device", "dtype")}
        affine = self._arguments.get("affine", True)
        for name, there in (("weight", affine), ("bias", affine and self._arguments["bias"])):
            setattr(self, name, UninitializedParameter(**self._options) if there else None)

    def has_uninitialized_params(self) -> bool:
        """Whether the number of inputs is not known yet."""
        return True

    def _of_input(self, x: Tensor) -> int:
        """The number of inputs from one of them: the size of the second axis."""
        return x.shape[1]

    @abstractmethod
    def _of_state(self, shapes: Shapes) -> int | None:
        """The number of inputs from the shapes of a state dict, if it tells."""

    def complete(self, size: int) -> None:
        """Become the layer that has `size` inputs."""
        if current_trace() is not None:
            raise TracingError(
                f"{type(self).__name__}: call the model once before it is traced, so that its "
                "parameters are there"
            )
        empty = {n: p for n, p in vars(self).items() if isinstance(p, Parameter)}
        made = self._becomes(**{self._size: size}, **self._arguments, **self._options)
        made.train(self.training)
        if empty:
            first = next(iter(empty.values()))
            made.to(first.device, dtype=first.dtype)
        object.__setattr__(self, "__class__", self._becomes)
        hooks = self._hooks
        for name, x in vars(made).items():
            mine = empty.get(name)
            if isinstance(x, Parameter) and mine is not None:
                replace(mine, x.detach())
                object.__setattr__(mine, "__class__", Parameter)
            else:
                vars(self)[name] = x
        self._hooks = hooks
        for name in ("_arguments", "_options"):
            del vars(self)[name]

    def forward(self, x: Any) -> Any:
        x = nm.asarray(x)
        self.complete(self._of_input(x))
        return self.forward(x)  # of the class that it is now

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self._arguments.items())


class _LazyLinear(LazyLayer):
    _size = "in_features"

    def _of_input(self, x: Tensor) -> int:
        return x.shape[-1]

    def _of_state(self, shapes: Shapes) -> int | None:
        return shapes["weight"][1] if "weight" in shapes else None


class _LazyConv(LazyLayer):
    _size = "in_channels"

    def _of_input(self, x: Tensor) -> int:
        """Of (N, C, ...), or of one example (C, ...)."""
        return x.shape[-1 - self._becomes._rank]

    def _of_state(self, shapes: Shapes) -> int | None:
        return shapes["weight"][1] * self._arguments["groups"] if "weight" in shapes else None


class _LazyConvTranspose(_LazyConv):
    def _of_state(self, shapes: Shapes) -> int | None:
        return shapes["weight"][0] if "weight" in shapes else None


class _LazyNorm(LazyLayer):
    _size = "num_features"

    def _of_state(self, shapes: Shapes) -> int | None:
        return next((shapes[n][0] for n in ("weight", "running_mean") if n in shapes), None)


class _LazyInstanceNorm(_LazyNorm):
    def _of_input(self, x: Tensor) -> int:
        return x.shape[1 - max(self._becomes._ranks)]


class LazyLinear(_LazyLinear, becomes=Linear):
    """A linear map of as many features as the first input has.

    >>> from numus import nn
    >>> layer = nn.LazyLinear(5)
    >>> layer(nm.ones((2, 3))).shape
    (2, 5)
    >>> layer
    Linear(in_features=3, out_features=5, bias=True)
    """


class LazyConv1d(_LazyConv, becomes=conv.Conv1d):
    """Conv1d of as many channels as the first input has."""


class LazyConv2d(_LazyConv, becomes=conv.Conv2d):
    """Conv2d of as many channels as the first input has."""


class LazyConv3d(_LazyConv, becomes=conv.Conv3d):
    """Conv3d of as many channels as the first input has."""


class LazyConvTranspose1d(_LazyConvTranspose, becomes=conv.ConvTranspose1d):
    """ConvTranspose1d of as many channels as the first input has."""


class LazyConvTranspose2d(_LazyConvTranspose, becomes=conv.ConvTranspose2d):
    """ConvTranspose2d of as many channels as the first input has."""


class LazyConvTranspose3d(_LazyConvTranspose, becomes=conv.ConvTranspose3d):
    """ConvTranspose3d of as many channels as the first input has."""


class LazyBatchNorm1d(_LazyNorm, becomes=norm.BatchNorm1d):
    """BatchNorm1d of as many channels as the first input has."""


class LazyBatchNorm2d(_LazyNorm, becomes=norm.BatchNorm2d):
    """BatchNorm2d of as many channels as the first input has."""


class LazyBatchNorm3d(_LazyNorm, becomes=norm.BatchNorm3d):
    """BatchNorm3d of as many channels as the first input has."""


class LazyInstanceNorm1d(_LazyInstanceNorm, becomes=norm.InstanceNorm1d):
    """InstanceNorm1d of as many channels as the first input has."""


class LazyInstanceNorm2d(_LazyInstanceNorm, becomes=norm.InstanceNorm2d):
    """InstanceNorm2d of as many channels as the first input has."""


class LazyInstanceNorm3d(_LazyInstanceNorm, becomes=norm.InstanceNorm3d):
    """InstanceNorm3d of as many channels as the first input has."""
