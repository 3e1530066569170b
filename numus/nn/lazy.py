"""Layers that learn how many inputs they have from the first they are given.

A lazy layer becomes an ordinary one when it is called for the first time, or when it loads a state
dict. Its parameters are there from the beginning, empty, and stay the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numus as nm
from numus.errors import TracingError
from numus.graph import current_trace
from numus.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from numus.nn.linear import Linear
from numus.nn.module import Module
from numus.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from numus.nn.parameter import Parameter, replace

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
    "UninitializedParameter",
]

Shapes = Mapping[str, tuple[int, ...]]


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet; it becomes an ordinary one."""

    __slots__ = ()

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(nm.empty((0,), device=device, dtype=dtype or nm.float32), requires_grad)

    def __repr__(self) -> str:
        return "UninitializedParameter()"


class LazyLayer(Module):
    """What lazy layers share: what they were told, until the number of their inputs is known."""

    _becomes: ClassVar[type[Module]]
    _size: ClassVar[str]  # the argument that is not known

    def _wait(self, arguments: dict[str, Any], parameters: Mapping[str, bool]) -> None:
        """Keep the arguments; hold an empty parameter for each that there will be."""
        own = ("self", "__class__", self._size)
        self._arguments = {k: v for k, v in arguments.items() if k not in own}
        options = {k: self._arguments.pop(k) for k in ("device", "dtype")}
        for name, there in parameters.items():
            setattr(self, name, UninitializedParameter(**options) if there else None)
        self._options = options

    def has_uninitialized_params(self) -> bool:
        """Whether the number of inputs is not known yet."""
        return True

    def _of_input(self, x: Any) -> int:
        """The number of inputs from one of them: the size of the second axis."""
        size: int = x.shape[1]
        return size

    def _of_state(self, shapes: Shapes) -> int | None:
        """The number of inputs from the shapes of a state dict, if it tells."""
        raise NotImplementedError

    def complete(self, size: int) -> None:
        """Become the layer that has so many inputs."""
        if current_trace() is not None:
            raise TracingError(
                f"{type(self).__name__}: call the model once before it is traced, so that its "
                "parameters are there"
            )
        held = {n: p for n, p in vars(self).items() if isinstance(p, Parameter)}
        made = self._becomes(**{self._size: size}, **self._arguments, **self._options)
        made.train(self.training)
        if held:
            first = next(iter(held.values()))
            made.to(first.device, dtype=first.dtype)
        object.__setattr__(self, "__class__", self._becomes)
        hooks = self._hooks
        for name, x in vars(made).items():
            mine = held.get(name)
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


class LazyLinear(LazyLayer):
    """A linear map of as many features as the first input has.

    >>> from numus import nn
    >>> layer = nn.LazyLinear(5)
    >>> layer(nm.ones((2, 3))).shape
    (2, 5)
    >>> layer
    Linear(in_features=3, out_features=5, bias=True)
    """

    _becomes, _size = Linear, "in_features"

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        self._wait(locals(), {"weight": True, "bias": bias})

    def _of_input(self, x: Any) -> int:
        size: int = x.shape[-1]
        return size

    def _of_state(self, shapes: Shapes) -> int | None:
        return shapes["weight"][1] if "weight" in shapes else None


class _LazyConv(LazyLayer):
    _size = "in_channels"

    def __init__(
        self,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._wait(locals(), {"weight": True, "bias": bias})

    def _of_input(self, x: Any) -> int:
        return _channels(self, x)

    def _of_state(self, shapes: Shapes) -> int | None:
        if "weight" not in shapes:
            return None
        groups: int = self._arguments["groups"]
        return shapes["weight"][1] * groups


class _LazyConvTranspose(LazyLayer):
    _size = "in_channels"

    def __init__(
        self,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._wait(locals(), {"weight": True, "bias": bias})

    def _of_input(self, x: Any) -> int:
        return _channels(self, x)

    def _of_state(self, shapes: Shapes) -> int | None:
        return shapes["weight"][0] if "weight" in shapes else None


def _channels(layer: Any, x: Any) -> int:
    """Of (N, C, ...), or of one example (C, ...)."""
    size: int = x.shape[-1 - layer._becomes._rank]
    return size


class LazyConv1d(_LazyConv):
    """Conv1d of as many channels as the first input has."""

    _becomes = Conv1d


class LazyConv2d(_LazyConv):
    """Conv2d of as many channels as the first input has."""

    _becomes = Conv2d


class LazyConv3d(_LazyConv):
    """Conv3d of as many channels as the first input has."""

    _becomes = Conv3d


class LazyConvTranspose1d(_LazyConvTranspose):
    """ConvTranspose1d of as many channels as the first input has."""

    _becomes = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose):
    """ConvTranspose2d of as many channels as the first input has."""

    _becomes = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose):
    """ConvTranspose3d of as many channels as the first input has."""

    _becomes = ConvTranspose3d


class _LazyNorm(LazyLayer):
    _size = "num_features"

    def _of_state(self, shapes: Shapes) -> int | None:
        found = [shapes[n][0] for n in ("weight", "running_mean") if n in shapes]
        return found[0] if found else None


class _LazyBatchNorm(_LazyNorm):
    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._wait(locals(), {"weight": affine, "bias": affine})


class _LazyInstanceNorm(_LazyNorm):
    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._wait(locals(), {"weight": affine, "bias": affine})

    def _of_input(self, x: Any) -> int:
        size: int = x.shape[1 - max(self._becomes._ranks)]  # type: ignore[attr-defined]
        return size


class LazyBatchNorm1d(_LazyBatchNorm):
    """BatchNorm1d of as many channels as the first input has."""

    _becomes = BatchNorm1d


class LazyBatchNorm2d(_LazyBatchNorm):
    """BatchNorm2d of as many channels as the first input has."""

    _becomes = BatchNorm2d


class LazyBatchNorm3d(_LazyBatchNorm):
    """BatchNorm3d of as many channels as the first input has."""

    _becomes = BatchNorm3d


class LazyInstanceNorm1d(_LazyInstanceNorm):
    """InstanceNorm1d of as many channels as the first input has."""

    _becomes = InstanceNorm1d


class LazyInstanceNorm2d(_LazyInstanceNorm):
    """InstanceNorm2d of as many channels as the first input has."""

    _becomes = InstanceNorm2d


class LazyInstanceNorm3d(_LazyInstanceNorm):
    """InstanceNorm3d of as many channels as the first input has."""

    _becomes = InstanceNorm3d
