"""Tensors from nothing, from data and from random numbers, with PyTorch's signatures."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.torch._functions import _sizes
from numus.torch._owned import own


class Generator:
    """A stream of random numbers of its own, for the `generator` of functions that draw.

    >>> import numus.torch as torch
    >>> g = torch.Generator().manual_seed(0)
    >>> torch.equal(torch.rand(2, generator=g), torch.rand(2, generator=g.manual_seed(0)))
    True
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.device = nm.device(device)
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from a seed."""
        self._seed = seed
        self._key = nm.random.key(seed)
        return self

    def initial_seed(self) -> int:
        """The seed it was started from."""
        return self._seed

    def get_state(self) -> Any:
        """What its next numbers follow from."""
        return own(self._key.clone())

    def set_state(self, state: Any) -> None:
        """Go on where another was."""
        self._key = state.clone()

    def next_key(self) -> Any:
        """A key for one draw; the state moves on."""
        self._key, key = nm.random.split(self._key)
        return key


class _Default(Generator):
    """The generator of the process, which functions draw from by themselves."""

    def __init__(self) -> None:
        self._seed = 0

    @property
    def device(self) -> Any:  # type: ignore[override]
        return nm.device("cpu")

    def manual_seed(self, seed: int) -> Generator:
        self._seed = seed
        nm.random.seed(seed)
        return self

    def get_state(self) -> Any:
        return nm.random.get_state()

    def set_state(self, state: Any) -> None:
        nm.random.set_state(state)

    def next_key(self) -> Any:
        return None


default_generator = _Default()


def manual_seed(seed: int) -> Generator:
    """Start the random numbers of this process anew."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Start the random numbers of this process anew, from what the system offers."""
    import secrets

    found = secrets.randbits(63)
    manual_seed(found)
    return found


def initial_seed() -> int:
    """The seed that the random numbers of this process were last started from."""
    return default_generator.initial_seed()


def _key(generator: Generator | None) -> Any:
    return None if generator is None else generator.next_key()


def _finished(x: Any, requires_grad: bool) -> Any:
    if requires_grad:
        x.requires_grad = True
    return x


def _filled(name: str) -> Any:
    def run(
        *size: Any,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        out: Any = None,
        **layout: Any,
    ) -> Any:
        given = (layout["size"],) if "size" in layout else size
        found = getattr(nm, name)(_sizes(given), dtype=dtype, device=device)
        return _finished(found, requires_grad) if out is None else out.copy_(found)

    run.__doc__ = f"{name.capitalize()} of a shape: `{name}(2, 3)` or `{name}((2, 3))`."
    return run


def _drawn(name: str) -> Any:
    def run(
        *size: Any,
        generator: Generator | None = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        **layout: Any,
    ) -> Any:
        given = (layout["size"],) if "size" in layout else size
        draw = getattr(nm, name)
        found = draw(*_sizes(given), dtype=dtype, device=device, key=_key(generator))
        return _finished(found, requires_grad)

    run.__doc__ = f"Random numbers of a shape: `{name}(2, 3)` or `{name}((2, 3))`."
    return run


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **layout: Any
) -> Any:
    """A tensor of its own from numbers, lists or arrays."""
    return _finished(_joined(data, dtype, device, copy=True), requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """Data as a tensor, shared with it where that is possible."""
    if isinstance(data, nm.Tensor):
        given = data.view(data.shape) if data.__class__ is nm.Tensor else data  # another handle
        return given.to(dtype=dtype, device=device)
    return _joined(data, dtype, device, copy=None)


def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: Any = None,
    requires_grad: bool = False,
) -> Any:
    """Data as a tensor, copied only where it must be or is asked for."""
    found = tensor(obj, dtype=dtype, device=device) if copy else as_tensor(obj, dtype, device)
    return _finished(found, requires_grad)


def _joined(data: Any, dtype: Any, device: Any, copy: Any) -> Any:
    if isinstance(data, (list, tuple)) and any(isinstance(x, nm.Tensor) for x in data):
        data = nm.stack([nm.asarray(x) for x in data]).detach()
    if isinstance(data, nm.Tensor):
        data = data.detach()
    return nm.asarray(data, dtype=dtype, device=device, copy=copy)


def randint(
    low: Any,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = nm.int64,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Any:
    """Integers from low up to but without high: `randint(10, (3,))`, `randint(2, 10, (3,))`."""
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    drawn = nm.randint(low, high, tuple(size), dtype=nm.int64, device=device, key=_key(generator))
    return _finished(drawn if dtype is nm.int64 else drawn.astype(dtype), requires_grad)


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: Any = nm.int64,
    device: Any = None,
    **layout: Any,
) -> Any:
    """The integers 0 … n - 1 in random order."""
    found = nm.randperm(n, device=device, key=_key(generator))
    return found if dtype is nm.int64 else found.astype(dtype)


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    **layout: Any,
) -> Any:
    """Normal numbers of these means and deviations."""
    return nm.normal(mean, std, size, dtype=dtype, device=device, key=_key(generator))


def _ranged(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Any:
    """Numbers from start up to but without end."""
    return _finished(nm.arange(start, end, step, dtype=dtype, device=device), requires_grad)


def _spaced(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Any:
    """Numbers from start to end, both included."""
    return _finished(nm.linspace(start, end, steps, dtype=dtype, device=device), requires_grad)


TABLE: dict[str, Any] = {
    **{name: _filled(name) for name in ("zeros", "ones", "empty")},
    **{name: _drawn(name) for name in ("rand", "randn")},
    "tensor": tensor,
    "as_tensor": as_tensor,
    "asarray": asarray,
    "randint": randint,
    "randperm": randperm,
    "normal": normal,
    "from_numpy": lambda ndarray: nm.from_numpy(ndarray),
    "full": lambda size, fill_value, *, dtype=None, device=None, requires_grad=False, **layout: (
        _finished(nm.full(size, fill_value, dtype=dtype, device=device), requires_grad)
    ),
    "eye": lambda n, m=None, *, dtype=None, device=None, requires_grad=False, **layout: _finished(
        nm.eye(n, m, dtype=dtype, device=device), requires_grad
    ),
    "arange": _ranged,
    "linspace": _spaced,
    "logspace": lambda start, end, steps, base=10.0, **options: nm.logspace(
        start, end, steps, base=base, dtype=options.get("dtype"), device=options.get("device")
    ),
    "multinomial": lambda input, num_samples, replacement=False, *, generator=None: nm.multinomial(
        input, num_samples, replacement, key=_key(generator)
    ),
    "bernoulli": lambda input, p=None, *, generator=None: nm.bernoulli(
        input, p, key=_key(generator)
    ),
    "poisson": lambda input, generator=None: nm.astype(
        nm.random.poisson(input.shape, input, key=_key(generator)), input.dtype
    ),
    "complex": lambda real, imag: nm.complex(real, imag),
}


_ENGINE = {"uniform_": {"from": "a", "to": "b"}, "random_": {"from": "low", "to": "high"}}
IN_PLACE = "uniform_ random_ normal_ bernoulli_ exponential_ cauchy_ geometric_ log_normal_".split()


def in_place_draw(name: str) -> Any:
    """An in-place draw of the engine, with a generator."""
    function, renamed = getattr(nm.Tensor, name), _ENGINE.get(name, {})

    def run(self: Any, *args: Any, generator: Generator | None = None, **kwargs: Any) -> Any:
        named = {renamed.get(k, k): v for k, v in kwargs.items()}
        return function(self, *args, key=_key(generator), **named)

    run.__doc__ = function.__doc__
    return run
