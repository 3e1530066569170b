"""Diffusion: samplers against distributions whose best model is known, U-Nets and autoencoders."""

import math

import numpy as np
import pytest

import numus as nm
from numus.errors import ShapeError

MEAN, SPREAD = 1.5, 0.4


@pytest.fixture(autouse=True)
def reference_device():
    """NumPy: nothing has to be compiled for a few small models."""
    before = nm.default_device()
    nm.set_default_device(nm.device("reference"))
    yield
    nm.set_default_device(before)


def best_model(diffusion):
    """What a perfect model predicts where the data is N(MEAN, SPREAD²)."""

    def predict(x, times):
        kept = nm.asarray(diffusion.kept)[times][:, None]
        a, b = nm.sqrt(kept), nm.sqrt(1 - kept)
        variance = kept * SPREAD**2 + 1 - kept
        noise = b * (x - a * MEAN) / variance
        data = (x - b * noise) / a
        return noise if diffusion.prediction == "noise" else a * noise - b * data

    return predict


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(
    ("options", "prediction"),
    [({}, "noise"), ({"steps": 50}, "noise"), ({"steps": 50}, "velocity")],
    ids=["ancestral", "implicit", "velocity"],
)
def test_samples_have_the_distribution_of_the_data(schedule, options, prediction):
    diffusion = nm.models.Diffusion(200, schedule, prediction)
    assert diffusion.kept[-1] < 1e-3
    model = best_model(diffusion)
    x = diffusion.sample(model, (4000, 1), **options, key=nm.random.key(1)).numpy()
    assert x.mean() == pytest.approx(MEAN, abs=0.03)
    assert x.std() == pytest.approx(SPREAD, rel=0.1)


def test_samples_are_kept_within_bounds_and_follow_the_key():
    diffusion = nm.models.Diffusion(50)
    model = best_model(diffusion)
    draw = lambda seed: diffusion.sample(
        model, (50, 1), steps=10, clip=1.0, key=nm.random.key(seed)
    ).numpy()
    assert np.abs(draw(1)).max() <= 1.0 + 1e-6
    assert (draw(1) == draw(1)).all()
    assert (draw(1) != draw(2)).any()


def loss_of(process, model, x, shift):
    """The loss of a model that is off by so much."""
    return process.loss(lambda x, t: model(x, t) + shift, x, key=nm.random.key(1)).item()


@pytest.mark.parametrize("prediction", ["noise", "velocity"])
def test_the_best_model_has_the_least_loss(prediction):
    diffusion = nm.models.Diffusion(100, prediction=prediction)
    x = nm.random.normal((4000, 1), MEAN, SPREAD, key=nm.random.key(0))
    model = best_model(diffusion)
    losses = [loss_of(diffusion, model, x, shift) for shift in (-0.1, 0.0, 0.1)]
    assert losses[1] < min(losses[0], losses[2])


def flow(x, t):
    """The mean direction of straight lines from N(0, 1) to N(MEAN, SPREAD²)."""
    t = t[:, None]
    variance = (t * SPREAD) ** 2 + (1 - t) ** 2
    return MEAN + (t * SPREAD**2 - (1 - t)) * (x - t * MEAN) / variance


@pytest.mark.parametrize(("method", "steps", "room"), [("heun", 20, 0.03), ("euler", 100, 0.06)])
def test_flow_matching(method, steps, room):
    matching = nm.models.FlowMatching()
    x = matching.sample(flow, (4000, 1), steps=steps, method=method, key=nm.random.key(3)).numpy()
    assert x.mean() == pytest.approx(MEAN, abs=0.03)
    assert x.std() == pytest.approx(SPREAD, rel=room)
    data = nm.random.normal((4000, 1), MEAN, SPREAD, key=nm.random.key(0))
    losses = [loss_of(matching, flow, data, shift) for shift in (-0.1, 0.0, 0.1)]
    assert losses[1] < min(losses[0], losses[2])


