"""JAX's names over numus: `import numus.jax as jax`, `import numus.jax.numpy as jnp`.

>>> import numus.jax as jax
>>> import numus.jax.numpy as jnp
>>> jax.grad(lambda x: jnp.sum(x**2))(jnp.arange(3.0))
tensor([0., 2., 4.])
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.jax import _callback
from numus.jax._adapt import canonical_dtype, config, to_tensor
from numus.runtime.devices import Device
from numus.tensor import Tensor
from numus.transforms import tree as _tree

Function = Callable[..., Any]

Array = Tensor
__version__ = "0.10.0"  # whose interface this is
_ROOMS = "debug experimental lax nn numpy ops random scipy tree tree_util".split()
_SAME = "custom_jvp custom_vjp debug_nans hessian jacfwd jacrev jvp linearize vjp".split()


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"numus.jax.{name}")
    if name in _SAME:
        return getattr(nm, name)
    raise AttributeError(f"module 'numus.jax' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return sorted({*_ROOMS, *_SAME, *(n for n in globals() if not n.startswith("_"))})


# -- transformations -------------------------------------------------------------------------------


class _Mode:
    """Whether jit compiles."""

    disabled = False


def jit(fun: Function | None = None, **options: Any) -> Any:
    """`nm.jit`, with JAX's options; those that place data on devices mean nothing here."""
    if fun is None:
        return functools.partial(jit, **options)
    static = {k: options[k] for k in ("static_argnums", "static_argnames") if options.get(k)}
    compiled = nm.jit(_callback.collecting(fun), donate=options.get("donate_argnums", ()), **static)

    @functools.wraps(fun)
    def jitted(*args: Any, **kwargs: Any) -> Any:
        if _Mode.disabled:
            return fun(*args, **kwargs)
        result, calls = compiled(*args, **kwargs)
        if calls.functions:
            _callback.run(calls)
        return result

    jitted.lower = lambda *args, **kwargs: _Lowered(compiled, args, kwargs)  # type: ignore[attr-defined]
    jitted.clear_cache = lambda: None  # type: ignore[attr-defined]
    return jitted


class _Lowered:
    """`jit(f).lower(x).compile()` is f itself, which compiles when it is called."""

    def __init__(self, function: Function, args: Any, kwargs: Any) -> None:
        self._function, self._given = function, (args, kwargs)

    def compile(self) -> Function:
        args, kwargs = self._given
        self._function(*args, **kwargs)
        return lambda *args, **kwargs: self._function(*args, **kwargs)[0]

    def as_text(self) -> str:
        args, kwargs = self._given
        return str(nm.explain(self._function, *args, **kwargs))


