"""Attention as users meet it: PyTorch's meaning, dropout, memory, kernels, errors."""

import math

import numpy as np
import pytest

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.runtime.cpu.runtime import CpuRuntime

NULL = nm.device("null")
attend = nm.scaled_dot_product_attention
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_draws():
    """What a test draws does not depend on those that ran before it."""
    global RNG
    RNG = np.random.default_rng(5)


def drawn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def tensors(*arrays, device=None):
    made = [nm.asarray(a, device=device) for a in arrays]
    for x in made:
        x.requires_grad = True
    return made


def gradients(arrays, cotangent, **options):
    """The result and the gradients of query, key and value."""
    xs = tensors(*arrays)
    y = attend(*xs, **options)
    y.backward(nm.asarray(cotangent))
    return [y.numpy(), *(x.grad.numpy() for x in xs)]


# -- PyTorch's meaning ----------------------------------------------------------------------------

ONES = np.ones((40, 70), bool)
HOLES = RNG.random((2, 1, 40, 70)) < 0.6
HOLES[0, 0, 7] = False
SHAPES = {
    "plain": ((2, 3, 40, 17), (2, 3, 70, 17), (2, 3, 70, 29), {}),
    "causal": ((2, 3, 100, 80), (2, 3, 100, 80), (2, 3, 100, 80), {"is_causal": True}),
    "causal, more keys": ((1, 1, 40, 8), (1, 1, 300, 8), (1, 1, 300, 5), {"is_causal": True}),
    "causal, more queries": ((1, 1, 300, 8), (1, 1, 40, 8), (1, 1, 40, 5), {"is_causal": True}),
    "one matrix, many blocks": ((260, 16), (515, 16), (515, 16), {}),
    "mask": ((2, 3, 40, 17), (2, 3, 70, 17), (2, 3, 70, 29), {"attn_mask": HOLES}),
    "bias": ((2, 3, 40, 8), (2, 3, 70, 8), (2, 3, 70, 8), {"attn_mask": drawn(3, 40, 70)}),
    "padding": ((2, 3, 40, 8), (2, 3, 70, 8), (2, 3, 70, 8), {"attn_mask": HOLES[:, :, :1]}),
    "scale": ((2, 40, 8), (2, 70, 8), (2, 70, 8), {"scale": 2.5}),
    "groups": ((2, 6, 40, 8), (2, 2, 70, 8), (2, 2, 70, 9), {"enable_gqa": True}),
    "one query": ((3, 1, 64), (3, 200, 64), (3, 200, 64), {}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_as_pytorch(name):
    torch = pytest.importorskip("torch")
    *shapes, options = SHAPES[name]
    arrays = [drawn(*shape) for shape in shapes]
    given = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    xs = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = torch.nn.functional.scaled_dot_product_attention(*xs, **given)
    cotangent = drawn(*y.shape)
    y.backward(torch.tensor(cotangent))
    want = [y.detach().numpy(), *(x.grad.numpy() for x in xs)]
    found = gradients(arrays, cotangent, **options)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_summed_in_float32(dtype):
    arrays = [drawn(2, 40, 16), drawn(2, 300, 16), drawn(2, 300, 16) + 3]
    narrow = [nm.asarray(a).astype(dtype) for a in arrays]
    cotangent = drawn(2, 40, 16)
    want = gradients([x.astype("float32").numpy() for x in narrow], cotangent)
    for x in narrow:
        x.requires_grad = True
    y = attend(*narrow)
    y.backward(nm.asarray(cotangent).astype(dtype))
    step = 2.0 ** -getattr(nm, dtype).mantissa
    for a, b in zip([y, *(x.grad for x in narrow)], want, strict=True):
        assert a.dtype is getattr(nm, dtype)
        np.testing.assert_allclose(a.astype("float32").numpy(), b, rtol=2 * step, atol=2 * step)


def test_what_masked_keys_hold_does_not_matter():
    q, k, v = drawn(4, 8), drawn(6, 8), drawn(6, 8)
    want = attend(q, k, v, is_causal=True).numpy()
    k[5], v[5] = math.nan, math.inf
    xs = tensors(q, k, v)
    y = attend(*xs, is_causal=True)
    np.testing.assert_array_equal(y.numpy(), want)
    y.sum().backward()
    for x in xs:
        assert np.isfinite(x.grad.numpy()).all()
    assert not xs[1].grad.numpy()[4:].any()


def test_not_a_number_is_passed_on():
    q, k, v = drawn(4, 8), drawn(40, 8), drawn(40, 8)
    q[1, 3] = math.nan
    y = attend(q, k, v).numpy()
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2, 3]]).all()


