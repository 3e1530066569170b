"""What belongs to training besides the steps themselves."""

import copy

import numpy as np
import pytest

import numus as nm
from numus import nn, optim


def problem(seed=0):
    nm.random.seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = nm.random.normal((32, 4))
    y = nm.sin(x.sum(axis=1, keepdims=True))
    return model, x, y


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), 0.5),
        (lambda p: optim.AdamW(p, lr=0.02), 0.5),
        (lambda p: optim.Lion(p, lr=0.01), 0.5),
        (lambda p: optim.LAMB(p, lr=0.05), 0.5),
        (lambda p: optim.Adafactor(p, lr=0.1), 0.9),
    ],
    ids=["SGD", "AdamW", "Lion", "LAMB", "Adafactor"],
)
def test_losses_fall(make, share):
    model, x, y = problem()
    opt = make(model.parameters())
    losses = []
    for _ in range(40):
        opt.zero_grad()
        loss = nn.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < share * losses[0]


def test_lion_and_lamb_follow_their_papers():
    rng = np.random.default_rng(0)
    p0, grads = rng.normal(size=(3, 2)), rng.normal(size=(5, 3, 2))
    lion, lamb = (nn.Parameter(nm.asarray(p0)) for _ in range(2))
    opts = [
        optim.Lion([lion], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1),
        optim.LAMB([lamb], lr=0.01, weight_decay=0.1),
    ]
    a, m = p0.copy(), np.zeros_like(p0)
    b, m1, m2 = p0.copy(), np.zeros_like(p0), np.zeros_like(p0)
    for t, g in enumerate(grads, 1):
        lion.grad, lamb.grad = nm.asarray(g), nm.asarray(g)
        for opt in opts:
            opt.step()
        a = a * (1 - 0.001) - 0.01 * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
        m1, m2 = 0.9 * m1 + 0.1 * g, 0.999 * m2 + 0.001 * g * g
        r = m1 / (1 - 0.9**t) / (np.sqrt(m2 / (1 - 0.999**t)) + 1e-6) + 0.1 * b
        b = b - 0.01 * np.linalg.norm(b) / np.linalg.norm(r) * r
    np.testing.assert_allclose(lion.numpy(), a, rtol=1e-9)
    np.testing.assert_allclose(lamb.numpy(), b, rtol=1e-7)


def test_groups_have_their_own_numbers():
    a, b = nn.Parameter(nm.ones(2)), nn.Parameter(nm.ones(2))
    opt = optim.SGD([{"params": a, "lr": 1.0}, {"params": [b]}], lr=0.1)
    a.grad, b.grad = nm.ones(2), nm.ones(2)
    opt.step()
    assert a.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(b.numpy(), 0.9)
    opt.add_param_group({"params": [nn.Parameter(nm.ones(1))], "momentum": 0.5})
    assert opt.param_groups[2]["lr"] == 0.1
    with pytest.raises(ValueError, match="two groups"):
        opt.add_param_group({"params": [b]})
    with pytest.raises(TypeError, match="rate"):
        optim.SGD([{"params": [nn.Parameter(nm.ones(1))], "rate": 1}])
    with pytest.raises(TypeError, match="leaf tensors of a float dtype, not int64"):
        optim.SGD([nm.arange(2)])
    with pytest.raises(ValueError, match="no parameters"):
        optim.SGD([])
    with pytest.raises(ValueError, match="lr cannot be -1"):
        optim.Adam([b], lr=-1)


def test_a_parameter_without_gradient_is_left_out():
    late, steady = nn.Parameter(nm.ones(2)), nn.Parameter(nm.ones(2))
    opt = optim.Adam([late, steady], lr=0.1)
    for _ in range(3):
        steady.grad = nm.ones(2)
        opt.step()
    assert late.tolist() == [1.0, 1.0]
    late.grad = nm.ones(2)
    opt.step()
    np.testing.assert_allclose(late.numpy(), 0.9, rtol=1e-6)  # its first step, not its fourth
    assert opt.state[late]["step"].item() == 1
    assert opt.state[steady]["step"].item() == 4


def test_what_is_set_in_a_group_is_used():
    w = nn.Parameter(nm.zeros(1))
    opt = optim.SGD([w], lr=1.0)
    for lr in (1.0, 0.5):
        opt.param_groups[0]["lr"] = lr
        w.grad = nm.ones(1)
        opt.step()
    assert w.tolist() == [-1.5]
    assert "lr: 0.5" in repr(opt)


