"""Functions and methods whose modules are imported when they are first asked for.

A start pays for what most programs use. Functions are found by `numus.__getattr__`; a method is a
descriptor on Tensor, until its module, imported by the first use, installs the method itself.
"""

from __future__ import annotations

import importlib
from typing import Any

from numus.tensor import Tensor

# Modules of numus with the functions of theirs that are at the top: their `__all__`.
FUNCTIONS = {
    "functions.reduction.quantiles": """
        median nanmedian nanpercentile nanquantile percentile quantile
    """,
    "functions.reduction.nan_reductions": """
        nanargmax nanargmin nancumprod nancumsum nanprod nanstd nanvar
    """,
    "functions.reduction.correlation": "corrcoef cov",
    "functions.reduction.histograms_nd": """
        bucketize histc histogram2d histogram_bin_edges histogramdd
    """,
    "functions.numeric.differences": """
        cumulative_trapezoid ediff1d gradient interp trapezoid trapz unwrap
    """,
    "functions.numeric.convolution": "convolve correlate",
    "functions.linear.vector_product": "cross",
    "functions.numeric.windows": """
        bartlett bartlett_window blackman blackman_window hamming hamming_window hann_window hanning
        kaiser kaiser_window
    """,
    "functions.numeric.integers": "gcd lcm packbits unpackbits",
    "functions.numeric.floats": """
        array_equal array_equiv complex fabs fix frac frexp iscomplex iscomplexobj isreal isrealobj
        ldexp logaddexp2 modf polar real_if_close sgn sort_complex spacing view_as_complex
        view_as_real
    """,
    "functions.shape.editing": """
        append block delete diag_embed diagflat dsplit fliplr flipud hsplit insert resize rollaxis
        row_stack split_with_sizes tensor_split trim_zeros unbind vsplit
    """,
    "functions.indexing.coordinates": """
        c_ cartesian_prod combinations diag_indices diag_indices_from index_exp indices ix_
        mask_indices mgrid ndenumerate ndindex ogrid r_ ravel_multi_index s_ tril_indices
        tril_indices_from triu_indices triu_indices_from unravel_index
    """,
    "functions.indexing.choosing": """
        apply_along_axis apply_over_axes choose compress extract frompyfunc piecewise select
        vectorize
    """,
    "functions.indexing.writes": """
        copyto diagonal_scatter fill fill_diagonal index_copy index_fill index_reduce place putmask
        select_scatter slice_scatter
    """,
    "functions.ordering.selection": """
        aminmax argpartition kthvalue mode msort partition unique_consecutive
    """,
    "functions.elementwise.torch_names": """
        addcdiv addcmul addmv addr clamp_max clamp_min conj_physical dist div eq ge ger gt le lt
        matvec mul ne neg renorm rsub std_mean sub swapdims take_along_dim vecmat
    """,
    "functions.creation.more_creation": """
        around as_tensor asanyarray asarray_chkfinite ascontiguousarray broadcast_shapes
        broadcast_tensors detach fromfunction fromiter fromstring geomspace get_default_dtype
        is_complex is_floating_point is_nonzero is_signed is_tensor isscalar iterable
        may_share_memory ndim numel range scalar_tensor shape shares_memory size t
    """,
    "functions.creation.dtype_aliases": """
        bool_ byte cdouble cfloat csingle double float half int int_ intc intp long longlong short
        single ubyte uint uintc uintp ulong ulonglong ushort
    """,
    "functions.interop.printing": """
        array2string array_repr array_str get_printoptions printoptions set_printoptions
    """,
    "random._torch_names": """
        bernoulli manual_seed multinomial normal rand rand_like randint randint_like randn
        randn_like randperm
    """,
    "data.array_files": "fromfile genfromtxt load loadtxt save savetxt savez savez_compressed",
    "linalg._torch_names": "logdet",
    "special._torch_names": "i0 igamma igammac logit mvlgamma polygamma xlogy",
}

