"""What starting costs, by the modules that are imported: programs pay for what they use."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.on_cpu("what its first operation loads")

HEAVY = "llvmlite ml_dtypes scipy wgpu"
LATER = (
    "cli codegen compiler.plan data fft ir linalg nn optim runtime.cpu runtime.cuda runtime.webgpu"
)
FAMILIES = "attention conv matmul scan scatter sort"


def modules_after(code, **env):
    """The modules of a fresh process that runs some code."""
    code += "\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def imported():
    return modules_after("import numus")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    # with no kernels on disk, or those of other tests would leave less to import
    cache = str(tmp_path_factory.mktemp("kernels"))
    code = "import numus as nm\n(nm.ones((3, 4)) + 1).sum().item()"
    return modules_after(code, NUMUS_CACHE_DIR=cache)


@pytest.mark.parametrize("name", [*HEAVY.split(), *(f"numus.{n}" for n in LATER.split())])
def test_import_is_light(name, imported):
    assert name not in imported


def test_number_of_modules(imported, evaluated):
    """A bound with some room: each module costs about half a millisecond."""
    assert len([m for m in imported if m.startswith("numus")]) <= 190
    assert len([m for m in evaluated if m.startswith("numus")]) <= 310


@pytest.mark.parametrize("name", FAMILIES.split())
def test_first_operation_imports_no_other_family(name, evaluated):
    assert f"numus.compiler.lower.{name}" not in evaluated
    assert "numus.compiler.lower.loops" in evaluated


@pytest.mark.parametrize(
    "name", ["numus.codegen.nvptx", "numus.codegen.wgsl", "numus.terminal", "wgpu"]
)
def test_first_operation_needs_no_other_backend(name, evaluated):
    assert name not in evaluated


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")
def test_submodules_load_when_asked_for():
    """By import and as attributes, each in a copy of one process that has numus alone."""
    code = """
import os, sys
import numus as nm
for name in ("data", "fft", "linalg", "nn", "optim"):
    for statement in (f"from numus import {name}; assert nm.{name} is {name}", f"nm.{name}"):
        child = os.fork()
        if not child:
            assert f"numus.{name}" not in sys.modules
            exec(statement)
            os._exit(0 if f"numus.{name}" in sys.modules else 1)
        assert os.waitpid(child, 0)[1] == 0, statement
"""
    modules_after(code)


def test_functions_load_when_asked_for():
    code = "import numus as nm\nfrom numus import *\nassert vdot is nm.vdot is nm.linalg.vdot"
    assert "numus.linalg" in modules_after(code)


def test_scipy_is_optional():
    """Kernels do without it; the reference device, whose special functions are SciPy's, says so."""
    code = """
import sys
sys.modules["scipy"] = None
import numus as nm
assert abs(nm.erf(nm.asarray(1.0)).item() - 0.8427007929) < 1e-6
assert nm.linalg.solve(nm.eye(2) * 2, nm.ones(2)).tolist() == [0.5, 0.5]
assert nm.fft.fft(nm.ones(4)).tolist() == [4, 0, 0, 0]
try:
    nm.erf(nm.asarray(1.0, device="reference")).item()
except ImportError as error:
    assert "numus[scipy]" in str(error)
else:
    raise AssertionError("no error")
"""
    modules_after(code)


def test_every_family_is_found():
    from numus.compiler.lower import dispatch

    for kind in dispatch.FAMILIES:
        for simt in (False, True):
            assert callable(dispatch._family(kind, simt))
