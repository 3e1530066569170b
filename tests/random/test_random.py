"""Random numbers: the generator's known answers, their distributions, keys and reproducibility."""

import numpy as np
import pytest
import scipy.stats
from in_threads import in_threads

import numus as nm
from numus import dtypes as dt
from numus import random
from numus.errors import DTypeError, ShapeError
from numus.functions._base import node_of
from numus.primitives.random.bits import threefry
from numus.primitives.source import constant
from numus.random import _bits, _keys, _sampling
from numus.random._permutation import _cumulative_weights
from numus.runtime.devices import device
from numus.tensor import Tensor

N = 20_000


def T(array):
    return nm.Tensor(node_of(np.asarray(array), "test"))


def keys(seed=0, n=2):
    return [T(k) for k in random.split(random.key(seed), n).numpy()]


def fits(values, distribution, *args):
    """A Kolmogorov–Smirnov test that fails by chance once in 10,000 seeds; the seed is fixed."""
    expected = getattr(scipy.stats, distribution)(*args)
    return scipy.stats.kstest(values.reshape(-1).astype(float), expected.cdf).pvalue > 1e-4


# -- the generator --------------------------------------------------------------------------------

KNOWN = [  # Random123's known answers: counter, key, result
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    nodes = (constant(w, dt.uint32) for w in (*key, *counter))
    assert tuple(nm.Tensor(w).item() for w in threefry(*nodes)) == expected
    assert _keys._threefry(key, counter) == expected


def test_keys_are_the_ones_jax_makes():
    assert random.key(0).tolist() == [0, 0]
    assert random.key((5 << 32) + 7).tolist() == [5, 7]
    assert random.key(-1).tolist() == [0xFFFFFFFF] * 2
    split = [[1797259609, 2579123966], [928981903, 3453687069], [4146024105, 2718843009]]
    assert random.split(random.key(0), 3).tolist() == split
    assert random.split(random.key(0), (3, 1)).shape == (3, 1, 2)
    assert random.fold_in(random.key(0), 5).tolist() == [1524306142, 1887795613]
    assert random.fold_in(random.key(0), T(np.int64(5))).tolist() == [1524306142, 1887795613]


def test_first_values_stay():
    """A stored stream: a change here changes every program that fixed a seed."""
    k = random.key(42)
    words = [1832780943, 430176367, 270669613]
    assert random.bits((3,), key=k).tolist() == words
    assert random.bits((1,), dtype="uint64", key=k).tolist() == [7871734211187709741]
    assert random.uniform((3,), key=k).tolist() == [(w >> 8) / 2**24 for w in words]
    assert random.integers(0, 1000, (4,), key=k).tolist() == [426, 100, 196, 391]
    assert random.permutation(5, key=k).tolist() == [1, 2, 3, 0, 4]
    normals = [1.2040927, 0.8080112, 0.5033684, -1.9872408]
    np.testing.assert_allclose(random.normal((4,), key=k).numpy(), normals, rtol=1e-5)
    normals = [1.2318635384085364, -1.3527204983002221, -0.43096542310546326]
    wide = random.normal((3,), dtype="float64", key=k).numpy()
    np.testing.assert_allclose(wide, normals, rtol=1e-12)


def test_the_seeded_generator():
    random.seed(5)
    first, second = random.uniform((4,)).numpy(), random.uniform((4,)).numpy()
    assert (first != second).all()
    for i, drawn in enumerate((first, second)):
        key = random.fold_in(random.key(5), i)
        assert (random.uniform((4,), key=key).numpy() == drawn).all()
    state = random.get_state()
    third = random.normal((3,)).numpy()
    random.set_state(state)
    assert (random.normal((3,)).numpy() == third).all()
    with pytest.raises(OverflowError, match="64 bits"):
        random.seed(1 << 64)


def test_threads_never_share_a_key():
    random.seed(0)
    taken = in_threads(lambda _: [_keys._generator.next() for _ in range(200)], 4)
    assert len({key for keys in taken for key in keys}) == 800


def test_shapes_do_not_matter():
    k = random.key(1)
    for draw in (random.uniform, random.normal, random.bits, random.exponential):
        flat = draw((24,), key=k).numpy()
        assert (draw((2, 3, 4), key=k).numpy().reshape(-1) == flat).all()
    assert random.uniform(key=k).shape == ()
    assert random.normal((0, 3), key=k).shape == (0, 3)
    assert random.uniform((5,), key=k).shape == (5,)
    assert random.bits(7, key=k).shape == (7,)


def test_counters_past_32_bits():
    """The high word counts on where the low one starts again."""
    key = _keys.key_words("test", random.key(3))
    near = _bits.words(key, 4, device(), start=(1 << 32) - 2)
    got = [nm.Tensor(w).numpy() for w in near]
    for i, (low, high) in enumerate([(0xFFFFFFFE, 0), (0xFFFFFFFF, 0), (0, 1), (1, 1)]):
        assert (got[0][i], got[1][i]) == _keys._threefry((0, 3), (low, high))


def test_both_words_of_a_counter_are_used_once():
    """Halves are joined last, so that one kernel computes each counter once and writes both."""
    node = random.normal((8,), key=random.key(0))._node
    assert node.prim.name == "concat"
    assert [x.shape for x in node.inputs] == [(4,), (4,)]


def test_keys_are_checked():
    with pytest.raises(ShapeError, match=r"nm\.random\.key"):
        random.uniform((2,), key=T(np.zeros(2, np.int64)))
    with pytest.raises(ShapeError, match="key"):
        random.normal((2,), key=random.split(random.key(0), 3))
    with pytest.raises(ShapeError, match="one integer"):
        random.fold_in(random.key(0), T(np.zeros(2)))


def test_keys_are_independent():
    a, b = (random.uniform((N,), key=k).numpy() for k in keys(7))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(N)
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 4 / np.sqrt(N)
    half = N // 2
    assert abs(np.corrcoef(a[:half], a[half:])[0, 1]) < 4 / np.sqrt(half)
    rows = np.stack([random.uniform((64,), key=k).numpy() for k in keys(3, 300)])
    assert fits(rows, "uniform")
    assert fits(rows.mean(0) * 300, "norm", 150, np.sqrt(300 / 12))


# -- bits and uniform -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
def test_bits(name):
    x = random.bits((N,), dtype=name, key=random.key(0))
    assert x.dtype is dt.as_dtype(name)
    width = x.dtype.bits
    ones = np.unpackbits(x.numpy().view(np.uint8).reshape(N, -1), axis=1).mean(0)
    assert ones.shape == (width,)
    assert (abs(ones - 0.5) < 4.5 * 0.5 / np.sqrt(N)).all()
    with pytest.raises(DTypeError, match="unsigned"):
        random.bits((1,), dtype="int32")


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 5), (2.5, 2.625)])
def test_uniform(name, low, high):
    x = random.uniform((N,), low, high, dtype=name, key=random.key(2))
    assert x.dtype is dt.as_dtype(name)
    values = x.numpy().astype(float)
    assert values.min() >= low
    assert values.max() < high
    if x.dtype.itemsize >= 4 and high != 2.625:
        assert fits(values, "uniform", low, high - low)
    tensors = random.uniform((N,), T(np.float64(low)), high, dtype=name, key=random.key(2)).numpy()
    np.testing.assert_allclose(tensors.astype(float), values, rtol=2 * 2.0**-x.dtype.mantissa)


