"""Expressions that `numus.numpy` and NumPy must give the same values, dtypes and kinds for."""

EXPRESSIONS = """
# promotion (NEP 50)
i + f
f + 1
f * 2.0
u + 1
i / 2
i * 1.5
f + np.float64(1)
b + b
b * i
i % 3
i // 2
i ** 2
f ** 0.5
-f
~b
abs(-i)
i & 3
i << 2
c * 2
c + f
i == 3
i < f
u == 300
np.int8(1) + f
np.add(1, 2)
np.sin(0.5)
np.sqrt(i)
np.exp(h)
np.arctan2(i, 2)
np.divmod(i, 4)
np.modf(f)
np.frexp(f)
np.logical_and(i, b)
np.maximum(i, 3)
np.float_power(i, 2)
np.result_type(i, f)
np.array(5) + 1
np.where(b, f, 1.0)
np.where(b, i, 1.5)
np.clip(i, 2, 4)
np.clip(f, None, 2)
# creation
np.array([1, 2.5])
np.array([[1, 2], [3, 4]], dtype=np.float32)
np.arange(5)
np.arange(1, 2, 0.25)
np.arange(3, dtype=np.float32)
np.zeros(3)
np.ones((2, 2), int)
np.full((2,), 7)
np.full_like(f, 2)
np.eye(3, k=1)
np.linspace(0, 1, 5)
np.linspace(0, 10, 5, endpoint=False, retstep=True)
np.logspace(0, 2, 3)
np.geomspace(1, 8, 4)
np.meshgrid([1, 2], [3, 4, 5])
np.mgrid[0:2, 0:3]
np.ogrid[0:2, 0:3]
np.r_[1:3, 5]
np.c_[[1, 2], [3, 4]]
np.indices((2, 2))
np.identity(2)
np.tri(3)
np.vander([1, 2, 3])
np.fromfunction(lambda x, y: x + y, (2, 3))
np.ix_([0, 1], [2])
np.array(f, copy=True)
np.asarray([True, False])
np.atleast_2d([1, 2])
np.empty((0, 3))
# reductions
i.sum()
i.sum(axis=0)
i.astype(np.int8).sum()
b.sum()
f.mean()
i.mean(axis=1)
i.mean(keepdims=True)
f.std()
i.std(ddof=1)
np.var(i, axis=0, ddof=1)
np.max(i, axis=1, keepdims=True)
np.min(f)
np.prod(i + 1)
np.all(b)
np.any(b, axis=0)
np.sum(i, where=b)
np.sum(i, initial=10)
np.max(i, initial=100)
np.mean(i, where=b)
np.argmax(i)
np.argmin(f, axis=0)
np.cumsum(i)
np.cumsum(f, axis=1)
np.cumprod(i + 1, axis=0)
np.ptp(i)
np.median(i)
np.percentile(i, [25, 50])
np.quantile(f, 0.3, axis=0)
np.average(i, weights=i + 1)
np.count_nonzero(i)
np.nansum([1, np.nan])
np.nanmean([[1, np.nan], [3, 4]], axis=0)
np.nanmax([1, np.nan, 3])
np.nanstd([1, np.nan, 3])
np.trace(i)
np.add.reduce(i)
np.multiply.reduce(i + 1, axis=1)
np.subtract.reduce(i)
np.add.accumulate(i)
np.maximum.accumulate([3, 1, 4, 1, 5])
np.add.outer([1, 2], [3, 4])
np.add.reduceat(np.arange(8), [0, 4, 1, 5])
np.bitwise_or.reduce([1, 2, 4])
np.logical_or.reduce(b)
np.histogram([1, 2, 2, 3, 9])
np.histogram([0.5, 1.5], bins=[0, 1, 2])
np.histogram2d([1, 2, 3], [1, 2, 2], bins=2)
np.bincount([0, 1, 1, 3])
np.digitize([0.5, 2.5], [0, 1, 2])
np.cov([[1, 2, 3], [3, 1, 2]])
np.corrcoef([1, 2, 3], [3, 1, 2])
# shapes
i.T
i.reshape(3, 2)
i.reshape(-1, order="F")
i.ravel()
i.flatten()
i.transpose(1, 0)
i.swapaxes(0, 1)
np.moveaxis(np.zeros((2, 3, 4)), 0, -1).shape
np.expand_dims(i, 0).shape
np.squeeze([[1], [2]])
np.concatenate([i, f], axis=0)
np.stack([i, i], axis=1)
np.vstack([[1, 2], [3, 4]])
np.hstack([[1, 2], [3, 4]])
np.dstack([[1, 2], [3, 4]])
np.column_stack([[1, 2], [3, 4]])
np.block([[i, i], [f, f]])
np.split(np.arange(6), 3)
np.array_split(np.arange(7), 3)
np.tile([1, 2], (2, 2))
np.repeat([1, 2], [2, 1])
np.roll(i, 1, axis=1)
np.flip(i, 0)
np.rot90(i)
np.pad([1, 2], 1)
np.pad([1, 2, 3], (1, 2), mode="edge")
np.pad([1, 2, 3], 1, mode="constant", constant_values=9)
np.diff(i)
np.diff([1, 4, 9], prepend=0)
np.ediff1d([1, 4, 9])
np.append(i, [7])
np.insert([1, 2, 3], 1, 9)
np.delete([1, 2, 3], 1)
np.resize([1, 2], (3,))
np.broadcast_to([1, 2], (2, 2))
np.diag([1, 2])
np.diagonal(i)
np.tril(i)
np.triu_indices(3)
np.unravel_index(5, (2, 3))
np.ravel_multi_index(([0, 1], [1, 2]), (2, 3))
np.trim_zeros([0, 1, 0])
# selection
i[0]
i[0, 1]
i[:, 1]
i[..., 0]
i[i > 2]
i[[1, 0]]
i[[0, 1], [1, 2]]
i[None].shape
i[1, ...]
i[-1, -1]
np.take(i, [0, 5])
np.take(i, [0, 2], axis=1)
np.take_along_axis(i, np.argsort(-i, axis=1), axis=1)
np.choose([0, 1], [[1, 2], [3, 4]])
np.select([b, ~b], [i, -i])
np.piecewise(f, [f < 1, f >= 1], [0, lambda x: x * 2])
np.compress([True, False], i, axis=0)
np.extract(b, i)
np.nonzero(i)
np.argwhere(b)
np.flatnonzero(b)
np.sort([3, 1, 2])
np.argsort([3, 1, 2])
np.sort(i, axis=0)
np.partition([3, 1, 2], 1)[1]
np.searchsorted([1, 3, 5], [2, 5])
np.unique([3, 1, 1])
np.unique([3, 1, 1], return_index=True, return_inverse=True, return_counts=True)
np.union1d([1, 2], [2, 3])
np.intersect1d([1, 2], [2, 3])
np.setdiff1d([1, 2], [2, 3])
np.isin([1, 2], [2, 3])
np.intersect1d([5, 2, 1], [2, 1, 2], return_indices=True)
np.setdiff1d([3, 1, 2], [2], assume_unique=True)
np.ediff1d([1, 4, 9], to_begin=-1, to_end=[5, 6])
np.correlate([1, 2, 3], [0, 1, 0.5], "full")
np.isclose([1.0, 2.0], [1.0, 2.1], rtol=[0.1, 0.0])
np.fft.rfftn(np.ones((4, 4)), axes=(0, 1))
np.lexsort(([1, 2, 0], [1, 0, 1]))
# products and mathematics
i @ i.T
np.dot([1, 2], [3, 4])
np.inner(i, i)
np.outer([1, 2], [3, 4])
np.vdot(c, c)
np.matmul(f, f.T)
np.tensordot(i, i.T, 1)
np.einsum("ij,kj->ik", i, i)
np.einsum("ii", [[1, 2], [3, 4]])
np.kron([1, 2], [1, 1])
np.cross([1, 0, 0], [0, 1, 0])
np.convolve([1, 2, 3], [0, 1, 0.5])
np.correlate([1, 2, 3], [0, 1, 0.5])
np.interp(2.5, [1, 2, 3], [3, 2, 0])
np.gradient([1, 2, 4, 7])
np.trapezoid([1, 2, 3])
np.polyval([1, 2, 3], 2)
np.polyfit([0, 1, 2], [1, 3, 5], 1)
np.poly1d([1, 2])(3)
np.round(f, 1)
np.around(2.5)
np.real(c)
np.imag(c)
np.angle(c)
np.conj(c)
np.isclose(f, f + 1e-9)
np.allclose(f, f)
np.array_equal(i, i)
np.nan_to_num([np.nan, np.inf])
np.sinc([0.0, 0.5])
np.unwrap([0, 3, 6.5])
np.heaviside([-1, 0, 1], 0.5)
np.vectorize(lambda x: x + 1)(i)
np.apply_along_axis(sorted, 1, -i)
np.linalg.norm(f)
np.linalg.norm(i, axis=1)
np.linalg.det([[1, 2], [3, 4]])
np.linalg.inv([[1, 2], [3, 4]])
np.linalg.solve([[1, 2], [3, 4]], [1, 2])
np.linalg.eigvalsh([[2, 1], [1, 2]])
np.linalg.svd(f, compute_uv=False)
np.linalg.matrix_rank(i)
np.linalg.pinv(f)
np.linalg.matrix_power([[1, 1], [0, 1]], 5)
np.linalg.lstsq([[1, 1], [1, 2], [1, 3]], [1, 2, 2], rcond=None)[0]
np.linalg.slogdet([[1, 2], [3, 4]])
np.linalg.cholesky([[2, 1], [1, 2]])
np.fft.fft([1, 2, 3, 4])
np.fft.rfft(np.arange(5))
np.fft.ifft(np.fft.fft([1, 2, 3]))
np.fft.fft2(i)
np.fft.fftfreq(4, 0.5)
np.fft.fftshift(np.arange(4))
np.hanning(4)
np.lib.stride_tricks.sliding_window_view(np.arange(5), 3)
# attributes and methods
i.dtype
i.shape
i.strides
i.T.strides
f.nbytes
i.astype(float)
i.astype(np.int8).dtype
f.astype(int)
i.tolist()
i.item(3)
i.view(np.uint64)
f.tobytes()
i.flat[3]
i.nonzero()
i.clip(1, 3)
i.round()
i.repeat(2)
i.take([1])
i.cumsum(0)
i.argmax(1)
i.any()
i.dot(i.T)
i.real
i.max(axis=0, initial=3)
str(i)
repr(f)
repr(np.zeros((0,)))
str(np.float32(1) * f)
np.array2string(i, separator=",")
len(i)
[int(x) for x in i[0]]
3 in i
"""
