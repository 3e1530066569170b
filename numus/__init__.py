"""numus: arrays, gradients and kernels in one small library.

>>> import numus as nm
>>> x = nm.arange(3.0)
>>> (x * 2 + 1).sum()
tensor(9.)
"""

# ruff: noqa: F401, F403, F405, I001
import gc
import importlib
import sys
from math import e as e, inf as inf, nan as nan, pi as pi
from typing import TYPE_CHECKING, Any

_collects = gc.isenabled()
gc.disable()  # tens of thousands of objects are made, and all of them stay
try:
    import numus.dtypes
    from numus.dtypes import *
    from numus.runtime.devices import Device as Device, device as device
    from numus.tensor import Tensor as Tensor
    from numus.transforms import *
    from numus import autograd as autograd
    from numus.functions.layers.attention import *
    from numus.functions.elementwise.activations import *
    from numus.functions.elementwise.arithmetic import *
    from numus.functions.elementwise.comparison import *
    from numus.functions.synchronization import *
    from numus.functions.inspect import *
    from numus.functions.creation.conversion import *
    from numus.functions.creation.creation import *
    from numus.functions.creation.dtype_functions import *
    from numus.functions.autocast import *
    from numus.functions.interop.namespace_info import *
    from numus.functions.elementwise.transcendental import *
    from numus.functions.indexing.indexing import *
    from numus.functions.shape.manipulation import *
    from numus.functions.shape.splitting import *
    from numus.functions.shape.concatenation import *
    from numus.functions.shape.tiling import *
    from numus.functions.indexing.gather_scatter import *
    from numus.functions.indexing.searching import *
    from numus.functions.ordering.sorting import *
    from numus.functions.reduction.histograms import *
    from numus.functions.reduction.segments import *
    from numus.functions.ordering.sets import *
    from numus.functions.reduction.reductions import *
    from numus.functions.reduction.statistics import *
    from numus.functions.layers.normalization import *
    from numus.functions.layers.channel_norms import *
    from numus.functions.reduction.cumulative import *
    from numus.functions.linear.matmul import *
    from numus.functions.layers.convolution import *
    from numus.functions.layers.max_pooling import *
    from numus.functions.layers.mean_pooling import *
    from numus.functions.layers.resizing import *
    from numus.functions.layers.grid_sampling import *
    from numus.functions.linear.einsum import *
    from numus.functions import in_place
    from numus.functions import lazy
    from numus.functions import operators
    from numus.functions.interop import host_access
    from numus.functions.interop import einops_backend
    from numus.functions.interop import protocols
    from numus import kernels as kernels, random as random
finally:
    if _collects:
        gc.enable()


def _load_custom_op(name: str) -> Any:
    # imported late: few programs have kernels of their own, and every start would pay for it
    from numus.functions import custom_op

    return getattr(custom_op, name)


kernels.load_custom_op = _load_custom_op

__version__ = "0.1.0.dev0"
__array_api_version__ = "2024.12"
newaxis = None
bool = numus.dtypes.bool_
euler_gamma = 0.5772156649015329

# Imported when they are first asked for, so that a start pays for what most programs use: name to
# module, and below the same for type checkers, which follow no `__getattr__`.
_SUBPACKAGES = """
    data distance distributed distributions fft graphs integrate linalg metrics models nn
    numpy optim optimize polynomial quant signal sparse special stats text vision
"""
_LAZY = {
    **{name: f"numus.{name}" for name in _SUBPACKAGES.split()},
    **dict.fromkeys(("vander", "vdot"), "numus.linalg"),
    "Mesh": "numus.distributed",
    **{name: f"numus.{room}" for room, names in lazy.FUNCTIONS.items() for name in names.split()},
    **{name: f"numus.{room}" for name, (room, _) in lazy.ALIASES.items()},
}
if TYPE_CHECKING:
    from numus import data as data
    from numus import distance as distance
    from numus import distributed as distributed
    from numus import distributions as distributions
    from numus import fft as fft
    from numus import graphs as graphs
    from numus import integrate as integrate
    from numus import linalg as linalg
    from numus import metrics as metrics
    from numus import models as models
    from numus import nn as nn
    from numus import numpy as numpy
    from numus import optim as optim
    from numus import optimize as optimize
    from numus import polynomial as polynomial
    from numus import quant as quant
    from numus import signal as signal
    from numus import sparse as sparse
    from numus import special as special
    from numus import stats as stats
    from numus.distributed import Mesh as Mesh
    from numus import text as text
    from numus import vision as vision
    from numus.linalg import vander as vander, vdot as vdot

    # the modules of functions.lazy
    from numus.functions.reduction.quantiles import *
    from numus.functions.reduction.nan_reductions import *
    from numus.functions.reduction.correlation import *
    from numus.functions.reduction.histograms_nd import *
    from numus.functions.numeric.differences import *
    from numus.functions.numeric.convolution import *
    from numus.functions.linear.vector_product import *
    from numus.functions.numeric.windows import *
    from numus.functions.numeric.integers import *
    from numus.functions.numeric.floats import *
    from numus.functions.shape.editing import *
    from numus.functions.indexing.coordinates import *
    from numus.functions.indexing.choosing import *
    from numus.functions.indexing.writes import *
    from numus.functions.ordering.selection import *
    from numus.functions.elementwise.torch_names import *
    from numus.functions.creation.more_creation import *
    from numus.functions.creation.dtype_aliases import *
    from numus.functions.interop.printing import *
    from numus.random._torch_names import *
    from numus.data.array_files import *
    from numus.linalg._torch_names import *
    from numus.special._torch_names import *

    # functions.lazy.ALIASES
    from numus.distance import cdist as cdist
    from numus.linalg import block_diag as block_diag

    chain_matmul = linalg.multi_dot
    from numus.linalg import cholesky as cholesky
    from numus.linalg import det as det

    inverse = linalg.inv
    from numus.linalg import lstsq as lstsq
    from numus.linalg import lu_solve as lu_solve

    matrix_exp = linalg.expm
    from numus.linalg import matrix_power as matrix_power
    from numus.linalg import matrix_rank as matrix_rank

    pinverse = linalg.pinv
    from numus.linalg import qr as qr
    from numus.linalg import slogdet as slogdet
    from numus.linalg import svd as svd
    from numus.polynomial import poly as poly
    from numus.polynomial import polyadd as polyadd
    from numus.polynomial import polyder as polyder
    from numus.polynomial import polydiv as polydiv
    from numus.polynomial import polyfit as polyfit
    from numus.polynomial import polyint as polyint
    from numus.polynomial import polymul as polymul
    from numus.polynomial import polysub as polysub
    from numus.polynomial import polyval as polyval
    from numus.polynomial import roots as roots
    # end


if not TYPE_CHECKING:  # which would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            module = importlib.import_module(_LAZY[name])
            _, attribute = lazy.ALIASES.get(name, (None, name))
            found = module if module.__name__ == f"numus.{name}" else getattr(module, attribute)
            return globals().setdefault(name, found)
        here = sys.modules[__name__]  # where Python looks for names that are nearly the same
        raise AttributeError(f"module 'numus' has no attribute {name!r}", name=name, obj=here)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_INTERNAL = """
aliases Any codegen compiler config dispatch dtypes einops_backend errors evaluation functions gc
graph host_access importlib in_place ir lazy lru numus operators primitives protocols runtime shapes
sys target transforms TYPE_CHECKING
""".split()
__all__ = [n for n in dir() if n[0] != "_" and n not in _INTERNAL]
__all__ += sorted(_LAZY)
__all__ += ["__array_api_version__", "__array_namespace_info__", "__version__"]
