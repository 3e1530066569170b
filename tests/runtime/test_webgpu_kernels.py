"""Matmul, row reductions, convolutions and attention on the webgpu device, against NumPy and the
CPU: unaligned views, special values, 8- and 16-bit floats, gradients."""

import dataclasses

import numpy as np
import pytest

import numus as nm
from numus.compiler.lower.conv import tuning
from numus.compiler.lower.loops import stages
from numus.compiler.lower.loops.tuning import LoopTuning
from numus.runtime.devices import count

pytestmark = pytest.mark.skipif(not count("webgpu"), reason="there is no adapter for WebGPU here")


def on_gpu(array):
    return nm.asarray(array).to("webgpu")


def compare(f, arrays, bound):
    """Results must equal the CPU's, within a fraction of the largest value."""
    results = [f(*(nm.asarray(a).to(place) for a in arrays)) for place in ("webgpu", "cpu")]
    for got, want in zip(*results, strict=True):
        got, want = (t.astype(nm.float32).numpy() for t in (got, want))
        largest = max(1.0, np.abs(want, where=np.isfinite(want), out=np.zeros_like(want)).max())
        np.testing.assert_allclose(got, want, atol=bound * largest, rtol=0)


# -- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(17, 24, 12), (16, 32, 16), (100, 70, 90), (9, 8, 700), (16, 130, 1000)], ids=str
)
def test_matmul_of_all_operand_layouts(shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    a, b = a.astype(np.float32), b.astype(np.float32)
    want = a.astype(np.float64) @ b
    x, y = on_gpu(a), on_gpu(b)
    bound = 3e-6 * np.abs(want).max()
    for left in (x, on_gpu(a.T.copy()).T):
        for right in (y, on_gpu(b.T.copy()).T):
            np.testing.assert_allclose((left @ right).numpy(), want, atol=bound, rtol=0)
    computed = (x * 2 - 1) @ (y + 1) + on_gpu(b[0])
    want = (a * 2 - 1).astype(np.float64) @ (b + 1) + b[0]
    np.testing.assert_allclose(computed.numpy(), want, atol=3e-6 * np.abs(want).max(), rtol=0)


@pytest.mark.slow
def test_matmul_of_batches_integers_halves_and_views():
    rng = np.random.default_rng(1)
    a = rng.standard_normal((2, 16, 16)).astype(np.float32)
    b = rng.standard_normal((2, 16, 24)).astype(np.float32)
    x, y = on_gpu(a), on_gpu(b)
    np.testing.assert_allclose((x @ y).numpy(), a @ b, atol=1e-4)
    np.testing.assert_allclose((x @ y[1]).numpy(), a @ b[1], atol=1e-4)
    whole = rng.integers(-1000, 1000, (16, 24)).astype(np.int32)
    np.testing.assert_array_equal((on_gpu(whole) @ on_gpu(whole.T.copy())).numpy(), whole @ whole.T)
    half = rng.standard_normal((16, 24)).astype(np.float16)
    wide = half.astype(np.float32)
    got = (on_gpu(half) @ on_gpu(half).T).numpy()
    np.testing.assert_allclose(got.astype(np.float32), wide @ wide.T, atol=0.03, rtol=2e-3)
    line = rng.standard_normal(3 + 16 * 24).astype(np.float32)
    x = on_gpu(line)[3:].reshape(16, 24)
    np.testing.assert_allclose((x @ y[0].T).numpy(), line[3:].reshape(16, 24) @ b[0].T, atol=1e-4)


def test_adapters_without_64_bit_integers(monkeypatch):
    runtime = nm.device("webgpu").runtime
    plain = dataclasses.replace(runtime.context.shader_target, i64=False, f64=False)
    monkeypatch.setattr(runtime.context, "shader_target", plain)
    runtime.pipelines.clear()
    rng = np.random.default_rng(5)
    a = rng.standard_normal((96, 104)).astype(np.float32)
    x = on_gpu(a)
    np.testing.assert_allclose((x @ x.T).numpy(), a @ a.T, atol=1e-4)
    np.testing.assert_array_equal((x * 2 + x).numpy(), a * 2 + a)
    np.testing.assert_allclose(nm.sum(x, axis=1).numpy(), a.sum(1), atol=1e-4)
    monkeypatch.undo()
    runtime.pipelines.clear()


# -- maps and rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", [(0, 0), (1, 1), (3, 3), (1, 2), (0, 5)])
def test_views_at_unaligned_offsets(starts):
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(20011).astype(np.float32) for _ in range(2))
    i, j = starts
    n = 20000
    a, b = on_gpu(x)[i : i + n], on_gpu(y)[j : j + n]
    np.testing.assert_array_equal((a + b).numpy(), x[i : i + n] + y[j : j + n])
    np.testing.assert_array_equal((a > b).numpy(), x[i : i + n] > y[j : j + n])
    np.testing.assert_array_equal(
        (a * 20).astype(nm.int8).numpy(), (x[i : i + n] * np.float32(20)).astype(np.int8)
    )
    np.testing.assert_allclose(
        float(nm.sum(a * b)), x[i : i + n].astype(np.float64) @ y[j : j + n], atol=0.01
    )


