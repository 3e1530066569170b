"""Every row of the op table: values, derivatives, batches, on every device that is named.

NUMUS_TEST_DEVICES=cpu,cuda names the devices whose values are checked (cpu where it says nothing,
in some dtypes of each row; the slow run of test_all_cases.py takes all of them, and transforms
all cases).
The rules of derivatives and batching do not depend on the device: they are checked on the
reference device, in float64, and the derivatives once more, compiled, in float32.
"""

import contextlib
import itertools
import os

import derivatives
import numpy as np
import pytest
from ops import ROWS
from ops.exemptions import EXEMPT
from ops.row import Drawn, exhaustive

import numus as nm
from numus import dtypes as dt
from numus.errors import DeviceError, TracingError

DEVICES = os.environ.get("NUMUS_TEST_DEVICES", "cpu").split(",")


def over(rows, brief=False):
    """The rows of a test; where it compiles much, those that say so are `slow`."""
    slow = pytest.mark.slow
    chosen = [pytest.param(r, id=r.name, marks=slow if r.brief and not brief else ()) for r in rows]
    return pytest.mark.parametrize("row", chosen)


rows = over(ROWS)


@contextlib.contextmanager
def on(device):
    """Tensors are made there inside."""
    try:
        place = nm.device(device)
    except DeviceError as e:
        pytest.skip(str(e))
    before = nm.default_device()
    nm.set_default_device(place)
    try:
        yield place
    finally:
        nm.set_default_device(before)


# -- calls ----------------------------------------------------------------------------------------


def flat(results):
    """The tensors (or arrays) of a result, in order."""
    if isinstance(results, (tuple, list)):
        return [r for part in results for r in flat(part)]
    return [results]


def call(row, case, make=nm.asarray):
    """The results of numus on a case whose arrays have been drawn."""
    given = case.map(lambda a: make(a) if isinstance(a, np.ndarray) else a)
    return flat(row(*given.args, **given.kwargs))


def strided(array):
    """A tensor of these elements whose memory is in another order, with gaps, and backwards."""
    if array.ndim == 0:
        return nm.asarray(np.array([array, array]))[1]
    base = nm.asarray(np.repeat(np.flip(array, 0), 2, axis=-1).T.copy()).T
    return base[::-2] if array.ndim == 1 else base[::-1, ..., ::2]


def wide(array, integers):
    """What the reference is given for an array: wider numbers."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "biu":
        return array.astype(np.float64) if integers else array
    return array.astype(np.float64)


def expected(row, case, dtype):
    """The reference's results on a case whose arrays have been drawn in a dtype."""
    if row.reference is None:
        with on("reference"):
            return [r.numpy() for r in call(row, case)]
    rules = row.out if isinstance(row.out, tuple) else (row.out,)
    widen_integers = not dtype.is_inexact and any(rule(dtype).is_inexact for rule in rules)

    def given(a):
        if isinstance(a, nm.DType):
            return a.np
        is_drawn = isinstance(a, np.ndarray) and a.dtype == dtype.np
        return wide(a, widen_integers) if row.widen and is_drawn else a

    case = case.map(given)
    with np.errstate(all="ignore"):
        return flat(row.reference(*case.args, **case.kwargs))


def rules_for(row, count):
    """The rule for the dtype of each of `count` results."""
    rules = row.out if isinstance(row.out, tuple) else (row.out,)
    return rules * count if len(rules) == 1 else rules


# -- agreement ------------------------------------------------------------------------------------


def tolerance(row, dtype):
    """The relative error allowed: narrow floats are computed in float32 and rounded once."""
    base = dt.compute_dtype(dt.real_of(dtype))
    allowed = row.ulps * 2.0**-base.mantissa
    return allowed if base is dt.real_of(dtype) else allowed + 2.0**-dtype.mantissa


