"""The fusion budget: how many kernels canonical graphs become, and how many bytes they move.

Counted on the null device, which launches nothing and is the same machine everywhere.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

import numus as nm

NULL = nm.device("null")
ROWS, COLUMNS = 64, 128
MATRIX = (ROWS, COLUMNS)
FLOAT = 4  # bytes


def given(*shape, dtype="float32"):
    """A tensor in the null device's memory."""
    return nm.asarray(np.zeros(shape, dtype), device=NULL)


def cost(function, *tensors):
    """The cost of evaluating a function's results."""
    NULL.runtime.reset()
    results = function(*tensors)
    nm.eval(results)
    return NULL.runtime.reset()


def cost_of_backward(function, *tensors):
    """The cost of the gradients of all tensors, after the value."""
    xs = [x.detach() for x in tensors]
    for x in xs:
        x.requires_grad = True
    y = function(*xs)
    nm.eval(y)
    cotangent = given(*y.shape)
    NULL.runtime.reset()
    y.backward(cotangent)
    nm.eval([x.grad for x in xs])
    return NULL.runtime.reset()


def chain(x):
    for i in range(50):
        x = (nm.sin(x) * 1.5, x + 0.25, nm.relu(x))[i % 3]
    return x


def adam(p, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * (m / 0.1) / (nm.sqrt(v / 0.001) + 1e-8), m, v


def attention_scores(q, k, mask):
    return nm.where(mask, q @ k.mT * 0.125, -nm.inf)


def batch_norm(x, w, b):
    variance, mean = x.var_mean((0, 2, 3), keepdims=True)
    scale, shift = (p.reshape(1, -1, 1, 1) for p in (w, b))
    return (x - mean) * nm.rsqrt(variance + 1e-5) * scale + shift


# name: the function, the shapes it takes, and the elements it may read and write (None: not told)
ONE_KERNEL = {
    "softmax": (nm.softmax, [MATRIX], ROWS * COLUMNS, ROWS * COLUMNS),
    "softmax over the first axis": (lambda x: nm.softmax(x, 0), [MATRIX], None, ROWS * COLUMNS),
    "log_softmax": (nm.log_softmax, [MATRIX], ROWS * COLUMNS, ROWS * COLUMNS),
    "logsumexp": (lambda x: nm.logsumexp(x, -1), [MATRIX], ROWS * COLUMNS, ROWS),
    "layer_norm": (
        *(nm.layer_norm, [MATRIX, (COLUMNS,), (COLUMNS,)]),
        *(ROWS * COLUMNS + 2 * COLUMNS, ROWS * COLUMNS),
    ),
    "rms_norm": (nm.rms_norm, [MATRIX, (COLUMNS,)], ROWS * COLUMNS + COLUMNS, ROWS * COLUMNS),
    "mean and variance": (
        *(lambda x: (x.mean(-1), x.var(-1)), [MATRIX]),
        *(ROWS * COLUMNS, 2 * ROWS),
    ),
    "mean and variance of all": (lambda x: (x.mean(), x.var()), [MATRIX], ROWS * COLUMNS, 2),
    "var_mean over the first axis": (lambda x: x.var_mean(0), [MATRIX], None, 2 * COLUMNS),
    "max and sum": (lambda x: (x.max(1), x.sum(1)), [MATRIX], ROWS * COLUMNS, 2 * ROWS),
    "batch norm": (batch_norm, [(8, 16, 10, 10), (16,), (16,)], 12_800 + 32, 12_800),
    "standardised": (lambda x: (x - x.mean()) / x.std(), [MATRIX], ROWS * COLUMNS, ROWS * COLUMNS),
    "rows of length one": (
        *(lambda x: x / nm.vector_norm(x, axis=1, keepdims=True), [MATRIX]),
        *(ROWS * COLUMNS, ROWS * COLUMNS),
    ),
    "fifty operations": (chain, [(1000,)], 1000, 1000),
    "adam": (adam, [(1000,)] * 4, 4000, 3000),
    "x + x.T": (lambda x: x + x.T, [(64, 64)], None, 64 * 64),
    "linear, gelu": (
        *(lambda x, w, b: (x @ w + b).gelu(), [MATRIX, (COLUMNS, 256), (256,)]),
        *(None, ROWS * 256),
    ),
    "linear, residual": (
        *(lambda x, w, b: x + nm.relu(x @ w.T + b), [MATRIX, (COLUMNS, COLUMNS), (COLUMNS,)]),
        *(None, ROWS * COLUMNS),
    ),
    "convolution, bias, relu": (
        *(lambda x, w, b: nm.relu(nm.conv2d(x, w, b, padding=1)),),
        *([(2, 16, 12, 12), (24, 16, 3, 3), (24,)],),
        *(2 * 16 * 144 + 24 * 16 * 9 + 24, 2 * 24 * 144),
    ),
    "relu, max pool, scaled": (
        *(lambda x: nm.max_pool2d(nm.relu(x), 3, 2, 1) * 2, [(2, 4, 16, 16)]),
        *(2 * 4 * 256, 2 * 4 * 64),
    ),
    "mean pool": (lambda x: nm.avg_pool2d(x, 2), [(2, 4, 16, 16)], 2 * 4 * 256, 2 * 4 * 64),
    "bilinear": (
        *(lambda x: nm.interpolate(x, scale_factor=2, mode="bilinear"), [(2, 4, 8, 8)]),
        *(None, 2 * 4 * 256),
    ),
    "transposed convolution": (
        *(lambda x, w: nm.conv_transpose2d(x, w, stride=2),),
        *([(2, 16, 12, 12), (16, 24, 2, 2)], None, 2 * 24 * 576),
    ),
    "masked scores": (
        *(lambda q, k: attention_scores(q, k, nm.tri(32, dtype="bool", device=NULL)),),
        *([(2, 32, 16), (2, 32, 16)], None, 2 * 32 * 32),
    ),
    "views, gathered and added": (
        *(lambda x, y: x.T.reshape(-1)[::2] + y, [(8, 6), (24,)]),
        *(None, 24),
    ),
    "embedding scaled": (
        *(lambda w: w[nm.asarray(np.arange(5), device=NULL)] * 8.0, [(100, 16)]),
        *(None, 80),
    ),
    "pad and roll": (lambda x: nm.roll(nm.pad(x, 3, "reflect"), 2) * 2, [(20,)], None, 26),
    "dropout": (
        *(lambda x: nm.relu(nm.random.dropout(x, 0.5)) * 2, [MATRIX]),
        *(ROWS * COLUMNS, ROWS * COLUMNS),
    ),
    "random normals": (lambda: nm.random.normal((1000,), 1.0, 2.0, device=NULL), [], 0, 1000),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    function, shapes, read, written = ONE_KERNEL[name]
    counts = cost(function, *(given(*shape) for shape in shapes))
    assert counts.kernels == 1, counts.names
    assert counts.bytes_written == written * FLOAT
    if read is not None:
        assert counts.bytes_read == read * FLOAT


# name: the function, its shapes, and the most kernels that its gradients may take
BACKWARD = {
    "softmax": (nm.softmax, [MATRIX], 1),
    "log_softmax": (nm.log_softmax, [MATRIX], 1),
    "batch norm": (batch_norm, [(8, 16, 10, 10), (16,), (16,)], 2),
    "layer_norm": (nm.layer_norm, [MATRIX, (COLUMNS,), (COLUMNS,)], 2),
    "rms_norm": (nm.rms_norm, [MATRIX, (COLUMNS,)], 2),
    "fifty operations": (chain, [(1000,)], 1),
    "linear": (lambda x, w, b: x @ w + b, [MATRIX, (COLUMNS, 256), (256,)], 3),
    "gelu": (nm.gelu, [MATRIX], 1),
    # the maxima, their taps, and the cotangent with its neighbours: then all loads are in order
    "max pool": (lambda x: nm.max_pool2d(x, 3, 2, 1), [(2, 4, 16, 16)], 4),
    "mean pool": (lambda x: nm.avg_pool2d(x, 2), [(2, 4, 16, 16)], 1),
    "bilinear": (
        *(lambda x: nm.interpolate(x, scale_factor=2, mode="bilinear"), [(2, 4, 8, 8)], 2),
    ),
    "convolution": (
        *(lambda x, w: nm.conv2d(x, w, padding=1, stride=2),),
        *([(4, 16, 12, 12), (24, 16, 3, 3)], 3),
    ),
    "x + x.T": (lambda x: x + x.T, [(64, 64)], 1),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name):
    function, shapes, most = BACKWARD[name]
    counts = cost_of_backward(function, *(given(*shape) for shape in shapes))
    assert counts.kernels <= most, counts.names


def test_a_long_sum_is_a_pass_and_a_combination():
    """Nothing but partial sums comes between; a short sum needs no second kernel."""
    counts = cost(lambda x: nm.relu(x * 2 + 1).sum(), given(1_000_000))
    assert counts.kernels == 2
    assert counts.bytes_read < 1_000_000 * FLOAT + 1000
    assert counts.bytes_written < 1000
    assert cost(lambda x: nm.relu(x * 2 + 1).sum(), given(1000)).kernels == 1


def losses(smoothing):
    from numus.nn import functional as F

    x, target = given(ROWS, COLUMNS), given(ROWS, dtype="int64")
    x.requires_grad = True

    def both():
        loss = F.cross_entropy(x, target, label_smoothing=smoothing)
        loss.backward()
        return loss, x.grad

    return cost(both)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_reads_the_scores_once(smoothing):
    """How many targets count; all that is done with a row of scores; the mean."""
    counts = losses(smoothing)
    assert counts.names == ["row_reduction"] * 3
    assert counts.bytes_written < (ROWS * COLUMNS + 8 * ROWS) * FLOAT


def test_log_softmax_and_its_gradient_are_one_pass():
    x, g = given(*MATRIX), given(*MATRIX)
    x.requires_grad = True

    def both():
        y = nm.log_softmax(x)
        y.backward(g)
        return y, x.grad

    counts = cost(both)
    assert counts.names == ["row_reduction"]
    assert counts.bytes_written <= 2 * x.nbytes + 4 * ROWS * FLOAT


def test_nothing_runs_for_views_of_memory():
    x = given(8, 6)
    assert (
        cost(lambda: [x.T, x[1:, ::-1], x.reshape(4, 12), nm.broadcast_to(x, (3, 8, 6))]).kernels
        == 0
    )


def test_siblings_share_a_pass():
    x = given(64, 100)
    y = nm.exp(x)
    counts = cost(lambda: (y + 1, y * 2, y.sum(1)))
    assert counts.kernels == 1
    assert counts.bytes_read == x.nbytes


def test_a_linear_layer_over_sequences_stores_its_result_once():
    """Bias and residual are the GEMM's epilogue although the GEMM is reshaped, and although
    several kernels read the sum.
    """
    x, w, b = given(4, 16, 32), given(32, 32), given(32)

    def block(x):
        y = x + x @ w + b
        return y.softmax(-1), y @ w

    found = cost(block, x)
    assert sorted(found.names) == ["gemm", "gemm", "row_reduction"]
    assert found.bytes_written == 3 * 4 * 16 * 32 * FLOAT


def test_an_activation_is_the_epilogue_of_its_gemm():
    """Also in two dimensions, and although the next GEMM could compute it while packing."""
    x, w, b = given(64, 32), given(32, 32), given(32)
    found = cost(lambda x: nm.relu(nm.relu(x @ w + b) @ w + b) @ w, x)
    assert found.names == ["gemm"] * 3
    # the bias goes in where the product comes out: the next one reads its operands and no more
    last = found.bytes_read - 2 * (64 * 32 + 32 * 32 + 32) * FLOAT
    assert last == (64 * 32 + 32 * 32) * FLOAT


def test_gradients_of_slices_are_concatenated():
    """The gradient of the whole needs no zeros and no sums."""
    x, w = given(4, 16, 24), given(24, 24)

    def cotangent(x):
        def loss(x):
            q, k, v = nm.split(x @ w, 3, axis=-1)
            return (q * k + v).sum()

        return nm.grad(loss)(x)

    found = cost(cotangent, x)
    assert found.bytes_written <= (3 * 4 * 16 * 24 + 4 * 16 * 24) * FLOAT


def test_gradients_of_disjoint_windows_are_pointwise():
    """The gradient of means over blocks reads one element for each of its own."""
    x = given(2, 4, 16, 16)
    for pool in (lambda x: nm.adaptive_avg_pool2d(x, 1), lambda x: nm.avg_pool2d(x, 4)):
        assert cost_of_backward(pool, x).names == ["pointwise"]


def test_cheap_values_are_recomputed():
    """Between two convolutions only the result of the first is kept, and its statistics."""
    x, w1, w2 = given(8, 16, 16, 16), given(32, 16, 3, 3), given(32, 32, 3, 3)
    scale, shift = given(32), given(32)

    def convolutions(x, w1, scale, shift, w2):
        y = batch_norm(nm.conv2d(x, w1, padding=1), scale, shift)
        return nm.conv2d(nm.relu(y), w2, padding=1)

    counts = cost(convolutions, x, w1, scale, shift, w2)
    image = 8 * 32 * 256 * FLOAT
    assert counts.bytes_written <= 2 * image + 2 * (w1.nbytes + w2.nbytes) + 1000


@pytest.mark.parametrize(
    ("activation", "most"), [(nm.gelu, 2.7), (nm.relu, 1.7), (nm.softmax, 3.4)]
)
def test_the_fewest_bytes_are_saved_for_backward(activation, most):
    """Of a gelu its input and its expensive part, of a softmax its exponentials; cotangents of
    elementwise functions are written in place.
    """
    x, w1, w2, w3 = given(512, 64), given(64, 512), given(512, 64), given(64, 64)

    def step(x, *weights):
        def loss(w1, w2, w3):
            y = activation(x @ w1) @ w2
            return (nm.tanh(y) @ w3).square().sum()

        return nm.grad(loss, (0, 1, 2))(*weights)

    counts = cost(step, x, w1, w2, w3)
    assert counts.bytes_allocated <= most * 512 * 512 * FLOAT


def test_no_copy_of_windows_is_ever_stored():
    """Windows overlap nine times; a convolution and its gradients store what they are asked for,
    and scratch memory of four workers.
    """
    x, w = given(4, 16, 24, 24), given(32, 16, 3, 3)

    def gradients(x, w):
        return nm.grad(lambda x, w: nm.conv2d(x, w, padding=1).sum(), (0, 1))(x, w)

    counts = cost(gradients, x, w)
    assert counts.bytes_allocated <= 2 * x.nbytes + 20 * w.nbytes, counts.bytes_allocated


def test_lanes_run_along_rows_whatever_is_stored_per_row():
    """Statistics and weights of channels are touched once per channel: they don't decide."""
    x, w, b = given(8, 16, 10, 10), given(16), given(16)

    def with_statistics(x, w, b):
        variance, mean = x.var_mean((0, 2, 3), keepdims=True)
        return batch_norm(x, w, b), variance, mean

    nm.eval(with_statistics(x, w, b))
    (kernel,) = NULL.runtime.launched[-1:]
    lanes = [line for line in kernel.text.splitlines() if "lanes" in line and "for" in line]
    assert len(lanes) == 3  # a loop over the row for each stage, not one around them
    assert all(line.startswith("      ") for line in lanes)


def test_a_costly_number_that_many_kernels_use_is_computed_once():
    t, xs = given(), [given(8 + i, 3) for i in range(6)]

    def corrected(t):
        factor = 1 - 0.9**t
        return [x * factor for x in xs]

    found = cost(corrected, t)
    assert found.names.count("scalar") == 1
    assert found.kernels == 7


def test_intermediates_share_memory():
    """A long plan has two temporaries live at a time, not all of them."""
    x = given(64, 64)

    def program(y):
        for _ in range(10):
            y = nm.softmax(y @ x, 0)
        return y

    counts = cost(program, x)
    assert counts.bytes_allocated <= 4 * x.nbytes, counts.bytes_allocated / x.nbytes


def test_a_widened_product_read_through_many_views_is_stored_narrow():
    x = given(64, 128, dtype="float32").astype("bfloat16")
    nm.eval(x)

    def program(x):
        y = (x @ x.T).astype("float32")
        return sum(nm.roll(y, i, 1) * i for i in range(1, 13))

    assert cost(program, x).bytes_written == 64 * 64 * (2 + FLOAT)


def test_pieces_of_a_long_expression_widen_what_they_read():
    x, y = given(64, 64).astype("bfloat16"), given(64, 64)
    nm.eval([x, y])

    def program(x, y):
        wide = (x @ x).astype("float32")
        for _ in range(300):
            y = y * 0.5 + wide
        return y

    counts = cost(nm.jit(program), x, y)
    assert counts.kernels > 1
    assert counts.bytes_written == 64 * 64 * (2 + counts.kernels * FLOAT)  # the product, and y


# -- kernels are made for structure, not for sizes ------------------------------------------------


def test_a_thousand_lengths_compile_few_kernels():
    null = NULL.runtime
    sources = set()
    for n in (*range(2, 902), *range(1000, 1_000_000, 10_007)):
        null.reset()
        nm.eval(nm.relu(given(n) * 2 + 1).sum())
        sources |= {program.source for program in null.launched}
    assert len(sources) <= 3


PROGRAM = """
import numus as nm
for n in (1, 3, 8, 50, 1000, 4097, 100_000):
    x = nm.ones((n,)) * 3
    nm.eval(x)
    nm.relu(x * 2 + 1).sum().item()
    nm.softmax(nm.ones((n, 3)) * 2).numpy()
log = nm.compile_log()
print(len(log), sum(r.cause == "compiled" for r in log))
"""


def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMUS_CACHE_DIR": str(tmp_path), "NUMUS_DEVICE": "cpu"}

    def kernels():
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return tuple(map(int, done.stdout.split()))

    first, second = kernels(), kernels()
    assert first[0] == first[1] <= 12
    assert second == (first[0], 0)


def test_a_scan_fuses_its_operand_and_its_epilogue():
    found = cost(lambda x: nm.cumsum(nm.exp(x), axis=1) * 2 + 1, given(*MATRIX))
    assert found.names == ["scan_sum"]
    # a long row: totals of its parts, what comes before them, and the parts
    found = cost(lambda x: nm.cumsum(nm.exp(x)) * 2 + 1, given(1 << 20))
    assert found.names == ["scan_sum_totals", "scan_sum_carries", "scan_sum_parts"]
    assert found.bytes_written < (FLOAT << 20) + 4096


def test_tall_columns_are_read_in_order():
    """Stages over columns too long for a cache are kernels of their own, which read whole lines."""
    found = cost(lambda x: nm.softmax(x, axis=0), given(4096, 64))
    assert "row_reduction" not in found.names
    assert cost(lambda x: nm.softmax(x, axis=0), given(512, 64)).names == ["row_reduction"]


def test_images_with_channels_last_are_written_as_they_are_read():
    """The normalisation of channels first is a pass over whole lines, its result row-major."""
    x = given(2, 16, 16, 32)
    norm = lambda x: nm.batch_norm(x.transpose(0, 3, 1, 2), training=True).transpose(0, 2, 3, 1)
    found = cost(norm, x)
    assert "pointwise_tiled" not in found.names
    whole = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)
    z = norm(nm.asarray(whole, device="cpu"))  # GPUs keep the order of channels first
    wanted = (whole - whole.mean((0, 1, 2))) / np.sqrt(whole.var((0, 1, 2)) + 1e-5)
    assert np.allclose(z.numpy(), wanted, atol=1e-5)
    assert z._node.view.strides == (60, 20, 4, 1)
