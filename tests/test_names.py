"""The table of NumPy's and PyTorch's names is true and complete."""

import pytest

import numus as nm
from tools import names
from tools.names_reasons import DIFFERENCES, ELSEWHERE


def test_every_missing_name_has_a_reason():
    assert names.unexplained() == []


def test_the_page_is_up_to_date():
    assert names.PATH.read_text() == names.page(), "run python -m tools.names"


@pytest.mark.parametrize("path", sorted(set(ELSEWHERE.values())))
def test_what_is_elsewhere_is_there(path):
    assert names.resolve(path) is not None


def test_differences_are_of_names_that_are_there():
    lost = [f"{peer}.{name}" for peer, name in DIFFERENCES if not names.has(peer, name)]
    assert not lost


def test_names_at_the_top_resolve():
    assert not [name for name in nm.__all__ if not hasattr(nm, name)]


# JAX's collectives, shardings and references have no counterpart on one device.
SHARES = {"jax": 0.5, "jax.lax": 0.75}


@pytest.mark.parametrize("peer", [peer for peer in names.peers() if peer != "numpy"])
def test_most_names_are_there(peer):
    assert names.share(peer) >= SHARES.get(peer, 0.85)
