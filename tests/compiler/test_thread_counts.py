"""The same bits whatever the number of threads, and right ones from several Python threads."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from agreement import CPU
from fuzz_graphs import disagreement
from fuzz_programs import make
from in_threads import in_threads

import numus as nm
from numus import dtypes as dt
from numus.evaluation.evaluate import evaluate, from_host, host_array
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.primitives.broadcast import reduce_sum
from numus.primitives.contract import contract
from numus.primitives.indexing import scatter
from numus.primitives.reduce import reduce_prod, reduce_sqdev
from numus.primitives.scan import scan

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((301, 1037)).astype(np.float32)
LONG = RNG.standard_normal(300_000).astype(np.float32)
PLACES = RNG.integers(0, 500, LONG.size)


def softmax(x):
    e = ew.exp(x)
    return ew.div(e, views.reshape(reduce_sum(e, (1,)), (x.shape[0], 1)))


def deep_product(x):
    return contract(views.reshape(x, (1, 30, 10_000)), views.reshape(x, (1, 10_000, 30)), x.dtype)


def product(x):
    a = views.reshape(x, (1, *x.shape))
    return ew.tanh(contract(a, views.permute(a, (0, 2, 1)), x.dtype))


def scattered(x):
    zeros = from_host(np.zeros(500, np.float32), dt.float32, CPU)
    return scatter(zeros, (from_host(PLACES, dt.int64, CPU),), x, (0,), "add")


GRAPHS = {
    "sum of rows": (TABLE, lambda x: reduce_sum(x, (1,))),
    "sum of columns": (TABLE, lambda x: reduce_sum(x, (0,))),
    "sum": (LONG, lambda x: reduce_sum(x, (0,))),
    "product of all": (LONG, lambda x: reduce_prod(ew.cos(x), (0,))),
    "deviations": (LONG, lambda x: reduce_sqdev(x, (0,))),
    "deviations of columns": (TABLE, lambda x: reduce_sqdev(x, (0,))),
    "running sum": (LONG, lambda x: scan("sum", x, 0)),
    "running sums of columns": (TABLE, lambda x: scan("sum", x, 0)),
    "softmax": (TABLE, softmax),
    "matrix product": (TABLE, product),
    "deep product": (LONG, deep_product),
    "scatter": (LONG, scattered),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_thread_count_never_shows(name):
    array, build = GRAPHS[name]
    before = nm.get_num_threads()
    try:
        found = set()
        for count in (1, 2, 3, 5):
            nm.set_num_threads(count)
            found.add(host_array(build(from_host(array, dt.float32, CPU))).tobytes())
    finally:
        nm.set_num_threads(before)
    assert len(found) == 1


@pytest.fixture
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_threads_with_graphs_of_their_own(many_switches):
    seeds = [s for s in range(40) if not make(s).small_blocks]

    def work(number):
        for seed in seeds if number else reversed(seeds):
            assert disagreement(make(seed)) is None

    in_threads(work, 2)


def test_threads_that_share_a_graph(many_switches):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    double = array + array
    sums = (double * double).sum(1, keepdims=True)
    wanted = [double.reshape(24), double * sums, double.reshape(6, 4).T, double]
    rounds = 300
    together = threading.Barrier(2)
    shared = []

    def work(number):
        rng = np.random.default_rng(number)
        for _ in range(rounds):
            if number == 0:
                x = from_host(array, dt.float32, CPU)
                y = ew.add(x, x)
                row = views.reshape(reduce_sum(ew.mul(y, y), (1,)), (4, 1))
                shared[:] = [y, views.reshape(y, (6, 4)), row]
            together.wait(60)
            y, z, row = shared
            nodes = [
                views.reshape(views.reshape(z, (2, 12)), (24,)),
                ew.mul(y, row),
                views.permute(z, (1, 0)),
                views.reshape(z, (4, 6)),
            ]
            evaluate([nodes[k] for k in rng.permutation(4)[:2]])
            for node, want in zip(nodes, wanted, strict=True):
                np.testing.assert_array_equal(host_array(node), want)
            together.wait(60)

    in_threads(work, 2)
