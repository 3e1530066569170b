"""Index arithmetic of reshapes in kernels: correct for all extents, cheap for divisible ones."""

import itertools

import numpy as np
import pytest

import numus as nm

NULL = nm.device("null")
SHAPES = [(24,), (2, 12), (6, 4), (3, 8), (4, 3, 2), (2, 2, 6), (2, 2, 2, 3)]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(SHAPES, SHAPES)))
def test_reshape_of_a_transpose(before, after):
    x = np.arange(24, dtype=np.float32).reshape(before)
    want = x.T.reshape(after) * 3 + 1
    found = nm.asarray(x).T.reshape(after) * 3 + nm.ones(after)
    np.testing.assert_array_equal(found.numpy(), want)


def test_channel_groups_divide_no_pixel_index():
    """Pixels stay one vectorised loop; values of a group are loaded once for all of them."""
    x = nm.asarray(np.zeros((4, 16, 14, 14), np.float32), device=NULL)
    scale = nm.asarray(np.zeros((4, 4), np.float32), device=NULL)
    NULL.runtime.reset()
    nm.eval(nm.relu((x.reshape(4, 4, -1) * scale[..., None]).reshape(x.shape)) + x)
    (program,) = NULL.runtime.launched
    inner = program.text[program.text.index(": lanes") :]
    lanes = next(line.split()[1] for line in program.text.splitlines() if ": lanes" in line)
    divided = [line for line in inner.splitlines() if "idiv" in line or "irem" in line]
    assert divided
    assert not any(f"({lanes}," in line for line in divided)
    assert program.text.count(": lanes") == 1


@pytest.mark.parametrize("n", [1, 5, 37])
def test_index_whose_affine_terms_cancel(n):
    a = np.arange(n * n, dtype=np.float32).reshape(n, n)
    expected = np.diag(np.diag(a))
    np.testing.assert_array_equal(nm.jit(lambda x: nm.diag(nm.diag(x)))(nm.asarray(a)), expected)
    np.testing.assert_array_equal(nm.diag(nm.diag(nm.asarray(a) + 0)), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_, np.float16])
def test_every_element_twice_from_any_place_on(dtype):
    """Short vectors, each element for two lanes: odd and even beginnings, with remainders."""
    for length in (1, 3, 8, 20, 37):
        x = (np.arange(length) % 5).astype(dtype)
        twice = nm.reshape(nm.broadcast_to(nm.asarray(x)[:, None], (length, 2)), (2 * length,))
        wanted = np.repeat(x, 2)
        for start in (0, 1, 2, 3):
            for stop in (2 * length, 2 * length - 1):
                found = (twice[start:stop] == nm.asarray(wanted[start:stop])).numpy()
                assert found.all(), (length, start, stop)