# -- derivatives of the compiled kernels ----------------------------------------------------------


def test_second_derivatives_compiled():
    """A Hessian-vector product in both ways, against differences of gradients."""
    arrays = [drawn(1, n, 4, dtype=np.float64) for n in (9, 11, 11)]
    directions = [drawn(*a.shape, dtype=np.float64) for a in arrays]

    def loss(q, k, v):
        return (attend(q, k, v, is_causal=True) ** 2).sum()

    def slope(step):
        moved = [nm.asarray(a + step * d) for a, d in zip(arrays, directions, strict=True)]
        return [g.numpy() for g in nm.grad(loss, (0, 1, 2))(*moved)]

    want = [(a - b) / 2e-4 for a, b in zip(slope(1e-4), slope(-1e-4), strict=True)]
    xs, ds = [nm.asarray(a) for a in arrays], [nm.asarray(d) for d in directions]
    _, forward = nm.jvp(nm.grad(loss, (0, 1, 2)), tuple(xs), tuple(ds))

    def along(*xs):
        pairs = zip(nm.grad(loss, (0, 1, 2))(*xs), ds, strict=True)
        return sum((g * d).sum() for g, d in pairs)

    for found in (forward, nm.grad(along, (0, 1, 2))(*xs)):
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_the_gradients_that_are_asked_for(wanted):
    arrays = [drawn(2, 40, 8), drawn(2, 70, 8), drawn(2, 70, 9)]
    cotangent = drawn(2, 40, 9)
    want = gradients(arrays, cotangent, is_causal=True)[1:]
    xs = [nm.asarray(a) for a in arrays]
    for i in wanted:
        xs[i].requires_grad = True
    attend(*xs, is_causal=True).backward(nm.asarray(cotangent))
    for i in wanted:
        np.testing.assert_array_equal(xs[i].grad.numpy(), want[i])


def test_the_gradient_of_a_mask():
    q, k, v = (nm.asarray(drawn(2, 5, 4, dtype=np.float64)) for _ in range(3))
    mask = drawn(5, 5, dtype=np.float64)
    found = nm.grad(lambda m: (attend(q, k, v, m) ** 2).sum())(nm.asarray(mask)).numpy()
    for i, j in ((0, 0), (2, 3), (4, 1)):
        step = np.zeros((5, 5))
        step[i, j] = 1e-5
        up, down = ((attend(q, k, v, mask + s) ** 2).sum().item() for s in (step, -step))
        assert abs((up - down) / 2e-5 - found[i, j]) < 1e-8


# -- dropout --------------------------------------------------------------------------------------


def test_dropout_leaves_out_the_part_it_should():
    """With equal scores and one value a key, results count the weights that were kept."""
    keys = 200
    q, k, v = np.zeros((4, 50, 8), "f4"), drawn(4, keys, 8), np.eye(keys, dtype="f4")
    nm.random.seed(1)
    y = attend(q, k, v, dropout_p=0.3).numpy()
    kept = y != 0
    np.testing.assert_allclose(y[kept], 1 / (0.7 * keys), rtol=1e-5)
    assert abs(kept.mean() - 0.7) < 4 * math.sqrt(0.21 / kept.size)
    assert abs(kept.mean((0, 1)) - 0.7).max() < 6 * math.sqrt(0.21 / (4 * 50))
    assert not np.array_equal(kept[0], kept[1])


