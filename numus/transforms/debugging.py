"""nm.debug_nans: the operation that made the first NaN."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from numus.errors import NonFiniteError, TracingError
from numus.evaluation.evaluate import elements, is_users_frame
from numus.graph import Node, calling_node_hook, current_trace


@contextlib.contextmanager
def debug_nans(*, infs: bool = False) -> Iterator[None]:
    """Every operation runs when it is called, and its result is checked: the first that has a NaN
    raises `NonFiniteError`, which names the operation and your line.

    Derivatives are checked, too, and name their operation. Functions of `nm.jit` run operation by
    operation, so everything is slow. Loops and branches (`nm.scan`, `nm.cond`) count as one
    operation.

    Args:
        infs: also check for infinities from finite operands.

    >>> import numus as nm
    >>> x = nm.asarray([1.0, -1.0])
    >>> with nm.debug_nans():
    ...     nm.log(x)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    numus.errors.NonFiniteError: log gave 1 NaN among float32[2], ...
    """
    if current_trace() is not None:
        raise TracingError(
            f"debug_nans inside {current_trace()}: values are not known while it is traced; put it "
            "around the call instead"
        )
    with calling_node_hook(_Watcher(infs)):
        yield


class _Watcher:
    """Checks each node as soon as it is made."""

    def __init__(self, infs: bool) -> None:
        self.infs = infs
        self.differentiated: Node | None = None  # whose derivative is being built
        self._origins: WeakKeyDictionary[Node, str] = WeakKeyDictionary()

    def __call__(self, node: Node) -> None:
        if node.prim.kind in ("view", "source") or not node.dtype.is_inexact:
            return  # neither makes a value
        name, operands = node.prim.name, node.inputs  # which an evaluated node drops
        if name == "get_tuple_element":
            name, operands = "a loop or branch", operands[0].inputs
        self._origins[node] = f"{name}{_location(sys._getframe(2))}"
        values = elements(node)
        if self._is_bad(values, operands):
            raise NonFiniteError(self._message(node, name, operands, values))

    def _is_bad(self, values: Any, operands: tuple[Node, ...]) -> bool:
        if np.isnan(values).any():
            return True
        if not self.infs or np.isfinite(values).all():
            return False
        return all(np.isfinite(elements(x)).all() for x in operands if x.dtype.is_inexact)

    def _message(self, node: Node, name: str, operands: tuple[Node, ...], values: Any) -> str:
        nans = np.isnan(values)
        bad, what = (nans, "NaN") if nans.any() else (~np.isfinite(values), "infinity")
        first = [int(i) for i in np.argwhere(bad)[0]]
        text = f"{name} gave {int(bad.sum())} {what} among {node.type_text}"
        text += f", the first at {first}," if first else ""
        text += self._origins[node].removeprefix(name)
        of = self.differentiated
        if of is not None:
            text += f", in the derivative of {self._origins.get(of, of.prim.name)}"
        given = [self._operand(x) for x in operands]
        return text + (f"; its operands: {', '.join(given)}" if given else "")

    def _operand(self, node: Node) -> str:
        values = elements(node)
        if not values.size or not node.dtype.is_inexact:
            return node.type_text
        wide = values.astype(np.complex128 if node.dtype.is_complex else np.float64)
        if count := int(np.isnan(wide).sum()):
            return f"{node.type_text} with {count} NaN already"
        if node.dtype.is_complex:
            return node.type_text
        return f"{node.type_text} from {wide.min():.4g} to {wide.max():.4g}"


def _location(frame: Any) -> str:
    """The user's line, and the public function of numus that it called."""
    called = ""
    while frame is not None and not is_users_frame(frame):
        name = frame.f_code.co_name
        if name in frame.f_globals.get("__all__", ()) or name == "backward":
            called = f" in {name}"
        frame = frame.f_back
    where = "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
    return called + where
