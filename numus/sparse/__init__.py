"""Sparse tensors: structures, values, products and solvers (docs/sparse.md)."""

from numus.sparse.batched import BatchedCSR, batched_csr_tensor
from numus.sparse.construct import (
    block,
    block_diag,
    diags,
    eye,
    hstack,
    kron,
    masked_matmul,
    permute,
    random,
    sddmm,
    tril,
    triu,
    vstack,
)
from numus.sparse.creation import (
    bsr_tensor,
    coo_tensor,
    csc_tensor,
    csr_tensor,
    dia_tensor,
    from_dense,
)
from numus.sparse.files import FormatError, load_npz, mmread, mmwrite, save_npz
from numus.sparse.interop import from_scipy, from_torch, to_scipy, to_torch
from numus.sparse.semi_structured import SemiStructured, prune_2_4, to_semi_structured
from numus.sparse.structure import Structure
from numus.sparse.tensor import SparseTensor

__all__ = [
    "BatchedCSR", "FormatError", "SemiStructured", "SparseTensor", "Structure",
    "batched_csr_tensor", "block", "block_diag", "bsr_tensor", "coo_tensor", "csc_tensor",
    "csr_tensor", "dia_tensor", "diags", "eye", "from_dense", "from_scipy", "from_torch",
    "hstack", "kron", "load_npz", "masked_matmul", "mmread", "mmwrite", "permute", "prune_2_4",
    "random", "save_npz", "sddmm", "to_scipy", "to_semi_structured", "to_torch", "tril", "triu",
    "vstack",
]  # fmt: skip