def test_strided_pointwise_kernels():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 72, 40)).astype(np.float32)
    square, w = rng.standard_normal((80, 80)).astype(np.float32), np.arange(72, dtype=np.int32)
    a, b, c = (on_gpu(t) for t in (x, square, w))
    turned = np.swapaxes(x, 1, 2)
    np.testing.assert_array_equal(a.mT.copy().numpy(), turned)
    np.testing.assert_array_equal((b + b.T).numpy(), square + square.T)
    got = nm.where(c > 30, a.mT * 2, c.astype(nm.float32)).numpy()
    np.testing.assert_array_equal(got, np.where(w > 30, turned * np.float32(2), w))
    got = nm.permute_dims(a, (2, 0, 1)).copy().numpy()
    np.testing.assert_array_equal(got, x.transpose(2, 0, 1))
    for part in (np.s_[:, 1:], np.s_[:, :, 3:], np.s_[:, ::-1]):
        np.testing.assert_array_equal(a[part].mT.copy().numpy(), np.swapaxes(x[part], 1, 2))


def softmax(x):
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("columns", [64, 100, 168, 257, 512, 1001])
def test_softmax_of_special_rows(columns, monkeypatch):
    monkeypatch.setattr(stages, "TUNING", LoopTuning(small_elements=0))
    x = np.random.default_rng(0).standard_normal((200, columns)).astype(np.float32) * 4
    x[0, ::3] = -np.inf
    x[1] = -np.inf
    x[2, 5] = np.nan
    x[3, columns - 1] = np.inf
    x[4, 0] = 1e4
    x[5, 7] = np.copysign(np.nan, -1)
    y = on_gpu(x)
    np.testing.assert_allclose(nm.softmax(y).numpy(), softmax(x), rtol=4e-6, atol=1e-37)
    with np.errstate(invalid="ignore"):
        want = np.exp(x - x.max(1, keepdims=True))
    got = nm.exp(y - nm.max(y, axis=1, keepdims=True)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=2e-38)
    finite = np.nan_to_num(x)
    np.testing.assert_array_equal(nm.argmax(on_gpu(finite), axis=-1).numpy(), finite.argmax(-1))


def test_norms_argmax_gradients_and_dtypes_of_rows(monkeypatch):
    monkeypatch.setattr(stages, "TUNING", LoopTuning(small_elements=0))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((11, 168)).astype(np.float32)
    w, g = rng.standard_normal((2, 168)).astype(np.float32)
    y, v, h = (on_gpu(a) for a in (x, w, g))
    off = x - x.mean(-1, keepdims=True)
    want = off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-5) * w + g
    np.testing.assert_allclose(nm.layer_norm(y, v, h).numpy(), want, atol=2e-5)
    largest = nm.argmax(y - nm.mean(y, axis=1, keepdims=True), axis=1)
    np.testing.assert_array_equal(largest.numpy(), off.argmax(1))
    got = nm.grad(lambda t: nm.sum(nm.softmax(t) * v))(y)
    s = softmax(x)
    np.testing.assert_allclose(got.numpy(), s * (w - (s * w).sum(1, keepdims=True)), atol=1e-6)
    for part in (np.s_[:, 8:152], np.s_[::2, 3:163], np.s_[:, ::-1]):
        np.testing.assert_allclose(nm.softmax(y[part]).numpy(), softmax(x[part]), rtol=2e-6)
    both = nm.softmax(nm.concat([y, y], axis=1)).numpy()
    np.testing.assert_allclose(both, softmax(np.concatenate([x, x], axis=1)), rtol=2e-6)
    half = y.astype(nm.float16)
    got = nm.softmax(half).numpy()
    np.testing.assert_allclose(got, softmax(half.numpy()), rtol=2e-3, atol=1e-4)
    whole = on_gpu((x * 100).astype(np.int32))
    want = whole.numpy() - whole.numpy().max(1, keepdims=True)
    np.testing.assert_array_equal((whole - nm.max(whole, axis=1, keepdims=True)).numpy(), want)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_powers_within_rows(kind):
    """A driver added and took off again what rounds to integers, and left out both."""
    if kind not in nm.device("webgpu").runtime.target.dtypes:
        pytest.skip(f"this adapter has no {kind}")
    x = np.random.default_rng(6).uniform(1, 3, (2, 4)).astype(kind)
    got = nm.sum(on_gpu(x) ** 2.5, axis=-1) ** 0.3
    np.testing.assert_allclose(got.numpy(), (x**2.5).sum(-1) ** 0.3, rtol=3e-6)


# -- convolutions ---------------------------------------------------------------------------------