def disagreement(row, case, got, want, dtype):
    """What is wrong with a result, or nothing."""
    want = np.asarray(want)
    if got.dtype is not dtype:
        return f"is {got.dtype.name}, not {dtype.name}"
    if got.shape != want.shape:
        return f"has shape {got.shape}, not {want.shape}"
    found = got.numpy()
    with np.errstate(all="ignore"):
        want = want.astype(dtype.np)
    if not dtype.is_inexact:
        wrong = found != want
    else:
        common = np.complex128 if dtype.is_complex else np.float64
        found, want = found.astype(common), want.astype(common)
        finite = np.isfinite(want)
        bound = np.abs(want)
        if not row.relative:
            bound = np.max(bound[finite], initial=_largest(case))
        smallest = nm.finfo(dtype).smallest_subnormal
        if "flushes-subnormals" in got.device.runtime.target.features:
            # a factor that became zero may have had another one, of moderate size
            smallest = max(smallest, 128 * nm.finfo(nm.float32).smallest_normal)
        with np.errstate(all="ignore"):
            close = np.abs(found - want) <= tolerance(row, dtype) * bound + smallest
        nans = np.isnan(found) & np.isnan(want)
        wrong = ~(np.where(finite, close, found == want) | nans)
        if row.signs and not dtype.is_complex:
            wrong |= (found == 0) & (want == 0) & (np.signbit(found) != np.signbit(want))
    if not np.any(wrong):
        return None
    place = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
    values = np.atleast_1d(found)[place], np.atleast_1d(want)[place]
    return f"at {place} is {values[0]!r}, not {values[1]!r} ({np.sum(wrong)} such)"


def _largest(case):
    """The largest finite number among the arrays of a case."""
    arrays = [a for a in case.leaves() if isinstance(a, np.ndarray) and a.dtype != bool]
    sizes = [np.abs(a.astype(np.complex128)).ravel() for a in arrays]
    return max((np.max(s[np.isfinite(s)], initial=0.0) for s in sizes), default=0.0)


# -- values ---------------------------------------------------------------------------------------


def value_calls(row, place):
    """All cases in the first dtype, also from strided memory; one of each kind in the others."""
    known = place.runtime.target.dtypes
    dtypes = [d for d in row.dtypes if d in known]
    for name in dtypes:
        dtype = dt.as_dtype(name)
        chosen = row.cases if name == dtypes[0] else row.cases[:1]
        special = row.values if dtype.is_floating or not _fractional(row) else ()
        for i, case in enumerate((*chosen, *special)):
            drawn = case.drawn(dtype, row.seed(i))
            yield f"{name} ({case})", dtype, drawn, nm.asarray
            if name == dtypes[0] and i == 0:
                yield f"{name} ({case}), strided", dtype, drawn, strided


def _fractional(row):
    """Whether the special values cannot be told by integers."""
    drawn = [a for case in row.values for a in case.leaves() if isinstance(a, Drawn)]
    return any(isinstance(v, float) for a in drawn for v in a.values or ())


@rows
@pytest.mark.parametrize("device", DEVICES)
def test_values(row, device):
    check_values(row, device, lambda calls: [c for c in calls if row.sampled(c[1].name)])


@pytest.mark.parametrize("row", [r for r in ROWS if r.brief], ids=lambda r: r.name)
@pytest.mark.parametrize("device", DEVICES)
def test_values_in_the_first_dtype(row, device):
    check_values(
        row,
        device,
        lambda calls: [c for c in calls if c[1].name == row.dtypes[0] and c[3] is not strided],
    )


def check_values(row, device, chosen):
    with on(device) as place:
        calls = [
            (label, dtype, drawn, call(row, drawn, make))
            for label, dtype, drawn, make in chosen(value_calls(row, place))
        ]
        nm.eval([results for *_, results in calls])
        wrong = []
        for label, dtype, drawn, results in calls:
            wants = expected(row, drawn, dtype)
            assert len(results) == len(wants), label
            for i, (got, want, rule) in enumerate(
                zip(results, wants, rules_for(row, len(wants)), strict=True)
            ):
                assert got.device is place
                problem = disagreement(row, drawn, got, want, rule(dtype))
                if problem:
                    wrong.append(f"{row.name}: {label}: result {i} {problem}")
        assert not wrong, "\n".join(wrong)


