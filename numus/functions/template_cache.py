"""Graph template cache: compositions such as `softmax` build their graphs by bytecode.

A composition runs a dozen lines of Python per operation, and its graph depends only on the
operands' dtypes and layouts, the other arguments and modes. From the third call of a kind on, a
template (`dispatch/templates`) makes the nodes that were recorded the second time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from numus.compiler.hooks import on_clear_plans
from numus.dispatch.call_cache import GUARD_FAILED, CallCache, InlineCache
from numus.dispatch.templates import guard_node, new_template
from numus.functions.row_templates import STATIC_TYPES, Families
from numus.graph import Node, active_hooks, mode, now
from numus.tensor import Tensor, new_handle

Function = TypeVar("Function", bound=Callable[..., Any])

_clears: list[Callable[[], None]] = []  # of all templates
_MAX_STRUCTURES = 256  # of each function
# After this many misses in a row, a structure is computed only at every few calls: sizes change.
_MAX_MISSES = 64
_MISS_INTERVAL = 8


class _Template(NamedTuple):
    """A fast call and the constant arguments it guards by identity; GUARD_FAILED for operands."""

    call: Callable[..., Any]
    args: Sequence[Any]

    def __call__(self, given: Sequence[Any]) -> Any:
        """The result for arguments that are equal to its own."""
        operands = (x for x in given if isinstance(x, Tensor))
        return self.call(*[next(operands) if x is GUARD_FAILED else x for x in self.args])


def templated(function: Function, rows: int = 0) -> Function:
    """Cache the graph templates of a function.

    It must return a tensor or a tuple of tensors, read no values, and depend on its arguments and
    `graph.mode` only.

    Args:
        rows: the number of operands, the first ones, of whose axes all but the last are rows: their
            extents are factors of sizes in the graph, and what it looks like depends only on
            whether they are 0, 1, or equal to others (see `row_templates`).
    """
    cache = CallCache(_MAX_STRUCTURES)
    site = InlineCache()
    families = Families(rows)
    row_site = families.site
    clears = cache.clear, site.clear, families.clear
    _clears.extend(clears)
    on_clear_plans.extend(clears)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = args
        if kwargs:
            if "out" in kwargs:  # written to, rather than made
                return function(*args, **kwargs)
            given = (*args, *kwargs.values(), *kwargs)
        for call in site.calls:
            found = call(*given)
            if found is not GUARD_FAILED:
                if site.misses or call is not site.calls[0]:
                    site.promote(call)
                return found
        for call in row_site.calls:
            found = call(*given)
            if found is not GUARD_FAILED:
                if call is not row_site.calls[0]:
                    row_site.promote(call)
                site.misses = 0
                return found
        site.misses += 1
        if site.misses > _MAX_MISSES and site.misses % _MISS_INTERVAL:
            return function(*args, **kwargs)
        key = None if active_hooks else _structural_key(given)
        if key is None:
            return function(*args, **kwargs)
        template = cache.get(key)
        if template is not None:
            found = template(given)
            if found is GUARD_FAILED:
                return function(*args, **kwargs)
            site.promote(template.call)
            return found
        family = families.find(given)
        if family is not None:
            for template in family.templates:
                found = template(given)
                if found is not GUARD_FAILED:
                    row_site.promote(template.call)
                    site.misses = 0
                    return found
        if cache.runs(key):
            site.misses = 0  # this one repeats
        varies = family is not None and family.is_varying
        if varies or not cache.is_due(key, functools.partial(_without_sizes, key)):
            since = now()
            out = function(*args, **kwargs)
            if family is not None and family.is_open:
                call = family.record(given, out, since)
                if call is not None:
                    family.templates.append(_Template(call, _without_operands(given)))
            return out
        since = now()
        out = function(*args, **kwargs)
        template = _record(given, out, since)
        if template is not None:
            cache.structures[key] = template
        return out

    return run  # type: ignore[return-value]


def clear_templates() -> None:
    """Drop the templates of all functions, and the tables that they hold."""
    for clear in _clears:
        clear()


def _structural_key(given: Sequence[Any]) -> tuple[Any, ...] | None:
    """The arguments' structure, which determines a function's graph; None where more does."""
    nodes: list[Node] = []
    key: list[Any] = [mode.grad, mode.autocast]
    for x in given:
        if x.__class__ is Tensor or isinstance(x, Tensor):
            node = x._node
            device, view = node.device, node.view
            if node.abstract or device is None:
                return None
            if node in nodes:
                key.append(nodes.index(node))
            nodes.append(node)
            strides = None if view is None else view.strides
            key += (node.shape, node.dtype, strides, node.tracked, device.name)
        elif x.__class__ is float:
            key.append(repr(x))  # -0.0 differs from 0.0
        elif x.__class__ in STATIC_TYPES:
            key += (x, x.__class__)  # 1 differs from True
        elif x.__class__ is tuple and set(map(type, x)) <= {int}:
            key.append(x)
        else:
            return None
    return tuple(key)


def _without_sizes(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([len(x) if x.__class__ is tuple else x for x in key])


def _record(given: Sequence[Any], out: Any, since: int) -> _Template | None:
    """The template of a call that returned `out`; None where its graph depends on more than the
    structure, or fast calls are unsupported."""
    inputs = [x._node for x in given if isinstance(x, Tensor)]
    outputs = out if out.__class__ is tuple else (out,)
    if not inputs or any(y.__class__ is not Tensor or y._node in inputs for y in outputs):
        return None
    results = [y._node for y in outputs]
    if len(set(results)) < len(results):
        return None
    template = new_template(inputs)
    if template is None:
        return None
    code = template.code
    for i, x in enumerate(given):
        if not isinstance(x, Tensor):
            code.is_const(code.load_arg(i), x)
            continue
        register = code.get_member(code.load_arg(i), Tensor, "_node")
        if template.bind(x._node, register, distinct=True):
            guard_node(code, register, x._node)
    if not template.instantiate(results, since, handled=results):
        return None
    handles = [new_handle(code, template.registers[node]) for node in results]
    found = code.new_tuple(handles) if out.__class__ is tuple else handles[0]
    call = template.function(len(given), found)
    return _Template(call, _without_operands(given))


def _without_operands(given: Sequence[Any]) -> list[Any]:
    return [GUARD_FAILED if isinstance(x, Tensor) else x for x in given]


def templated_rows(operands: int) -> Callable[[Function], Function]:
    """`templated` for functions that treat the rows of their first operands alike."""
    return functools.partial(templated, rows=operands)
