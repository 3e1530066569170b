"""Approximate math: hardware functions where results are rounded to 16 bits."""

import numpy as np
import pytest
import simt_machine

import numus as nm

simt_machine.install()
MACHINE = nm.device("simt_wgmma").runtime
X = np.concatenate(
    [
        *(np.linspace(-12, 12, 500), np.linspace(0.9, 1.1, 99), np.geomspace(1e-6, 0.3, 50)),
        *([-100, -90, -87.9, -30, 30, 88, 100, np.inf, np.nan, 0.0], -np.geomspace(1e-6, 0.3, 50)),
    ]
)


def run(function, dtype, device="simt_wgmma"):
    x = nm.asarray(X.astype(np.float32), device=device).astype(dtype)
    nm.eval(x)
    runtime = nm.device(device).runtime
    if device == "simt_wgmma":
        runtime.launched.clear()
    y = function(x)
    nm.eval(y)
    text = "".join(p.text for p in MACHINE.launched) if device == "simt_wgmma" else ""
    return y.astype("float32").numpy(), text


FUNCTIONS = {
    "gelu": lambda x: nm.gelu(x, approximate="tanh"),
    "silu": lambda x: nm.silu(x),
    "gradient": lambda x: nm.vjp(lambda x: nm.gelu(x, approximate="tanh"), x)[1](x)[0],
    "exact gelu": nm.gelu,
    "its gradient": lambda x: nm.vjp(nm.gelu, x)[1](x)[0],
    "tanh": nm.tanh,
}
EXPONENTIALS = {"exp": nm.exp, "expm1": nm.expm1}
LOGARITHMS = {"log": nm.log, "log2": nm.log2, "log10": nm.log10, "log1p": nm.log1p}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_activations_of_16_bit_floats(name, dtype):
    got, text = run(FUNCTIONS[name], dtype)
    want, _ = run(FUNCTIONS[name], dtype, "cpu")
    assert "reciprocal(" in text
    step = 2.0 ** -getattr(nm, dtype).mantissa
    np.testing.assert_allclose(got, want, rtol=step, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_ndtr_underflows_to_positive_zero(dtype):
    x = nm.asarray(np.array([-np.inf, -6e4, -9e3, -30, 0, 6e4, np.inf]), device="simt_wgmma")
    y = nm.ndtr(x.astype(dtype)).astype("float32").numpy()
    assert y.tolist() == [0, 0, 0, 0, 0.5, 1, 1]
    assert not np.signbit(y).any()


@pytest.mark.parametrize("name", EXPONENTIALS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exponentials(name, dtype):
    got, text = run(EXPONENTIALS[name], dtype)
    want, _ = run(EXPONENTIALS[name], dtype, "cpu")
    assert "exp2(" in text
    step = 2.0 ** -getattr(nm, dtype).mantissa
    smallest = 2.0**-133 if dtype == "bfloat16" else 2.0**-24
    np.testing.assert_allclose(got, want, rtol=step, atol=smallest)


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms(name):
    """bfloat16 stays away from 1, where they are 0; float16 does not."""
    got, text = run(LOGARITHMS[name], "bfloat16")
    want, _ = run(LOGARITHMS[name], "bfloat16", "cpu")
    assert "log2(" in text
    np.testing.assert_allclose(got, want, rtol=2.0**-7)
    assert "log2(" not in run(LOGARITHMS[name], "float16")[1]


@pytest.mark.parametrize("function", [nm.tanh, nm.expm1, nm.log1p])
def test_zero_keeps_its_sign(function):
    x = nm.asarray(np.array([-0.0, 0.0], np.float32), device="simt_wgmma").astype("bfloat16")
    signs = np.signbit(function(x).astype("float32").numpy())
    np.testing.assert_array_equal(signs, [True, False])


def test_differences_are_exact():
    _, text = run(lambda x: (nm.exp(x.astype("float32")) - 1).astype("bfloat16"), "bfloat16")
    assert "exp2(" not in text
    _, text = run(lambda x: (nm.exp(x.astype("float32")) * 2).astype("bfloat16"), "bfloat16")
    assert "exp2(" in text


def test_float32_is_exact():
    got, text = run(FUNCTIONS["gelu"], "float32")
    assert "reciprocal(" not in text
    want, _ = run(FUNCTIONS["gelu"], "float32", "cpu")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-30)


def test_float32_results_are_exact():
    def both(x):
        share = nm.sigmoid(x.astype("float32"))
        return nm.concat([(share * 2).astype("bfloat16").astype("float32"), share])

    got, text = run(both, "bfloat16")
    assert "reciprocal(" not in text
    want, _ = run(both, "bfloat16", "cpu")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_cross_entropy_of_16_bit_scores(scale):
    """Powers of how far 16-bit scores are below the largest; loss and gradient are as exact as with
    those of float32, also where one score is far above all others."""
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal((6, 300)) * scale).astype(np.float32)
    numbers[0, 7] = 40 * scale
    targets = np.array([7, 0, 299, 5, 6, 7])

    def loss(x, t):
        return nm.nn.cross_entropy(x.astype("float32"), t)

    def both(device):
        x = nm.asarray(numbers, device=device).astype("bfloat16")
        t = nm.asarray(targets, device=device)
        value, gradient = nm.value_and_grad(loss)(x, t)
        nm.eval(value, gradient)
        return value.numpy(), gradient.astype("float32").numpy()

    MACHINE.launched.clear()
    value, gradient = both("simt_wgmma")
    assert "exp2(" in "".join(p.text for p in MACHINE.launched)
    wanted, slope = both("cpu")
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=2.0**-7, atol=1e-9)


def test_exponentials_without_a_max_are_exact():
    """The logarithm of a sum of powers, of what is no difference from the largest."""
    _, text = run(lambda x: nm.log(nm.exp(x.astype("float32")).sum()), "bfloat16")
    assert "exp2(" not in text


def test_logarithms_of_single_exponentials_are_exact():
    """Close to the largest, the logarithm is a small difference from that of 1."""

    def back(x):
        x = x.astype("float32")
        return nm.log(nm.exp(x - nm.max(x, axis=-1, keepdims=True)))

    _, text = run(back, "bfloat16")
    assert "exp2(" not in text
