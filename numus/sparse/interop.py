"""Exchange with SciPy's and PyTorch's sparse matrices, neither of which is imported here."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.runtime.devices import device as as_device
from numus.sparse.creation import bsr_tensor, coo_tensor, csc_tensor, csr_tensor, dia_tensor
from numus.sparse.structure import BSR, COO, CSC, CSR, DIA
from numus.sparse.tensor import SparseTensor


def _shared(array: Any, device: Any) -> Any:
    """Values on the memory of an array where that can be: on the CPU, of a read-only view."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    dev = as_device(device) if device is not None else nm.default_device()
    share = hasattr(dev.runtime, "wrap") and view.flags.c_contiguous and view.flags.aligned
    return nm.asarray(view, device=dev, copy=False if share and view.dtype.isnative else None)


def from_scipy(matrix: Any, *, device: Any = None) -> SparseTensor:
    """A SciPy sparse matrix or array in the same format; on the CPU it shares the memory.

    What is written to the matrix afterwards is seen, or not: copy it first if you write to it.

    Args:
        matrix: in the format coo, csr, csc, bsr or dia; others are converted to csr.
        device: of the values.

    >>> import numpy as np
    >>> class Csr:  # what is asked of SciPy's matrices
    ...     format, shape = "csr", (1, 2)
    ...     indptr, indices, data = np.array([0, 1]), np.array([1]), np.array([3.0])
    >>> nm.sparse.from_scipy(Csr()).to_dense().tolist()
    [[0.0, 3.0]]
    """
    kind = getattr(matrix, "format", None)
    if kind not in ("coo", "csr", "csc", "bsr", "dia"):
        if not hasattr(matrix, "tocsr"):
            raise TypeError(f"from_scipy: {type(matrix).__name__} is no sparse matrix of SciPy")
        matrix, kind = matrix.tocsr(), "csr"
    shape, values = matrix.shape, _shared(matrix.data, device)
    if kind == "coo":
        axes = matrix.coords if hasattr(matrix, "coords") else (matrix.row, matrix.col)
        return coo_tensor(np.stack(axes), values, shape)
    if kind == "dia":
        return dia_tensor(matrix.offsets, values, shape)
    make = {"csr": csr_tensor, "csc": csc_tensor, "bsr": bsr_tensor}[kind]
    return make(matrix.indptr, matrix.indices, values, shape)


def to_scipy(a: SparseTensor) -> Any:
    """A SciPy sparse array in the same format, which shares index arrays; SciPy must be installed.

    >>> nm.sparse.to_scipy(nm.sparse.eye(2)).nnz  # doctest: +SKIP
    2
    """
    scipy = importlib.import_module("scipy.sparse")
    s, values = a.structure, a.values.numpy()
    if isinstance(s, COO):
        return scipy.coo_array((values, tuple(s.indices)), shape=s.shape)
    if isinstance(s, DIA):
        return scipy.dia_array((values, s.offsets), shape=s.shape)
    make = {CSR: scipy.csr_array, CSC: scipy.csc_array, BSR: scipy.bsr_array}[type(s)]
    indptr, indices = s.arrays()
    return make((values, indices, indptr), shape=s.shape)


def from_torch(x: Any, *, device: Any = None) -> SparseTensor:
    """A sparse tensor of PyTorch, in the layout coo, csr, csc or bsr.

    Args:
        x: asked for its layout, index tensors and values alone.
        device: of the values.

    >>> import numpy as np
    >>> class Coo:  # what is asked of PyTorch's tensors
    ...     layout, shape = "torch.sparse_coo", (2, 2)
    ...     def _indices(self): return np.array([[0], [1]])
    ...     def _values(self): return np.array([3.0])
    >>> nm.sparse.from_torch(Coo()).to_dense().tolist()
    [[0.0, 3.0], [0.0, 0.0]]
    """
    layout = str(getattr(x, "layout", "")).removeprefix("torch.")
    if layout == "sparse_coo":
        values = _host(x._values())
        if values.ndim != 1:
            raise ShapeError("from_torch: coordinates with dense axes; use x.to_dense()")
        return coo_tensor(_host(x._indices()), values, tuple(x.shape), device=device)
    if layout in ("sparse_csr", "sparse_bsr"):
        make = csr_tensor if layout == "sparse_csr" else bsr_tensor
        arrays = (_host(x.crow_indices()), _host(x.col_indices()))
    elif layout == "sparse_csc":
        make, arrays = csc_tensor, (_host(x.ccol_indices()), _host(x.row_indices()))
    else:
        raise TypeError(f"from_torch: {type(x).__name__} of layout {layout or None} is not sparse")
    return make(*arrays, _host(x.values()), tuple(x.shape), device=device)


def _host(x: Any) -> Any:
    """A PyTorch tensor, or anything with its methods, as a NumPy array."""
    for step in ("detach", "cpu"):
        x = getattr(x, step)() if hasattr(x, step) else x
    if str(getattr(x, "dtype", "")) == "torch.bfloat16":  # which NumPy has no dtype for
        return np.asarray(nm.from_dlpack(x))
    return np.asarray(x)


def to_torch(a: SparseTensor) -> Any:
    """A sparse tensor of PyTorch in the same layout; PyTorch must be installed.

    >>> nm.sparse.to_torch(nm.sparse.eye(2)).layout  # doctest: +SKIP
    torch.sparse_csr
    """
    torch = importlib.import_module("torch")
    a = a.to_csr() if a.format == "dia" else a
    s, host = a.structure, a.values.to("cpu")
    is_bfloat16 = a.dtype is nm.bfloat16  # which NumPy has no dtype for
    values = torch.from_dlpack(host).clone() if is_bfloat16 else torch.from_numpy(host.numpy())
    if isinstance(s, COO):
        return torch.sparse_coo_tensor(
            torch.from_numpy(s.indices.astype(np.int64)), values, s.shape
        )
    starts, indices = (torch.from_numpy(x.copy()) for x in s.arrays())
    make = getattr(torch, f"sparse_{s.format}_tensor")
    return make(starts, indices, values, s.shape)
