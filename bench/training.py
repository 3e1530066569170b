"""Training steps: loss, gradients and AdamW, in idiomatic code for each library.

The models are written once as functions, for numus and JAX (the namespace is an argument), and once
as layers, for PyTorch and `numus.nn`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus import nn, optim

from .gpt import HEADS, LAYERS, LENGTH, WIDTH, WORDS, gpt_module
from .libraries import jax, jnp, torch

RATE, BETA1, BETA2, EPSILON, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01
Step = Callable[[], Any]


@dataclass(frozen=True)
class Model:
    name: str
    parameters: Callable[[np.random.Generator], Any]  # nested containers of arrays
    apply: Callable[[Any, Any, Any], Any]  # (namespace, parameters, x) -> logits
    module: Callable[[Any], Any]  # the same as a module, of torch.nn or numus.nn
    inputs: Callable[[np.random.Generator], Any]
    targets: Callable[[np.random.Generator], Any]


# -- layers ---------------------------------------------------------------------------------------


def _weights(rng: np.random.Generator, *shape: int, fan_in: int) -> Any:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(fan_in**-0.5)


def _linear_weights(rng: np.random.Generator, n: int, m: int) -> Any:
    return {"w": _weights(rng, n, m, fan_in=n), "b": np.zeros(m, np.float32)}


def _linear(p: Any, x: Any) -> Any:
    return x @ p["w"] + p["b"]


def _norm_weights(n: int) -> Any:
    return {"w": np.ones(n, np.float32), "b": np.zeros(n, np.float32)}


def _layer_norm(xp: Any, p: Any, x: Any) -> Any:
    if xp is nm:
        return nm.layer_norm(x, p["w"], p["b"])
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def _relu(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0)


def _gelu(xp: Any, x: Any) -> Any:
    return nm.gelu(x) if xp is nm else jax.nn.gelu(x, approximate=False)


def _softmax(xp: Any, x: Any) -> Any:
    return nm.softmax(x, axis=-1) if xp is nm else jax.nn.softmax(x, -1)


def _cross_entropy(xp: Any, logits: Any, targets: Any) -> Any:
    flat = xp.reshape(logits, (-1, logits.shape[-1]))
    log = nm.log_softmax(flat, axis=-1) if xp is nm else jax.nn.log_softmax(flat, -1)
    return -xp.take_along_axis(log, xp.reshape(targets, (-1, 1)), axis=1).mean()


# -- models ---------------------------------------------------------------------------------------


def _mlp_weights(rng: np.random.Generator) -> Any:
    sizes = (784, 512, 512, 10)
    return [_linear_weights(rng, n, m) for n, m in itertools.pairwise(sizes)]


def _mlp(xp: Any, p: Any, x: Any) -> Any:
    for layer in p[:-1]:
        x = _relu(xp, _linear(layer, x))
    return _linear(p[-1], x)


def mlp_module(t: Any) -> Any:
    return t.Sequential(
        *(t.Linear(784, 512), t.ReLU(), t.Linear(512, 512), t.ReLU(), t.Linear(512, 10))
    )


def _gpt_weights(rng: np.random.Generator) -> Any:
    def block() -> Any:
        return {
            "norm1": _norm_weights(WIDTH),
            "norm2": _norm_weights(WIDTH),
            "qkv": _linear_weights(rng, WIDTH, 3 * WIDTH),
            "out": _linear_weights(rng, WIDTH, WIDTH),
            "up": _linear_weights(rng, WIDTH, 4 * WIDTH),
            "down": _linear_weights(rng, 4 * WIDTH, WIDTH),
        }

    return {
        "words": rng.standard_normal((WORDS, WIDTH), dtype=np.float32),
        "places": rng.standard_normal((LENGTH, WIDTH), dtype=np.float32),
        "blocks": [block() for _ in range(LAYERS)],
        "norm": _norm_weights(WIDTH),
        "out": _linear_weights(rng, WIDTH, WORDS),
    }


def _gpt(xp: Any, p: Any, x: Any) -> Any:
    y = p["words"][x] + p["places"][: x.shape[1]]
    b, t, d = y.shape
    mask = xp.tril(xp.ones((t, t), dtype=bool))
    for block in p["blocks"]:
        h = _linear(block["qkv"], _layer_norm(xp, block["norm1"], y))
        q, k, v = xp.permute_dims(xp.reshape(h, (b, t, 3, HEADS, d // HEADS)), (2, 0, 3, 1, 4))
        scores = q @ xp.swapaxes(k, -1, -2) * (d // HEADS) ** -0.5
        a = _softmax(xp, xp.where(mask, scores, -1e30)) @ v
        y = y + _linear(block["out"], xp.reshape(xp.swapaxes(a, 1, 2), (b, t, d)))
        h = _gelu(xp, _linear(block["up"], _layer_norm(xp, block["norm2"], y)))
        y = y + _linear(block["down"], h)
    return _linear(p["out"], _layer_norm(xp, p["norm"], y))


CHANNELS, STRIDES = (3, 32, 64, 128), (1, 2, 2)


def _cnn_weights(rng: np.random.Generator) -> Any:
    layers = [
        {
            "w": _weights(rng, m, n, 3, 3, fan_in=9 * n),
            "b": np.zeros(m, np.float32),
            "norm": _norm_weights(m),
        }
        for n, m in itertools.pairwise(CHANNELS)
    ]
    return {"layers": layers, "out": _linear_weights(rng, CHANNELS[-1], 10)}


def _cnn(xp: Any, p: Any, x: Any) -> Any:
    for layer, stride in zip(p["layers"], STRIDES, strict=True):
        if xp is nm:
            x = nm.conv2d(x, layer["w"], layer["b"], stride=stride, padding=1)
        else:
            around = ((1, 1), (1, 1))
            x = jax.lax.conv_general_dilated(x, layer["w"], (stride, stride), around)
            x = x + layer["b"][:, None, None]
        mean = x.mean((0, 2, 3), keepdims=True)
        scale = 1 / xp.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
        w, b = (layer["norm"][k][:, None, None] for k in "wb")
        x = _relu(xp, (x - mean) * scale * w + b)
    return _linear(p["out"], x.mean((2, 3)))


def _cnn_module(t: Any) -> Any:
    layers = []
    for n, m, stride in zip(CHANNELS, CHANNELS[1:], STRIDES, strict=False):
        layers += [t.Conv2d(n, m, 3, stride, 1), t.BatchNorm2d(m), t.ReLU()]
    return t.Sequential(*layers, t.AdaptiveAvgPool2d(1), t.Flatten(), t.Linear(CHANNELS[-1], 10))


MODELS = [
    Model(
        "train_mlp_128x784",
        *(_mlp_weights, _mlp, mlp_module),
        inputs=lambda rng: rng.standard_normal((128, 784), dtype=np.float32),
        targets=lambda rng: rng.integers(0, 10, 128),
    ),
    Model(
        "train_gpt_4L128d_8x64",
        *(_gpt_weights, _gpt, gpt_module),
        inputs=lambda rng: rng.integers(0, WORDS, (8, LENGTH)),
        targets=lambda rng: rng.integers(0, WORDS, (8, LENGTH)),
    ),
    Model(
        "train_cnn_32x3x32x32",
        *(_cnn_weights, _cnn, _cnn_module),
        inputs=lambda rng: rng.standard_normal((32, 3, 32, 32), dtype=np.float32),
        targets=lambda rng: rng.integers(0, 10, 32),
    ),
]


# -- steps ----------------------------------------------------------------------------------------


def numus_step(model: Model) -> Step:
    rng = np.random.default_rng(0)
    weights = nm.tree.map(lambda w: nm.asarray(w, requires_grad=True), model.parameters(rng))
    flat = nm.tree.leaves(weights)
    first, second = ([nm.zeros_like(p).detach() for p in flat] for _ in range(2))
    x, y = nm.asarray(model.inputs(rng)), nm.asarray(model.targets(rng))
    nm.eval(flat, first, second)

    @nm.jit
    def step(x: Any, y: Any, t: int) -> Any:
        loss = _cross_entropy(nm, model.apply(nm, weights, x), y)
        loss.backward()
        c1, c2 = 1 - BETA1**t, 1 - BETA2**t
        with nm.no_grad():
            for p, m, v in zip(flat, first, second, strict=True):
                m.assign(BETA1 * m + (1 - BETA1) * p.grad)
                v.assign(BETA2 * v + (1 - BETA2) * p.grad * p.grad)
                p.assign(p - RATE * (m / c1 / (nm.sqrt(v / c2) + EPSILON) + DECAY * p))
                p.grad = None
        return loss

    count = 0

    def go() -> Any:
        nonlocal count
        count += 1
        return step(x, y, count)

    return go


def trainer_step(model: Model) -> Step:
    """The step as users write it, with modules, an optimiser and a trainer."""
    rng = np.random.default_rng(0)
    nm.random.seed(0)
    module = model.module(nn)
    model.parameters(rng)
    x, y = nm.asarray(model.inputs(rng)), nm.asarray(model.targets(rng))
    trainer = optim.Trainer(optim.AdamW(module.parameters(), RATE))

    def loss() -> Any:
        logits = module(x)
        return nn.cross_entropy(logits.reshape((-1, logits.shape[-1])), y.reshape((-1,)))

    return lambda: trainer.train_step(loss)


def jax_step(model: Model) -> Step:
    rng = np.random.default_rng(0)
    p = jax.tree.map(jnp.asarray, model.parameters(rng))
    x, y = jnp.asarray(model.inputs(rng)), jnp.asarray(model.targets(rng))
    zeros = jax.tree.map(jnp.zeros_like, p)

    def loss(p: Any) -> Any:
        return _cross_entropy(jnp, model.apply(jnp, p, x), y)

    @jax.jit
    def step(p: Any, m: Any, v: Any, t: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p)
        m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g)
        v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g)
        c1, c2 = 1 - BETA1**t, 1 - BETA2**t

        def update(p: Any, m: Any, v: Any) -> Any:
            return p - RATE * (m / c1 / (jnp.sqrt(v / c2) + EPSILON) + DECAY * p)

        return jax.tree.map(update, p, m, v), m, v, t + 1, value

    state = [p, zeros, zeros, jnp.float32(1)]

    def go() -> Any:
        *state[:], value = step(*state)
        return jax.block_until_ready(value)

    return go


def torch_step(model: Model, compiled: bool = False) -> Step:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    module = model.module(torch.nn)
    model.parameters(rng)
    x, y = torch.from_numpy(model.inputs(rng)), torch.from_numpy(model.targets(rng))
    optimiser = torch.optim.AdamW(module.parameters(), RATE, fused=compiled or None)

    def loss() -> Any:
        logits = module(x)
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), y.reshape(-1)
        )

    forward = torch.compile(loss) if compiled else loss

    def go() -> Any:
        optimiser.zero_grad()
        value = forward()
        value.backward()
        optimiser.step()
        return value

    return go


def steps(model: Model, *, torch_compile: bool, modules: bool) -> dict[str, Callable[[], Step]]:
    """Constructors of a training step, by installed library."""
    own = trainer_step if modules else numus_step
    found: dict[str, Callable[[], Step]] = {"numus": lambda: own(model)}
    if torch is not None:
        found["torch"] = lambda: torch_step(model)
        if torch_compile:
            found["torch.compile"] = lambda: torch_step(model, compiled=True)
    if jax is not None:
        found["jax"] = lambda: jax_step(model)
    return found


# -- optimisers -----------------------------------------------------------------------------------


def adamw_shapes() -> list[tuple[int, ...]]:
    """Two hundred parameters of the sizes that a small transformer has."""
    width = 128
    block = [(3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(4 * width, width), (4 * width,), (width, 4 * width), (width,), (width,), (width,)]
    return [*block, *block] * 10


def optimizer_steps() -> dict[str, Callable[[], Step]]:
    """One AdamW step over two hundred parameters, with given gradients."""

    def numus_optimizer() -> Step:
        rng = np.random.default_rng(0)
        params = [nn.Parameter(nm.asarray(_weights(rng, *s, fan_in=1))) for s in adamw_shapes()]
        grads = [nm.asarray(_weights(rng, *s, fan_in=1)) for s in adamw_shapes()]
        optimizer = optim.AdamW(params, RATE)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        step = nm.jit(optimizer.step)
        return lambda: step()

    def torch_optimizer() -> Step:
        rng = np.random.default_rng(0)
        shapes = adamw_shapes()
        params = [torch.nn.Parameter(torch.from_numpy(_weights(rng, *s, fan_in=1))) for s in shapes]
        for p in params:
            p.grad = torch.from_numpy(_weights(rng, *p.shape, fan_in=1))
        return torch.optim.AdamW(params, RATE).step

    found: dict[str, Callable[[], Step]] = {"numus": numus_optimizer}
    if torch is not None:
        found["torch"] = torch_optimizer
    return found
