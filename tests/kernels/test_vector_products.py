"""Products and rows of threads that are lanes of a vector, against NumPy: on the imitated machine
always, and on a software adapter for WebGPU where there is one."""

import dataclasses

import group_machine
import numpy as np
import pytest

import numus as nm

group_machine.install()


DEVICES = ["lockstep8", *(["webgpu"] if group_machine.has_software_adapter() else [])]
SHAPES = [(17, 24, 12), (16, 32, 16), (100, 70, 90), (9, 8, 700), (16, 130, 1000)]
CASES = [(f"lockstep{n}", SHAPES[n == 8]) for n in (4, 8, 16)]  # it is slow
CASES += [("webgpu", shape) for shape in SHAPES if "webgpu" in DEVICES]


def there(array, device):
    return nm.asarray(array).to(device)


@pytest.mark.parametrize(("device", "shape"), CASES, ids=str)
def test_products_however_their_operands_lie(device, shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    a, b = a.astype(np.float32), b.astype(np.float32)
    want = a.astype(np.float64) @ b
    x, y = there(a, device), there(b, device)
    turned = there(a.T.copy(), device).T, there(b.T.copy(), device).T
    bound = 3e-6 * np.abs(want).max()
    for left in (x, turned[0]):
        for right in (y, turned[1]):
            np.testing.assert_allclose((left @ right).numpy(), want, atol=bound, rtol=0)
    computed = (x * 2 - 1) @ (y + 1) + there(b[0], device)
    want = (a * 2 - 1).astype(np.float64) @ (b + 1) + b[0]
    np.testing.assert_allclose(computed.numpy(), want, atol=3e-6 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_batches_integers_and_halves(device):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((2, 16, 16)).astype(np.float32)
    b = rng.standard_normal((2, 16, 24)).astype(np.float32)
    x, y = there(a, device), there(b, device)
    np.testing.assert_allclose((x @ y).numpy(), a @ b, atol=1e-4)
    np.testing.assert_allclose((x @ y[1]).numpy(), a @ b[1], atol=1e-4)
    whole = rng.integers(-1000, 1000, (16, 24)).astype(np.int32)
    np.testing.assert_array_equal(
        (there(whole, device) @ there(whole.T.copy(), device)).numpy(), whole @ whole.T
    )
    half = rng.standard_normal((16, 24)).astype(np.float16)
    wide = half.astype(np.float32)
    got = (there(half, device) @ there(half, device).T).numpy()
    np.testing.assert_allclose(got.astype(np.float32), wide @ wide.T, atol=0.03, rtol=2e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_views_that_begin_between_runs(device):
    rng = np.random.default_rng(2)
    line = rng.standard_normal(3 + 16 * 24).astype(np.float32)
    b = rng.standard_normal((24, 16)).astype(np.float32)
    x = there(line, device)[3:].reshape(16, 24)
    want = line[3:].reshape(16, 24) @ b
    np.testing.assert_allclose((x @ there(b, device)).numpy(), want, atol=1e-4)


@pytest.mark.skipif("webgpu" not in DEVICES, reason="there is no software adapter")
def test_runs_of_adapters_without_wide_integers(monkeypatch):
    runtime = nm.device("webgpu").runtime
    plain = dataclasses.replace(runtime.context.target, i64=False, f64=False)
    monkeypatch.setattr(runtime.context, "target", plain)
    runtime.pipelines.restart()
    rng = np.random.default_rng(5)
    a = rng.standard_normal((96, 104)).astype(np.float32)
    x = there(a, "webgpu")
    np.testing.assert_allclose((x @ x.T).numpy(), a @ a.T, atol=1e-4)
    np.testing.assert_array_equal((x * 2 + x).numpy(), a * 2 + a)
    np.testing.assert_allclose(nm.sum(x, axis=1).numpy(), a.sum(1), atol=1e-4)
    monkeypatch.undo()
    runtime.pipelines.restart()


@pytest.mark.skipif("webgpu" not in DEVICES, reason="there is no software adapter")
@pytest.mark.parametrize("starts", [(0, 0), (1, 1), (3, 3), (1, 2), (0, 5)])
def test_runs_begin_anywhere(starts):
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(20011).astype(np.float32) for _ in range(2))
    i, j = starts
    n = 20000
    a, b = there(x, "webgpu")[i : i + n], there(y, "webgpu")[j : j + n]
    np.testing.assert_array_equal((a + b).numpy(), x[i : i + n] + y[j : j + n])
    np.testing.assert_array_equal((a > b).numpy(), x[i : i + n] > y[j : j + n])
    np.testing.assert_array_equal(
        (a * 20).astype(nm.int8).numpy(), (x[i : i + n] * np.float32(20)).astype(np.int8)
    )
    np.testing.assert_allclose(
        float(nm.sum(a * b)), x[i : i + n].astype(np.float64) @ y[j : j + n], atol=0.01
    )


@pytest.mark.skipif("webgpu" not in DEVICES, reason="there is no software adapter")
@pytest.mark.parametrize("width", [64, 100, 257, 1001])
def test_rows_of_any_length(width):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((200, width)).astype(np.float32)
    x[3, 5], x[4] = np.nan, -np.inf
    x[4, 7] = 2.0
    shifted = np.exp(x - x.max(-1, keepdims=True), dtype=np.float64)
    want = shifted / shifted.sum(-1, keepdims=True)
    got = nm.nn.functional.softmax(there(x, "webgpu"), -1).numpy()
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-37)
    np.testing.assert_array_equal(
        nm.argmax(there(np.nan_to_num(x), "webgpu"), axis=-1).numpy(), np.nan_to_num(x).argmax(-1)
    )


def test_which_kernel_multiplies():
    x = there(np.ones((24, 24), np.float32), "lockstep8")
    launched = nm.device("lockstep8").runtime.launched
    launched.clear()
    nm.eval(x @ x + 1)
    assert [p.name for p in launched] == ["vector_contraction"]


@pytest.mark.skipif("webgpu" not in DEVICES, reason="there is no software adapter")
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_powers_within_rows_keep_their_fractions(kind):
    """A driver added and took off again what rounds to integers, and left out both."""
    if kind not in nm.device("webgpu").runtime.facts.dtypes:
        pytest.skip(f"this adapter has no {kind}")
    x = np.random.default_rng(6).uniform(1, 3, (2, 4)).astype(kind)
    got = nm.sum(there(x, "webgpu") ** 2.5, axis=-1) ** 0.3
    np.testing.assert_allclose(got.numpy(), (x**2.5).sum(-1) ** 0.3, rtol=3e-6)
