"""More of `jax.lax`: bits, rounding, windows, ragged products, implicit functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numus as nm
from numus import dtypes as dt
from numus.jax import lax
from numus.jax._adapt import canonical_dtype, to_tensor
from numus.tensor import Tensor
from numus.transforms import tree

Function = Callable[..., Any]


def approx_min_k(
    operand: Any, k: int, reduction_dimension: int = -1, **hints: Any
) -> tuple[Tensor, Tensor]:
    """The k least elements and where they are, exactly."""
    values, places = lax.top_k(nm.negative(to_tensor(operand)), k, axis=reduction_dimension)
    return nm.negative(values), places


def broadcast_like(arr: Any, like_arr: Any) -> Tensor:
    """An array in the shape of another."""
    return nm.broadcast_to(to_tensor(arr), to_tensor(like_arr).shape)


def broadcast_to_rank(x: Any, rank: int) -> Tensor:
    """An array with leading axes of one element."""
    given = to_tensor(x)
    return nm.reshape(given, (1,) * (rank - given.ndim) + given.shape)


def empty(shape: Any, dtype: Any, **hints: Any) -> Tensor:
    """Zeros: no memory is uninitialised."""
    return nm.zeros(shape, dtype=canonical_dtype(dtype))


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Tensor:
    """Elements at an index for each of several axes, which become one, the first."""
    x = nm.moveaxis(to_tensor(src), tuple(axes), tuple(range(len(axes))))
    return x[tuple(to_tensor(i) for i in idxs)]


def clz(x: Any) -> Tensor:
    """The number of leading zero bits."""
    given = to_tensor(x)
    bits = given.dtype.itemsize * 8
    unsigned = dt.as_dtype(f"uint{bits}")
    filled = lax.bitcast_convert_type(given, unsigned) if given.dtype.kind == "int" else given
    shift = 1
    while shift < bits:  # every bit below the highest one is set
        filled = nm.bitwise_or(filled, nm.bitwise_right_shift(filled, shift))
        shift *= 2
    return nm.astype(bits - nm.astype(nm.bitwise_count(filled), dt.int64), given.dtype)


def mulhi(x: Any, y: Any, /) -> Tensor:
    """The upper half of the bits of a product of integers of up to 32 bits."""
    a, b = to_tensor(x), to_tensor(y)
    bits = a.dtype.itemsize * 8
    if bits > 32:
        raise TypeError(f"lax.mulhi: the product of {a.dtype.name} needs 128 bits; split it")
    wide = dt.int64 if a.dtype.kind == "int" else dt.uint64
    product = nm.astype(a, wide) * nm.astype(b, wide)
    return nm.astype(nm.bitwise_right_shift(product, bits), a.dtype)


def reduce_xor(operand: Any, axes: Sequence[int]) -> Tensor:
    """The exclusive or of the elements along axes."""
    return lax.reduce(to_tensor(operand), 0, nm.bitwise_xor, axes)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Tensor:
    """Floats rounded, ties to even, to a format of fewer bits, in their own dtype."""
    x = to_tensor(operand)
    wide = nm.astype(x, dt.float64)
    exponent = nm.frexp(wide)[1]
    top = 2 ** (exponent_bits - 1) - 1
    exponent = nm.maximum(nm.astype(exponent, dt.float64), 2.0 - top)  # subnormals have fewer bits
    unit = nm.exp2(exponent - 1 - mantissa_bits)
    rounded = nm.round(wide / unit) * unit
    limit = math.ldexp(2 - 2.0**-mantissa_bits, top)
    rounded = nm.where(nm.abs(rounded) > limit, nm.copysign(nm.inf, wide), rounded)
    tiny = nm.abs(rounded) < math.ldexp(1.0, 1 - top)  # XLA flushes subnormals of the format
    rounded = nm.where(tiny, nm.copysign(0.0, wide), rounded)
    return nm.astype(nm.where(nm.isfinite(wide), rounded, wide), x.dtype)


def platform_dependent(
    *args: Any, default: Function | None = None, **per_platform: Function
) -> Any:
    """The function of the platform that the default device is of."""
    kind = "cpu" if nm.ones(()).device.kind == "cpu" else "cuda"
    chosen = per_platform.get(kind, default)
    if chosen is None:
        raise NotImplementedError(f"lax.platform_dependent: no function for {kind}, and no default")
    return chosen(*args)


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    **hints: Any,
) -> Tensor:
    """A convolution of an image whose elements lie `strides` apart: the transpose of a strided
    one. Without dimension numbers, images are N…C and weights …IO."""
    x, w = to_tensor(lhs), to_tensor(rhs)
    rank = x.ndim - 2
    letters = "HWD"[:rank] if rank <= 3 else "ABCDEFGH"[:rank]
    numbers = dimension_numbers or (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    space = [i for i, letter in enumerate(numbers[1]) if letter not in "IO"]
    dilation = rhs_dilation or (1,) * rank
    if transpose_kernel:
        swapped = list(range(w.ndim))
        first, last = numbers[1].index("I"), numbers[1].index("O")
        swapped[first], swapped[last] = last, first
        w = nm.permute_dims(nm.flip(w, tuple(space)), swapped)
    if isinstance(padding, str):
        sizes = [(w.shape[i] - 1) * d + 1 for i, d in zip(space, dilation, strict=True)]
        ends = zip(sizes, strides, strict=True)
        padding = [_transposed_padding(k, s, padding.upper()) for k, s in ends]
    return lax.conv_general_dilated(
        x, w, (1,) * rank, padding, tuple(strides), tuple(dilation), numbers
    )


def _transposed_padding(size: int, stride: int, padding: str) -> tuple[int, int]:
    if padding == "SAME":
        total = size + stride - 2
        first = size - 1 if stride > size - 1 else math.ceil(total / 2)
    else:
        total = size + stride - 2 + max(size - stride, 0)
        first = size - 1
    return first, total - first


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    **hints: Any,
) -> Tensor:
    """The patches that a convolution sees, as channels: by one with weights of ones and zeros."""
    x, size = to_tensor(lhs), math.prod(filter_shape)
    rank = x.ndim - 2
    letters = "HWD"[:rank]
    numbers = dimension_numbers or (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    channels = x.shape[numbers[0].index("C")]
    weights = nm.reshape(nm.eye(size, dtype=x.dtype), (size, 1, *filter_shape))
    weights = nm.tile(weights, (channels, 1, *([1] * rank)))
    order = ["OI" + "".join(c for c in numbers[1] if c not in "OI")]
    weights = nm.permute_dims(weights, [order[0].index(c) for c in numbers[1]])
    return lax.conv_general_dilated(
        *(x, weights, window_strides, padding, lhs_dilation, rhs_dilation, numbers),
        feature_group_count=channels,
    )


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any, **hints: Any) -> Tensor:
    """Rows in groups, each group multiplied by a matrix of its own."""
    x, w, sizes = to_tensor(lhs), to_tensor(rhs), to_tensor(group_sizes)
    ends = nm.cumsum(nm.astype(sizes, dt.int64), 0)
    rows = nm.arange(x.shape[0])
    group = nm.searchsorted(ends, rows, side="right")
    one = nm.astype(nm.expand_dims(group, 1) == nm.arange(w.shape[0]), x.dtype)
    return nm.einsum("mk,gkn,mg->mn", x, w, one)


def custom_root(
    f: Function, initial_guess: Any, solve: Function, tangent_solve: Function, has_aux: bool = False
) -> Any:
    """The root of a function, differentiated by the implicit function theorem: a Newton step with
    the derivative's inverse, whose value is the root itself."""
    found = solve(f, initial_guess)
    root, aux = found if has_aux else (found, None)
    fixed = tree.map(lax.stop_gradient, root)
    residual = f(fixed)

    def linear(v: Any) -> Any:
        return nm.jvp(f, (fixed,), (v,))[1]

    step = tangent_solve(linear, residual)
    out = tree.map(lambda r, s: r - (s - lax.stop_gradient(s)), fixed, step)
    return (out, aux) if has_aux else out


def custom_linear_solve(
    matvec: Function,
    b: Any,
    solve: Function,
    transpose_solve: Function | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The solution of a linear equation, whose gradient solves the transposed one."""
    back = solve if symmetric and transpose_solve is None else transpose_solve

    @nm.custom_vjp
    def solution(right: Any) -> Any:
        found = solve(matvec, right)
        return found[0] if has_aux else found

    def forward(right: Any) -> Any:
        return solution(right), right

    def backward(right: Any, g: Any) -> Any:
        if back is None:
            raise TypeError("lax.custom_linear_solve: the gradient needs transpose_solve=")
        pulled = nm.vjp(matvec, tree.map(nm.zeros_like, right))[1]
        found = back(lambda v: pulled(v)[0], g)
        return (found[0] if has_aux else found,)

    solution.defvjp(forward, backward)
    return (solution(b), solve(matvec, b)[1]) if has_aux else solution(b)