def test_times_are_scaled_for_the_model():
    seen = []
    matching = nm.models.FlowMatching(time_scale=1000.0)
    matching.sample(lambda x, t: seen.append(t.tolist()) or x * 0, (2, 1), steps=2, method="euler")
    assert seen == [[0.0, 0.0], [500.0, 500.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.Diffusion(schedule="square"), "schedule"),
        (lambda m: m.Diffusion(prediction="data"), "prediction"),
        (lambda m: m.Diffusion(10).sample(lambda x, t: x, (1,), steps=11), "between 1 and 10"),
        (lambda m: m.FlowMatching().sample(lambda x, t: x, (1,), method="rk4"), "method"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call(nm.models)


def unet(**options):
    return nm.models.UNet(2, 3, width=8, multipliers=(1, 2), blocks=1, heads=2, **options)


def test_unet_takes_times_and_classes():
    model = unet(num_classes=4, attention=(True, False))
    x = nm.random.normal((2, 2, 8, 4), key=nm.random.key(0))
    # blocks begin as their shortcuts, which no embedding reaches
    for parameter in model.parameters():
        if not parameter.numpy().any():
            nm.nn.init.normal_(parameter, std=0.1)
    y = model(x, nm.asarray([1, 50]), nm.asarray([0, 3])).numpy()
    assert y.shape == (2, 3, 8, 4)
    assert (y != model(x, nm.asarray([1, 60]), nm.asarray([0, 3])).numpy())[1].any()
    assert (y[0] == model(x, nm.asarray([1, 60]), nm.asarray([0, 3])).numpy()[0]).all()
    assert (y != model(x, nm.asarray([1, 50]), nm.asarray([0, 2])).numpy())[1].any()
    with pytest.raises(ValueError, match="takes classes"):
        model(x, nm.asarray([1, 50]))
    with pytest.raises(ValueError, match="takes no times"):
        unet(time=False)(x, nm.asarray([1, 50]))
    with pytest.raises(ShapeError, match="multiples of 2"):
        unet(time=False)(nm.zeros((1, 2, 8, 7)))


def test_unet_gradients_reach_every_parameter():
    model = unet()
    for parameter in model.parameters():
        if not parameter.numpy().any():
            nm.nn.init.normal_(parameter, std=0.1)
    x = nm.random.normal((2, 2, 4, 4), key=nm.random.key(0))
    (model(x, nm.asarray([3, 7])) ** 2).sum().backward()
    assert not [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.numpy().any()
    ]


def test_published_sizes():
    """Ho et al. (2020) report 35.7 million parameters; those of latent diffusion's are known."""
    assert nm.models.unet_ddpm().num_parameters() == 35_746_307
    assert nm.models.vae_f8().num_parameters() == 83_653_771


def test_autoencoder_learns():
    nm.random.seed(0)
    model = nm.models.VAE(1, 2, width=4, multipliers=(1, 2), blocks=1)
    x = nm.random.normal((4, 1, 1, 1), 0.0, 3.0, key=nm.random.key(0)) * nm.ones((1, 1, 4, 4))
    optimizer = nm.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for i in range(4):
        optimizer.zero_grad()
        loss = nm.models.vae_loss(model(x, key=nm.random.key(i)), x, beta=0.1)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    draw = lambda seed: model(x, key=nm.random.key(seed)).reconstruction.numpy()
    assert (draw(0) == draw(0)).all()
    assert (draw(0) != draw(1)).any()
    model.eval()
    assert (draw(0) == draw(1)).all()


def test_divergence_of_autoencoders():
    zeros = nm.zeros((2, 1, 2, 2))
    output = nm.models.VAEOutput(zeros, zeros + 0.5, zeros + math.log(2.0))
    by_element = 0.5 * (0.25 + 2 - 1 - math.log(2.0))
    assert nm.models.vae_loss(output, zeros).item() == pytest.approx(4 * by_element, rel=1e-5)
    assert nm.models.vae_loss(output, zeros + 1, beta=0.0).item() == pytest.approx(4.0)
