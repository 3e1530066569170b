"""GPTQ, AWQ and scale search against plain NumPy transcriptions, and on a model."""

import copy

import numpy as np
import pytest

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.quant import Integers
from tests.quant import small_gpt


def layer(rows=12, columns=192, samples=512, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((rows, columns)).astype(np.float32)
    mixing = rng.standard_normal((columns, columns)) / np.sqrt(columns)
    x = rng.standard_normal((samples, columns)) @ mixing * np.exp(rng.standard_normal(columns))
    return w, x.T @ x, np.abs(x).mean(0), x


def plain_grid(w, bits, symmetric):
    """Scale and zero point of rows, as the formats store them."""
    top = 2**bits - 1
    if symmetric:
        scale = np.abs(w).max(1) / (top // 2)
        scale = scale.astype(np.float16).astype(np.float64)
        return scale, np.full(len(w), 2.0 ** (bits - 1))
    low, high = np.minimum(w.min(1), 0), np.maximum(w.max(1), 0)
    scale = ((high - low) / top).astype(np.float16).astype(np.float64)
    return scale, np.clip(np.rint(-low / scale), 0, top)


def plain_round(w, scale, zero, bits):
    return (np.clip(np.rint(w / scale) + zero, 0, 2**bits - 1) - zero) * scale


def plain_gptq(w, h, bits, group, symmetric, act_order):
    """Algorithm 1 of the paper without its blocks: every update reaches all later columns."""
    w, columns = w.astype(np.float64).copy(), w.shape[1]
    h = h + 0.01 * np.mean(np.diag(h)) * np.eye(columns)
    order = np.argsort(-np.diag(h), kind="stable") if act_order else np.arange(columns)
    fixed = [plain_grid(w[:, g : g + group], bits, symmetric) for g in range(0, columns, group)]
    w, h = w[:, order], h[order][:, order]
    u = np.linalg.cholesky(np.linalg.inv(h)).T
    out = np.zeros_like(w)
    for j in range(columns):
        if act_order:
            scale, zero = fixed[order[j] // group]
        elif j % group == 0:
            scale, zero = plain_grid(w[:, j : j + group], bits, symmetric)
        out[:, j] = plain_round(w[:, j], scale, zero, bits)
        error = (w[:, j] - out[:, j]) / u[j, j]
        w[:, j:] -= np.outer(error, u[j, j:])
    back = np.zeros_like(out)
    back[:, order] = out
    return back


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("format", [Integers(4, 64), Integers(3, 96, symmetric=False)])
def test_gptq_is_the_papers_algorithm(format, act_order):
    w, h, _, x = layer()
    q = nm.quant.gptq(w, h, format, act_order)
    wanted = plain_gptq(w, h, format.bits, format.group, format.symmetric, act_order)
    np.testing.assert_allclose(q.numpy(), wanted, atol=1e-4)
    plain = nm.quant.quantize(w, format).numpy()
    assert np.linalg.norm((q.numpy() - w) @ x.T) < 0.8 * np.linalg.norm((plain - w) @ x.T)


def plain_spqr(w, h, bits, group, symmetric, threshold):
    """Algorithm 1 of SpQR: each weight of a group is left out in turn, to see what that saves."""
    w, columns = w.astype(np.float64).copy(), w.shape[1]
    h = h + 0.01 * np.mean(np.diag(h)) * np.eye(columns)
    u = np.linalg.cholesky(np.linalg.inv(h)).T
    d = np.diag(u)

    def squares(part, d):
        scale, zero = plain_grid(part, bits, symmetric)
        return ((plain_round(part, scale[:, None], zero[:, None], bits) - part) / d) ** 2

    out, bound = np.zeros_like(w), threshold * np.mean(w.var(0) / d**2)
    for j in range(columns):
        if j % group == 0:
            own = slice(j, j + group)
            part, base = w[:, own], squares(w[:, own], d[own]).sum(1)
            single = np.zeros(part.shape, bool)
            for i in range(part.shape[1]):
                rest = np.delete(part, i, 1)
                single[:, i] = base - squares(rest, np.delete(d[own], i)).sum(1) > bound
            scale, zero = plain_grid(np.where(single, 0, part), bits, symmetric)
        kept = single[:, j - own.start]
        out[:, j] = plain_round(w[:, j], scale, zero, bits)
        out[kept, j] = w[kept, j].astype(np.float16)
        w[:, j:] -= np.outer((w[:, j] - out[:, j]) / u[j, j], u[j, j:])
    return out


@pytest.mark.parametrize("format", [Integers(3, 32), Integers(2, 96, symmetric=False)])
def test_spqr_is_the_papers_algorithm(format):
    w, h, _, x = layer(columns=176)
    w[3, 40] = 20.0  # stands alone, whatever the threshold
    q, outliers = nm.quant.spqr(w, h, format)
    found = q.numpy() + outliers.dense(w.shape).numpy()
    wanted = plain_spqr(
        w, h, format.bits, format.group, format.symmetric, 0.2 * 4 ** (4 - format.bits)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert (3, 40) in zip(outliers.rows.tolist(), outliers.columns.tolist(), strict=True)
    assert 0 < outliers.values.size < 0.1 * w.size
    less = nm.quant.gptq(w, h, format).numpy()
    assert np.linalg.norm((found - w) @ x.T) < 0.9 * np.linalg.norm((less - w) @ x.T)


def plain_awq(w, x, bits, group):
    """The search of the paper: outputs are computed, for each power of the mean magnitudes."""
    mean, best = np.abs(x).mean(0), (np.inf, None, None)
    for i in range(20):
        s = np.maximum(mean, 1e-4) ** (i / 20)
        s /= np.sqrt(s.max() * s.min())
        rounded = np.zeros(w.shape)
        for g in range(0, w.shape[1], group):
            part = w[:, g : g + group].astype(np.float64) * s[g : g + group]
            scale, zero = plain_grid(part, bits, True)
            rounded[:, g : g + group] = plain_round(part, scale[:, None], zero[:, None], bits)
        loss = ((x @ (rounded / s - w).T) ** 2).sum()
        best = min(best, (loss, i, rounded / s), key=lambda t: t[0])
    return best[2]


def test_awq_is_the_papers_search():
    w, h, mean, x = layer()
    q, inverse = nm.quant.awq(w, h, mean, Integers(4, 64), clip=False)
    found = q.numpy() * inverse.numpy()
    np.testing.assert_allclose(found, plain_awq(w, x, 4, 64), atol=1e-4)
    clipped, inverse = nm.quant.awq(w, h, mean, Integers(4, 64))
    better = clipped.numpy() * inverse.numpy()
    assert np.linalg.norm((better - w) @ x.T) <= np.linalg.norm((found - w) @ x.T) * 1.001


def test_scale_searches_improve_in_what_they_minimise():
    w, h, _, _ = layer()
    w[0, 0] = 12.0  # an outlier
    format = Integers(4, 64)
    error = {
        m: nm.quant.search_scales(w, format, m, h).numpy() - w
        for m in ("absmax", "percentile", "mse", "hessian")
    }
    plain = nm.quant.quantize(w, format).numpy() - w
    np.testing.assert_allclose(error["absmax"], plain, atol=1e-6)
    assert (error["mse"] ** 2).sum() < 0.95 * (plain**2).sum()
    weighted = {m: (e**2 * np.diag(h)).sum() for m, e in error.items()}
    assert weighted["hessian"] < weighted["mse"]
    fitted = nm.quant.hqq(w, Integers(4, 64, symmetric=False)).numpy() - w
    affine = nm.quant.quantize(w, "uint4-g64").numpy() - w
    assert (np.abs(fitted) ** 0.7).sum() <= (np.abs(affine) ** 0.7).sum()


def test_outliers_and_smoothing():
    assert nm.quant.outlier_columns([1.0, 7.0, 6.0, 9.0]).tolist() == [1, 3]
    s = nm.quant.smooth_scale([4.0, 1.0], [[1.0, 4.0], [-1.0, 2.0]])
    np.testing.assert_allclose(s, [2.0, 0.5])


def test_bad_input_says_so():
    w, h, mean, _ = layer(4, 64)
    format = Integers(4, 32)
    with pytest.raises(ValueError, match="1 of 256 weights are NaN"):
        nm.quant.gptq(np.where(np.arange(256).reshape(4, 64) == 3, np.nan, w), h, format)
    with pytest.raises(ShapeError, match="Hessian of shape"):
        nm.quant.gptq(w, h[:5, :5], format)
    with pytest.raises(ValueError, match="spqr: threshold=nan"):
        nm.quant.spqr(w, h, format, float("nan"))
    with pytest.raises(ShapeError, match="magnitudes"):
        nm.quant.awq(w, h, mean[:5], format)
    with pytest.raises(ValueError, match="uint4-g32"):
        nm.quant.hqq(w, format)
    with pytest.raises(ValueError, match="one of absmax"):
        nm.quant.search_scales(w, format, "best")
    with pytest.raises(ValueError, match="multiple of 32"):
        Integers(4, 48)
    zeros = nm.quant.gptq(np.zeros((4, 64), np.float32), np.zeros((64, 64)), format)
    assert not zeros.numpy().any()


@pytest.mark.slow
def test_a_small_model_keeps_its_outputs():
    tokens = small_gpt.text_tokens(20_000)
    nm.random.seed(0)
    model = small_gpt.GPT(int(tokens.max()) + 1, width=32, layers=1, heads=2)
    model.eval()
    data = [x for x, _ in small_gpt.batches(tokens, 2, 16, seed=5)]
    other = next(x for x, _ in small_gpt.batches(tokens, 1, 16, seed=6))
    wanted = model(other).numpy()
    error = {}
    for scheme in ("int8", "int3-g32", "int3-g32-gptq"):
        rounded = copy.deepcopy(model)
        nm.quant.quantize_(rounded, scheme, data=data, at_once=8)
        error[scheme] = np.linalg.norm(rounded(other).numpy() - wanted) / np.linalg.norm(wanted)
    assert error["int8"] < 0.02
    assert error["int3-g32-gptq"] < error["int3-g32"]


@pytest.mark.slow
def test_a_gpt_keeps_its_loss():
    tokens = small_gpt.text_tokens()
    nm.random.seed(0)
    model = small_gpt.GPT(int(tokens.max()) + 1)
    assert model.num_parameters() >= 1_000_000
    small_gpt.train(model, tokens, 200, lr=2e-3, size=8)
    full = small_gpt.evaluate(model, tokens, 4)
    data = [x for x, _ in small_gpt.batches(tokens, 4, 16, seed=5)]
    lost = {}
    for scheme in ("int8", "int4", "int4-gptq", "int4-awq"):
        other = copy.deepcopy(model)
        nm.quant.quantize_(other, scheme, data=data, at_once=100)
        lost[scheme] = small_gpt.evaluate(other, tokens, 4) / full - 1
    nn.prepare_qat_(model, "int4-g128")
    small_gpt.train(model, tokens, 40, lr=1e-4, seed=3, size=8)
    nn.convert_(model)
    lost["qat"] = small_gpt.evaluate(model, tokens, 4) / full - 1
    assert lost["int8"] <= 1e-3
    assert lost["int4-gptq"] <= lost["int4"] / 2  # measured: 0.03 of it
    assert lost["int4-awq"] <= 0.5 * lost["int4"]
    assert lost["qat"] <= 1e-2
