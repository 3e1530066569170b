"""What kernels of sparse products read: operands in memory, no index of values that are all one."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import graphs
from numus.sparse.products import product, transposed_product

simt_machine.install()
RNG = np.random.default_rng(3)
EDGES = graphs.EdgeIndex(RNG.integers(0, 30, (2, 200)), (30, 30))


def launched(run):
    """The result, and the operations of each kernel."""
    runtime = nm.device("simt_sm90").runtime
    runtime.launched.clear()
    found = run().numpy()
    return found, [set(program.kernel.notes) for program in runtime.launched]


def adjacency():
    return EDGES.adjacency().to_dense().numpy().astype(np.float32)


@pytest.mark.parametrize("columns", [1, 8])
def test_costly_operands_are_stored_before_they_are_read_again_and_again(columns):
    x = RNG.standard_normal((30, columns)).astype(np.float32)
    given, ones = (nm.asarray(a, device="simt_sm90") for a in (x, np.ones(200, np.float32)))
    found, notes = launched(lambda: product(EDGES.pattern, ones, nm.exp(given) / (1 + given**2)))
    assert not any({"exp", "csr_matmul"} <= n for n in notes)
    np.testing.assert_allclose(found, adjacency() @ (np.exp(x) / (1 + x**2)), 1e-5)


def test_ones_in_another_order_are_ones():
    x = RNG.integers(-3, 4, (30, 8)).astype(np.float32)
    ones = nm.ones((200,), device="simt_sm90")
    found, notes = launched(
        lambda: transposed_product(EDGES.pattern, ones, nm.asarray(x, device="simt_sm90"))
    )
    assert not any("gather" in n for n in notes)
    np.testing.assert_array_equal(found, adjacency().T @ x)


def test_an_element_of_a_broadcast_scalar_is_that_scalar():
    at = nm.asarray([0, 2, 50])
    x = nm.broadcast_to(nm.asarray(2.5), (4, 3))
    np.testing.assert_array_equal(nm.take(x, at, axis=0, mode="clip").numpy(), np.full((3, 3), 2.5))
