"""What surrounds tensors: devices, precision, compilation, files."""

from __future__ import annotations

import functools
import os
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numus as nm
from numus.torch._owned import own, owning, seeing_own

Device = nm.Device


class autocast(nm.autocast):  # noqa: N801
    """Products in a low-precision float: `with torch.autocast("cuda", dtype=torch.bfloat16)`.

    >>> import numus.torch as torch
    >>> with torch.autocast("cpu"):
    ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> y.dtype
    numus.bfloat16
    """

    def __init__(
        self,
        device_type: str = "cpu",
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        low = nm.float16 if str(device_type).startswith("cuda") else nm.bfloat16
        super().__init__(low if dtype is None else dtype, enabled and dtype is not nm.float32)


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "numus",
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
) -> Any:
    """`nm.jit` of a function, or of a module's `forward`: the module itself is given back."""
    if model is None:
        return functools.partial(compile, disable=disable)
    if disable:
        return model
    if isinstance(model, nm.nn.Module):
        object.__setattr__(model, "__class__", _compiled(type(model)))
        return model
    return owning(nm.jit(seeing_own(model)))


def _compiled(kind: type) -> type:
    """A class of modules whose `forward` is compiled, for each of them (copies, too) by itself."""
    programs: dict[Any, Callable[..., Any]] = {}

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self not in programs:
            bound = types.MethodType(kind.forward, self)  # type: ignore[attr-defined]
            programs[self] = owning(nm.jit(seeing_own(bound)))
        return programs[self](*args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        # as the class that has a name
        return (kind.__new__, (kind,), *kind.__reduce_ex__(self, protocol)[2:])  # type: ignore[call-arg]

    body = {"forward": forward, "__module__": kind.__module__, "__reduce_ex__": reduce}
    return type(kind)(kind.__name__, (kind,), body)


def set_default_dtype(d: Any) -> None:
    """Refuse any default but float32: functions take `dtype` where another is meant."""
    if nm.get_default_dtype() is not nm.result_type(d):
        raise TypeError(
            f"set_default_dtype: floats are {nm.get_default_dtype().name} by default; give "
            f"dtype={nm.result_type(d).name} to the functions that make tensors"
        )


_precision: list[Any] = []


def set_float32_matmul_precision(precision: str) -> None:
    """Let products of float32 round their operands ("high", "medium") or not ("highest")."""
    while _precision:
        _precision.pop().__exit__()
    if precision != "highest":
        _precision.append(nm.matmul_precision("tf32"))
        _precision[-1].__enter__()


def get_float32_matmul_precision() -> str:
    """ "high" where products of float32 may round their operands, else "highest"."""
    return "high" if _precision else "highest"


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Whether the same inputs have to give the same bits: `nm.kernels.deterministic`, which is on
    until it is switched off."""
    nm.kernels.deterministic(bool(mode))


def are_deterministic_algorithms_enabled() -> bool:
    """Whether the same inputs have to give the same bits, as they do by default."""
    return nm.kernels.is_deterministic()


# -- files ----------------------------------------------------------------------------------------


def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
    """Write tensors, numbers, strings and containers of them to a safetensors file, never a pickle.

    Modules are written as their state dicts.
    """
    parts = obj.state_dict() if hasattr(obj, "state_dict") else obj
    if isinstance(f, (str, os.PathLike)):
        nm.nn.saving.save_tree(parts, f)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        nm.nn.saving.save_tree(parts, path)
        f.write(path.read_bytes())


def load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
    """Read what `save` wrote, or the tensors of a file of PyTorch's; no code of a file is run."""
    if isinstance(f, (str, os.PathLike)):
        found = _read(f)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "saved"
            path.write_bytes(f.read())
            found = _read(path)
    if isinstance(map_location, (str, Device)):
        found = nm.tree.map(lambda x: x.to(map_location) if is_tensor(x) else x, found)
    return own(found)


def _read(path: Any) -> Any:
    from numus.data import torch_archives  # few programs have such files

    return (
        torch_archives.read(path)
        if torch_archives.is_archive(path)
        else nm.nn.saving.load_tree(path)
    )


def is_tensor(obj: Any) -> bool:
    """True if an object is a tensor."""
    return isinstance(obj, nm.Tensor)


def checkpoint(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compute a function anew in the backward pass instead of keeping its values."""
    for name in ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "context_fn"):
        options.pop(name, None)
    return owning(nm.checkpoint(seeing_own(function)))(*args, **options)


def checkpoint_sequential(functions: Any, segments: int, input: Any, **options: Any) -> Any:
    """Modules one after the other, in segments that are computed anew in the backward pass."""
    parts = list(functions.children()) if isinstance(functions, nm.nn.Module) else list(functions)
    size = -(-len(parts) // segments)
    for start in range(0, len(parts), size):
        run = nm.nn.Sequential(*parts[start : start + size])
        input = checkpoint(run, input, **options)
    return input
