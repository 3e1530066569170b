"""Every rule of every primitive: derivatives both ways, twice, and batching."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from rule_cases import CASES

from numus.evaluation.evaluate import host_array
from numus.graph import grad_mode
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import reduce_sum
from numus.primitives.source import placeholder
from numus.runtime.devices import default, device
from numus.tensor import node_of
from numus.transforms.forward import push_forward
from numus.transforms.reverse import pull_back
from numus.transforms.tape import tape, variable
from numus.transforms.vmap import batch

SMOOTH = [c for c in CASES if not c.flat and c.orders]
by_id = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
smooth = pytest.mark.parametrize("case", SMOOTH, ids=lambda c: c.id)

# no inputs, or tested where they are used: transfer between devices, custom, calls and their parts
# by their transforms
NO_CASES = {"constant", "iota", "value", "placeholder", "transfer", "custom", "call"}
NO_CASES |= {"get_tuple_element", "table"}
# differentiated as a whole (`implicit`), and in the op table by the functions that they are for
NO_CASES |= {"lower_cholesky", "cholesky_and_inverse", "small_determinant", "direct_inverse"}
NO_CASES |= {"solve_triangular", "solve_vectors", "substitute_vectors", "row_order"}
NO_CASES |= {"direct_qr", "direct_solve", "lower_inverse", "svd"}
NO_CASES |= {"cholesky", "householder", "implicit", "lu", "orthogonalize", "solve_lower", "fft"}
NO_CASES |= {"fft2", "rfft", "irfft"}
NO_CASES |= {"eigh", "lapack"}  # a library's, in tests/kernels/test_lapack.py
NO_CASES |= {"hessenberg", "schur", "qz"}  # in tests/linalg/test_nonsymmetric.py and the op table
NO_CASES |= {"triangular_root", "triangular_sylvester", "triangular_vectors", "quasi_vectors"}


def test_every_primitive_has_cases():
    """But those of special functions, which the op table differentiates, and of custom ones: a
    process of its own has only what is imported here."""
    code = "import numus.fft, numus.linalg; from numus.graph import PRIMITIVES; print(*PRIMITIVES)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {c.prim for c in CASES} == set(run.stdout.split()) - NO_CASES


@pytest.fixture(autouse=True)
def _on_the_reference(monkeypatch):
    """Rules are about graphs: the oracle judges them, not what a backend makes of them."""
    monkeypatch.setattr(default, "device", device("reference"))


# -- helpers --------------------------------------------------------------------------------------


def node(array):
    return node_of(np.array(array), "test")


def read(x):
    return np.array(host_array(x))


def inner(a, b):
    """The real inner product, under which reverse mode is the transpose of forward mode."""
    return float(sum(np.sum(np.conj(x) * y).real for x, y in zip(a, b, strict=True)))


def draw(rng, array):
    out = rng.standard_normal(array.shape)
    return out + 1j * rng.standard_normal(array.shape) if np.iscomplexobj(array) else out


def moving(arrays):
    """The places of inputs that can be differentiated."""
    return [i for i, a in enumerate(arrays) if a.dtype.kind in "fc"]


def pulled(build, inputs, cotangent):
    """Nodes of the cotangents of `inputs` (None: zero), checked for shape and dtype."""
    out = build(*inputs)
    wanted = {x for x in inputs if x.tracked}
    found = pull_back(tape((out,)), {out: cotangent}, wanted) if out.tracked else {}
    for x, g in found.items():
        assert g.shape == x.shape
        assert g.dtype is x.dtype
    return [found.get(x) for x in inputs]


def variables(arrays):
    places = moving(arrays)
    return [variable(node(a)) if i in places else node(a) for i, a in enumerate(arrays)]


def reverse(build, arrays, cotangent):
    inputs = variables(arrays)
    with grad_mode(True):
        found = pulled(build, inputs, node(cotangent))
    return [np.zeros_like(a) if g is None else read(g) for g, a in zip(found, arrays, strict=True)]


def forward(build, arrays, tangents):
    inputs = variables(arrays)
    out = build(*inputs)
    seeds = {x: node(t) for x, t in zip(inputs, tangents, strict=True) if t is not None}
    found = push_forward(tape((out,)), seeds).get(out)
    if found is None:
        return np.zeros(out.shape, out.dtype.np)
    assert found.shape == out.shape
    assert found.dtype is out.dtype
    return read(found)


def slope(f, arrays, tangents, step):
    """The directional derivative by central differences of fourth order."""

    def at(h):
        return f(*(a if t is None else a + h * t for a, t in zip(arrays, tangents, strict=True)))

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def check_close(a, b, tolerance):
    scale = max(np.max(np.abs(a), initial=0), np.max(np.abs(b), initial=0), 1e-3)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


# -- derivatives ----------------------------------------------------------------------------------


@smooth
def test_first_derivatives(case):
    """Forward against differences, and reverse against forward: <v, J u> = <J' v, u>."""
    rng = np.random.default_rng(3)
    places = moving(case.arrays)
    tangents = [draw(rng, a) if i in places else None for i, a in enumerate(case.arrays)]
    value = lambda *arrays: read(case.build(*map(node, arrays)))
    expected = slope(value, case.arrays, tangents, 3e-4)
    found = forward(case.build, case.arrays, tangents)
    check_close(found, expected, 1e-6)
    v = draw(rng, expected)
    back = reverse(case.build, case.arrays, v)
    left = inner([v], [found])
    right = inner([back[i] for i in places], [tangents[i] for i in places])
    bound = np.sqrt(inner([v], [v]) * inner([found], [found])) + 1e-3
    assert abs(left - right) <= 1e-12 * bound


