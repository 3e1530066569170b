"""Samplers: denoising diffusion (Ho et al. 2020), its implicit form (DDIM, Song et al. 2021) and
flow matching along straight lines (Lipman et al. 2023).

Both are objects with a training loss and a sampler for any model that takes noisy data and the time
of each example; sampling evaluates the model once or twice a step, so give `nm.jit(model)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus.nn import functional as F
from numus.tensor import Tensor

__all__ = ["Diffusion", "FlowMatching"]

Model = Callable[..., Tensor]


def _keys(key: Any, count: int) -> list[Any]:
    return [None] * count if key is None else list(nm.random.split(key, count))


def _like(values: Tensor, x: Tensor) -> Tensor:
    """One number for each example, shaped to multiply with them."""
    shape = (-1, *(1,) * (x.ndim - 1))
    return values.astype(x.dtype, copy=False).reshape(shape)


class Diffusion:
    """Noise added in many small steps, and a model that takes it away.

    >>> diffusion = nm.models.Diffusion(100)
    >>> diffusion.loss(lambda x, t: x * 0, nm.ones((4, 2)), key=nm.random.key(0)).shape
    ()

    Args:
        steps: how many steps lead from data to noise.
        schedule: "linear" in the variance of steps (Ho et al. 2020) or "cosine" (Nichol and
            Dhariwal 2021).
        prediction: what the model gives: "noise", or "velocity" (Salimans and Ho 2022).
    """

    def __init__(
        self, steps: int = 1000, schedule: str = "linear", prediction: str = "noise"
    ) -> None:
        at = np.arange(steps + 1) / steps
        if schedule == "linear":
            # the bounds are those of 1000 steps
            betas = np.linspace(0.1, 20, steps) / steps
            kept = np.cumprod(1 - np.minimum(betas, 0.999))
        elif schedule == "cosine":
            curve = np.cos((at + 0.008) / 1.008 * math.pi / 2) ** 2
            kept = np.cumprod(1 - np.minimum(1 - curve[1:] / curve[:-1], 0.999))
        else:
            raise ValueError(f'Diffusion: schedule is "linear" or "cosine", not {schedule!r}')
        if prediction not in ("noise", "velocity"):
            raise ValueError(f'Diffusion: prediction is "noise" or "velocity", not {prediction!r}')
        self.steps, self.prediction = steps, prediction
        self.kept = kept.astype(np.float32)  # of the data's variance, after each step

    def _kept(self, times: Tensor, x: Tensor) -> Tensor:
        return _like(nm.asarray(self.kept, device=x.device)[times], x)

    def add_noise(self, x: Tensor, noise: Tensor, times: Any) -> Tensor:
        """Data after the given number of steps, from 0 on: a mixture with noise."""
        kept = self._kept(nm.asarray(times, device=x.device), x)
        return nm.sqrt(kept) * x + nm.sqrt(1 - kept) * noise

    def loss(self, model: Model, x: Tensor, *given: Any, key: Any = None) -> Tensor:
        """The mean squared error of what the model predicts for data with random noise.

        Args:
            given: passed on to the model, behind the data and its times.
            key: of the noise and the times.
        """
        first, second = _keys(key, 2)
        times = nm.random.integers(0, self.steps, (x.shape[0],), device=x.device, key=first)
        noise = nm.random.normal(x.shape, dtype=x.dtype, device=x.device, key=second)
        wanted = noise
        if self.prediction == "velocity":
            kept = self._kept(times, x)
            wanted = nm.sqrt(kept) * noise - nm.sqrt(1 - kept) * x
        return F.mse_loss(model(self.add_noise(x, noise, times), times, *given), wanted)

    def sample(
        self,
        model: Model,
        shape: tuple[int, ...],
        *given: Any,
        steps: int | None = None,
        eta: float | None = None,
        clip: float | None = None,
        device: Any = None,
        key: Any = None,
    ) -> Tensor:
        """Data from noise.

        Args:
            model: takes noisy data and its times, an integer for each example.
            given: passed on to the model, behind those.
            steps: how many of the steps are taken, evenly spaced; all by default.
            eta: the share of fresh noise in each step: 1 is the ancestral sampler, 0 the
                deterministic one (DDIM). 1 by default where all steps are taken, else 0.
            clip: predicted data is kept within ± this.
            key: of the noise.
        """
        count = self.steps if steps is None else steps
        if not 0 < count <= self.steps:
            raise ValueError(f"Diffusion.sample: steps={count} is not between 1 and {self.steps}")
        fresh = eta if eta is not None else float(count == self.steps)
        times = np.unique(np.linspace(0, self.steps - 1, count).round().astype(np.int64))[::-1]
        keys = _keys(key, len(times) + 1)
        with nm.no_grad():
            x = nm.random.normal(shape, device=device, key=keys[0])
            for i, at in enumerate(times):
                now = nm.full((shape[0],), int(at), dtype=nm.int64, device=x.device)
                kept = float(self.kept[at])
                before = float(self.kept[times[i + 1]]) if i + 1 < len(times) else 1.0
                data, noise = self._parted(model(x, now, *given), x, kept)
                if clip is not None:
                    data = nm.clip(data, -clip, clip)
                    noise = (x - math.sqrt(kept) * data) / math.sqrt(1 - kept)
                sigma = fresh * math.sqrt((1 - before) / (1 - kept) * (1 - kept / before))
                x = math.sqrt(before) * data + math.sqrt(max(1 - before - sigma**2, 0.0)) * noise
                if sigma > 0:
                    options = {"dtype": x.dtype, "device": x.device, "key": keys[i + 1]}
                    x = x + sigma * nm.random.normal(shape, **options)
                nm.eval(x)
        return x

    def _parted(self, predicted: Tensor, x: Tensor, kept: float) -> tuple[Tensor, Tensor]:
        """The data and the noise of which a prediction says that they are mixed in x."""
        a, b = math.sqrt(kept), math.sqrt(1 - kept)
        if self.prediction == "velocity":
            return a * x - b * predicted, b * x + a * predicted
        return (x - b * predicted) / a, predicted


class FlowMatching:
    """Straight lines from noise to data, and a model of their mean direction at each place.

    The model takes the place and a time between 0 (noise) and 1 (data) for each example.

    Args:
        sigma: the standard deviation of what is left of the noise at time 1.
        time_scale: what times are multiplied by before the model sees them; embeddings made for
            the steps of a diffusion want 1000.
    """

    def __init__(self, sigma: float = 0.0, time_scale: float = 1.0) -> None:
        self.sigma, self.time_scale = sigma, time_scale

    def loss(self, model: Model, x: Tensor, *given: Any, key: Any = None) -> Tensor:
        """The mean squared error of the model's directions at random times.

        Args:
            given: passed on to the model, behind the place and its time.
            key: of the noise and the times.
        """
        first, second = _keys(key, 2)
        times = nm.random.uniform((x.shape[0],), dtype=x.dtype, device=x.device, key=first)
        noise = nm.random.normal(x.shape, dtype=x.dtype, device=x.device, key=second)
        t = _like(times, x)
        place = t * x + (1 - (1 - self.sigma) * t) * noise
        wanted = x - (1 - self.sigma) * noise
        return F.mse_loss(model(place, times * self.time_scale, *given), wanted)

    def sample(
        self,
        model: Model,
        shape: tuple[int, ...],
        *given: Any,
        steps: int = 50,
        method: str = "heun",
        device: Any = None,
        key: Any = None,
    ) -> Tensor:
        """Data from noise, by integrating the model's directions.

        Args:
            steps: of the same length.
            method: "euler", or "heun", which evaluates the model twice a step.
        """
        if method not in ("euler", "heun"):
            raise ValueError(f'FlowMatching.sample: method is "euler" or "heun", not {method!r}')

        def direction(x: Tensor, t: float) -> Tensor:
            times = nm.full((shape[0],), t * self.time_scale, dtype=x.dtype, device=x.device)
            return model(x, times, *given)

        length = 1 / steps
        with nm.no_grad():
            x = nm.random.normal(shape, device=device, key=key)
            for i in range(steps):
                first = direction(x, i * length)
                if method == "heun":
                    second = direction(x + length * first, (i + 1) * length)
                    first = 0.5 * (first + second)
                x = x + length * first
                nm.eval(x)
        return x