CONVOLUTIONS = [  # data, weights, and how: small and large images, taps outside and between
    ((3, 16, 5, 4), (6, 8, 3, 2), {"groups": 2, "stride": 2, "padding": 2, "dilation": (1, 2)}),
    ((1, 3, 70), (17, 3, 5), {"stride": 3}),
    ((2, 3, 4, 5, 3), (9, 3, 2, 1, 3), {"padding": (0, 1, 2)}),
    ((2, 12, 9, 9), (20, 12, 3, 3), {"padding": 1}),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_and_their_gradients(case, monkeypatch):
    monkeypatch.setattr(tuning, "GPU", dataclasses.replace(tuning.GPU, min_implicit_gemm_macs=0))
    shape, taps, how = case
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, taps, taps[:1])]
    convolve = {3: nm.conv1d, 4: nm.conv2d, 5: nm.conv3d}[len(shape)]

    def results(x, w, b):
        def loss(x, w):
            return nm.sum(convolve(x, w, **how) ** 2)

        return [nm.relu(convolve(x, w, b, **how)), *nm.grad(loss, argnums=(0, 1))(x, w)]

    compare(results, arrays, 3e-6)


@pytest.mark.slow
def test_convolutions_of_views_small_floats_and_transposed_ones(monkeypatch):
    monkeypatch.setattr(tuning, "GPU", dataclasses.replace(tuning.GPU, min_implicit_gemm_macs=0))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 9, 13, 8)).astype(np.float32)
    w = rng.standard_normal((8, 12, 3, 3)).astype(np.float32)

    def moved(a):
        return nm.permute_dims(a, (0, 3, 1, 2))[:, :, 1:]

    def halves(a, b):
        return [nm.conv2d(moved(a).astype(nm.float16), b.mT.astype(nm.float16)[:, :8])]

    compare(lambda a, b: [nm.conv_transpose2d(moved(a), b, stride=2, padding=1)], (x, w), 3e-6)
    compare(halves, (x, w), 2e-3)


# -- attention ------------------------------------------------------------------------------------


attend = nm.scaled_dot_product_attention


def drawn(queries, keys, size, width, lead=(2,)):
    rng = np.random.default_rng(0)
    shapes = (queries, size), (keys, size), (keys, width)
    return [rng.standard_normal((*lead, *s)).astype(np.float32) for s in shapes]


def gradients(q, k, v, **how):
    def loss(q, k, v):
        return nm.sum(attend(q, k, v, **how) ** 2)

    return nm.grad(loss, argnums=(0, 1, 2))(q, k, v)


@pytest.mark.parametrize(
    ("sizes", "lead", "how"),
    [
        ((19, 37, 16, 24), (1,), {}),
        ((35, 35, 12, 40), (2, 3), {"is_causal": True, "scale": 0.3}),
    ],
)
def test_attention_and_its_gradients(sizes, lead, how):
    compare(lambda q, k, v: [attend(q, k, v, **how)], drawn(*sizes, lead=lead), 2e-6)
    compare(lambda q, k, v: gradients(q, k, v, **how), drawn(*sizes, lead=lead), 1e-5)


@pytest.mark.slow
def test_attention_masks_and_fully_masked_rows():
    q, k, v = drawn(11, 21, 8, 8)
    seen = np.random.default_rng(1).random((11, 21)) < 0.6
    seen[3] = False
    bias = np.random.default_rng(2).standard_normal((2, 11, 21)).astype(np.float32)
    bias[0, 2] = -np.inf
    for mask in (seen, bias):
        compare(lambda q, k, v, m: [attend(q, k, v, attn_mask=m)], (q, k, v, mask), 2e-6)
    compare(lambda q, k, v, m: gradients(q, k, v, attn_mask=m), (q, k, v, seen), 1e-5)
    q[1, 4, 2] = np.nan
    k[0, 20] = np.inf
    compare(lambda q, k, v: [attend(q, k, v)], (q, k, v), 2e-6)


@pytest.mark.slow
def test_attention_of_heads_and_small_floats():
    q, k, v = drawn(12, 12, 8, 8, lead=(2, 3))
    turned = [np.swapaxes(a, 1, 2).copy() for a in (q, k, v)]  # heads in the middle
    compare(lambda *qkv: [attend(*(nm.permute_dims(a, (0, 2, 1, 3)) for a in qkv))], turned, 2e-6)
    halves = [a.astype(np.float16) for a in (q, k, v)]
    compare(lambda q, k, v: [attend(q, k, v)], halves, 2e-3)


@pytest.mark.parametrize("n", [5, 6])
def test_transforms_of_padded_rows(n):
    """Whose indices some drivers compare wrongly where they are combined with zero."""
    (x,) = drawn(3, 4, 4, 4)[:1]
    compare(lambda x: [nm.fft.rfft(x, n).real], (x,), 2e-6)
