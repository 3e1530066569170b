"""SIMT kernels, interpreted by an emulated GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm

simt_machine.install()
rng = np.random.default_rng(0)


def on_groups(function, *arrays):
    """The results of a function on the imitated machine."""
    xs = [nm.asarray(a, device="simt") for a in arrays]
    out = function(*xs)
    outs = out if isinstance(out, tuple) else (out,)
    assert all(o.device == "simt" for o in outs)
    return [o.numpy() for o in outs]


def check(function, reference, *arrays, rtol=2e-6, atol=1e-6):
    wants = reference(*arrays)
    wants = wants if isinstance(wants, tuple) else (wants,)
    for got, want in zip(on_groups(function, *arrays), wants, strict=True):
        assert got.shape == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def draw(*shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 7), (700,), (1030, 3), (2, 65, 33)])
def test_pointwise(shape):
    check(lambda x, y: x * y + 2, lambda x, y: x * y + 2, draw(*shape), draw(*shape))


def test_pointwise_transposes():
    x = draw(70, 70)
    check(lambda x: x + x.T, lambda x: x + x.T, x)
    check(
        lambda x: nm.permute_dims(x, (2, 0, 1)) * 2.0,
        lambda x: 2 * x.transpose(2, 0, 1),
        draw(3, 40, 50),
    )


@pytest.mark.parametrize("shape", [(7, 5), (3, 500), (2, 5000), (300, 9)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["sum", "max", "argmin", "var"])
def test_reductions(shape, axis, name):
    f, g = getattr(nm, name), getattr(np, name)
    check(
        lambda x: f(x, axis=axis),
        lambda x: g(x.astype(np.float64), axis=axis),
        draw(*shape),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("name", ["sum", "argmin", "var"])
def test_split_reductions(name):
    f, g = getattr(nm, name), getattr(np, name)
    x = draw(1500, 70)
    wide = x.astype(np.float64)
    check(lambda x: f(x, axis=0), lambda _: g(wide, axis=0), x, rtol=1e-4, atol=1e-4)


def test_arg_reductions_take_the_first_of_equals():
    x = np.zeros((3, 700), np.float32)
    x[:, [5, 300, 650]] = 1
    check(lambda x: nm.argmax(x, axis=1), lambda x: np.argmax(x, axis=1), x)
    x[1, 77] = x[1, 400] = np.nan
    check(lambda x: nm.argmax(x, axis=1), lambda x: np.argmax(x, axis=1), x)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_reductions_of_initial_values(name, dtype):
    f, g = getattr(nm, name), getattr(np, name)
    for value in (np.inf, -np.inf) if dtype == "float32" else (127, -128):
        x = np.full((3, 5000), value).astype(dtype)
        check(lambda x: f(x, axis=1), lambda x: g(x, axis=1), x)
        check(lambda x: f(x, axis=0), lambda x: g(x, axis=0), x)
        np.testing.assert_array_equal(f(nm.asarray(x), axis=1).numpy(), g(x, axis=1))


def test_complex_products():
    x = (draw(3, 200) + 1j * draw(3, 200)).astype(np.complex64)
    x /= np.abs(x)
    check(lambda x: nm.prod(x, axis=1), lambda x: np.prod(x, axis=1), x, rtol=1e-4, atol=1e-4)


def test_multistage_rows():
    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    check(lambda x: nm.softmax(x, axis=-1), softmax, draw(5, 333))
    check(lambda x: nm.softmax(x, axis=-1), softmax, draw(200, 6))


@pytest.mark.slow
def test_gradients_of_gelu_compute_the_normal_distribution_again():
    x, w, v = (nm.asarray(draw(64, 64)).astype("bfloat16").to("simt") for _ in range(3))

    @nm.jit
    def gradients(x, w, v):
        def loss(w, v):
            return nm.square(nm.gelu(x @ w) @ v).astype("float32").sum()

        return nm.grad(loss, argnums=(0, 1))(w, v)

    found = nm.explain(gradients, x, w, v, timed=False)
    # the operand and its activation in 16 bits, in one kernel
    assert found.kernels[0].bytes_written == 2 * x.nbytes


@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients(causal):
    arrays = [draw(1, 9, 5), draw(1, 20, 5), draw(1, 20, 3), draw(1, 9, 3)]

    def gradients(q, k, v, g):
        def pulled(*xs):
            y = nm.scaled_dot_product_attention(*xs, is_causal=causal)
            return (y * g).sum()

        y = nm.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return (y, *nm.grad(pulled, (0, 1, 2))(q, k, v))

    want = [x.numpy() for x in gradients(*(nm.asarray(a) for a in arrays))]
    check(gradients, lambda *_: tuple(want), *arrays, rtol=1e-5, atol=1e-5)


# -- one pass over memory, where blocks start in order --------------------------------------------


def on_ordered(function, array):
    runtime = nm.device("simt_ordered").runtime
    runtime.launched.clear()
    found = function(nm.asarray(array, device="simt_ordered")).numpy()
    return found, [program.name for program in runtime.launched]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("cumulative_sum", "float32"),
        ("cumulative_prod", "float64"),
        ("cumulative_sum", "int8"),
        ("cumulative_prod", "complex64"),
    ],
)
def test_lookback_scans(name, dtype):
    x = draw(2, 20_000)
    x = (x * 10).astype(dtype) if "int" in dtype else x.astype(dtype)
    if dtype == "complex64":
        x = np.exp(1j * x).astype(dtype)
    elif name == "cumulative_prod" and "float" in dtype:
        x = np.exp(x / 10).astype(dtype)
    kind = getattr(nm, dtype)
    got, names = on_ordered(lambda x: getattr(nm, name)(x, axis=1, dtype=kind), x)
    assert names[-1].endswith("lookback"), names
    wide = x if "int" in dtype else x.astype(np.complex128 if dtype == "complex64" else np.float64)
    reference = np.cumsum if name == "cumulative_sum" else np.cumprod
    want = reference(wide, axis=1, dtype=dtype if "int" in dtype else None)
    np.testing.assert_allclose(got, want, rtol=2e-3 if "64" not in dtype else 2e-4, atol=1e-2)


def test_lookback_scans_cross_spans(monkeypatch):
    from numus.kernels.scan.gpu_lookback import LookBack

    monkeypatch.setattr(LookBack, "span", staticmethod(lambda threads: 4))
    x = rng.integers(-100, 100, 80_000).astype(np.int32)
    got, names = on_ordered(lambda x: nm.cumulative_sum(x, dtype=nm.int32), x)
    assert names == ["clear_flags", "scan_sum_lookback"]
    np.testing.assert_array_equal(got, np.cumsum(x, dtype=np.int32))


@pytest.mark.parametrize(
    ("dtype", "descending"),
    [("float32", True), ("float16", False), ("int64", False), ("uint8", True)],
)
def test_onesweep_sorts(dtype, descending):
    x = draw(2, 5000) * 50
    x = x.view(np.uint8)[:, :5000].copy() if dtype == "uint8" else x.astype(dtype)
    if dtype == "float32":
        x[0, ::100], x[1, 5] = np.nan, -np.inf
    got, names = on_ordered(lambda x: nm.sort(x, axis=1, descending=descending), x)
    assert names == ["clear_flags", "sort_histogram", *["sort_onesweep"] * x.itemsize]
    want = nm.sort(nm.asarray(x), axis=1, descending=descending).numpy()
    np.testing.assert_array_equal(got, want)
    got, _ = on_ordered(lambda x: nm.argsort(x, axis=1, descending=descending, stable=True), x)
    want = nm.argsort(nm.asarray(x), axis=1, descending=descending, stable=True).numpy()
    np.testing.assert_array_equal(got, want)


def test_onesweep_lookback_crosses_spans(monkeypatch):
    monkeypatch.setattr("numus.kernels.sort.gpu_onesweep.FANOUT", 2)
    x = rng.integers(0, 1 << 8, 40_000).astype(np.uint8)
    got, _ = on_ordered(lambda x: nm.sort(x), x)
    np.testing.assert_array_equal(got, np.sort(x))
    y = rng.integers(0, 300, (5000, 2)).astype(np.int16)
    got, _ = on_ordered(lambda x: nm.argsort(x, axis=0, stable=True), y)
    np.testing.assert_array_equal(got, np.argsort(y, axis=0, kind="stable"))
