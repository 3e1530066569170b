"""Every layer, activation and loss gives PyTorch's outputs and gradients."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch_built_cases import BUILT, CASES_BUILT
from torch_cases import CASES, Spec, Values, draw, draw_state, generator
from torch_edge_cases import EDGES

import numus as nm
from numus import nn

STORED = load_file(Path(__file__).parent.parent / "fixtures" / "torch_layers.safetensors")
BY_CASE: dict[str, dict[str, str]] = {}
for _key in STORED:
    _name, _, _part = _key.partition(":")
    BY_CASE.setdefault(_name, {})[_part] = _key


def close(found, key, label):
    expected = STORED[key]
    found = found.numpy()
    assert found.shape == expected.shape, label
    scale = max(float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)), 1e-30)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=label)


def options(case):
    rng = generator(case.name + "/options")
    return {
        k: nm.asarray(draw(v, rng)) if isinstance(v, (Spec, Values)) else v
        for k, v in case.kwargs.items()
    }


def tensors(case):
    """The inputs; a tuple of specs becomes one of tensors."""
    rng = generator(case.name)

    def make(spec):
        if isinstance(spec, tuple):
            return tuple(map(make, spec))
        made = nm.asarray(draw(spec, rng))
        if made.dtype.is_floating and not spec.constant and spec.kind == "float":
            made.requires_grad = True
        return made

    return list(map(make, case.inputs))


def given(case):
    """What forward is given by name."""
    rng = generator(case.name + "/given")
    return {
        k: nm.asarray(draw(v, rng)) if isinstance(v, (Spec, Values)) else v
        for k, v in case.given.items()
    }


@pytest.mark.parametrize("case", [*CASES, *EDGES, *CASES_BUILT], ids=lambda c: c.name)
def test_case(case):
    inputs = tensors(case)
    found = {}
    if case.is_module:
        if case.call in BUILT:
            made = BUILT[case.call](nn)
        else:
            made = getattr(nn, case.call)(*case.args, **options(case))
        made.train(case.train)
        fixed = case.given_arrays
        state = {n: t for n, t in made.state_dict().items() if t.dtype.is_floating}
        shapes = {n: t.shape for n, t in state.items() if n not in fixed}
        made.load_state_dict(draw_state(case.name, shapes), strict=False)
        for _ in range(case.calls):
            out = made(*inputs, **given(case))
        found |= {f"buffer/{n}": b for n, b in made.named_buffers() if n not in fixed}
        learned = dict(made.named_parameters())
    else:
        out = getattr(nn.functional, case.call)(*inputs, **options(case))
        learned = {}
    outputs = [o for o in nm.tree.leaves(out) if isinstance(o, nm.Tensor)]
    found |= {f"out/{k}": o for k, o in enumerate(outputs)}
    rng = generator(case.name + "/cotangent")
    loss = sum((o * nm.asarray(rng.random(o.shape).astype(np.float32))).sum() for o in outputs)
    if loss.requires_grad:
        loss.backward()
    found |= {
        f"grad/{k}": t.grad for k, t in enumerate(nm.tree.leaves(inputs)) if t.grad is not None
    }
    found |= {f"grad/{n}": p.grad for n, p in learned.items() if p.grad is not None}
    expected = BY_CASE[case.name]
    assert set(found) == set(expected)
    for part, tensor in found.items():
        close(tensor, expected[part], part)
