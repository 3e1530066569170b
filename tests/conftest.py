"""Test configuration; tests in any folder can import the helpers next to this file."""

import gc
import os
from collections import Counter

import pytest
from hypothesis import settings
from sampled import SAMPLED

from numus.errors import DeviceError, DTypeError

# What a test run says depends on the code alone: every run draws the same examples. To go looking
# for new ones: `pytest --hypothesis-profile=search`.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("steady")


# Compilers allocate much and leave few cycles: the collector takes 4 % of the time otherwise.
gc.set_threshold(50_000, 50, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--update-snapshots",
        action="store_true",
        help="write the kernels of tests/snapshots anew instead of comparing them",
    )


# Tests that compile kernels as users run them.
OPTIMISED = ("tests/kernels/", "tests/compiler/test_cpu_gemm.py")


def pytest_configure(config):
    # Most tests run each of their kernels once, on little data: LLVM's code generator takes longer
    # than everything else if it optimises. In slow tests it does.
    if config.option.markexpr == "not slow":
        os.environ.setdefault("NUMUS_OPT_LEVEL", "0")
    if "simt" in os.environ.get("NUMUS_TEST_DEVICES", "").split(","):
        import simt_machine

        simt_machine.install()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark cases that are slow; all tests may run with another default device, but for those that
    are about the CPU."""
    if "cuda" not in os.environ.get("NUMUS_TEST_DEVICES", ""):
        seen = Counter()
        for item in items:
            name = getattr(item, "originalname", "")
            every = SAMPLED.get(item.path.name, {}).get(name)
            if every is not None:
                if seen[item.path, name] % every:
                    item.add_marker(pytest.mark.slow)
                seen[item.path, name] += 1
    if os.environ.get("NUMUS_DEVICE", "cpu") == "cpu":
        return
    for item in items:
        mark = item.get_closest_marker("on_cpu")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"about the CPU: {mark.args[0]}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Tests are millions of objects and no garbage: garbage collections need not visit them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _templates_in_memory():
    """Tests change the numbers of schedules: what they lower is for no other process."""
    from numus.compiler.lower import stored_templates

    stored_templates.enabled = False


@pytest.fixture(autouse=True, scope="module")
def _opt_level(request):
    """Kernels of some tests are compiled as users run them."""
    from numus.runtime import devices

    compiler = devices.device("cpu").runtime.compiler
    given = compiler.opt_level
    if request.node.nodeid.startswith(OPTIMISED):
        compiler.opt_level = 2
    yield
    compiler.opt_level = given


@pytest.fixture(autouse=True, scope="module")
def _old_objects_are_frozen():
    """Plans and templates of earlier modules are millions of objects: garbage collections, of
    which tests ask for many, visit what this module has made."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fast_gc():
    """Garbage collections of what a test makes alone, however many objects are there before."""
    gc.collect()
    gc.freeze()


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
