"""numus: arrays, gradients and kernels in one small library.

>>> import numus as nm
>>> x = nm.arange(3.0)
>>> (x * 2 + 1).sum()
tensor(9.)
"""

# ruff: noqa: F401, F403, F405, I001
import importlib
import sys
from math import e, inf, nan, pi
from typing import Any

from numus.dtypes import (
    DType,
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from numus.dtypes import bool_ as bool
from numus.runtime.devices import Device, device
from numus.tensor import Tensor
from numus.transforms import *
from numus import autograd
from numus.functions.attention import *
from numus.functions.activations import *
from numus.functions.arithmetic import *
from numus.functions.comparison import *
from numus.functions.control import *
from numus.functions.looking import *
from numus.functions.conversion import *
from numus.functions.creation import *
from numus.functions.dtype_functions import *
from numus.functions.precision import *
from numus.functions.inspection import *
from numus.functions.transcendental import *
from numus.functions.indexing import *
from numus.functions.manipulation import *
from numus.functions.parts import *
from numus.functions.joining import *
from numus.functions.repeating import *
from numus.functions.gathering import *
from numus.functions.searching import *
from numus.functions.sorting import *
from numus.functions.histograms import *
from numus.functions.segments import *
from numus.functions.sets import *
from numus.functions.reductions import *
from numus.functions.statistics import *
from numus.functions.normalisation import *
from numus.functions.channel_norms import *
from numus.functions.cumulative import *
from numus.functions.contraction import *
from numus.functions.convolution import *
from numus.functions.max_pooling import *
from numus.functions.mean_pooling import *
from numus.functions.resizing import *
from numus.functions.grid_sampling import *
from numus.functions.einsum import *
from numus.functions import display, host_access, operators, protocols
from numus import kernels, random

__version__ = "0.1.0.dev0"
__array_api_version__ = "2024.12"
newaxis = None

_LAZY = ("data", "nn", "optim")  # imported when they are first asked for
_ELSEWHERE = {  # what is at the top elsewhere
    **{"rand": "random.rand", "randn": "random.randn", "randint": "random.integers"},
    **{"manual_seed": "random.seed", "randperm": "random.permutation"},
    **{"save": "nn.save_safetensors", "load": "nn.load_safetensors"},
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"numus.{name}")
    hint = f"; it is nm.{_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    here = sys.modules[__name__]  # where Python looks for names that are nearly the same
    raise AttributeError(f"module 'numus' has no attribute {name!r}{hint}", name=name, obj=here)


_INTERNAL = "applying compiler config display dtypes errors evaluation functions graph graph_copies"
_INTERNAL += " graph_steps guards host_access"
_INTERNAL += " Any importlib operators sys primitives protocols runtime shapes singles transforms"
__all__ = [n for n in dir() if n[0] != "_" and n not in _INTERNAL.split()]
__all__ += _LAZY
__all__ += ["__array_api_version__", "__array_namespace_info__", "__version__"]