def test_uniform_bits():
    x = random.uniform((N,), key=random.key(0)).numpy().astype(float) * 2**24
    assert (x == np.round(x)).all()
    assert (x % 2 == 1).any()
    y = random.uniform((N,), dtype="float64", key=random.key(0)).numpy() * 2.0**53
    assert (y == np.round(y)).all()
    assert (y % 2 == 1).any()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32"])
def test_uniform_never_reaches_its_end(name):
    dtype = dt.as_dtype(name)
    assert _sampling._below(1.0, 0.0, dtype) == 1 - 2.0 ** -(dtype.mantissa + 1)
    x = random.uniform((1 << 16,), dtype=name, key=random.key(1))
    assert x.numpy().astype(float).max() == 1 - 2.0 ** -(dtype.mantissa + 1) or name == "float32"
    assert random.uniform((3,), 2, 2, dtype=name).tolist() == [2, 2, 2]


def test_parameters_as_tensors():
    low, high = np.array([[0.0], [10.0]]), np.array([1.0, 2.0, 3.0]) + 10
    x = random.uniform(low=T(low), high=T(high), dtype="float64")
    assert x.shape == (2, 3)
    assert ((x.numpy() >= low) & (x.numpy() < high)).all()
    assert random.normal(loc=T(np.zeros(3)), scale=T(np.ones((2, 1)))).shape == (2, 3)
    with pytest.raises(ShapeError, match="broadcast"):
        random.normal((2,), T(np.zeros(3)))
    for bad in ((1, 0), (0, np.inf), (np.nan, 1), (-1e308, 1e308)):
        with pytest.raises(ValueError, match="finite interval"):
            random.uniform((1,), *bad)
    with pytest.raises(DTypeError, match="integers"):
        random.uniform((1,), dtype=nm.int32)


