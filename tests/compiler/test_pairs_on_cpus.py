"""On CPUs, operands that have gaps along the lanes of many rows are transposed before."""

import numpy as np
import pytest

import numus as nm
from numus.compiler import hooks

RNG = np.random.default_rng(0)


def kernels_of(function):
    """The names of the kernels that evaluating a result takes, and the result."""
    names = []

    def watch(device, plan, leaves, constants):
        names.extend(step.kernel.name for step in plan.steps)

    hooks.before_run.append(watch)
    try:
        y = function().numpy()
    finally:
        hooks.before_run.remove(watch)
    return names, y


FUNCTIONS = {
    "distances": lambda m, x, y: ((x[:, None] - y[None]) ** 2).sum(-1),
    "largest": lambda m, x, y: m.abs(x[:, None] - y[None]).max(-1),
    "place": lambda m, x, y: m.argmin(m.abs(x[:, None] - y[None]), -1),
    "kernel": lambda m, x, y: m.exp(-((x[:, None] - y[None]) ** 2).mean(-1)),
    "variance": lambda m, x, y: m.var(x[:, None] - y[None], -1),
    "itself": lambda m, x, y: m.abs(x[:, None] - x[None]).sum(-1),
    "reversed": lambda m, x, y: m.abs(x[:, None] - y[None, ::-1]).sum(-1),
    "three": lambda m, x, y: (x[:, None] * y[None] * y[:1]).sum(-1),
    "forces": lambda m, x, y: (
        (x[None] - y[:, None]) * ((x[None] - y[:, None]) ** 2).sum(-1, keepdims=True)
    ).sum(1),
    "first": lambda m, x, y: (m.abs(x[:, None] - y[None])).sum(-1) + y[None, :, 0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(301, 3), (157, 17), (130, 129)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_pairs_of_rows(name, shape, dtype):
    function = FUNCTIONS[name]
    a, b = (RNG.integers(-9, 10, shape).astype(dtype) for _ in range(2))
    names, got = kernels_of(
        lambda: function(nm, nm.asarray(a, device="cpu"), nm.asarray(b, device="cpu"))
    )
    wide = [x.astype(np.float64 if dtype != "int32" else np.int64) for x in (a, b)]
    np.testing.assert_allclose(got, function(np, *wide), rtol=1e-5, atol=1e-5)
    if name != "variance" and shape[0] > 200:
        assert [n for n in names if n.startswith("pointwise")], names


def test_sizes_of_one_structure():
    """Copies are made where they pay off, in whichever order sizes come."""
    distances = FUNCTIONS["distances"]
    for shape in ((5, 4), (400, 4), (6, 3), (3, 500), (500, 3), (40, 2000), (401, 5), (2, 2)):
        a, b = RNG.standard_normal((2, *shape))
        got = distances(nm, nm.asarray(a, device="cpu"), nm.asarray(b, device="cpu"))
        np.testing.assert_allclose(got.numpy(), distances(np, a, b), rtol=1e-12)


def test_operands_out_of_bounds_and_in_batches():
    x = RNG.standard_normal((5, 70, 9))
    a = nm.asarray(x, device="cpu")
    batched = ((a[:, :, None] - a[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(batched.numpy(), ((x[:, :, None] - x[:, None]) ** 2).sum(-1))
    shifted = nm.pad(a[0], ((1, 0), (0, 2)))[:-1, 2:]  # loads that are masked
    want = np.pad(x[0], ((1, 0), (0, 2)))[:-1, 2:]
    got = nm.abs(a[1][:, None] - shifted[None]).sum(-1)
    np.testing.assert_allclose(got.numpy(), np.abs(x[1][:, None] - want[None]).sum(-1))
    z = x[0] + 1j * x[1]
    c = nm.asarray(z, device="cpu")
    np.testing.assert_allclose(
        (c[:, None] * c[None]).sum(-1).numpy(), (z[:, None] * z[None]).sum(-1)
    )
