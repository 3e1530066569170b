"""Tensors given for numeric parameters: differentiated, refused, or of no influence.

Every number among the arguments of the op table's cases, every default that is a float, and the
numbers of `nn.functional` become 0-d tensors that require gradients, one at a time. The gradient
must be the one that finite differences in the number give; an error must name the parameter.
"""

import inspect
import re

import numpy as np
import pytest
from ops import ROWS

import numus as nm
import numus.nn.functional as F
from numus.errors import DTypeError, GradientError

STEP = 1e-5
REFUSALS = (TypeError, GradientError, DTypeError)


@pytest.fixture(autouse=True)
def reference_device():
    before = nm.default_device()
    nm.set_default_device(nm.device("reference"))
    yield
    nm.set_default_device(before)


def total(results):
    """A smooth scalar of all float results, with every element of another weight."""
    out = nm.asarray(np.float64(0))
    for r in results if isinstance(results, (tuple, list)) else [results]:
        if isinstance(r, (tuple, list)):
            out = out + total(r)
        elif isinstance(r, nm.Tensor) and r.dtype.is_inexact:
            flat = nm.real(r).reshape((-1,)).astype(nm.float64)
            finite = nm.where(nm.isfinite(flat), flat, 0.0)
            out = out + nm.sum(finite * nm.cos(nm.arange(flat.size, dtype=nm.float64)))
    return out


def problem(call, value, name):
    """What is wrong with a tensor as the number `value` of a call, or nothing."""
    with np.errstate(all="ignore"):
        try:
            ends = [total(call(value + s * STEP)).item() for s in (1, -1)]
        except Exception:
            return None
    slope = (ends[0] - ends[1]) / (2 * STEP)
    x = nm.asarray(np.float64(value), requires_grad=True)
    try:
        y = total(call(x))
    except REFUSALS as error:
        names = "start|stop" if name == "start" else name  # arange(stop)
        named = re.search(rf"\b({names})\b", str(error))
        return None if named else f"{name}: {error!r} does not name it"
    if y.requires_grad:
        y.backward()
    found = 0.0 if x.grad is None else x.grad.item()
    if abs(found - slope) <= 1e-4 * max(1, abs(slope)):
        return None
    return f"{name}={value}: gradient {found}, finite differences {slope}"


# Draws by rejection have implicit gradients (Figurnov et al. 2018): a draw moves as its quantile
# does, not as the same random bits do; tests/random/ compares them with derivatives of quantiles.
IMPLICIT = "beta chisquare f gamma noncentral_chisquare noncentral_f standard_t".split()
# zeta by its exponent: not known, and NaN says so (docs/special.md).
EXEMPT = {*(f"random.{name}" for name in IMPLICIT), "special.zeta"}

# -- the op table ---------------------------------------------------------------------------------


def named_arguments(row, case):
    """(name, value, call) for each number of a case, and for each default that is a float."""
    function = nm
    for part in row.name.removeprefix("Tensor.").split("."):
        function = getattr(nm.Tensor if row.name.startswith("Tensor.") else function, part)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for i, a in enumerate(case.args):
        if type(a) in (int, float):
            name = parameters[i].name if row.call is None and i < len(parameters) else ""
            yield name, a, lambda v, i=i: row(*case.args[:i], v, *case.args[i + 1 :], **case.kwargs)
    if row.call is not None:
        return
    defaults = {p.name: p.default for p in parameters[len(case.args) :]}
    for name, a in {**defaults, **case.kwargs}.items():
        if type(a) is float or (type(a) is int and name in case.kwargs):
            yield name, a, lambda v, name=name: row(*case.args, **{**case.kwargs, name: v})


CHECKED = [r for r in ROWS if "float64" in r.dtypes and r.name not in EXEMPT]


@pytest.mark.parametrize("row", CHECKED, ids=lambda r: r.name)
def test_op_table(row):
    wrong = []
    for i, case in enumerate(row.cases):
        drawn = case.drawn(nm.float64, row.seed(i))
        made = drawn.map(lambda a: nm.asarray(a) if isinstance(a, np.ndarray) else a)
        found = [problem(call, a, name) for name, a, call in named_arguments(row, made)]
        wrong += [f"({case}) {p}" for p in found if p]
    assert not wrong, "\n".join(wrong)


# -- nn.functional --------------------------------------------------------------------------------


def drawn(*shape):
    return nm.asarray(np.random.default_rng(len(shape)).standard_normal(shape))


