"""Names of `jax.numpy` that numus has at its top with the same meaning."""

from __future__ import annotations

NAMES = """
    abs absolute acos acosh add allclose angle append argwhere average flatnonzero meshgrid nonzero
    unique apply_along_axis apply_over_axes arccos arccosh
    arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition around array_equal
    array_equiv array_repr array_split array_str asin asinh atan atan2 atanh atleast_1d
    atleast_2d atleast_3d bartlett bfloat16 bincount bitwise_and bitwise_count bitwise_invert
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman block
    bool bool_ broadcast_arrays broadcast_shapes broadcast_to c_ can_cast cbrt cdouble ceil
    choose complex128 complex64 compress conj conjugate convolve copy copysign corrcoef
    correlate cos cosh count_nonzero cov cross csingle cumprod cumsum cumulative_prod
    cumulative_sum deg2rad degrees delete diag diag_indices diag_indices_from diagflat diagonal
    diff digitize divide divmod dot double dsplit ediff1d einsum equal exp exp2 expand_dims
    expm1 extract fabs fill_diagonal finfo flip fliplr flipud float16 float32 float64
    float8_e4m3fn float8_e5m2 float_power floor floor_divide fmax fmin fmod frexp from_dlpack
    frombuffer fromfile fromfunction fromiter frompyfunc fromstring gcd geomspace
    get_printoptions gradient greater greater_equal hamming hanning heaviside histogram
    histogram2d histogram_bin_edges histogramdd hsplit hypot i0 iinfo imag index_exp indices
    inner insert int16 int32 int64 int8 int_ interp intersect1d invert isclose iscomplex
    iscomplexobj isdtype isfinite isin isinf isnan isneginf isposinf isreal isrealobj isscalar
    iterable ix_ kaiser kron lcm ldexp left_shift less less_equal lexsort load log log10 log1p
    log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logspace
    mask_indices matmul matrix_transpose matvec maximum median mgrid minimum mod modf moveaxis
    multiply nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin
    nanpercentile nanprod nanquantile nanstd nansum nanvar ndim negative nextafter not_equal
    ogrid outer packbits pad partition percentile permute_dims piecewise place poly polyadd
    polyder polydiv polyfit polyint polymul polysub polyval positive pow power printoptions
    promote_types ptp put put_along_axis quantile r_ rad2deg radians ravel ravel_multi_index
    real reciprocal remainder reshape resize result_type right_shift rint roll rollaxis roots
    rot90 round s_ save savez searchsorted select set_printoptions setdiff1d setxor1d shape sign
    signbit sin sinc single sinh size sort_complex spacing split sqrt square squeeze subtract
    swapaxes take_along_axis tan tanh tensordot tile trace transpose trapezoid tri tril
    tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from true_divide
    trunc uint uint16 uint32 uint64 uint8 union1d unique_all unique_counts unique_inverse
    unique_values unpackbits unravel_index unstack unwrap vander vdot vecdot vecmat vectorize
    vsplit
""".split()

# Keywords that numus spells otherwise, by function.
_VARIANCE = {"ddof": "correction"}
RENAMES: dict[str, dict[str, str]] = {
    **dict.fromkeys(("nanstd", "nanvar"), _VARIANCE),
    **{name: {"N": "n_rows", "M": "n_cols"} for name in ("tri",)},
    "tile": {"reps": "repetitions"},
    "searchsorted": {"a": "x1", "v": "x2"},
}
