"""Functions whose results are rounded to 16 bits: by units of the target, where it has them."""

import group_machine
import numpy as np
import pytest

import numus as nm

group_machine.install()
MACHINE = nm.device("tiles").runtime
X = np.concatenate([np.linspace(-12, 12, 500), [-100, -30, 30, 100, np.inf, np.nan, 0.0]])


def run(function, dtype, device="tiles"):
    x = nm.asarray(X.astype(np.float32), device=device).astype(dtype)
    nm.eval(x)
    runtime = nm.device(device).runtime
    if device == "tiles":
        runtime.launched.clear()
    y = function(x)
    nm.eval(y)
    text = "".join(p.text for p in MACHINE.launched) if device == "tiles" else ""
    return y.astype("float32").numpy(), text


FUNCTIONS = {
    "gelu": lambda x: nm.gelu(x, approximate="tanh"),
    "silu": lambda x: nm.silu(x),
    "gradient": lambda x: nm.vjp(lambda x: nm.gelu(x, approximate="tanh"), x)[1](x)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_activations_of_16_bit_floats(name, dtype):
    got, text = run(FUNCTIONS[name], dtype)
    want, _ = run(FUNCTIONS[name], dtype, "cpu")
    assert "reciprocal(" in text
    step = 2.0 ** -getattr(nm, dtype).mantissa
    np.testing.assert_allclose(got, want, rtol=step, atol=1e-6)


def test_float32_keeps_its_digits():
    got, text = run(FUNCTIONS["gelu"], "float32")
    assert "reciprocal(" not in text
    want, _ = run(FUNCTIONS["gelu"], "float32", "cpu")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-30)


def test_what_is_asked_for_itself_keeps_its_digits():
    def both(x):
        share = nm.sigmoid(x.astype("float32"))
        return nm.concat([(share * 2).astype("bfloat16").astype("float32"), share])

    got, text = run(both, "bfloat16")
    assert "reciprocal(" not in text
    want, _ = run(both, "bfloat16", "cpu")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-30)