SCORES, CLASSES = drawn(4, 3), nm.asarray([0, 2, 1, 1])
PROBABILITIES, SIGNS = nm.sigmoid(drawn(4, 3)), nm.sign(drawn(4))
KEY = nm.random.key(0)
CALLS = {
    "alpha_dropout": ((SCORES,), {"p": 0.4}),
    "celu": ((SCORES,), {"alpha": 1.0}),
    "contrastive_loss": ((drawn(4, 3), drawn(4, 3) + 1, nm.asarray([0, 1, 0, 1])), {"margin": 3.0}),
    "cosine_embedding_loss": ((SCORES, SCORES + 1, SIGNS), {"margin": 0.1}),
    "cosine_similarity": ((SCORES * 0.1, SCORES), {"eps": 0.7}),
    "cross_entropy": ((SCORES, CLASSES), {"label_smoothing": 0.1}),
    "dropout": ((SCORES,), {"p": 0.4, "key": KEY}),
    "dropout1d": ((drawn(2, 3, 4),), {"p": 0.4, "key": KEY}),
    "elu": ((SCORES,), {"alpha": 1.0}),
    "embedding": ((CLASSES, SCORES), {"max_norm": 0.5, "norm_type": 2.0}),
    "embedding_bag": ((CLASSES[None], SCORES), {"max_norm": 0.5, "norm_type": 2.0}),
    "focal_loss": ((SCORES, CLASSES), {"gamma": 2.0}),
    "gaussian_nll_loss": ((SCORES, SCORES + 1, SCORES * 0 + 0.1), {"eps": 0.3}),
    "gumbel_softmax": ((SCORES,), {"tau": 1.0, "key": KEY}),
    "hardshrink": ((SCORES,), {"lambd": 0.5}),
    "hardtanh": ((SCORES,), {"min_val": -0.5, "max_val": 0.5}),
    "hinge_embedding_loss": ((drawn(4), SIGNS), {"margin": 1.0}),
    "huber_loss": ((SCORES, SCORES + 2), {"delta": 1.0}),
    "layer_norm": ((SCORES, (3,)), {"eps": 0.1}),
    "leaky_relu": ((SCORES,), {"negative_slope": 0.1}),
    "local_response_norm": ((drawn(2, 4, 3), 3), {"alpha": 0.1, "beta": 0.75, "k": 1.0}),
    "margin_ranking_loss": ((drawn(4), drawn(4) + 1, SIGNS), {"margin": 0.3}),
    "multi_margin_loss": ((SCORES, CLASSES), {"margin": 1.0}),
    "normalize": ((SCORES,), {"p": 2.0, "eps": 9.0}),
    "pad": ((SCORES, (1, 1)), {"value": 0.5}),
    "pairwise_distance": ((SCORES, SCORES + 1), {"p": 2.0, "eps": 0.1}),
    "pdist": ((SCORES,), {"p": 2.0}),
    "poisson_nll_loss": ((PROBABILITIES, SCORES), {"eps": 0.1, "log_input": False}),
    "rms_norm": ((SCORES, (3,)), {"eps": 0.1}),
    "rotary_embedding": ((drawn(2, 4),), {"base": 100.0}),
    "rrelu": ((SCORES,), {"lower": 0.1, "upper": 0.3}),
    "sigmoid_focal_loss": ((SCORES, PROBABILITIES), {"alpha": 0.25, "gamma": 2.0}),
    "smooth_l1_loss": ((SCORES, SCORES + 0.1), {"beta": 1.0}),
    "softplus": ((SCORES,), {"beta": 1.0, "threshold": 20.0}),
    "softshrink": ((SCORES,), {"lambd": 0.5}),
    "threshold": ((SCORES,), {"threshold": 0.2, "value": 5.0}),
    "triplet_margin_loss": (
        (SCORES, SCORES + 1, SCORES - 2),
        {"margin": 4.0, "p": 2.0, "eps": 0.1},
    ),
    "triplet_margin_with_distance_loss": ((SCORES, SCORES + 1, SCORES - 2), {"margin": 4.0}),
}


@pytest.mark.parametrize("name", CALLS)
def test_functional(name):
    args, kwargs = CALLS[name]
    args = [nm.asarray(a.numpy()) if isinstance(a, nm.Tensor) else a for a in args]
    function = getattr(F, name)
    key = {} if "key" not in kwargs else {"key": nm.asarray(KEY.numpy())}
    found = [
        problem(lambda v, k=k: function(*args, **{**kwargs, **key, k: v}), value, k)
        for k, value in kwargs.items()
        if type(value) is float
    ]
    assert not any(found), found


def test_numbers_in_place_of_nan():
    """Not in the op table's derivatives, which draw finite numbers."""
    x = nm.asarray(np.array([np.nan, np.inf, -np.inf, 1.0]))
    for name in ("nan", "posinf", "neginf"):
        number = nm.asarray(np.float64(2), requires_grad=True)
        nm.sum(nm.nan_to_num(x, **{name: number})).backward()
        assert number.grad.item() == 1


def test_numbers_inside_tuples():
    x, two = nm.asarray([0.5, 1.5]), nm.asarray(2.0, requires_grad=True)
    with pytest.raises(GradientError, match="histogram: range"):
        nm.histogram(x, 3, range=(0.0, two))
    with pytest.raises(GradientError, match="interpolate: scale_factor"):
        nm.interpolate(x[None, None], scale_factor=(two,))
    assert nm.histogram(x, 2, range=(0.0, two.detach()))[1].tolist() == [0.0, 1.0, 2.0]


def test_margins_of_several_values():
    values = nm.asarray(np.array([[1.0, 2.0]]), requires_grad=True)
    padded = nm.pad(nm.asarray(np.zeros(3)), (2, 1), constant_values=values[0])
    nm.sum(padded * nm.arange(6, dtype=nm.float64)).backward()
    assert values.grad.tolist() == [[1.0, 5.0]]
    first = nm.asarray(np.float64(3), requires_grad=True)
    nm.sum(nm.pad(nm.asarray(np.zeros(2)), (1, 1), constant_values=(first, 1.0))).backward()
    assert first.grad.item() == 1


def test_every_number_of_the_functional_namespace():
    """Functions with a float among their defaults are in this table or in the op table."""
    alike = {"cross_entropy_loss", "dropout2d", "dropout3d", "feature_alpha_dropout"}
    own = {*alike, *(r.name.split(".")[-1] for r in ROWS)}
    for name in dir(F):
        function = getattr(F, name)
        if name.startswith("_") or not inspect.isfunction(function) or name in own:
            continue
        defaults = [p.default for p in inspect.signature(function).parameters.values()]
        assert name in CALLS or not any(type(d) is float for d in defaults), name