@pytest.mark.parametrize("shape", [(3, 40, 8), (1, 200, 8)])
def test_dropout_is_the_same_in_both_directions(shape):
    """The gradient by v tells which weights were kept, and q's is that of the weights kept."""
    arrays = [drawn(*shape, dtype=np.float64) for _ in range(3)]
    key = nm.random.key(11)

    def loss(q, k, v):
        return (attend(q, k, v, dropout_p=0.4, dropout_key=key) ** 2).sum()

    xs = [nm.asarray(a) for a in arrays]
    found = nm.grad(loss, (0, 1, 2))(*xs)
    for i, x in enumerate(arrays):
        direction = drawn(*x.shape, dtype=np.float64)
        moved = [
            loss(*(nm.asarray(a + s * direction) if j == i else a for j, a in enumerate(arrays)))
            for s in (1e-5, -1e-5)
        ]
        slope = (moved[0].item() - moved[1].item()) / 2e-5
        assert abs(slope - (found[i].numpy() * direction).sum()) < 1e-4 * max(1, abs(slope))


def test_dropout_draws_anew_unless_it_is_given_a_key():
    q = drawn(2, 20, 8)
    key = nm.random.key(3)
    a, b = (attend(q, q, q, dropout_p=0.5, dropout_key=key).numpy() for _ in range(2))
    np.testing.assert_array_equal(a, b)
    nm.random.seed(4)
    c, d = (attend(q, q, q, dropout_p=0.5).numpy() for _ in range(2))
    assert not np.array_equal(c, d)
    nm.random.seed(4)
    np.testing.assert_array_equal(c, attend(q, q, q, dropout_p=0.5).numpy())
    assert not attend(q, q, q, dropout_p=1.0).numpy().any()


# -- bits, kernels, memory ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options"), [((3, 200, 16), {}), ((1, 400, 16), {"is_causal": True})]
)
def test_the_number_of_threads_does_not_show(shape, options):
    runtime = nm.device("cpu").runtime
    assert isinstance(runtime, CpuRuntime)
    arrays, cotangent = [drawn(*shape) for _ in range(3)], drawn(*shape)
    before = runtime.pool.threads
    try:
        found = []
        for threads in (1, 2, 3):
            runtime.pool.set_threads(threads)
            found.append(gradients(arrays, cotangent, **options))
    finally:
        runtime.pool.set_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_kernel_or_two_give_the_same_bits(monkeypatch):
    from numus.compiler import plan as plans
    from numus.kernels.attention.cpu import backward as backward_kernel

    arrays, cotangent = [drawn(2, 300, 16) for _ in range(3)], drawn(2, 300, 16)
    found = []
    for split in (False, True):
        monkeypatch.setattr(
            backward_kernel, "use_two_kernels", lambda target, batch, split=split: split
        )
        plans.clear_plans()
        found.append(gradients(arrays, cotangent, is_causal=True))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def kernels(function):
    NULL.runtime.reset()
    nm.eval(function())
    return NULL.runtime.reset()


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout_p": 0.1}])
def test_the_fusion_budget(options):
    """Forwards one kernel; backwards the inner products, then one for all three gradients."""
    (qkv,) = tensors(np.zeros((8, 64, 3, 4, 16), "f4"), device=NULL)
    y = attend(*qkv.permute(2, 0, 3, 1, 4), **options)
    spent = kernels(lambda: y)
    assert spent.names == ["attention"]
    assert spent.bytes_read <= 3 * qkv.nbytes  # q, k and v are read where they lie
    assert spent.bytes_written == qkv.nbytes // 3 + 4 * 8 * 4 * 64
    g = nm.zeros(y.shape, device=NULL)
    spent = kernels(lambda: y.backward(g) or qkv.grad)
    assert spent.names.count("attention_grad") == 1
    assert "attention" not in spent.names


def test_keys_shared_by_heads_are_not_repeated():
    q = nm.zeros((2, 8, 64, 16), device=NULL)
    k = nm.zeros((2, 1, 64, 16), device=NULL)
    nm.eval([q, k])
    spent = kernels(lambda: attend(q, k, k, enable_gqa=True))
    assert spent.names == ["attention"]
    assert spent.bytes_written == q.nbytes + q.nbytes // 16  # the result, a number for each query