@smooth
def test_a_missing_tangent_is_zero(case):
    rng = np.random.default_rng(4)
    places = moving(case.arrays)
    for place in places:
        tangents = [draw(rng, a) if i == place else None for i, a in enumerate(case.arrays)]
        zeros = [
            np.zeros_like(a) if t is None and i in places else t
            for i, (a, t) in enumerate(zip(case.arrays, tangents, strict=True))
        ]
        check_close(
            forward(case.build, case.arrays, tangents),
            forward(case.build, case.arrays, zeros),
            1e-12,
        )


@smooth
def test_derivatives_are_linear_even_at_zero(case):
    """The derivative of J' v by v, at v = 0, is J'; likewise that of J u by u."""
    rng = np.random.default_rng(10)
    places = moving(case.arrays)
    xs = [variable(node(a)) if i in places else node(a) for i, a in enumerate(case.arrays)]
    out = case.build(*xs)
    order = tape((out,))
    v = draw(rng, read(out))
    spot = variable(node(np.zeros_like(v)))
    found = pull_back(order, {out: spot}, set(xs))
    for x, a in zip(xs, reverse(case.build, case.arrays, v), strict=True):
        if x in found:
            tangent = push_forward(tape((found[x],), spot.serial - 1), {spot: node(v)})
            check_close(read(tangent[found[x]]), a, 1e-10)
    spots = {xs[i]: variable(node(np.zeros_like(case.arrays[i]))) for i in places}
    pushed = push_forward(order, spots).get(out)
    if pushed is None:  # zero everywhere, as that of x ** 0
        assert not any(a.any() for a in reverse(case.build, case.arrays, v))
        return
    since = min((s.serial for s in spots.values()), default=0) - 1
    back = pull_back(tape((pushed,), since), {pushed: node(v)}, set(spots.values()))
    for i, a in enumerate(reverse(case.build, case.arrays, v)):
        if i in places and spots[xs[i]] in back:
            check_close(read(back[spots[xs[i]]]), a, 1e-10)


@pytest.mark.parametrize("case", [c for c in SMOOTH if c.orders > 1], ids=lambda c: c.id)
def test_second_derivatives(case):
    """h(x, v) = <J(x)' v, u>: its own reverse and forward derivatives against differences."""
    rng = np.random.default_rng(5)
    places = moving(case.arrays)
    u = [draw(rng, a) if i in places else None for i, a in enumerate(case.arrays)]
    cotangent = draw(rng, read(case.build(*map(node, case.arrays))))
    arrays = (*case.arrays, cotangent)

    def h(*inputs):
        *xs, v = inputs
        found = pulled(case.build, xs, v)
        total = None
        for g, t in zip(found, u, strict=True):
            if g is not None and t is not None:
                product = ew.mul(node(np.conj(t)), g)
                product = ew.real(product) if g.dtype.is_complex else product
                part = reduce_sum(product, tuple(range(product.ndim)))
                total = part if total is None else ew.add(total, part)
        return node(0.0) if total is None else total

    directions = [
        *(draw(rng, a) if i in places else None for i, a in enumerate(case.arrays)),
        draw(rng, cotangent),
    ]
    expected = slope(lambda *xs: read(h(*variables(xs))), arrays, directions, 1e-3)
    check_close(forward(h, arrays, directions), expected, 1e-4)
    back = reverse(h, arrays, np.array(1.0))
    found = inner(
        [b for b, t in zip(back, directions, strict=True) if t is not None],
        [t for t in directions if t is not None],
    )
    check_close(np.array(found), expected, 1e-4)


