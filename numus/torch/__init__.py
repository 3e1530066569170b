"""PyTorch's names over numus: `import numus.torch as torch`.

Signatures, defaults and return types are PyTorch's; the computation is numus's. Names are found
when they are asked for. docs/coming-from-pytorch.md tells what differs.

>>> import numus.torch as torch
>>> x = torch.tensor([[1.0, 5.0], [7.0, 2.0]])
>>> values, indices = x.max(1)
>>> values.tolist(), indices.tolist(), x.std().item() == x.std(unbiased=True).item()
([5.0, 7.0], [1, 0], True)
"""

# ruff: noqa: F401
from __future__ import annotations

import builtins
import importlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numus as nm
from numus import dtypes as _dtypes
from numus.dtypes import DType as dtype  # noqa: N813
from numus.dtypes import (
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
from numus.torch import _creation, _functions, _rooms
from numus.torch._creation import (
    Generator,
    default_generator,
    initial_seed,
    manual_seed,
    seed,
)
from numus.torch._owned import own, owning
from numus.torch._tensor import Later, Size, Tensor
from numus.torch._tools import (
    Device,
    are_deterministic_algorithms_enabled,
    autocast,
    compile,
    get_float32_matmul_precision,
    is_tensor,
    load,
    save,
    set_default_dtype,
    set_float32_matmul_precision,
    use_deterministic_algorithms,
)

if TYPE_CHECKING:
    from numus.torch import (
        amp,
        autograd,
        backends,
        cuda,
        distributions,
        fft,
        func,
        jit,
        linalg,
        nn,
        optim,
        random,
        special,
        utils,
    )

__version__ = "2.13.0+numus"
bool = _dtypes.bool_
float, double, half = float32, float64, float16
int, long, short = int32, int64, int16
cfloat, cdouble = complex64, complex128
inf, nan, pi, e, newaxis = nm.inf, nm.nan, nm.pi, nm.e, None
strided, contiguous_format, preserve_format, channels_last = (
    "strided", "contiguous_format", "preserve_format", "channels_last",
)  # fmt: skip
no_grad, enable_grad = nm.no_grad, nm.enable_grad
inference_mode, set_grad_enabled = nm.inference_mode, nm.set_grad_enabled
is_grad_enabled = nm.is_grad_enabled

_ROOMS = """
    amp autograd backends cuda distributions fft func jit linalg nn optim random sparse special
    utils
""".split()
_IN_ROOMS = {"GradScaler": "amp", "vmap": "func", "get_rng_state": "random"}
_IN_ROOMS |= {"set_rng_state": "random", "stft": "_spectral", "istft": "_spectral"}
# Names of functions that PyTorch has at its top and numus in nn.functional
_FUNCTIONAL = """
    adaptive_avg_pool1d adaptive_max_pool1d alpha_dropout avg_pool1d bilinear
    binary_cross_entropy_with_logits celu channel_shuffle conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity ctc_loss dropout
    embedding embedding_bag feature_alpha_dropout group_norm hardshrink hinge_embedding_loss
    instance_norm kl_div layer_norm margin_ranking_loss max_pool1d max_pool2d max_pool3d
    pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu rms_norm rrelu
    selu threshold triplet_margin_loss
""".split()
# PyTorch's name, and the path of the same thing under numus
_OTHERWISE = {
    "get_default_device": "default_device",
    "sparse_coo_tensor": "sparse.coo_tensor", "sparse_csr_tensor": "sparse.csr_tensor",
    "solve": "linalg.solve", "lu": "linalg.lu", "inverse": "linalg.inv", "det": "linalg.det",
    "logdet": "logdet", "adjoint": "Tensor.adjoint", "narrow_copy": "Tensor.narrow_copy",
    "is_same_size": "Tensor.is_same_size", "get_device": "Tensor.get_device",
    "native_dropout": "nn.functional.dropout",
    "native_channel_shuffle": "nn.functional.channel_shuffle",
    "feature_dropout": "nn.functional.dropout1d", "grid_sampler": "grid_sample",
    "grid_sampler_2d": "grid_sample", "grid_sampler_3d": "grid_sample",
    "affine_grid_generator": "nn.functional.affine_grid", "unsafe_chunk": "chunk",
    "unsafe_split_with_sizes": "split_with_sizes", "cholesky_solve": "linalg.cho_solve",
    "binomial": "random.binomial", "zero_": "Tensor.zero_", "detach_": "Tensor.detach",
}  # fmt: skip


_TENSORS = {
    "FloatTensor": float32, "DoubleTensor": float64, "HalfTensor": float16,
    "BFloat16Tensor": bfloat16, "LongTensor": int64, "IntTensor": int32, "ShortTensor": int16,
    "CharTensor": int8, "ByteTensor": uint8, "BoolTensor": bool,
}  # fmt: skip


def _typed(kind: Any, *data: Any) -> Any:
    """`torch.LongTensor([1, 2])`, `torch.FloatTensor(2, 3)`."""
    if len(data) == 1 and not isinstance(data[0], builtins.int):
        return own(_creation.tensor(data[0], dtype=kind))
    return own(nm.zeros(data, dtype=kind))


def _made(name: str) -> Any:
    """A name of PyTorch's, made of the tables or of the engine; an AttributeError for others."""
    if name in _functions.TABLE or name in _creation.TABLE:
        return owning(_functions.TABLE.get(name) or _creation.TABLE[name])
    if name in _functions.FUNCTIONS:
        return owning(_functions.FUNCTIONS[name]())
    if name in _FUNCTIONAL:
        return owning(getattr(nm.nn.functional, name))
    found: Any = nm
    for part in (_OTHERWISE.get(name) or name).split("."):
        found = getattr(found, part)
    if callable(found) and not isinstance(found, type):
        return owning(found)
    return found


def __getattr__(name: str) -> Any:
    if name in _IN_ROOMS:
        room = importlib.import_module(f"{__name__}.{_IN_ROOMS[name]}")
        return globals().setdefault(name, getattr(room, name))
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _TENSORS:
        return globals().setdefault(name, partial(_typed, _TENSORS[name]))
    tables = (_functions.TABLE, _creation.TABLE, _OTHERWISE, _FUNCTIONAL)
    if name[0] != "_" and (name in nm.__all__ or builtins.any(name in table for table in tables)):
        return globals().setdefault(name, _made(name))
    if name[0] != "_" and name.endswith("_"):  # torch.relu_(x), torch.selu_(x)
        for owner in (Tensor, importlib.import_module(f"{__name__}.nn.functional")):
            if hasattr(owner, name):
                return globals().setdefault(name, getattr(owner, name))
    here = sys.modules[__name__]
    raise AttributeError(f"module 'numus.torch' has no attribute {name!r}", name=name, obj=here)


def _in_place_draw(name: str) -> Any:
    return owning(_creation.in_place_draw(name))


def _install_methods() -> None:
    """Give Tensor the methods that PyTorch defines otherwise."""
    tables = {**_functions.TABLE, **_creation.TABLE, **_functions.FUNCTIONS}
    takes_self = set(_functions.FUNCTIONS) - {"tril_indices", "triu_indices"}
    for name, row in tables.items():
        code = getattr(row, "__code__", None)
        if name in takes_self or (
            code is not None and code.co_varnames[:1] in (("input",), ("tensor",))
        ):
            setattr(Tensor, name, Later(name, partial(__getattr__, name)))
    for name, method in _functions.METHODS.items():
        setattr(Tensor, name, owning(method))
    for name in _creation.IN_PLACE:
        setattr(Tensor, name, Later(name, partial(_in_place_draw, name)))


_install_methods()
_rooms.install()
