"""numus as a backend of einops: rearrange, reduce, repeat, pack and einsum take tensors.

einops finds a backend among the subclasses of its base class. The subclass is made when einops has
been imported, by a finder that waits for that import and is gone afterwards: numus does not import
einops.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from numus.tensor import Tensor

_MODULE = "einops._backends"


class _Finder:
    """Finds one module, and has the backend registered once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.import_module("importlib.util").find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader:
    """A module's own loader, and then the registration."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        register(module)


def register(module: Any) -> None:
    """Make numus's backend a subclass of einops' base class, which is all that einops asks for."""

    class NumusBackend(module.AbstractBackend):
        """Tensors of numus, and the arrays of `numus.numpy`."""

        framework_name = "numus"

        def __init__(self) -> None:
            self.nm = importlib.import_module("numus")

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Any:
            return self.nm.asarray(x)

        def to_numpy(self, x: Any) -> Any:
            return x.numpy()

        def arange(self, start: int, stop: int) -> Any:
            return self.nm.arange(start, stop)

        def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Any:
            return self.nm.stack(tensors)

        def add_axis(self, x: Any, new_position: int) -> Any:
            return self.nm.expand_dims(x, new_position)

        def tile(self, x: Any, repeats: Any) -> Any:
            return self.nm.tile(x, repeats)

        def concat(self, tensors: Any, axis: int) -> Any:
            return self.nm.concat(tensors, axis=axis)

        def is_float_type(self, x: Any) -> bool:
            return bool(x._node.dtype.is_floating)

        def einsum(self, pattern: str, *x: Any) -> Any:
            return self.nm.einsum(pattern, *x)

    module.NumusBackend = NumusBackend


def install() -> None:
    """Register now if einops is there already, otherwise when it is imported."""
    if _MODULE in sys.modules:
        register(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


install()
