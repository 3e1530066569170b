"""Choice between numus's kernels and a vendor's."""

import pytest

import numus as nm
from numus.kernels.vendor import registry


@pytest.fixture
def vendors(monkeypatch):
    """A registry of the test's own."""
    monkeypatch.setattr(registry._State, "registered", ())
    monkeypatch.setattr(registry._State, "preferred", "auto")

    def add(name, is_supported, is_faster):
        vendor = nm.kernels.Vendor(
            name, "double", is_supported, is_faster, lambda runtime, problem: None
        )
        nm.kernels.register(vendor)
        return vendor

    return add


def test_preferences():
    before = nm.kernels.preference()
    with nm.kernels.prefer("native"):
        assert nm.kernels.preference() == "native"
        with nm.kernels.prefer("vendor"):
            assert nm.kernels.preference() == "vendor"
        assert nm.kernels.preference() == "native"
    assert nm.kernels.preference() == before
    nm.kernels.prefer("native")
    assert nm.kernels.preference() == "native"
    nm.kernels.prefer(before)
    with pytest.raises(ValueError, match="'fastest' must be one of 'native', 'vendor', 'auto'"):
        nm.kernels.prefer("fastest")
    assert nm.kernels.preference() == before


def test_choice(vendors):
    small = vendors("small", lambda n, target: n < 10, lambda n, target: n > 5)
    assert nm.kernels.available() == ("small",)
    assert registry.choose_vendor("double", 8, None) is small
    assert registry.choose_vendor("double", 3, None) is None  # not faster
    assert registry.choose_vendor("halve", 8, None) is None
    with nm.kernels.prefer("vendor"):
        assert registry.choose_vendor("double", 3, None) is small
        assert registry.choose_vendor("double", 30, None) is None  # not supported
    with nm.kernels.prefer("native"):
        assert registry.choose_vendor("double", 8, None) is None
    large = vendors("large", lambda n, target: n > 6, lambda n, target: True)
    assert registry.choose_vendor("double", 8, None) is large  # the later one is asked first
    again = vendors("small", lambda n, target: True, lambda n, target: True)
    assert nm.kernels.available() == ("large", "small")
    assert registry.choose_vendor("double", 8, None) is again
