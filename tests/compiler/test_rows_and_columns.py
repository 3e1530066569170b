"""Sums of columns beside reductions of rows on an emulated GPU: one kernel for both."""

import dataclasses

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.nn import functional as F
from numus.runtime import devices

ROWS = 72


@pytest.fixture
def machine():
    """A GPU with few multiprocessors, of which each has many rows."""
    target = dataclasses.replace(simt_machine.HOPPER, num_cores=3)
    devices.BACKENDS["rows_and_columns"] = lambda index: simt_machine.Machine(target)
    return nm.device("rows_and_columns").runtime


def parameter_gradients(x, weight, bias, cotangent):
    """Those of a layer norm, and the bias of what comes before it."""

    def loss(x, weight, bias, before):
        y = F.layer_norm(x + before, weight.shape, weight, bias)
        return (y * cotangent).sum()

    before = nm.zeros(weight.shape, device=x.device)
    return nm.jit(nm.grad(loss, (0, 1, 2, 3)))(x, weight, bias, before)


def rms_gradients(x, weight, bias, cotangent):
    def loss(x, weight):
        return (x * nm.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight * cotangent).sum()

    return nm.jit(nm.grad(loss, (0, 1)))(x, weight)


@pytest.mark.parametrize("columns", [256, 300, 768, 1001])
@pytest.mark.parametrize("program", [parameter_gradients, rms_gradients])
def test_gradients(program, columns, machine):
    rng = np.random.default_rng(columns)
    given = [
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((ROWS, columns), (columns,), (columns,), (ROWS, columns))
    ]
    machine.launched.clear()
    got = program(*(nm.asarray(x, device="rows_and_columns") for x in given))
    got = [x.numpy() for x in got]
    names = [p.name for p in machine.launched]
    assert names.count("register_rows_and_columns") == 1
    assert "split_reduction" not in names
    for a, b in zip(got, program(*map(nm.asarray, given)), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-4)


def test_rows_that_registers_cannot_hold_with_the_sums(machine, monkeypatch):
    """Two kernels instead, of which each has its own reductions."""
    from numus.compiler.lower.loops import reduce_rows_registers

    tuning = dataclasses.replace(reduce_rows_registers.TUNING, column_sums_max_words=0)
    monkeypatch.setattr(reduce_rows_registers, "TUNING", tuning)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((ROWS, 511), (511,), (511,))]
    given.append(rng.standard_normal((ROWS, 511)).astype(np.float32))
    machine.launched.clear()
    got = parameter_gradients(*(nm.asarray(x, device="rows_and_columns") for x in given))
    got = [x.numpy() for x in got]
    assert "register_rows_and_columns" not in {p.name for p in machine.launched}
    for a, b in zip(got, parameter_gradients(*map(nm.asarray, given)), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-4)


def test_parameters_that_a_step_updates(machine):
    """The numbers of the optimiser are known before; parameters change after the sums."""

    def trained(device):
        rng = np.random.default_rng(1)
        layer = nm.nn.LayerNorm(384).to(device)
        for p in layer.parameters():
            p.assign(nm.asarray(rng.standard_normal(p.shape).astype(np.float32), device=device))
        bias = nm.zeros((384,), device=device).requires_grad_()
        optimizer = nm.optim.AdamW([*layer.parameters(), bias], lr=0.01)
        x = nm.asarray(rng.standard_normal((ROWS, 384)).astype(np.float32), device=device)

        @nm.jit
        def step():
            optimizer.zero_grad()
            loss = (layer(x + bias) ** 2 * x).mean()
            loss.backward()
            optimizer.step()
            return loss

        losses = [step().item() for _ in range(3)]
        return losses, [p.numpy() for p in (*layer.parameters(), bias)]

    machine.launched.clear()
    losses, parameters = trained("rows_and_columns")
    names = [p.name for p in machine.launched]
    assert names.count("register_rows_and_columns") == 3
    wanted, expected = trained("cpu")
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    for a, b in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
