"""What a row of the op table is: a public function, how to call it, and what is true of it."""

import dataclasses
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt

# -- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """An array argument in the dtype under test. NumPy arrays beside it keep their own dtype."""

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    values: tuple[Any, ...] | None = None  # these instead of random ones
    ascending: bool = False
    fixed: bool = False  # it is not differentiated

    def make(self, dtype: dt.DType, rng: np.random.Generator) -> np.ndarray:
        if self.values is not None:
            with np.errstate(all="ignore"):
                return np.array(self.values).reshape(self.shape).astype(dtype.np)
        if dtype.is_complex:
            return np.asarray(self._reals(rng) + 1j * self._reals(rng)).astype(dtype.np)
        if dtype.kind == "float":
            made = self._reals(rng)
        elif dtype is dt.bool_:
            made = rng.random(self.shape) < 0.5
        else:
            low = np.ceil(max(self.low, 0) if dtype.kind == "uint" else self.low)
            made = rng.integers(int(low), int(max(self.high, low)), self.shape, endpoint=True)
        return np.asarray(np.sort(made) if self.ascending else made).astype(dtype.np)

    def _reals(self, rng: np.random.Generator) -> np.ndarray:
        """Distinct values, none near an end or a multiple of 1/4, where kinks lie."""
        size = int(np.prod(self.shape))
        steps = (np.arange(size) + rng.uniform(0.3, 0.7, size)) / max(size, 1)
        reals = self.low + (self.high - self.low) * (0.03 + 0.94 * steps)
        near = np.abs(reals * 4 - np.rint(reals * 4)) < 0.1
        return rng.permutation(np.where(near, reals + 0.04, reals)).reshape(self.shape)


def x(*shape: int, low: float = -2.0, high: float = 2.0, **options: Any) -> Drawn:
    """An argument of this shape with values between low and high."""
    return Drawn(shape, low, high, **options)


def exactly(*values: Any) -> Drawn:
    """An argument with these elements."""
    return Drawn((len(values),), values=values, fixed=True)


class _DType:
    """Stands for the dtype under test among the arguments."""


DTYPE: Any = _DType()