def test_gradients_flow_to_parameters():
    import derivatives

    k = random.key(0)
    loc, scale = np.zeros(3), np.full(3, 2.0)
    z = random.normal((3,), dtype="float64", key=k).numpy()
    pulled = derivatives.reverse(
        lambda a, b: random.normal(loc=a, scale=b, dtype="float64", key=k), [loc, scale], np.ones(3)
    )
    np.testing.assert_allclose(pulled, [np.ones(3), z])


# -- normal and other distributions ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_normal(name):
    x = random.normal((N,), dtype=name, key=random.key(4))
    assert x.dtype is dt.as_dtype(name)
    z = x.numpy().astype(float)
    assert abs(z.mean()) < 4 / np.sqrt(N)
    assert abs(z.std() - 1) < 4 / np.sqrt(2 * N)
    assert abs(scipy.stats.skew(z)) < 4 * np.sqrt(6 / N)
    assert abs(scipy.stats.kurtosis(z)) < 4 * np.sqrt(24 / N)
    if x.dtype.itemsize >= 4:
        assert fits(z, "norm")
        assert fits(z[: N // 2], "norm")
        assert fits(z[: N // 2] ** 2 + z[N // 2 :] ** 2, "chi2", 2)
    y = random.normal((N,), 3, 0.5, dtype=name, key=random.key(4)).numpy().astype(float)
    np.testing.assert_allclose(y, 3 + 0.5 * z, atol=8 * 2.0**-x.dtype.mantissa)


def test_normal_tails():
    z = random.normal((1 << 21,), key=random.key(0)).numpy()
    assert np.isfinite(z).all()
    for limit in (3, 4, 4.5):
        expected = 2 * scipy.stats.norm.sf(limit) * z.size
        assert abs((abs(z) > limit).sum() - expected) < 4 * np.sqrt(expected)
    with pytest.raises(ValueError, match="negative"):
        random.normal((1,), 0, -1)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_other_distributions(name):
    k = random.key(9)
    e = random.exponential((N,), 2.0, dtype=name, key=k).numpy()
    assert fits(e, "expon", 0, 2)
    assert (e >= 0).all()
    assert fits(random.gumbel((N,), 1.0, 3.0, dtype=name, key=k).numpy(), "gumbel_r", 1, 3)
    t = random.truncated_normal((N,), -1, 2, dtype=name, key=k).numpy()
    assert fits(t, "truncnorm", -1, 2)
    assert t.min() >= -1
    assert t.max() <= 2
    with pytest.raises(ValueError, match="nothing"):
        random.truncated_normal((1,), 2, 1)


def test_extreme_words_give_finite_numbers():
    words = T(np.array([0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF], np.uint32))._node
    for number in (_bits.uniform32, _bits.uniform32_positive):
        u = nm.Tensor(number(words)).numpy()
        assert u.min() >= 0
        assert u.max() <= 1
    assert nm.Tensor(_bits.uniform32(words)).numpy().max() < 1
    assert nm.Tensor(_bits.uniform32_positive(words)).numpy().min() == 2.0**-33
    pair = (words, words)
    assert nm.Tensor(_bits.uniform64(pair)).numpy().max() == 1 - 2.0**-53
    assert nm.Tensor(_bits.uniform64_positive(pair)).numpy().min() == 2.0**-53


def test_categorical():
    p = np.array([0.1, 0.2, 0.0, 0.7])
    with np.errstate(divide="ignore"):
        logits = np.broadcast_to(np.log(p), (N, 4)).astype(np.float32)
    drawn = random.categorical(T(logits), key=random.key(0)).numpy()
    counts = np.bincount(drawn, minlength=4)
    assert counts[2] == 0
    assert scipy.stats.chisquare(counts[p > 0], p[p > 0] * N).pvalue > 1e-4
    assert random.categorical(T(logits[:6].T), axis=0).shape == (6,)
    with pytest.raises(ShapeError, match="no classes"):
        random.categorical(T(np.zeros((2, 0))))


# -- integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [(0, 10), (-3, 4), (5, 21), (0, 256), (-7, 0)])
@pytest.mark.parametrize("name", ["int16", "int32", "int64"])
def test_integers(span, name):
    x = random.integers(*span, (N,), dtype=name, key=random.key(6))
    assert x.dtype is dt.as_dtype(name)
    counts = np.bincount(x.numpy() - span[0], minlength=span[1] - span[0])
    assert len(counts) == span[1] - span[0]
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (0, 1 << 32, "uint32"),
        (-(1 << 31), 1 << 31, "int32"),
        (0, (1 << 32) - 5, "uint32"),
        (-(1 << 63), 1 << 63, "int64"),
        (0, 1 << 64, "uint64"),
        (0, 3 << 62, "uint64"),
        (-(1 << 63), (1 << 63) - 1, "int64"),
        (1 << 40, (1 << 40) + (3 << 33), "int64"),
        (-128, 128, "int8"),
        (100, 101, "uint8"),
    ],
)
def test_wide_and_narrow_ranges(low, high, name):
    x = random.integers(low, high, (N,), dtype=name, key=random.key(8)).numpy()
    values = [int(v) for v in x]
    assert min(values) >= low
    assert max(values) < high
    if high - low > 10**6:
        assert fits(np.array([(v - low) / (high - low) for v in values]), "uniform")


def test_products_of_64_bits():
    words = np.random.default_rng(0).integers(0, 1 << 64, 200, np.uint64)
    words[:3] = 0, 1, (1 << 64) - 1
    for span in (3, 1 << 40, (1 << 64) - 1, 0x123456789ABCDEF1):
        got = nm.Tensor(_sampling._mulhi64(T(words)._node, span)).numpy()
        assert [int(v) for v in got] == [int(w) * span >> 64 for w in words]


def test_integer_arguments():
    assert random.integers(7, shape=(50,)).numpy().max() < 7
    assert random.randint(0, 3, (2, 2)).shape == (2, 2)
    with pytest.raises(ValueError, match="low must be below high"):
        random.integers(3, 3)
    with pytest.raises(OverflowError, match="int8"):
        random.integers(0, 300, dtype="int8")
    with pytest.raises(DTypeError, match="float32"):
        random.integers(0, 3, dtype="float32")


# -- coins and dropout ----------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_bernoulli(p):
    deviation = 4 * np.sqrt(p * (1 - p) / N)
    for given in (p, T(np.float64(p)), T(np.float32(p))):
        x = random.bernoulli(given, (N,), key=random.key(1))
        assert x.dtype is nm.bool
        assert abs(x.numpy().mean() - p) <= deviation
    mask = random.dropout_mask((100, N // 100), p, key=random.key(2)).numpy()
    assert abs((~mask).mean() - p) <= deviation
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        random.bernoulli(1.5)


@pytest.mark.parametrize("name", ["float32", "float16", "complex64"])
def test_dropout(name):
    x = np.ones((50, 40), dt.as_dtype(name).np)
    y = T(x).dropout(0.25, key=random.key(3))
    assert y.dtype is dt.as_dtype(name)
    kept = random.dropout_mask((50, 40), 0.25, key=random.key(3)).numpy()
    expected = np.where(kept, np.float32(4 / 3), np.float32(0)).astype(x.dtype)
    np.testing.assert_array_equal(y.numpy(), expected)
    assert (T(x).dropout(0.5, False).numpy() == x).all()
    assert (T(x).dropout(1.0).numpy() == 0).all()
    assert (T(x).dropout(0.0).numpy() == x).all()
    for bad in (-0.1, 1.1):
        with pytest.raises(ValueError, match="dropout"):
            T(x).dropout(bad)
    with pytest.raises(DTypeError, match="dropout"):
        T(np.ones(3, int)).dropout()


def test_dropout_gradient_uses_the_same_mask():
    import derivatives

    k = random.key(0)
    x = np.linspace(1, 2, 12)
    y = T(x).dropout(0.5, key=k).numpy()
    (g,) = derivatives.reverse(lambda t: random.dropout(t, 0.5, key=k), [x], np.ones(12))
    np.testing.assert_allclose(g * x, y)


# -- orders and selections ------------------------------------------------------------------------


def test_permutation():
    k = random.key(0)
    order = random.permutation(1000, key=k).numpy()
    assert (np.sort(order) == np.arange(1000)).all()
    assert (order != np.arange(1000)).sum() > 950
    x = np.arange(12).reshape(3, 4)
    for axis in (0, 1, -1):
        y = random.permutation(T(x), axis, key=k).numpy()
        places = random.permutation(x.shape[axis], key=k).numpy()
        np.testing.assert_array_equal(y, np.take(x, places, axis))
    t = T(x)
    assert random.shuffle(t, key=k) is None
    np.testing.assert_array_equal(t.numpy(), x[random.permutation(3, key=k).numpy()])
    assert random.permutation(0).shape == (0,)
    with pytest.raises(ShapeError, match="permutation"):
        random.permutation(-1)


def test_all_orders_are_equally_likely():
    seen = np.zeros(24)
    ranks = [24, 6, 2, 1]
    for k in keys(5, 2400):
        order = list(random.permutation(4, key=k).numpy())
        left, rank = [0, 1, 2, 3], 0
        for i, place in enumerate(order):
            rank += left.index(place) * (ranks[i + 1] if i < 3 else 0)
            left.remove(place)
        seen[rank] += 1
    assert scipy.stats.chisquare(seen).pvalue > 1e-4


@pytest.mark.parametrize("p", [None, [0.5, 0.0, 0.2, 0.3], [1, 0, 0, 0], [0, 3, 3, 0]])
def test_choice(p):
    k = random.key(2)
    weights = np.full(4, 0.25) if p is None else np.array(p, float) / np.sum(p)
    given = None if p is None else T(np.array(p, np.float64))
    places = random.choice(4, (N,), p=given, key=k).numpy()
    counts = np.bincount(places, minlength=4)
    possible = weights > 0
    assert (counts[~possible] == 0).all()
    if possible.sum() > 1:
        assert scipy.stats.chisquare(counts[possible], weights[possible] * N).pvalue > 1e-4
    x = np.arange(8.0).reshape(4, 2)
    chosen = random.choice(T(x), (N,), p=given, key=k).numpy()
    np.testing.assert_array_equal(chosen, x[places])
    assert random.choice(T(x), (2, 3), axis=1).shape == (4, 2, 3)


@pytest.mark.parametrize("count", [1, 16, 5000, 200_000])
def test_elements_without_weight_are_never_chosen(count):
    """Not even where rounding makes running sums of nothing rise or fall."""
    rng = np.random.default_rng(0)
    weights = rng.random(count).astype(np.float32)
    weights[rng.random(count) < 0.5] = 0
    weights[count // 2] = 1
    shares = Tensor(_cumulative_weights(T(weights)._node)).numpy()
    assert (np.diff(shares[np.isfinite(shares)]) >= 0).all()
    assert (shares[1:][weights[1:] == 0] == shares[:-1][weights[1:] == 0]).all()
    np.testing.assert_allclose(shares[-1], weights.sum(dtype=float), rtol=1e-5)
    assert weights[random.choice(count, (N,), p=T(weights)).numpy()].all()


def test_choice_without_replacement():
    k = random.key(4)
    places = random.choice(100, (10, 5), replace=False, key=k).numpy().reshape(-1)
    assert len(set(places)) == 50
    weights = np.array([0.0, 1.0, 1.0, 0.0, 5.0])
    for key in keys(1, 20):
        drawn = random.choice(5, (3,), replace=False, p=T(weights), key=key).numpy()
        assert sorted(drawn) == [1, 2, 4]
    with pytest.raises(ShapeError, match="without replacement"):
        random.choice(3, (4,), replace=False)
    with pytest.raises(ShapeError, match="p must have shape"):
        random.choice(3, (4,), p=T(np.ones(2)))
    with pytest.raises(ShapeError, match="must not be empty"):
        random.choice(0, (4,))
    assert random.choice(0, (0,)).shape == (0,)
    assert random.choice(3).shape == ()


def test_torch_names():
    assert random.rand(2, 3).shape == (2, 3)
    assert random.randn((4,), dtype="float64").dtype is nm.float64
    assert random.rand().shape == ()
