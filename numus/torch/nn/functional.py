"""`torch.nn.functional`: layers and losses as functions."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn import functional as _engine
from numus.torch._modules import reflected
from numus.torch._owned import owning
from numus.torch._tensor import Tensor

_IN_PLACE = """
    alpha_dropout dropout feature_alpha_dropout celu elu hardtanh leaky_relu relu rrelu selu
    threshold
""".split()


def _in_place(name: str) -> Any:
    function = getattr(_engine, name)

    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, inplace=True, **kwargs)

    run.__doc__ = f"`{name}`, in place."
    return owning(run)


def _with_indices(name: str) -> Any:
    function = getattr(_engine, name)

    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, return_indices=True, **kwargs)

    run.__doc__ = f"`{name}`, and where each value stood."
    return owning(run)


_POOLS = [f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)]
_MADE: dict[str, Any] = {
    "Tensor": Tensor,
    "softmin": owning(lambda input, dim=None, dtype=None: _engine.softmin(input, dim, dtype=dtype)),
    "one_hot": owning(lambda tensor, num_classes=-1: nm.nn.functional.one_hot(tensor, num_classes)),
    "upsample": owning(
        lambda input, size=None, scale_factor=None, mode="nearest", align_corners=None: (
            _engine.interpolate(input, size, scale_factor, mode, align_corners)
        )
    ),
    "upsample_nearest": owning(
        lambda input, size=None, scale_factor=None: _engine.interpolate(input, size, scale_factor)
    ),
    "upsample_bilinear": owning(
        lambda input, size=None, scale_factor=None: _engine.interpolate(
            input, size, scale_factor, "bilinear", True
        )
    ),
    "native_channel_shuffle": owning(lambda input, groups: _engine.channel_shuffle(input, groups)),
}
for _name in ("tanh", "sigmoid"):
    _MADE[_name] = owning(getattr(nm, _name))
_LATER: dict[str, Any] = {
    **{f"{name}_": lambda name=name: _in_place(name) for name in _IN_PLACE},
    **{f"{name}_with_indices": lambda name=name: _with_indices(name) for name in _POOLS},
}
_find = reflected(__name__, _engine, _MADE)


def __getattr__(name: str) -> Any:
    if name in _LATER and name not in _MADE:
        _MADE[name] = _LATER[name]()
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*_MADE, *_LATER, *(n for n in dir(_engine) if n[0] != "_")})
