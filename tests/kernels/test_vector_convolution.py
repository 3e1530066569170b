"""Convolutions of threads that are lanes of a vector, against the CPU's: on the imitated machine,
and on a software adapter for WebGPU where there is one."""

import group_machine
import numpy as np
import pytest

import numus as nm
from numus.compiler import group_convolutions

group_machine.install()


# data, weights, and how: small and large images, taps that fall outside and between
CASES = [
    ((1, 5, 6, 8), (17, 5, 3, 3), {"padding": 1}),
    ((3, 16, 5, 4), (6, 8, 3, 2), {"groups": 2, "stride": 2, "padding": 2, "dilation": (1, 2)}),
    ((1, 3, 70), (17, 3, 5), {"stride": 3}),
    ((2, 3, 4, 5, 3), (9, 3, 2, 1, 3), {"padding": (0, 1, 2)}),
]
HERE = [("lockstep8", CASES[1])]
if group_machine.has_software_adapter():
    large = ((2, 24, 16, 16), (40, 24, 3, 3), {"padding": 1})
    HERE += [("webgpu", case) for case in (*CASES[1:], large)]


@pytest.fixture(autouse=True)
def _however_small(monkeypatch):
    monkeypatch.setattr(group_convolutions, "SMALL", 0)


@pytest.mark.parametrize(("device", "case"), HERE)
def test_convolutions_and_their_gradients(device, case):
    shape, taps, how = case
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, taps, taps[:1])]
    convolve = {3: nm.conv1d, 4: nm.conv2d, 5: nm.conv3d}[len(shape)]

    def results(place):
        x, w, b = (nm.asarray(a).to(place) for a in arrays)

        def loss(x, w):
            return nm.sum(convolve(x, w, **how) ** 2)

        steps = nm.grad(loss, argnums=(0, 1))(x, w)
        return [t.numpy() for t in (nm.relu(convolve(x, w, b, **how)), *steps)]

    for got, want in zip(results(device), results("cpu"), strict=True):
        np.testing.assert_allclose(got, want, atol=3e-6 * np.abs(want).max(), rtol=0)
    if device != "webgpu":
        names = [p.name for p in nm.device(device).runtime.launched]
        assert names.count("vector_convolution") >= 3


@pytest.mark.skipif(not group_machine.has_software_adapter(), reason="there is no software adapter")
def test_narrow_floats_views_and_transposed_ones():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 9, 13, 8)).astype(np.float32)
    w = rng.standard_normal((8, 12, 3, 3)).astype(np.float32)

    def results(place):
        a, b = (nm.asarray(t).to(place) for t in (x, w))
        channels_last = nm.permute_dims(a, (0, 3, 1, 2))[:, :, 1:]
        turned = nm.conv_transpose2d(channels_last, b, stride=2, padding=1)
        half = nm.conv2d(channels_last.astype(nm.float16), b.mT.astype(nm.float16)[:, :8])
        return turned.numpy(), half.astype(nm.float32).numpy()

    for got, want, bound in zip(results("webgpu"), results("cpu"), (3e-6, 2e-3), strict=True):
        np.testing.assert_allclose(got, want, atol=bound * np.abs(want).max(), rtol=0)