@dataclass(frozen=True)
class Case:
    """The arguments of one call, as it is written: sequences may hold drawn arrays too."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def drawn(self, dtype: dt.DType, seed: int) -> "Case":
        """With arrays in place of what is to be drawn."""
        rng = np.random.default_rng(seed)

        def draw(a: Any) -> Any:
            return dtype if a is DTYPE else a.make(dtype, rng) if isinstance(a, Drawn) else a

        return self.map(draw)

    def map(self, f: Callable[[Any], Any]) -> "Case":
        """With f applied to every argument, also to those inside sequences."""

        def apply(a: Any) -> Any:
            if type(a) in (tuple, list):
                return type(a)(apply(part) for part in a)
            return f(a)

        return Case(apply(self.args), {k: apply(v) for k, v in self.kwargs.items()})

    def leaves(self) -> list[Any]:
        """All arguments, also those inside sequences."""
        found: list[Any] = []
        self.map(found.append)
        return found

    def __str__(self) -> str:
        def text(a: Any) -> str:
            if isinstance(a, Drawn):
                return "values" if a.values else "x".join(map(str, a.shape)) or "0d"
            if isinstance(a, np.ndarray):
                return f"{a.dtype}{list(a.shape)}"
            if type(a) in (tuple, list):
                return "(" + ", ".join(map(text, a)) + ")"
            return "dtype" if a is DTYPE else str(a)

        words = [text(a) for a in self.args]
        return ", ".join(words + [f"{k}={text(v)}" for k, v in self.kwargs.items()])


def case(*args: Any, **kwargs: Any) -> Case:
    return Case(args, kwargs)


# -- dtypes ---------------------------------------------------------------------------------------

FLOATS = ("float32", "float64", "float16", "bfloat16")
NARROWEST = ("float8_e4m3fn", "float8_e5m2")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int64", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64")
SOME_INTEGERS = ("int64", "uint8", "int32")
REALS = (*FLOATS, *SOME_INTEGERS)
NUMBERS = (*REALS, *COMPLEX)
ANY = (*NUMBERS, "bool")
ALL = (*FLOATS, *INTEGERS, *COMPLEX, "bool", *NARROWEST)
FRACTIONS = (*FLOATS, "int32", "bool")  # functions whose results are fractions
COMPLEX_FRACTIONS = (*FRACTIONS, *COMPLEX)

Rule = Callable[[dt.DType], dt.DType]


def same(d: dt.DType) -> dt.DType:
    return d


def fraction(d: dt.DType) -> dt.DType:
    """What functions with fractional results give."""
    return d if d.is_inexact else nm.float32


def real(d: dt.DType) -> dt.DType:
    return dt.real_of(fraction(d))


def size(d: dt.DType) -> dt.DType:
    """What abs gives."""
    return dt.real_of(d)


def counting(d: dt.DType) -> dt.DType:
    """What sums and products give."""
    return {"bool": nm.int64, "int": nm.int64, "uint": nm.uint64}.get(d.kind, d)


def whole(d: dt.DType) -> dt.DType:
    """What division of booleans gives."""
    return nm.int8 if d is nm.bool else d


def always(d: Any) -> Rule:
    return lambda _: d


BOOL, INT64 = always(nm.bool), always(nm.int64)


# -- rows -----------------------------------------------------------------------------------------


def exhaustive() -> bool:
    """Whether a test takes all dtypes and cases of a row: where NUMUS_TEST_DEVICES names devices,
    as in the slow run of test_all_cases.py."""
    return "NUMUS_TEST_DEVICES" in os.environ


@dataclass(frozen=True)
class Op:
    """A row: one public function.

    The reference gets the arguments as NumPy arrays, floats widened to float64 and complex numbers
    to complex128 (integers too, where the result is a fraction); what it gives is rounded to the
    dtype that `out` names. Without a reference the answers are those of the reference device:
    random numbers are the same everywhere.
    """

    name: str  # in numus's namespace, "Tensor.name" for a method or property
    reference: Callable[..., Any] | None
    cases: tuple[Case, ...]
    dtypes: tuple[str, ...] = FLOATS
    out: Rule | tuple[Rule, ...] = same  # the dtype of the result (or of each result)
    values: tuple[Case, ...] = ()  # values only: special numbers, ties, places without derivative
    ulps: float = 4  # the error allowed, in units of the last place of float32 or float64
    relative: bool = True  # to each element; else to the largest of arguments and results
    signs: bool = False  # the signs of zeros count too
    widen: bool = True  # whether the reference gets wider numbers than the function
    orders: int = 2  # how often it can be differentiated; 0: it is flat or takes integers alone
    slow_second: bool = False  # second derivatives take seconds: they are checked in slow tests
    vmap: bool = True
    brief: bool = False  # by default: values in one dtype, derivatives and batches; all if `slow`
    aliases: tuple[str, ...] = ()  # other names of the same object, here or in Tensor
    call: Callable[..., Any] | None = None  # where a plain call of the name does not do

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.call is not None:
            return self.call(*args, **kwargs)
        if not self.name.startswith("Tensor."):
            function = nm
            for part in self.name.split("."):
                function = getattr(function, part)
            return function(*args, **kwargs)
        found = getattr(args[0], self.name.removeprefix("Tensor."))
        return found(*args[1:], **kwargs) if callable(found) else found

    def sampled(self, dtype: str) -> bool:
        """Whether the default run takes a dtype: the first, and every third one of the rest."""
        at = self.dtypes.index(dtype)
        return at == 0 or (at + len(self.name)) % 3 == 0 or exhaustive()

    def seed(self, index: int) -> int:
        return zlib.crc32(self.name.encode()) + index

    def replace(self, **changes: Any) -> "Op":
        return dataclasses.replace(self, **changes)


def op(name: str, reference: Any, *cases: Case, **options: Any) -> Op:
    """A row, its cases given one by one."""
    for field in ("values", "aliases", "dtypes"):
        if field in options:
            options[field] = tuple(options[field])
    return Op(name, reference, cases, **options)
