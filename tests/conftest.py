"""Test configuration; tests in any folder can import the helpers next to this file."""

import gc
import os
from collections import Counter

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


# Cases of these compile kernels for every size and dtype, or run kernels of GPUs thread by thread
# in Python. Every third one runs by default, all of them with `-m slow` or on a GPU.
SAMPLED = {
    "test_against_reference.py": {"test_scans_and_sorts"},
    "test_column_packing.py": {"test_columns_of_narrow_matrices"},
    "test_convolution.py": {"test_values_and_gradients"},
    "test_cpu_gemm.py": {"test_values"},
    "test_factor.py": {"test_factorisations_on_the_device"},
    "test_gpu_gemm.py": {"test_every_tile_shape", "test_matmul"},
    "test_implicit_gemm_conv.py": {"test_values_and_gradients"},
    "test_padded_gemm_conv.py": {"test_values_and_gradients"},
    "test_simt_kernels.py": {"test_onesweep_sorts", "test_reductions"},
    "test_sort.py": {"test_every_dtype"},
    "test_thread_blocks.py": {"test_as_rendered", "test_rows_of_several_ctas"},
    "test_webgpu_kernels.py": {
        "test_convolutions_and_their_gradients",
        "test_matmul_of_all_operand_layouts",
    },
    "test_wgmma_attention.py": {"test_simt_values_and_gradients", "test_values_and_gradients"},
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark cases that are slow; all tests may run with another default device, but for those that
    are about the CPU."""
    if "cuda" not in os.environ.get("NUMUS_TEST_DEVICES", ""):
        seen = Counter()
        for item in items:
            name = getattr(item, "originalname", "")
            if name in SAMPLED.get(item.path.name, ()):
                seen[item.path, name] += 1
                if seen[item.path, name] % 3 != 1:
                    item.add_marker(pytest.mark.slow)
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