@over(ROWS, brief=True)
def test_results_are_where_operands_are(row):
    """Also where that is not the default device: what a function makes by itself is there, too."""
    place = nm.device("reference")
    dtype = dt.as_dtype("float32" if "float32" in row.dtypes else row.dtypes[0])
    drawn = row.cases[0].drawn(dtype, row.seed(0))
    made = []

    def there(array):
        made.append(nm.asarray(array, device=place))
        return made[-1]

    results = call(row, drawn, there)
    if made and row.name != "from_numpy":
        for got in results:
            if isinstance(got, nm.Tensor):
                assert got._node.device is place  # one at home everywhere would say the default


# -- derivatives ----------------------------------------------------------------------------------


def function_of(row, case, dtype, seed):
    """A case as a function of its drawn arguments, and these arguments."""
    drawn = case.drawn(dtype, seed)
    places = [i for i, a in enumerate(case.leaves()) if isinstance(a, Drawn) and not a.fixed]

    def function(*xs):
        given = dict(zip(places, xs, strict=True))
        count = itertools.count()

        def fill(a):
            i = next(count)
            return given[i] if i in given else nm.asarray(a) if isinstance(a, np.ndarray) else a

        filled = drawn.map(fill)
        results = flat(row(*filled.args, **filled.kwargs))
        moving = [r for r in results if r.dtype.is_inexact]
        return moving[0] if len(moving) == 1 else nm.concat([nm.reshape(r, -1) for r in moving])

    leaves = drawn.leaves()
    return function, [leaves[i] for i in places]


def differentiable(row):
    return row.orders > 0 and {"float64", "complex128"} & set(row.dtypes)


smooth_rows = over([r for r in ROWS if differentiable(r)])