# Modules of numus with the methods of Tensor that they install.
METHODS = {
    "functions.linear.vector_product": "cross",
    "functions.reduction.quantiles": "median nanmedian nanquantile quantile",
    "functions.reduction.nan_reductions": """
        nanargmax nanargmin nancumprod nancumsum nanprod nanstd nanvar
    """,
    "functions.reduction.correlation": "corrcoef cov",
    "functions.reduction.histograms_nd": "histc",
    "functions.numeric.integers": "gcd lcm",
    "functions.numeric.floats": "frac frexp isreal ldexp logaddexp2 sgn",
    "functions.shape.editing": """
        diag_embed diagflat dsplit fliplr flipud hsplit resize split_with_sizes tensor_split vsplit
    """,
    "functions.indexing.at": "at",
    "functions.indexing.choosing": "choose compress",
    "functions.indexing.writes": """
        diagonal_scatter fill index_copy index_fill index_reduce select_scatter slice_scatter
    """,
    "functions.ordering.selection": """
        aminmax argpartition kthvalue mode msort partition unique_consecutive
    """,
    "functions.elementwise.torch_names": """
        addcdiv addcmul addmv addr clamp_max clamp_min conj_physical dist div eq ge ger gt le lt ne
        renorm std_mean
    """,
    "functions.interop.html": "_repr_html_",
    "functions.methods.queries": """
        block_until_ready cuda dim element_size get_device is_complex is_cpu is_cuda
        is_floating_point is_nonzero is_same_size is_signed ndimension nelement numel retains_grad
        storage_offset stride t tobytes tofile type
    """,
    "functions.methods.shapes_like": """
        H adjoint byte cdouble cfloat char expand_as mH new_empty new_full new_ones new_tensor
        new_zeros reshape_as short sum_to_size type_as view_as
    """,
    "functions.methods.functions": """
        absolute allclose angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh argwhere
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
        conjugate deg2rad equal fix float_power fmax fmin greater greater_equal heaviside histogram
        index isclose isneginf isposinf less less_equal logaddexp logical_and logical_not logical_or
        logical_xor narrow_copy nextafter not_equal put rad2deg searchsorted sinc take_along_dim
        true_divide where
    """,
    "functions.methods.in_place": """
        absolute_ addbmm_ addmm_ addmv_ addr_ arccos_ arccosh_ arcsin_ arcsinh_ arctan2_ arctan_
        arctanh_ baddbmm_ bitwise_and_ bitwise_left_shift_ bitwise_not_ bitwise_or_
        bitwise_right_shift_ bitwise_xor_ clamp_max_ clamp_min_ conj_physical_ cumprod_ cumsum_
        deg2rad_ div_ divide_ eq_ erfc_ fill_diagonal_ fix_ float_power_ frac_ gcd_ ge_ greater_
        greater_equal_ gt_ heaviside_ index_copy_ index_fill_ index_reduce_ lcm_ ldexp_ le_ less_
        less_equal_ logical_and_ logical_not_ logical_or_ logical_xor_ logit_ lt_ multiply_ ne_
        negative_ nextafter_ not_equal_ put_ rad2deg_ renorm_ sgn_ sinc_ subtract_ true_divide_
        xlogy_
    """,
    "random._torch_names": "bernoulli cauchy_ geometric_ log_normal_ multinomial random_",
    "linalg._torch_names": """
        cholesky det inverse logdet lstsq lu_solve matrix_exp matrix_power pinverse qr slogdet
        svd vdot
    """,
    "special._torch_names": "i0 igamma igammac logit mvlgamma polygamma xlogy",
}

# Other names of functions in modules that are imported late.
ALIASES = {
    **{name: ("polynomial", name) for name in "poly polyadd polyder polydiv polyfit".split()},
    **{name: ("polynomial", name) for name in "polyint polymul polysub polyval roots".split()},
    **{name: ("linalg", name) for name in "block_diag cholesky det lu_solve qr slogdet".split()},
    **{name: ("linalg", name) for name in "lstsq matrix_power matrix_rank svd".split()},
    **{
        "cdist": ("distance", "cdist"),
        "inverse": ("linalg", "inv"),
        "pinverse": ("linalg", "pinv"),
    },
    **{"matrix_exp": ("linalg", "expm"), "chain_matmul": ("linalg", "multi_dot")},
}


class LazyMethod:
    """A method or property whose module is not imported yet."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        importlib.import_module(self.module)
        if vars(Tensor)[self.name] is self:
            raise AttributeError(f"{self.module} installs no method {self.name!r}")
        return getattr(owner if instance is None else instance, self.name)


def install() -> None:
    """Put a descriptor on Tensor for each lazy method."""
    for module, names in METHODS.items():
        for name in names.split():
            setattr(Tensor, name, LazyMethod(f"numus.{module}", name))


install()
