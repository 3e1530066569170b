"""`jax.lax`: control flow, and the operations that are close to XLA."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numus as nm
from numus.functions.indexing import index_vectors
from numus.functions.numeric.bits import bitcast
from numus.jax import _callback
from numus.jax import numpy as jnp
from numus.jax._adapt import canonical_dtype, forwarder, narrowed, to_tensor
from numus.tensor import Tensor
from numus.transforms import tree

Function = Callable[..., Any]

# Names that are numus's own, some under another name.
_SAME = """
    abs acos acosh add asin asinh associative_scan atan atan2 atanh bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_xor broadcast_shapes cbrt ceil complex
    concatenate conj cos cosh cummax cummin cumprod cumsum digamma eq erf erfc exp exp2 expm1
    floor ge gt imag le lgamma log log1p logaddexp lt ne neg nextafter polygamma pow real
    reciprocal round rsqrt sign sin sinh sqrt square stack tan tanh tile unstack zeros_like
"""
_OTHER = {
    "bessel_i0e": "special.i0e", "bessel_i1e": "special.i1e", "betainc": "special.betainc",
    "igamma": "special.gammainc", "igammac": "special.gammaincc", "zeta": "special.zeta",
    "div": "divide", "erf_inv": "erfinv", "is_finite": "isfinite", "logistic": "sigmoid",
    "max": "maximum", "min": "minimum", "mul": "multiply", "rem": "fmod", "sub": "subtract",
    "population_count": "bitwise_count", "shift_left": "bitwise_left_shift",
    "shift_right_arithmetic": "bitwise_right_shift", "cumlogsumexp": "logcumsumexp",
    "dot": "matmul",
}  # fmt: skip


# Operations close to XLA's, by the modules of numus that have them; some under another name.
_MORE = {
    "functions.indexing.index_vectors": """
        GatherDimensionNumbers ScatterDimensionNumbers dynamic_slice dynamic_update_slice gather
        scatter scatter_add scatter_apply scatter_max scatter_min scatter_mul scatter_sub
    """,
    "functions.layers.convolution": """
        conv=conv_general conv_general_dilated=conv_general conv_with_general_padding=conv_general
    """,
    "functions.layers.general_windows": """
        conv_general_dilated_patches=conv_patches conv_transpose=conv_general_transpose
        pad=pad_general reduce_window
    """,
    "functions.linear.general_dot": "dot_general ragged_dot",
    "functions.numeric.bits": """
        clz=leading_zeros mulhi=multiply_high reduce_precision shift_right_logical
    """,
    "optimize.implicit": "custom_linear_solve custom_root",
}
_ROOMS = {
    name.partition("=")[0]: (room, name.rpartition("=")[2])
    for room, names in _MORE.items()
    for name in names.split()
}


def _source(name: str) -> Any:
    if name in _ROOMS:
        room, own = _ROOMS[name]
        return getattr(importlib.import_module(f"numus.{room}"), own)
    found: Any = nm
    for part in _OTHER.get(name, name).split("."):
        found = getattr(found, part)
    return found


__getattr__, __dir__ = forwarder(__name__, [*_SAME.split(), *_OTHER, *_ROOMS], _source, {})


# -- control flow ----------------------------------------------------------------------------------


def scan(
    f: Function,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """`nm.scan`; `unroll` guides XLA alone."""
    body = _callback.collecting(f)

    def step(carry: Any, x: Any) -> Any:
        (carry, y), calls = body(carry, x)
        return carry, (y, calls)

    carry, (ys, calls) = nm.scan(step, init, xs, length, reverse)
    if calls.functions:
        _callback.run_each(calls, tree.leaves(xs)[0].shape[0] if length is None else length)
    return carry, ys


def fori_loop(lower: Any, upper: Any, body_fun: Function, init_val: Any, **hints: Any) -> Any:
    """`nm.fori_loop`."""
    body = _callback.sealed(body_fun)
    return nm.fori_loop(lower, upper, lambda i, carry: body(narrowed(i), carry), init_val)


def while_loop(cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    """`nm.while_loop`."""
    return nm.while_loop(_callback.sealed(cond_fun), _callback.sealed(body_fun), init_val)


def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any, **named: Any) -> Any:
    """`nm.cond`; `operand=` is the older spelling of one operand."""
    branches = (_callback.sealed(f) for f in (true_fun, false_fun))
    return nm.cond(pred, *branches, *operands, *named.values())


def switch(index: Any, branches: Sequence[Function], *operands: Any) -> Any:
    """One of several branches, by its number, which is clamped to those that are there."""
    if not branches:
        raise ValueError("switch: there must be at least one branch")
    last = len(branches) - 1
    if isinstance(index, int):
        return branches[builtins.min(builtins.max(index, 0), last)](*operands)

    def among(first: int, stop: int) -> Function:
        """A search among branches: as deep as the logarithm of their number."""
        if stop - first == 1:
            return branches[first]
        middle = (first + stop) // 2
        low, high = among(first, middle), among(middle, stop)
        return lambda *xs: cond(index < middle, low, high, *xs)

    return among(0, len(branches))(*operands)


def map(f: Function, xs: Any, *, batch_size: int | None = None) -> Any:
    """A function of each element along the first axis, one after the other."""
    return scan(lambda carry, x: (carry, f(x)), (), xs)[1]


def select(pred: Any, on_true: Any, on_false: Any) -> Tensor:
    """Elements of the one or the other."""
    return nm.where(to_tensor(pred), on_true, on_false)


def select_n(which: Any, *cases: Any) -> Tensor:
    """Elements of the case that `which` numbers."""
    return nm.choose(to_tensor(which), [to_tensor(case) for case in cases])


def stop_gradient(x: Any) -> Any:
    """A container whose tensors have no derivative."""
    return tree.map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, x)


def optimization_barrier(operand: Any) -> Any:
    """The operand itself: numus moves nothing across what is evaluated."""
    return operand


# -- shapes and slices -----------------------------------------------------------------------------


def reshape(operand: Any, new_sizes: Sequence[int], dimensions: Any = None, **hints: Any) -> Tensor:
    """Of another shape."""
    x = to_tensor(operand)
    return nm.reshape(x if dimensions is None else nm.permute_dims(x, dimensions), new_sizes)


def transpose(operand: Any, permutation: Sequence[int]) -> Tensor:
    """With its axes permuted."""
    return nm.permute_dims(to_tensor(operand), tuple(permutation))


def expand_dims(array: Any, dimensions: Sequence[int]) -> Tensor:
    """With new axes of one element."""
    return nm.expand_dims(to_tensor(array), tuple(dimensions))


def squeeze(array: Any, dimensions: Sequence[int]) -> Tensor:
    """Without axes of one element."""
    return nm.squeeze(to_tensor(array), axis=tuple(dimensions))


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Tensor:
    """With some axes made one."""
    x = to_tensor(operand)
    stop = x.ndim if stop_dimension is None else stop_dimension % (x.ndim + 1)
    return nm.reshape(x, (*x.shape[:start_dimension], -1, *x.shape[stop:]))


def broadcast(operand: Any, sizes: Sequence[int]) -> Tensor:
    """With new axes in front."""
    x = to_tensor(operand)
    return nm.broadcast_to(x, (*sizes, *x.shape))


def broadcast_in_dim(
    operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], **hints: Any
) -> Tensor:
    """Its axes as those of a larger shape."""
    x = to_tensor(operand)
    spread = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        spread[axis] = size
    return nm.broadcast_to(nm.reshape(x, tuple(spread)), tuple(shape))


def rev(operand: Any, dimensions: Sequence[int]) -> Tensor:
    """Reversed along axes."""
    return nm.flip(to_tensor(operand), axis=tuple(dimensions))


def slice(
    operand: Any,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Tensor:
    """A box of elements."""
    steps = strides or [1] * len(start_indices)
    box = zip(start_indices, limit_indices, steps, strict=True)
    return to_tensor(operand)[tuple(builtins.slice(*b) for b in box)]


def slice_in_dim(
    operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Tensor:
    """A slice along one axis."""
    x = to_tensor(operand)
    index = [builtins.slice(None)] * x.ndim
    index[axis] = builtins.slice(start_index, limit_index, stride)
    return x[tuple(index)]


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Tensor:
    """One element of an axis."""
    found = nm.take(to_tensor(operand), nm.asarray([index]), axis=axis)
    return found if keepdims else nm.squeeze(found, axis=axis)


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Tensor:
    """A window along one axis."""
    x = to_tensor(operand)
    axis %= x.ndim
    starts, sizes = [0] * x.ndim, list(x.shape)
    starts[axis], sizes[axis] = start_index, slice_size
    return index_vectors.dynamic_slice(x, starts, sizes)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Tensor:
    """One element of an axis, whose number may be traced."""
    found = dynamic_slice_in_dim(operand, index, 1, axis)
    return found if keepdims else nm.squeeze(found, axis=axis)


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Tensor:
    """A copy with a window along one axis replaced."""
    x = to_tensor(operand)
    starts: list[Any] = [0] * x.ndim
    starts[axis] = start_index
    return index_vectors.dynamic_update_slice(x, to_tensor(update), starts)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Tensor:
    """A copy with one element of an axis replaced."""
    x, new = to_tensor(operand), to_tensor(update)
    new = new if new.ndim == x.ndim else nm.expand_dims(new, axis=axis)
    return dynamic_update_slice_in_dim(x, new, index, axis)


def iota(dtype: Any, size: int) -> Tensor:
    """0, 1, 2 …"""
    return nm.arange(size, dtype=canonical_dtype(dtype))


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, **hints: Any) -> Tensor:
    """0, 1, 2 … along an axis of a shape."""
    line = [1] * len(shape)
    line[dimension] = shape[dimension]
    return nm.broadcast_to(nm.reshape(iota(dtype, shape[dimension]), line), tuple(shape))


def clamp(min: Any, x: Any, max: Any) -> Tensor:
    """x, limited. (The order of XLA's arguments.)"""
    return nm.clip(to_tensor(x), min, max)


def convert_element_type(operand: Any, new_dtype: Any) -> Tensor:
    """Of another dtype."""
    return to_tensor(operand, new_dtype)


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Tensor:
    """The same bits as another dtype of equal width."""
    return bitcast(to_tensor(operand), canonical_dtype(new_dtype))


def integer_pow(x: Any, y: int) -> Tensor:
    """An integer power."""
    return nm.pow(to_tensor(x), y)


# -- reductions, products, order -------------------------------------------------------------------


def _reduction(name: str) -> Function:
    def reduce(operand: Any, axes: Sequence[int], **hints: Any) -> Tensor:
        return getattr(nm, name)(to_tensor(operand), axis=tuple(axes))

    reduce.__doc__ = f"`nm.{name}` along axes."
    return reduce


reduce_sum, reduce_prod, reduce_max, reduce_min, reduce_and, reduce_or = (
    _reduction(name) for name in "sum prod max min all any".split()
)


def _position(name: str) -> Function:
    def find(operand: Any, axis: int, index_dtype: Any = "int32") -> Tensor:
        return to_tensor(getattr(nm, name)(to_tensor(operand), axis=axis), index_dtype)

    find.__doc__ = f"`nm.{name}` along an axis."
    return find


argmax, argmin = _position("argmax"), _position("argmin")


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest elements of an axis and where they are."""
    values, indices = nm.topk(to_tensor(operand), k, dim=axis)
    return values, indices


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """In order; of several operands, by the first `num_keys` of them."""
    if not isinstance(operand, (list, tuple)):
        return nm.sort(to_tensor(operand), axis=dimension)
    arrays = [to_tensor(x) for x in operand]
    order = nm.lexsort(nm.stack(arrays[:num_keys][::-1]), axis=dimension)
    return [nm.take_along_axis(x, order, axis=dimension) for x in arrays]


def sort_key_val(keys: Any, values: Any, dimension: int = -1, **hints: Any) -> tuple[Any, Any]:
    """Keys in order, and their values."""
    k = to_tensor(keys)
    order = nm.argsort(k, axis=dimension, stable=True)
    pick = [nm.take_along_axis(x, order, axis=dimension) for x in (k, to_tensor(values))]
    return pick[0], pick[1]


def reduce(operand: Any, init: Any, computation: Function, axes: Sequence[int]) -> Tensor:
    """Elements along axes, combined by a function that is associative."""
    x = nm.moveaxis(to_tensor(operand), tuple(axes), tuple(range(len(axes))))
    x = nm.reshape(x, (-1, *x.shape[len(axes) :]))
    return nm.scan(lambda carry, row: (computation(carry, row), None), full_like(x[0], init), x)[0]


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> Any:
    """Parts of these sizes."""
    return nm.split_with_sizes(to_tensor(operand), tuple(sizes), axis)


def fft(x: Any, fft_type: Any, fft_lengths: Sequence[int]) -> Tensor:
    """A transform along the last axes: "fft", "ifft", "rfft" or "irfft"."""
    name = str(getattr(fft_type, "name", fft_type)).lower()
    axes = tuple(range(-len(fft_lengths), 0))
    return getattr(nm.fft, f"{name}n")(to_tensor(x), s=tuple(fft_lengths), axes=axes)


def batch_matmul(lhs: Any, rhs: Any, **hints: Any) -> Tensor:
    """Products of matrices."""
    return nm.matmul(to_tensor(lhs), to_tensor(rhs))


def approx_min_k(operand: Any, k: int, reduction_dimension: int = -1, **hints: Any) -> Any:
    """The k least elements and where they are, exactly."""
    return tuple(nm.topk(to_tensor(operand), k, dim=reduction_dimension, largest=False))


def broadcast_like(arr: Any, like_arr: Any) -> Tensor:
    """An array in the shape of another."""
    return nm.broadcast_to(to_tensor(arr), to_tensor(like_arr).shape)


def broadcast_to_rank(x: Any, rank: int) -> Tensor:
    """An array with leading axes of one element."""
    return jnp.array(x, copy=False, ndmin=rank)


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Tensor:
    """Elements at an index for each of several axes, which become one, the first."""
    x = nm.moveaxis(to_tensor(src), tuple(axes), tuple(range(len(axes))))
    return x[tuple(to_tensor(i) for i in idxs)]


def reduce_xor(operand: Any, axes: Sequence[int]) -> Tensor:
    """The exclusive or of the elements along axes."""
    return reduce(operand, 0, nm.bitwise_xor, axes)


def platform_dependent(
    *args: Any, default: Function | None = None, **per_platform: Function
) -> Any:
    """The function of the platform that the default device is of."""
    kind = "cpu" if nm.ones(()).device.kind == "cpu" else "cuda"
    chosen = per_platform.get(kind, default)
    if chosen is None:
        raise NotImplementedError(f"lax.platform_dependent: no function for {kind}, and no default")
    return chosen(*args)


approx_max_k, empty, full, full_like = top_k, jnp.zeros, jnp.full, jnp.full_like
