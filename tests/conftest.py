"""Test configuration; tests in any folder can import the helpers next to this file."""

import gc
import os

import pytest
from hypothesis import settings

from numus.errors import DeviceError, DTypeError

# What a test run says depends on the code alone: every run draws the same examples. To go looking
# for new ones: `pytest --hypothesis-profile=search`.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("steady")


def pytest_addoption(parser):
    parser.addoption(
        "--update-snapshots",
        action="store_true",
        help="write the kernels of tests/snapshots anew instead of comparing them",
    )


def pytest_configure(config):
    if "simt" in os.environ.get("NUMUS_TEST_DEVICES", "").split(","):
        import simt_machine

        simt_machine.install()


def pytest_collection_modifyitems(items):
    """All tests may run with another default device, but for those that are about the CPU."""
    if os.environ.get("NUMUS_DEVICE", "cpu") == "cpu":
        return
    for item in items:
        mark = item.get_closest_marker("on_cpu")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"about the CPU: {mark.args[0]}"))


@pytest.fixture(autouse=True, scope="session")
def _templates_in_memory():
    """Tests change the numbers of schedules: what they lower is for no other process."""
    from numus.compiler.lower import stored_templates

    stored_templates.enabled = False


@pytest.fixture
def fast_gc():
    """Garbage collections of what a test makes: those of a long run have millions of objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# Features that a WebGPU adapter may lack: errors with tests of their own.
_MISSING = ("lacks the feature", "the feature shader-", "loop iteration limit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """With another default device, a missing feature is no failure."""
    try:
        return (yield)
    except (DeviceError, DTypeError) as error:
        other = os.environ.get("NUMUS_DEVICE", "cpu") != "cpu"
        if other and any(words in str(error) for words in _MISSING):
            pytest.skip(str(error))
        raise