@pytest.mark.parametrize("case", [c for c in CASES if c.flat], ids=lambda c: c.id)
def test_flat_primitives_have_zero_derivatives(case):
    rng = np.random.default_rng(6)
    places = moving(case.arrays)
    if not places:
        return
    inputs = variables(case.arrays)
    out = case.build(*inputs)
    g = node(draw(rng, read(case.build(*map(node, case.arrays))))) if out.tracked else None
    if g is not None:
        assert not pull_back(tape((out,)), {out: g}, set(inputs))
        seeds = {inputs[i]: node(draw(rng, case.arrays[i])) for i in places}
        assert out not in push_forward(tape((out,)), seeds)


@pytest.mark.parametrize("case", [c for c in SMOOTH if c.prim != "bitcast"], ids=lambda c: c.id)
def test_derivatives_in_single_precision(case):
    """float32 and complex64 stay themselves on the way, and agree with the wider rules."""
    if case.prim == "cast":
        return
    rng = np.random.default_rng(8)
    narrow = {"f": np.float32, "c": np.complex64}
    places = moving(case.arrays)
    small = [
        a.astype(narrow[a.dtype.kind]) if i in places else a for i, a in enumerate(case.arrays)
    ]
    wide = [a.astype(case.arrays[i].dtype) for i, a in enumerate(small)]
    out = read(case.build(*map(node, small)))
    assert out.dtype.itemsize * 2 == read(case.build(*map(node, wide))).dtype.itemsize
    v = draw(rng, out).astype(out.dtype)
    found = reverse(case.build, small, v)
    expected = reverse(case.build, wide, v.astype(read(case.build(*map(node, wide))).dtype))
    for a, b in zip(found, expected, strict=True):
        check_close(a, b, 2e-4)


# -- batching -------------------------------------------------------------------------------------


@by_id
@pytest.mark.parametrize("size", [3, 1, 0])
def test_batching(case, size):
    """Against a loop, for every choice of inputs that carry the new axis."""
    rng = np.random.default_rng(9)
    count = len(case.arrays)
    for flags in itertools.product([False, True], repeat=count):
        if not any(flags):
            continue
        stacked = [
            np.stack([_varied(rng, a) for _ in range(size)])
            if size and is_batched
            else np.empty((0, *a.shape), a.dtype)
            if is_batched
            else a
            for a, is_batched in zip(case.arrays, flags, strict=True)
        ]
        inputs, sources = [], {}
        for a, is_batched in zip(stacked, flags, strict=True):
            x = node(a)
            if is_batched:
                spot = placeholder(x.shape[1:], x.dtype, x.device, "a test")
                sources[spot] = x
                x = spot
            inputs.append(x)
        ((out, carries),) = batch([case.build(*inputs)], sources, size)
        assert carries
        found = read(out)
        for i in range(size):
            entry = [
                a[i] if is_batched else a for a, is_batched in zip(stacked, flags, strict=True)
            ]
            expected = read(case.build(*map(node, entry)))
            assert found[i].dtype == expected.dtype
            np.testing.assert_allclose(found[i], expected, rtol=1e-12, atol=1e-12)
        one = case.build(*map(node, case.arrays))
        assert out.shape == (size, *one.shape)


def _varied(rng, array):
    """Another array that the case's primitive takes just as well."""
    if array.dtype.kind in "fc":
        return array * rng.uniform(0.9, 1.0)
    flat = array.reshape(-1)
    return rng.permutation(flat).reshape(array.shape)
