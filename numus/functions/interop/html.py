"""HTML for notebooks: tensors as tables of numbers, explanations as tables of kernels, models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from numus.evaluation.evaluate import is_known
from numus.functions.interop.protocols import printable
from numus.tensor import Tensor, method

_EDGE = 6  # rows and columns at each end of a longer axis


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a line above it."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<div>{escape(caption)}<table>{top}<tbody>{body}</tbody></table></div>"


def text(caption: str, lines: str) -> str:
    """Text as it stands, with a line above it."""
    return f"<div>{escape(caption)}<pre>{escape(lines)}</pre></div>"


@method("_repr_html_")
def tensor(x: Tensor) -> str:
    """A table of up to two axes, with dots where it is cut; more axes as text, in notebooks."""
    dtype = x._node.dtype.name
    caption = f"tensor {'×'.join(map(str, x.shape)) or 'without axes'}, {dtype}, {x.device}"
    if x.requires_grad:
        caption += ", requires_grad"
    if not is_known(x._node) or x.ndim > 2 or not x.size:
        return text(caption, str(x))
    array, digits = printable(x)
    matrix = np.atleast_2d(array)
    with np.printoptions(precision=digits or np.get_printoptions()["precision"]):
        rows = [_cells(row) for row in _ends(list(matrix))]
    return table(caption, (), rows)


def _ends(items: list[Any]) -> list[Any]:
    if len(items) <= 2 * _EDGE + 1:
        return items
    return [*items[:_EDGE], None, *items[-_EDGE:]]


def _cells(row: Any) -> list[str]:
    if row is None:
        return ["⋮"]
    shown = (None if x is None else np.array2string(x) for x in _ends(list(row)))
    return ["…" if cell is None else cell for cell in shown]