@pytest.mark.parametrize("options", [{"is_causal": True}, {"dropout_p": 0.1}])
def test_memory_is_linear_in_the_length(options):
    """On the null device: temporaries, results and scratch memory of its four workers, in both
    directions, as the length grows.
    """

    def peak(length):
        xs = tensors(*(np.zeros((1, 2, length, 64), "f4") for _ in range(3)), device=NULL)
        NULL.runtime.reset()
        before = NULL.runtime.memory_stats()["in_use"]
        attend(*xs, **options).sum().backward()
        nm.eval([x.grad for x in xs])
        return NULL.runtime.memory_stats()["peak"] - before

    assert peak(16384) < 2.1 * peak(8192) < 2.1 * 13 * 2 * 8192 * 64 * 4


def test_explain_counts_the_work_of_attention():
    """Two products; with their cotangents seven, as scores are computed again."""
    n, length, size = 6, 64, 32
    xs = tensors(*(np.zeros((1, n, length, size), "f4") for _ in range(3)), device=NULL)
    nm.eval(xs)
    (kernel,) = nm.explain(lambda: attend(*xs), timed=False).kernels
    assert kernel.flops == n * length**2 * (4 * size + 4)
    (causal,) = nm.explain(lambda: attend(*xs, is_causal=True), timed=False).kernels
    assert causal.flops == n * length * (length + 1) // 2 * (4 * size + 4)
    y = attend(*xs)
    y.backward(nm.ones(y.shape, device=NULL))
    grads = nm.explain(lambda: [x.grad for x in xs], timed=False).kernels
    found = [k.flops for k in grads if k.name == "attention_grad"]
    assert sum(found) >= n * length**2 * 10 * size


def test_a_long_sequence_fits_in_little_memory():
    """8192 keys, forwards and backwards, scratch of all threads included."""
    runtime = nm.device("cpu").runtime
    xs = tensors(*(drawn(1, 1, 8192, 16) for _ in range(3)))
    nm.eval(xs)
    runtime.memory.empty()
    before = runtime.memory_stats()
    y = attend(*xs, is_causal=True)
    y.sum().backward()
    nm.eval([x.grad for x in xs])
    held = runtime.memory_stats()
    grown = held["in_use"] + held["pooled"] - before["in_use"] - before["pooled"]
    # tiles follow the cache sizes; the scores alone would be 512 times 8192 * 16 * 4
    assert grown < 64 * 8192 * 16 * 4
    for x in xs:
        assert np.isfinite(x.grad.numpy()).all()


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (((4,), (4, 4), (4, 4)), {}, ShapeError, "two axes"),
        (((3, 4), (5, 3), (5, 4)), {}, ShapeError, "one size"),
        (((3, 4), (5, 4), (6, 4)), {}, ShapeError, "a value for each key"),
        (((2, 3, 4), (3, 5, 4), (3, 5, 4)), {}, ShapeError, "broadcast"),
        (((2, 3, 4), (3, 5, 4), (3, 5, 4)), {"enable_gqa": True}, ShapeError, "2 query heads"),
        (((3, 4), (5, 4), (5, 4)), {"enable_gqa": True}, ShapeError, "axis -3"),
        (((3, 4), (5, 4), (5, 4)), {"attn_mask": np.ones((4, 5))}, ShapeError, "broadcast"),
        (((3, 4), (5, 4), (5, 4)), {"attn_mask": np.ones((2, 3, 5))}, ShapeError, "attn_mask"),
        (((3, 4), (5, 4), (5, 4)), {"attn_mask": np.ones((3, 5), int)}, DTypeError, "int64"),
        (
            *(((3, 4), (5, 4), (5, 4)), {"attn_mask": np.ones((3, 5)), "is_causal": True}),
            *(ValueError, "not both"),
        ),
        (((3, 4), (5, 4), (5, 4)), {"dropout_p": 1.5}, ValueError, "between 0 and 1"),
    ],
)
def test_errors_name_what_is_wrong(arguments, options, error, words):
    with pytest.raises(error, match=words):
        attend(*(np.zeros(shape, "f4") for shape in arguments), **options)


@pytest.mark.parametrize("dtype", ["int64", "complex64", "bool"])
def test_only_floats_have_scores(dtype):
    x = np.zeros((3, 4), dtype)
    with pytest.raises(DTypeError, match="scaled_dot_product_attention"):
        attend(x, x, x)