def test_gradients_are_clipped():
    w, v = nn.Parameter(nm.zeros(2)), nn.Parameter(nm.zeros(1))
    w.grad, v.grad = nm.asarray([3.0, 0.0]), nm.asarray([4.0])
    assert optim.clip_grad_norm_([w, v], 1.0).item() == pytest.approx(5.0)
    np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.0], rtol=1e-5)
    assert optim.clip_grad_norm_([w, v], 10.0).item() == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(v.grad.numpy(), [0.8], rtol=1e-5)
    assert optim.clip_grad_norm_(w, 9.0, norm_type=np.inf).item() == pytest.approx(0.6, rel=1e-5)
    optim.clip_grad_value_([w, v], 0.5)
    assert w.grad.tolist() == [0.5, 0.0]
    v.grad = nm.asarray([np.nan], dtype="f32")
    with pytest.raises(ValueError, match="nan"):
        optim.clip_grad_norm_([w, v], 1.0, error_if_nonfinite=True)
    assert optim.clip_grad_norm_([nn.Parameter(nm.ones(1))], 1.0).item() == 0.0


def test_parameters_as_a_vector():
    model = nn.Linear(2, 1)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    again = nn.utils.parameters_to_vector(model.parameters())
    np.testing.assert_allclose(again.numpy(), 2 * vector.numpy())
    with pytest.raises(ValueError, match="for 3 elements"):
        nn.utils.vector_to_parameters(vector[:2], model.parameters())


def test_gathered_batches_are_one():
    model, x, y = problem()
    twin = copy.deepcopy(model)
    gather = optim.GradientAccumulator(optim.SGD(model.parameters(), lr=0.1), every=4)
    for part, target in zip(nm.split(x, 4), nm.split(y, 4), strict=True):
        with gather.batch() as scale:
            (nn.mse_loss(model(part), target) * scale).backward()
    whole = optim.SGD(twin.parameters(), lr=0.1)
    nn.mse_loss(twin(x), y).backward()
    whole.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-5, atol=1e-7)


def test_averages():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    ema, mean = optim.EMA(model, decay=0.75), optim.AveragedModel(model)
    for value in (1.0, 2.0, 3.0):
        nn.init.constant_(model.weight, value)
        ema.update()
        mean.update_parameters(model)
    assert ema.shadow["weight"].item() == pytest.approx(0.25 * (3 + 0.75 * 2 + 0.75**2))
    assert mean.module.weight.item() == pytest.approx(2.0)
    with ema.applied():
        assert model.weight.item() == pytest.approx(ema.shadow["weight"].item())
    assert model.weight.item() == 3.0
    again = optim.EMA(model)
    again.load_state_dict(ema.state_dict())
    assert again.shadow["weight"].item() == ema.shadow["weight"].item()


def test_trainer():
    model, x, y = problem()
    opt = optim.AdamW(model.parameters(), lr=0.02)
    trainer = optim.Trainer(opt, scheduler=optim.ExponentialLR(opt, 0.99), max_grad_norm=1.0)
    first = [trainer.train_step(lambda: nn.mse_loss(model(x), y)).item() for _ in range(5)]
    assert trainer.epoch_avg_loss() == pytest.approx(np.mean(first), rel=1e-5)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.02 * 0.99**5)
    with pytest.raises(ValueError, match="no step was taken"):
        trainer.epoch_avg_loss()


def test_a_step_can_be_traced():
    """The same numbers from a step that `nm.jit` has traced once."""
    results = []
    for jitted in (False, True):
        model, x, y = problem()
        opt = optim.AdamW(model.parameters(), lr=0.02)
        schedule = optim.LinearLR(opt, 0.1, total_iters=4)

        def step(x, y, model=model, opt=opt):
            opt.zero_grad()
            loss = nn.mse_loss(model(x), y)
            loss.backward()
            optim.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            return loss

        run = nm.jit(step) if jitted else step
        losses = []
        for _ in range(8):
            losses.append(run(x, y).item())
            schedule.step()
        results.append(losses)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


def test_devices_are_kept():
    """What a schedule, a scaler or a state dict sets goes where the parameters are."""
    model = nn.Linear(2, 2).to("reference")
    opt = optim.Adam(model.parameters(), lr=0.5)
    schedule = optim.ExponentialLR(opt, 0.5)
    scaler = optim.GradScaler(init_scale=2.0, device="reference")
    x = nm.ones((1, 2), device="reference")
    for _ in range(3):
        opt.zero_grad()
        scaler.scale(model(x).sum()).backward()
        scaler.step(opt)
        scaler.update()
        schedule.step()
    assert {str(p.device) for p in model.parameters()} == {"reference"}
    state = {k: v.to("cpu") for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    assert str(model.weight.device) == "reference"
    model.weight.requires_grad = False
    model.weight.assign(nm.zeros((2, 2), device="cpu"))
    assert str(model.weight.device) == "reference"