@over([r for r in ROWS if differentiable(r)], brief=True)
def test_derivatives(row):
    """Forward against differences, reverse against forward, and the same for the gradient."""
    with on("reference"):
        for name in ("float64", "complex128"):
            if name not in row.dtypes:
                continue
            for i, case in enumerate(row.cases if name == "float64" else row.cases[:1]):
                function, arrays = function_of(row, case, dt.as_dtype(name), row.seed(i))
                if not arrays:
                    continue
                derivatives.check(function, *arrays, step=1e-5, rtol=1e-6, atol=1e-8)
                twice = row.orders > 1 and name == "float64" and not row.slow_second
                if twice and (i == 0 or exhaustive()):
                    derivatives.check_second(function, *arrays, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
@over([r for r in ROWS if r.slow_second], brief=True)
def test_second_derivatives(row):
    with on("reference"):
        function, arrays = function_of(row, row.cases[0], dt.float64, row.seed(0))
        derivatives.check_second(function, *arrays, rtol=1e-4, atol=1e-7)


def gradients_in(row, narrow, device):
    """The gradients of a row's first case in a dtype on a device, and those in float64.

    The first with all values in between forced, the others in one go.
    """
    wide = nm.float64 if narrow.kind == "float" else nm.complex128
    _, arrays = function_of(row, row.cases[0], narrow, row.seed(0))
    exact, _ = function_of(row, row.cases[0], wide, row.seed(0))
    rough, _ = function_of(row, row.cases[0], narrow, row.seed(0))
    with on("reference"):
        result, pull = nm.vjp(exact, *(nm.asarray(a.astype(wide.np)) for a in arrays))
        weights = np.random.default_rng(0).standard_normal(result.shape).astype(narrow.np)
        wants = [g.numpy() for g in pull(nm.asarray(weights.astype(result.dtype.np)))]
    with on(device):
        xs = [nm.asarray(a, requires_grad=True) for a in arrays]
        y = rough(*xs)
        if y.requires_grad:
            nm.eval(y)
            y.backward(nm.asarray(weights.astype(y.dtype.np)))
        assert all(x.grad is None or x.grad.dtype is narrow for x in xs)
        return [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in xs], wants


@smooth_rows
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_on_the_device(row, device):
    """In float32 and narrower, with the values in between forced, against float64 in one go."""
    bounds = {"float32": 1e-4, "float16": 4 * 2.0**-10, "bfloat16": 4 * 2.0**-7, "complex64": 1e-4}
    for name, bound in bounds.items():
        if name not in row.dtypes or (name == "complex64" and "float32" in row.dtypes):
            continue
        if not row.sampled(name) and name != "float32":
            continue
        for got, want in zip(*gradients_in(row, dt.as_dtype(name), device), strict=True):
            scale = max(np.max(np.abs(want), initial=0), 1e-3)
            got = got.astype(want.dtype)
            np.testing.assert_allclose(got, want, rtol=bound, atol=bound * scale, err_msg=name)


flat_rows = [r for r in ROWS if r.orders == 0 and "float64" in r.dtypes]


@pytest.mark.parametrize("row", flat_rows, ids=lambda r: r.name)
def test_flat_functions_have_zero_gradients(row):
    with on("reference"):
        case = row.cases[0].drawn(nm.float64, row.seed(0))
        tensors = []

        def leaf(a):
            if isinstance(a, np.ndarray) and a.dtype == np.float64:
                tensors.append(nm.asarray(a, requires_grad=True))
                return tensors[-1]
            return nm.asarray(a) if isinstance(a, np.ndarray) else a

        case = case.map(leaf)
        for result in flat(row(*case.args, **case.kwargs)):
            if result.requires_grad:
                result.sum().backward()
        for x in tensors:
            assert x.grad is None or not x.grad.numpy().any()


# -- batches --------------------------------------------------------------------------------------


@over([r for r in ROWS if r.vmap], brief=True)
def test_vmap(row):
    """Against a loop: all arrays batched; in the first case also one, and all but that one."""
    dtype = dt.as_dtype("float64" if "float64" in row.dtypes else row.dtypes[0])
    rng = np.random.default_rng(0)
    with on("reference"):
        for i, case in enumerate(row.cases):
            batch = [case.drawn(dtype, row.seed(i) + 1000 * b) for b in range(3)]
            leaves = list(zip(*(c.leaves() for c in batch), strict=True))
            places = [j for j, (a, *_) in enumerate(leaves) if isinstance(a, np.ndarray)]
            if not places:
                continue
            stacks = [np.stack([_varied(rng, a, dtype) for a in leaves[j]]) for j in places]
            some = (places[:1], places[1:]) if i == 0 or exhaustive() else ()
            for chosen in dict.fromkeys(map(tuple, (places, *filter(None, some)))):
                _compare_with_loop(row, batch[0], stacks, places, chosen)


def _varied(rng, array, dtype):
    """Indices and masks in another order; what was drawn differs already."""
    if array.dtype == dtype.np:
        return array
    return rng.permutation(array.reshape(-1)).reshape(array.shape)


def _compare_with_loop(row, case, stacks, places, chosen):
    def function(*xs):
        given = dict(zip(places, xs, strict=True))
        count = itertools.count()
        filled = case.map(lambda a: given.get(next(count), a))
        return tuple(flat(row(*filled.args, **filled.kwargs)))

    in_axes = tuple(0 if j in chosen else None for j in places)
    stacks = [s if j in chosen else s[0] for s, j in zip(stacks, places, strict=True)]
    together = nm.vmap(function, in_axes=in_axes)(*map(nm.asarray, stacks))
    for b in range(3):
        alone = function(
            *(nm.asarray(s[b] if a == 0 else s) for s, a in zip(stacks, in_axes, strict=True))
        )
        for got, want in zip(together, alone, strict=True):
            assert got.dtype is want.dtype
            np.testing.assert_allclose(
                np.asarray(got[b]), np.asarray(want), rtol=1e-10, atol=1e-12, err_msg=str(case)
            )


# -- programs -------------------------------------------------------------------------------------


@rows
@pytest.mark.parametrize("device", DEVICES)
def test_jit(row, device):
    """Against the plain call: as it is traced, and replayed on other values."""
    dtype = dt.as_dtype(row.dtypes[0])
    with on(device):
        for i, case in enumerate(row.cases if exhaustive() else row.cases[:1]):
            drawn = [case.drawn(dtype, row.seed(i) + 1000 * b) for b in range(2)]
            places = [j for j, a in enumerate(drawn[0].leaves()) if isinstance(a, np.ndarray)]

            def function(*xs, case=drawn[0], places=places):
                given = dict(zip(places, xs, strict=True))
                count = itertools.count()
                filled = case.map(lambda value: given.get(next(count), value))
                return tuple(flat(row(*filled.args, **filled.kwargs)))

            jitted = nm.jit(function)
            for call in drawn:
                xs = [nm.asarray(call.leaves()[j]) for j in places]
                nm.random.seed(i)
                plain = function(*xs)
                nm.random.seed(i)
                try:
                    replayed = jitted(*xs)
                except TracingError:
                    assert not row.vmap, case  # shapes, or Python numbers, that depend on values
                    break
                for got, want in zip(replayed, plain, strict=True):
                    assert got.dtype is want.dtype
                    assert got.shape == want.shape
                    got, want = got.numpy(), want.numpy()
                    if replayed[0].dtype.is_inexact and got.dtype.kind in "fcV":
                        # views of arguments are views of memory in one, of values in the other
                        found, bound = want.astype(np.complex128), tolerance(row, dtype)
                        largest = np.max(np.abs(found[np.isfinite(found)]), initial=0)
                        np.testing.assert_allclose(
                            got.astype(found.dtype), found, rtol=bound, atol=bound * largest
                        )
                    else:
                        np.testing.assert_array_equal(got, want, err_msg=str(case))


# -- the table itself -----------------------------------------------------------------------------


def public_names():
    """All that numus offers: its functions, those of its namespaces, and what Tensor has."""
    names = set(nm.__all__) | {f"random.{n}" for n in nm.random.__all__}
    names |= {f"linalg.{n}" for n in nm.linalg.__all__} | {f"fft.{n}" for n in nm.fft.__all__}
    names |= {f"special.{n}" for n in nm.special.__all__}
    names |= {f"signal.{n}" for n in nm.signal.__all__}
    own = {n for n, v in vars(nm.Tensor).items() if not n.startswith("_") or _is_protocol(n, v)}
    return names | {f"Tensor.{n}" for n in own}


def _is_protocol(name, value):
    plumbing = ("__init__", "__module__", "__doc__", "__slots__", "__weakref__", "__annotations__")
    return name.startswith("__") and name not in plumbing


def resolve(name):
    """What a name stands for; methods of Tensor as they lie in the class."""
    if name.startswith("Tensor."):
        return vars(nm.Tensor).get(name.removeprefix("Tensor."))
    found = nm
    for part in name.split("."):
        found = getattr(found, part)
    return found


_ROOMS = ("Tensor.", "linalg.", "special.")  # whose functions may be those of others


def test_every_public_name_has_a_row():
    """Or is an alias of one, or the same function in a namespace, or is exempt by name."""
    covered = {row.name for row in ROWS} | {a for row in ROWS for a in row.aliases}
    functions = {id(resolve(name)) for name in covered}
    missing = [
        name
        for name in sorted(public_names() - covered - EXEMPT.keys())
        if not (name.startswith(_ROOMS) and id(resolve(name)) in functions)
    ]
    assert not missing, f"no row, and no reason in ops/exemptions.py, for {', '.join(missing)}"


def test_rows_name_what_there_is():
    names = [row.name for row in ROWS]
    # a function whose results differ in kind has a row for each kind, with other cases
    assert len({(row.name, *map(str, row.cases)) for row in ROWS}) == len(ROWS)
    assert not set(names) & EXEMPT.keys()
    assert not EXEMPT.keys() - public_names()
    for row in ROWS:
        assert resolve(row.name) is not None, row.name
        for alias in row.aliases:
            assert resolve(alias) is resolve(row.name), f"{alias} is not {row.name}"
