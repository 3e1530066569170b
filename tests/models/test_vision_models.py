"""Image models: weights of torchvision and transformers load by name and give the same scores."""

from pathlib import Path

import numpy as np
import pytest
from vision_cases import CASES, digest, draw_state, scores, weighted

import numus as nm

STORED = np.load(Path(__file__).parent.parent / "fixtures" / "vision_models.npz")
SMALL = [name for name, case in CASES.items() if not case.slow]
LARGE = [name for name, case in CASES.items() if case.slow]


@pytest.fixture
def reference_device():
    """NumPy: what a model computes is the question here, not how; nothing has to be compiled."""
    before = nm.default_device()
    nm.set_default_device(nm.device("reference"))
    yield
    nm.set_default_device(before)


def loaded(name):
    model = CASES[name].ours(nm.models)
    state = model.state_dict()
    learned = {n: t.shape for n, t in state.items() if t.dtype.is_floating}
    learned = {n: shape for n, shape in learned.items() if "relative_coords" not in n}
    missing, unexpected = model.load_state_dict(draw_state(learned), strict=False)
    assert not unexpected
    assert not [n for n in missing if n in learned]
    return model


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * max(1, np.abs(wanted).max()))


def compare(name):
    case, model = CASES[name], loaded(name)
    texts = case.texts()
    given = ([] if texts is None else [nm.asarray(texts)]) + [nm.asarray(case.images())]
    with nm.no_grad():
        close(scores(model.eval()(*given)).numpy(), STORED[f"{name}:eval"])
    out = scores(model.train(case.train)(*given))
    close(out.numpy(), STORED[f"{name}:train"])
    (out * nm.asarray(weighted(out.numpy()))).sum().backward()
    parameters = sorted(model.named_parameters())
    wanted = STORED[f"{name}:gradients"]
    assert len(parameters) == len(wanted)
    lengths = wanted[:, 1]
    for (part, p), (total, length) in zip(parameters, wanted, strict=True):
        found = digest(p.grad.numpy())
        # what is zero but for rounding (a bias before a batch norm) has no digits of its own
        room = 1e-4 * max(length, 0.1 * np.median(lengths))
        assert abs(found[0] - total) <= room, part
        assert abs(found[1] - length) <= room, part
    statistics = [b for n, b in sorted(model.named_buffers()) if "running" in n]
    found = np.array([digest(b.numpy()) for b in statistics])
    np.testing.assert_allclose(found, STORED[f"{name}:statistics"], rtol=1e-4, atol=1e-4)


@pytest.mark.on_cpu("the reference device")
@pytest.mark.parametrize("name", SMALL)
def test_small_models(name, reference_device):
    assert sorted(CASES[name].ours(nm.models).state_dict()) == list(STORED[f"{name}:names"])
    compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_compiled_models(name):
    compare(name)
