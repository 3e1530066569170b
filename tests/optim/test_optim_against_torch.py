"""Ten steps of every optimiser and schedule are PyTorch's."""

from pathlib import Path

import numpy as np
import optim_cases as cases
import pytest
from safetensors.numpy import load_file

import numus as nm
from numus import nn, optim

STORED = load_file(Path(__file__).parent.parent / "fixtures" / "torch_training.safetensors")


def parameters(dtype=None):
    starts = [cases.start(i) for i in range(len(cases.SHAPES))]
    return [nn.Parameter(nm.asarray(x, dtype=dtype)) for x in starts]


def run(made, params, steps=range(cases.STEPS)):
    for step in steps:
        for i, p in enumerate(params):
            p.grad = nm.asarray(cases.gradient(step, i), dtype=p.dtype)
        made.step()


def made_from(name, params):
    call, options = cases.OPTIMISERS[name]
    return getattr(optim, call)(params, **options)


def check(name, params, tolerance=1e-5):
    for i, p in enumerate(params):
        expected = STORED[f"{name}:{i}"]
        scale = np.abs(expected).max()
        found = p.astype("f64").numpy()
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", cases.OPTIMISERS)
def test_ten_steps(name):
    params = parameters()
    run(made_from(name, params), params)
    check(name, params)


@pytest.mark.parametrize("name", cases.OPTIMISERS)
def test_state_goes_over(name):
    params = parameters()
    first = made_from(name, params)
    run(first, params, range(4))
    state = first.state_dict()
    copies = [nn.Parameter(p.detach()) for p in params]
    second = made_from(name, copies)
    second.load_state_dict(state)
    run(first, params, range(4, 6))  # goes on by itself: the state is not shared
    run(second, copies, range(4, 10))
    check(name, copies)


@pytest.mark.parametrize("name", ["Adam", "SGD-momentum"])
def test_narrow_parameters_are_kept_wide(name):
    params = parameters("bf16")
    made = made_from(name, params)
    run(made, params)
    assert all(p.dtype is nm.bfloat16 for p in params)
    assert made.state[params[0]]["master"].dtype is nm.float32
    for p in params:
        master = made.state[p]["master"].numpy()
        np.testing.assert_allclose(p.astype("f32").numpy(), master, rtol=2**-8)
    check(name, params, 0.02)


# -- schedules ------------------------------------------------------------------------------------


def rates(scheduler, optimizer, steps, measures=None):
    rows = []
    for step in range(steps + 1):
        if step:
            scheduler.step(*([] if measures is None else [measures[step - 1]]))
        rows.append([optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]])
    return np.array(rows)


def optimizer():
    return optim.SGD([nn.Parameter(nm.zeros(2))], lr=0.4, momentum=0.9)


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_schedule(name):
    call, args, steps = cases.SCHEDULES[name]
    opt = optimizer()
    found = rates(getattr(optim.lr_scheduler, call)(opt, **args), opt, steps)
    np.testing.assert_allclose(found, STORED[f"schedule:{name}"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", cases.special_schedules(optim, None))
def test_composed_schedule(name):
    opt = optimizer()
    found = rates(cases.special_schedules(optim, opt)[name](), opt, 16)
    np.testing.assert_allclose(found, STORED[f"schedule:{name}"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", cases.PLATEAUS)
def test_plateau(name):
    opt = optimizer()
    scheduler = optim.ReduceLROnPlateau(opt, **cases.PLATEAUS[name])
    found = rates(scheduler, opt, len(cases.MEASURES), cases.MEASURES)
    np.testing.assert_allclose(found, STORED[f"schedule:{name}"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["StepLR", "CosineAnnealingLR", "OneCycleLR", "Restarts-2"])
def test_schedules_go_on_where_they_were(name):
    call, args, steps = cases.SCHEDULES[name]
    first = optimizer()
    scheduler = getattr(optim.lr_scheduler, call)(first, **args)
    for _ in range(4):
        scheduler.step()
    second = optimizer()
    again = getattr(optim.lr_scheduler, call)(second, **args)
    second.load_state_dict(first.state_dict())
    again.load_state_dict(scheduler.state_dict())
    found = rates(again, second, steps - 4)
    np.testing.assert_allclose(found, STORED[f"schedule:{name}"][4:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", cases.GOING_ON)
def test_schedules_go_on_from_a_step(name):
    found = cases.going_on(optim, nn.Parameter(nm.zeros(2)), name)
    np.testing.assert_allclose(found, STORED[f"schedule:{name}-on"], rtol=1e-9, atol=1e-12)


# -- L-BFGS ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases.LBFGS)
def test_quasi_newton(name):
    x = nn.Parameter(nm.asarray([-0.5, 0.8, 0.3, -0.2], dtype="f64"))
    made = optim.LBFGS([x], **cases.LBFGS[name])

    def closure():
        made.zero_grad()
        loss = cases.valley(nm, x)
        loss.backward()
        return loss

    path = []
    for _ in range(cases.STEPS):
        made.step(closure)
        path.append(x.numpy())
    np.testing.assert_allclose(np.array(path), STORED[f"{name}:path"], rtol=1e-6, atol=1e-6)