def grad(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """`nm.grad`."""
    return nm.grad(fun, _numbers(argnums), has_aux, holomorphic)


def value_and_grad(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Function:
    """`nm.value_and_grad`."""
    return nm.value_and_grad(fun, _numbers(argnums), has_aux, holomorphic)


def _numbers(argnums: int | Sequence[int]) -> Any:
    return argnums if isinstance(argnums, int) else tuple(argnums)


def jacobian(fun: Function, argnums: int | Sequence[int] = 0, **options: Any) -> Function:
    """`nm.jacrev`."""
    return nm.jacrev(fun, _numbers(argnums), **options)


def vmap(
    fun: Function,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    **options: Any,
) -> Function:
    """`nm.vmap`; the name of an axis can be given, and is of no use: there are no collectives."""
    axes = in_axes if isinstance(in_axes, (int, tuple, type(None))) else tuple(in_axes)
    return nm.vmap(fun, axes, out_axes, axis_size)


def checkpoint(fun: Function | None = None, **options: Any) -> Any:
    """`nm.checkpoint`: intermediate results are computed again for the gradient."""
    return nm.checkpoint(fun) if fun is not None else functools.partial(checkpoint, **options)


remat = checkpoint


def custom_gradient(fun: Function) -> Function:
    """A function that gives its value and the function that pulls gradients back."""

    @nm.custom_vjp
    def wrapped(*args: Any) -> Any:
        return fun(*args)[0]

    def forward(*args: Any) -> Any:
        return fun(*args)[0], args

    def backward(args: Any, g: Any) -> Any:
        found = fun(*args)[1](g)
        return found if isinstance(found, tuple) else (found,)

    wrapped.defvjp(forward, backward)
    return wrapped


@contextlib.contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Functions run as they are written."""
    before, _Mode.disabled = _Mode.disabled, disable
    try:
        yield
    finally:
        _Mode.disabled = before


@contextlib.contextmanager
def enable_x64(new_val: bool = True) -> Iterator[None]:
    """dtypes of 64 bits."""
    before = config.jax_enable_x64
    config.jax_enable_x64 = new_val
    try:
        yield
    finally:
        config.jax_enable_x64 = before


@contextlib.contextmanager
def named_scope(name: str) -> Iterator[None]:
    """A name for the operations of a block: numus names kernels by what they do."""
    yield


def named_call(fun: Function, *, name: str | None = None) -> Function:
    """The function itself."""
    return fun


def linear_transpose(fun: Function, *primals: Any, **hints: Any) -> Function:
    """The transpose of a linear function of arrays like `primals`."""
    zeros = [_tree.map(lambda x: nm.zeros(tuple(x.shape), dtype=x.dtype), p) for p in primals]
    return lambda cotangent: tuple(nm.vjp(fun, *zeros)[1](cotangent))


def fwd_and_bwd(
    fun: Function, argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Function, Function]:
    """The forward pass, which gives what the backward pass takes besides a cotangent."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def forward(*args: Any) -> Any:
        def chosen(*some: Any) -> Any:
            given = list(args)
            for i, value in zip(numbers, some, strict=True):
                given[i] = value
            return fun(*given)

        return nm.vjp(chosen, *(args[i] for i in numbers), has_aux=has_aux)

    def backward(residuals: Function, cotangent: Any) -> Any:
        found = residuals(cotangent)
        return found[0] if isinstance(argnums, int) else found

    return forward, backward


def closure_convert(fun: Function, *example_args: Any) -> tuple[Function, list[Any]]:
    """The function, and no constants to hoist: gradients see those that a function closes over."""
    return (lambda *args: fun(*args)), []


# -- shapes without values -------------------------------------------------------------------------


@dataclass(frozen=True)
class ShapeDtypeStruct:
    """A shape and a dtype."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return functools.reduce(lambda a, b: a * b, self.shape, 1)


_tree.register(ShapeDtypeStruct, lambda x: ((), x), lambda x, _: x)


def eval_shape(fun: Function, *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of a function's result: the graph has them, and is never evaluated."""

    def is_described(x: Any) -> bool:
        return hasattr(x, "shape") and hasattr(x, "dtype")

    def placeholder(x: Any) -> Any:
        if not is_described(x):
            return x
        return nm.zeros(tuple(x.shape), dtype=canonical_dtype(x.dtype))

    given = _tree.map(placeholder, (args, kwargs), is_leaf=is_described)
    found = fun(*given[0], **given[1])
    return _tree.map(lambda x: ShapeDtypeStruct(tuple(x.shape), x.dtype), found)


# -- devices and values ----------------------------------------------------------------------------


def device_put(x: Any, device: Any = None, **options: Any) -> Any:
    """A container of tensors, on a device."""
    place = device if isinstance(device, (Device, str)) else None
    return _tree.map(lambda leaf: _moved(to_tensor(leaf), place), x)


def _moved(x: Tensor, device: Any) -> Tensor:
    return x if device is None else x.to(device)


def device_get(x: Any) -> Any:
    """A container of NumPy arrays."""
    return _tree.map(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, x)


def block_until_ready(x: Any) -> Any:
    """A container whose tensors are computed."""
    found = [leaf for leaf in _tree.leaves(x) if isinstance(leaf, Tensor)]
    if found:
        nm.eval(*found)
        nm.synchronize()
    return x


def devices(backend: str | None = None) -> list[Any]:
    """Devices, the default one first."""
    found = [d for d in nm.devices() if backend in (None, d.kind) or backend == "gpu" != d.kind]
    return found


local_devices = devices


def default_backend() -> str:
    """ "cpu" or "gpu"."""
    return "cpu" if nm.ones(()).device.kind == "cpu" else "gpu"


def device_count(backend: str | None = None) -> int:
    """How many devices there are."""
    return len(devices(backend))


local_device_count = device_count


def typeof(x: Any) -> ShapeDtypeStruct:
    """Shape and dtype."""
    x = to_tensor(x)
    return ShapeDtypeStruct(tuple(x.shape), x.dtype)


def make_jaxpr(fun: Function, **options: Any) -> Function:
    """A function that gives the program of a call: here, its kernels (`nm.explain`)."""
    return lambda *args: nm.explain(fun, *args, timed=False)


def default_matmul_precision(precision: Any) -> Any:
    """A context: "float32" or "highest" computes in float32, others may take TensorFloat-32."""
    exact = precision in ("float32", "highest", None)
    return nm.matmul_precision("highest" if exact else "high")


def process_index(backend: str | None = None) -> int:
    """The number of this process."""
    return 0


def process_count(backend: str | None = None) -> int:
    """How many processes take part."""
    return 1


host_id, host_count = process_index, process_count


def process_indices(backend: str | None = None) -> list[int]:
    """The numbers of all processes."""
    return [0]


host_ids = process_indices


def copy_to_host_async(x: Any) -> Any:
    """Start the computation of a container's tensors, and of copies in host memory."""
    for leaf in _tree.leaves(x):
        if isinstance(leaf, Tensor):
            nm.eval(leaf)
    return x


def make_array_from_callback(
    shape: Sequence[int], sharding: Any, data_callback: Function, dtype: Any = None
) -> Tensor:
    """An array of what a function gives for its index: one device has all of it."""
    data = to_tensor(data_callback(tuple(slice(0, n) for n in shape)))
    return data if dtype is None else data.astype(canonical_dtype(dtype))


def make_array_from_process_local_data(
    sharding: Any, local_data: Any, global_shape: Any = None
) -> Tensor:
    """An array of the data of this process, which is the only one."""
    return to_tensor(local_data)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *, dtype: Any = None
) -> Tensor:
    """An array of the one that lies on the device."""
    (only,) = arrays
    return to_tensor(only)


# -- references: tensors can be written to ---------------------------------------------------------

Ref = Tensor


def new_ref(init_val: Any, **hints: Any) -> Tensor:
    """A copy to write to: `ref[i] = value`, `ref[...]`."""
    return nm.copy(to_tensor(init_val))


def empty_ref(ty: Any, memory_space: Any = None) -> Tensor:
    """Zeros to write to, in a shape and dtype."""
    return nm.zeros(tuple(ty.shape), dtype=canonical_dtype(ty.dtype))


def freeze(ref: Tensor) -> Tensor:
    """What a reference holds, which later writes do not change."""
    return nm.copy(ref)


def free_ref(ref: Tensor) -> None:
    """Nothing: memory is freed with its last reference."""


def clear_caches() -> None:
    """Nothing: numus bounds its caches itself."""
